"""A confined process and its children stay within limits and off the network; in real child processes."""

import errno
import os
import re
import socket
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from processes import ROOT, printed_by

from hubmerge.errors import DeviceError, EvaluationError
from hubmerge.evaluation.sandbox_rules import rules
from hubmerge.isolation import seccomp
from hubmerge.isolation.child import MAX_LAST_WORDS, ChildJob, how_ended, run_child
from hubmerge.isolation.confinement import _NO_NETWORK
from hubmerge.isolation.seccomp import SyscallRule, assemble

IMPORT = "from hubmerge.isolation.confinement import Limits, confine\n"
ALLOW, KILL, ENOSYS, EPERM = "allow", "kill", errno.ENOSYS, errno.EPERM


def child(code: str, *, limits: str = "", network: bool = False) -> list[str]:
    """The lines that `code` prints after `confine(Limits(…))`."""
    head = f"{IMPORT}confine(Limits({limits}), network={network})\n"
    return printed_by(head + textwrap.dedent(code)).split()


def test_no_socket_opens_but_the_local_ones_also_in_a_child_and_a_running_thread():
    code = """
    import errno, itertools, socket
    families = (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, socket.AF_VSOCK)
    for family, kind in itertools.product(families, (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW)):
        try:
            socket.socket(family, kind)
            print("open")
        except OSError as error:
            print(errno.errorcode[error.errno])
    socket.socketpair()
    socket.socket(socket.AF_UNIX).close()
    """
    assert child(code) == ["EACCES"] * 15
    code = """
    import subprocess, sys
    probe = "import socket\\ntry:\\n socket.socket()\\n print('open')\\nexcept PermissionError:\\n print('refused')"
    print(subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env={}).stdout)
    """
    assert child(code) == ["refused"]
    early = """
    import socket, threading
    ready, go = threading.Event(), threading.Event()
    def probe():
        socket.socket().close()
        print(open("/proc/self/status").read().split("NoNewPrivs:")[1].split()[0])
        ready.set()
        go.wait()
        try:
            socket.socket()
            print("open")
        except PermissionError:
            print("refused")
    thread = threading.Thread(target=probe)
    thread.start()
    ready.wait()
    confine(Limits(), network=False)
    go.set()
    thread.join()
    """
    assert child(early, network=True) == ["1", "refused"]  # privileges are given up also with the network


def test_limits_bind():
    code = """
    import os, resource, tempfile
    try:
        bytearray(1 << 30)
    except MemoryError:
        print("memory")
    try:
        files = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
    except OSError as error:
        print("files", error.errno)
    os.closerange(3, 60)
    with tempfile.TemporaryFile(buffering=0) as file:
        print(file.write(bytes(5000)))
    print(resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_CORE))
    confine(Limits(cpu_s=100, open_files=200), network=True)
    print(resource.getrlimit(resource.RLIMIT_CPU)[0], resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    """
    limits = "cpu_s=7, memory_bytes=1 << 29, file_bytes=1000, open_files=60"
    told = ["memory", "files", str(errno.EMFILE), "1000", "(7,", "8)", "(0,", "0)"]
    assert child(code, limits=limits) == [*told, "7", "60"]


def test_processor_time_ends_a_process_that_ignores_the_signal():
    code = (
        f"import signal\n{IMPORT}confine(Limits(cpu_s=1), network=True)\n"
        "signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True:\n    pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120)
    assert done.returncode == -9


def test_how_a_process_ended_is_told_by_the_signal_s_name_or_its_number():
    assert [how_ended(code) for code in (3, -11, -40)] == ["exit code 3", "killed by SIGSEGV", "killed by signal 40"]


def test_a_child_finds_the_packages_of_a_relative_pythonpath(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "told.py").write_text("""print('{"event": "done", "told": true}')""")
    monkeypatch.chdir(tmp_path)
    job = ChildJob("told", {}, {"PYTHONPATH": "none:lib"}, tmp_path / "log", 60.0, "a job")
    assert run_child(job, lambda event: None)["told"] is True


def test_a_token_that_a_child_says_is_masked_in_its_lines_and_its_log(tmp_path):
    code = (
        "import json, sys\ntoken = json.loads(sys.stdin.readline())['token']\nprint(f'with {token}', file=sys.stderr)\n"
    )
    (tmp_path / "says.py").write_text(code + "print(json.dumps({'event': 'done', 'said': token}))")
    told, environment = {"token": "a secret, of ada's"}, {"PYTHONPATH": str(tmp_path)}
    done = run_child(ChildJob("says", told, environment, tmp_path / "log", 60.0, "a job"), lambda event: None)
    assert (done["said"], (tmp_path / "log").read_text()) == ("[token]", "with [token]\n")


def test_the_last_words_of_a_child_are_cut(tmp_path):
    (tmp_path / "dies.py").write_text("import sys\nsys.exit('#' * 900)")
    job = ChildJob("dies", {}, {"PYTHONPATH": str(tmp_path)}, tmp_path / "log", 60.0, "a job")
    with pytest.raises(EvaluationError) as died:
        run_child(job, lambda event: None)
    assert str(died.value).count("#") == MAX_LAST_WORDS


def test_a_machine_without_seccomp_is_an_error_and_not_an_open_door(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(DeviceError, match="cannot confine"):
        seccomp.no_new_privileges()
    monkeypatch.undo()
    monkeypatch.setattr(seccomp, "system_call", lambda *_: -1)
    with pytest.raises(DeviceError, match="seccomp"):
        seccomp.install([SyscallRule("ptrace")])


def verdict(program: bytes, arch: int, number: int, arguments: tuple[int, ...] = ()) -> object:
    """What classic BPF says about a call: a naive interpreter of the kernel's description."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *(*arguments, *[0] * (6 - len(arguments))))
    instructions = list(struct.iter_unpack("<HBBI", program))
    at, accumulator = 0, 0
    while True:
        code, if_true, if_false, value = instructions[at]
        at += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif code == 0x06:
            kind, low = value & 0xFFFF0000, value & 0xFFFF
            return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(kind, low)
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize(("machine", "arch"), [("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)])
def test_the_filter_decides_call_by_call(machine, arch):
    column = ("x86_64", "aarch64").index(machine)

    def says(rules: tuple[SyscallRule, ...], call: str, *arguments: int) -> object:
        number = seccomp._CALLS[call][column]
        assert number is not None
        return verdict(assemble(rules, machine), arch, number, arguments)

    for call in ("socket", "socketpair"):
        network = {family: says(_NO_NETWORK, call, family) for family in range(64)}
        assert network == {family: ALLOW if family == 1 else errno.EACCES for family in range(64)}
    # the kernel takes an int: what stands above its 32 bits does not help
    assert says(_NO_NETWORK, "socket", (1 << 32) + 2) == errno.EACCES
    assert says(_NO_NETWORK, "clone3") == ENOSYS
    around = "io_uring_setup", "ptrace", "process_vm_readv", "pidfd_getfd", "bpf", "userfaultfd", "keyctl", "mount"
    assert {says(_NO_NETWORK, name) for name in (*around, "unshare", "setns")} == {EPERM}
    assert says(_NO_NETWORK, "clone", 0x10000000) == EPERM
    assert says(_NO_NETWORK, "clone", 0x003D0F00) == ALLOW  # a thread
    assert says(_NO_NETWORK, "clone", 17) == ALLOW  # a fork
    alone = rules(4711)
    assert says(alone, "clone", 17) == EPERM
    assert says(alone, "clone", 0x003D0F00) == ALLOW
    assert (says(alone, "kill", 4711), says(alone, "kill", 1), says(alone, "kill", 2**64 - 1)) == (ALLOW, EPERM, EPERM)
    assert (says(alone, "tgkill", 4711), says(alone, "tgkill", 1)) == (ALLOW, EPERM)
    assert (says(alone, "execve"), says(alone, "execveat"), says(alone, "pidfd_send_signal")) == (EPERM,) * 3
    pairs = [
        says(alone, "socketpair", family, kind | socket.SOCK_CLOEXEC) for family in (1, 30) for kind in range(1, 6)
    ]
    assert {says(alone, "bind"), says(alone, "connect")} == {errno.EACCES}  # a name makes a file
    assert (says(alone, "socket", 1), pairs) == (errno.EACCES, [ALLOW, *[errno.EACCES] * 9])
    assert (says(alone, "openat", 0, 0, os.O_RDONLY | os.O_CLOEXEC), says(alone, "openat2")) == (ALLOW, ENOSYS)
    for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_RDONLY | os.O_TRUNC):
        assert says(alone, "openat", 0, 0, flag) == errno.EROFS
    assert {says(alone, "fcntl", 3, command) for command in (6, 7, 8, 15, 37, 38, 1024)} == {EPERM}
    assert {says(alone, "fcntl", 3, command) for command in (1, 2, 3, 4, 1030)} == {ALLOW}
    assert (says(alone, "prlimit64", 0), says(alone, "prlimit64", 1)) == (ALLOW, EPERM)
    assert (says(alone, "prctl", 15), says(alone, "prctl", 1)) == (ALLOW, EPERM)  # a thread's name, and its parent
    # what changes a file's flags through a descriptor that reads it, and newer ways to its attributes
    assert (says(alone, "ioctl", 0, 0x5421), says(alone, "ioctl", 0, 0x40086602)) == (ALLOW, errno.ENOTTY)
    changing = "setxattrat", "removexattrat", "file_setattr", "fchmod", "truncate", "renameat2", "utimensat", "linkat"
    assert {says(alone, name) for name in changing} == {errno.EROFS}
    # all that the table knows is refused, but for what confines, and what depends on the arguments above
    known = {name for name, numbers in seccomp._CALLS.items() if numbers[column] is not None}
    confining = {name for name in known if name.startswith("landlock_")} | {"capset", "seccomp"}
    reading = {"open", "openat", "fcntl", "prlimit64"} & known
    assert {name for name in known if says(alone, name) == ALLOW} == confining | reading
    assert verdict(assemble((), machine), 0x40000003, 11) == KILL  # i386's numbering
    if machine == "x86_64":
        assert verdict(assemble((), machine), arch, 0x40000000 | 41) == ENOSYS  # x32's socket
        assert (says(alone, "fork"), says(alone, "vfork"), says(alone, "open", 0, 1)) == (EPERM, EPERM, errno.EROFS)


@pytest.mark.parametrize(("header", "column"), [("unistd_64.h", 0), ("unistd.h", 1)], ids=["x86_64", "generic numbers"])
def test_the_numbers_are_the_kernel_headers(header, column):
    folder = "asm" if column == 0 else "asm-generic"  # each processor has an asm of its own
    places = ["x86_64-linux-gnu", *([""] if column or os.uname().machine == "x86_64" else [])]
    paths = [Path("/usr/include", place, folder, header) for place in places]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        pytest.skip(f"no {folder}/{header} here")
    known = dict(re.findall(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)", path.read_text()))
    ours = {name: numbers[column] for name, numbers in seccomp._CALLS.items() if numbers[column] is not None}
    assert {name: number for name, number in ours.items() if int(known.get(name, number)) != number} == {}
    assert len(ours.keys() & known.keys()) > 60


def test_the_ways_around_a_socket_ban_are_closed():
    code = """
    import ctypes, errno
    from hubmerge.isolation import seccomp
    for name in ("io_uring_setup", "ptrace", "process_vm_readv", "pidfd_getfd", "bpf", "userfaultfd", "keyctl",
                 "mount", "unshare", "setns"):
        result = seccomp.system_call(name, 0, 0, 0, 0, 0)
        print(name if result != -1 or ctypes.get_errno() != errno.EPERM else "refused")
    """
    assert set(child(code)) == {"refused"}


def test_multiprocessing_and_asyncio_still_work():
    code = """
    import asyncio, multiprocessing
    async def three():
        await asyncio.sleep(0)
        return 3
    print(asyncio.run(three()))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.map(abs, [-2])[0])
    """
    assert child(code) == ["3", "2"]

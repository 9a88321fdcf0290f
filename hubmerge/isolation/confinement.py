"""Confines an evaluating process: limits on resources, no new privileges, and no network.

A child calls `confine` at its start, before it reads or runs anything foreign. The limits are the kernel's
(setrlimit(2)), and a seccomp filter refuses every socket except AF_UNIX, which multiprocessing needs. Both hold for the
threads and children of the process too, and neither can be undone. Sockets that are open already stay open; the parent
hands none down.

The filter also refuses what would lead around it: io_uring (which opens sockets without the socket call), reading
or writing other processes and taking over their files (ptrace, process_vm_*, pidfd_getfd), mounts and namespaces,
kernel keys and modules, bpf, userfaultfd. A kernel that cannot do this ends in DeviceError, never in a process
that runs unconfined.
"""

import ctypes
import errno
import os
import resource
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass

from hubmerge.isolation import seccomp
from hubmerge.isolation.seccomp import SyscallRule, refused

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

# Ways out that no evaluation needs. clone3 passes its flags in memory, where a filter cannot look: without it the
# C library falls back to clone.
WAYS_AROUND: tuple[SyscallRule, ...] = (
    SyscallRule("clone3", errno.ENOSYS),
    *refused("io_uring_setup", "io_uring_enter", "io_uring_register"),
    *refused("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd"),
    *refused("mount", "umount2", "pivot_root", "move_mount", "open_tree", "open_tree_attr", "mount_setattr"),
    *refused("fsopen", "fsconfig", "fsmount", "open_by_handle_at", "unshare", "setns"),
    *refused("keyctl", "add_key", "request_key", "bpf", "userfaultfd", "perf_event_open"),
    *refused("init_module", "finit_module", "kexec_load"),
)
_NO_NETWORK: tuple[SyscallRule, ...] = (
    SyscallRule("socket", errno.EACCES, "argument_is_not", 0, socket.AF_UNIX),
    SyscallRule("socketpair", errno.EACCES, "argument_is_not", 0, socket.AF_UNIX),
    SyscallRule("clone", errno.EPERM, "any_bit_of", 0, _NEW_NAMESPACES),
    *WAYS_AROUND,
)


@dataclass(frozen=True)
class Limits:
    """The limits of a process; None leaves one as it is. Each process of a tree has its own, except `processes`."""

    cpu_s: int | None = None  # seconds of processor time, then SIGXCPU, a second later SIGKILL
    memory_bytes: int | None = None  # address space; CUDA reserves far more than it uses, so not for GPU work
    file_bytes: int | None = None  # the largest file that it can write
    processes: int | None = None  # of this user, threads included; the kernel does not hold root to it
    open_files: int | None = None
    data_bytes: int | None = None  # private writable memory: leaves out mapped weights and libraries


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when the thread of `parent` that started it ends."""
    if seccomp.libc().prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before the kernel knew of our wish
        os.kill(os.getpid(), signum)


def adopt_orphans() -> None:
    """Have the kernel give this process what its children leave, so that it can wait for it (`ChildProcess.close`).

    Else the first process gets it, which in a container is an app that waits for nobody: the dead would pile up.
    """
    seccomp.libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # a kernel without it keeps the dead, and works


def give_way() -> None:
    """Have the kernel, short of memory, end this process first and leave the application."""
    # not every sandbox has the file
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")  # of 1000


def confine(limits: Limits, *, network: bool) -> None:
    """Put this process and all that it starts under the limits, and cut it off from the network if asked.

    Raises DeviceError where the kernel cannot do it, or where a socket still opens afterwards.
    """
    limit_resources(limits)
    seccomp.no_new_privileges()
    if network:
        return
    seccomp.install(_NO_NETWORK)
    require_no_network()


def limit_resources(limits: Limits) -> None:
    """Lower the limits of this process; one that is already lower stays."""
    for kind, value, grace in (
        (resource.RLIMIT_CPU, limits.cpu_s, 1),
        (resource.RLIMIT_AS, limits.memory_bytes, 0),
        (resource.RLIMIT_DATA, limits.data_bytes, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes, 0),
        (resource.RLIMIT_NPROC, limits.processes, 0),
        (resource.RLIMIT_NOFILE, limits.open_files, 0),
        (resource.RLIMIT_CORE, 0, 0),  # a core file would hold all that the process knew
    ):
        if value is None:
            continue
        soft, hard = resource.getrlimit(kind)
        new_hard = value + grace if hard == resource.RLIM_INFINITY else min(hard, value + grace)
        new_soft = min(value, new_hard) if soft == resource.RLIM_INFINITY else min(soft, value, new_hard)
        resource.setrlimit(kind, (new_soft, new_hard))


def require_no_network() -> None:
    """DeviceError if an internet socket opens after all."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
    except PermissionError:
        return
    except OSError as error:
        raise seccomp.unconfinable(f"a socket was refused for another reason: {error}") from error
    raise seccomp.unconfinable("a socket opened in spite of the filter")

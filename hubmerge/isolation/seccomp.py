"""Seccomp filters through ctypes: they refuse system calls of a process and its children.

A filter is a list of rules for system calls; calls that none refuses are allowed. It is assembled to classic BPF that
looks at the call's number and the low 32 bits of one argument (kernel documentation: seccomp_filter.rst; `struct
seccomp_data` in linux/seccomp.h). Calls in another machine's numbering (32-bit on x86-64, x32) are refused as a whole,
since they would bypass the rules. An installed filter cannot be removed, only added to, and every child inherits it.
It works on Linux on x86-64 and aarch64; elsewhere it raises DeviceError and never leaves a process unconfined.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hubmerge.errors import DeviceError

# name → number on (x86_64, aarch64); None: the machine has no such call
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "add_key": (248, 217),
    "bind": (49, 200),
    "bpf": (321, 280),
    "capset": (126, 91),
    "chmod": (90, None),
    "chown": (92, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "creat": (85, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fcntl": (72, 25),
    "file_setattr": (469, 469),
    "finit_module": (313, 273),
    "flock": (73, 32),
    "fork": (57, None),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "futimesat": (261, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioprio_set": (251, 30),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "lchown": (94, None),
    "link": (86, None),
    "linkat": (265, 37),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "memfd_create": (319, 279),
    "migrate_pages": (256, 238),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "open": (2, None),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "request_key": (249, 218),
    "rmdir": (84, None),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "truncate": (76, 45),
    "umount2": (166, 39),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vfork": (58, None),
}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH_*
_X32_BIT = 0x40000000

_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _FLAG_TSYNC = 1, 1  # TSYNC: the threads that already run come under the filter too


@dataclass(frozen=True)
class SyscallRule:
    """Refuse a system call with an errno: always, or only where its argument is of a kind."""

    call: str
    errno: int = errno.EPERM
    when: Literal["always", "argument_is", "argument_is_not", "any_bit_of", "no_bit_of"] = "always"
    argument: int = 0  # its position
    value: int = 0  # compared with the argument's low 32 bits


def refused(*calls: str, errno: int = errno.EPERM) -> tuple[SyscallRule, ...]:
    """Rules that refuse these calls always."""
    return tuple(SyscallRule(call, errno) for call in calls)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def system_call(name: str, *arguments: object) -> int:
    """The result of a system call by name; -1 with ctypes' errno set where it failed."""
    number = _CALLS[name][_MACHINES[machine()][0]]
    assert number is not None
    return int(libc().syscall(number, *arguments))


def machine() -> str:
    """This machine's name in the tables above; DeviceError where there is none."""
    name = os.uname().machine if sys.platform == "linux" else "any machine"
    if sys.platform != "linux" or name not in _MACHINES or sys.byteorder != "little" or sys.maxsize < 2**32:
        raise unconfinable(f"{sys.platform} on {name}")
    return name


def unconfinable(got: str) -> DeviceError:
    return DeviceError(
        "this machine cannot confine a process",
        expected="Linux with seccomp on x86-64 or aarch64",
        got=got,
        next_step="Evaluate on a machine or in a container that allows seccomp filters.",
    )


def no_new_privileges() -> None:
    """Forbid this process and its children to gain privileges by executing a program."""
    machine()
    if libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise unconfinable(f"no_new_privs: {os.strerror(ctypes.get_errno())}")


def assemble(rules: Sequence[SyscallRule], name: str) -> bytes:
    """The rules as instructions (`struct sock_filter`) for the machine `name`."""
    column, audit_arch = _MACHINES[name]
    code = [_op(_LOAD, 4), _op(_JEQ, audit_arch, 1, 0), _op(_RET, _KILL_PROCESS), _op(_LOAD, 0)]
    if name == "x86_64":
        code += [_op(_JGE, _X32_BIT, 0, 1), _op(_RET, _ERRNO | errno.ENOSYS)]
    for rule in rules:
        number = _CALLS[rule.call][column]
        if number is None:
            continue
        refuse = _op(_RET, _ERRNO | rule.errno)
        if rule.when == "always":
            code += [_op(_JEQ, number, 0, 1), refuse]
            continue
        # instructions to skip where the test holds and where it fails; the refusal is the next one
        jumps = (0, 1) if rule.when in ("argument_is", "any_bit_of") else (1, 0)
        test = _op(_JEQ if rule.when.startswith("argument") else _JSET, rule.value, *jumps)
        # the last load brings the number back for the rules that follow
        code += [_op(_JEQ, number, 0, 4), _op(_LOAD, 16 + 8 * rule.argument), test, refuse, _op(_LOAD, 0)]
    return b"".join([*code, _op(_RET, _ALLOW)])


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def install(rules: Sequence[SyscallRule]) -> None:
    """Put this whole process under the rules, for good; it must have given up new privileges before."""
    name = machine()
    code = assemble(rules, name)
    program = _Program(len(code) // 8, code)
    result = system_call("seccomp", _SET_MODE_FILTER, _FLAG_TSYNC, ctypes.byref(program))
    if result != 0:  # an errno, or the id of a thread that could not follow
        raise unconfinable("seccomp: " + (os.strerror(ctypes.get_errno()) if result < 0 else f"thread {result}"))

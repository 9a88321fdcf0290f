"""Rules for a process that runs generated code: it may compute and read Python's own library, and nothing else.

No process or program can be started, so nothing slips out of its group; it dies with its parent and cannot undo that;
no signal reaches another process; no socket opens, of any family (a pair of streams inside the process works, asyncio
needs it; a datagram's could send to any socket with a name); no file can be opened for writing, created, renamed,
removed or changed. These are seccomp rules and hold on every kernel that has seccomp, for every user: a verdict does
not depend on the machine. Capabilities are dropped, so root is an ordinary user here.

Where the kernel has Landlock (userspace-api/landlock.rst), only the given folders can be read. The process handles
every right that this kernel knows, so that all are refused, and allows reading beneath the given paths. That also hides
other processes' memory, environment and (from ABI 6) keeps signals inside.
"""

import ctypes
import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

from hubmerge.isolation import seccomp
from hubmerge.isolation.confinement import WAYS_AROUND, Limits, die_with_parent, limit_resources, require_no_network
from hubmerge.isolation.seccomp import SyscallRule, refused

_CLONE_THREAD = 0x00010000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FIONBIO = 0x5421  # what asyncio needs of ioctl; other requests change flags of a file that is open for reading
_NO_STREAM = socket.SOCK_DGRAM | socket.SOCK_SEQPACKET & ~socket.SOCK_STREAM  # bits that a stream's type lacks
_F_SETOWN = 8  # a bit of both; no command with it is of use for an answer
# F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW and F_SETLEASE: who wants a lock, or opens a leased file, waits
_LOCKING = (6, 7, 37, 38, 1024)
_PR_SET_NAME = 15  # what threads need of prctl; another option would have a process outlive its parent
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # ABI → how many file rights it knows; 16 from ABI 5
_NET_BIND_CONNECT = 0b11  # from ABI 4
_SCOPE_UNIX_AND_SIGNAL = 0b11  # from ABI 6

_READ_ONLY_FILES: tuple[SyscallRule, ...] = (
    SyscallRule("open", errno.EROFS, "any_bit_of", 1, _WRITING),
    SyscallRule("openat", errno.EROFS, "any_bit_of", 2, _WRITING),
    SyscallRule("openat2", errno.ENOSYS),
    *refused("creat", "truncate", "mkdir", "mkdirat", "mknod", "mknodat", errno=errno.EROFS),
    *refused("rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2", errno=errno.EROFS),
    *refused("link", "linkat", "symlink", "symlinkat", errno=errno.EROFS),
    *refused("chmod", "fchmod", "fchmodat", "fchmodat2", errno=errno.EROFS),
    *refused("chown", "fchown", "fchownat", "lchown", errno=errno.EROFS),
    *refused("utime", "utimes", "futimesat", "utimensat", errno=errno.EROFS),
    *refused("setxattr", "lsetxattr", "fsetxattr", "setxattrat", "file_setattr", errno=errno.EROFS),
    *refused("removexattr", "lremovexattr", "fremovexattr", "removexattrat", errno=errno.EROFS),
    SyscallRule("ioctl", errno.ENOTTY, "argument_is_not", 1, _FIONBIO),
)


def rules(pid: int) -> tuple[SyscallRule, ...]:
    """All rules for the process `pid`: it starts no process and acts on no other one."""
    return (
        SyscallRule("socket", errno.EACCES),
        SyscallRule("socketpair", errno.EACCES, "argument_is_not", 0, socket.AF_UNIX),
        SyscallRule("socketpair", errno.EACCES, "any_bit_of", 1, _NO_STREAM),
        *refused("bind", "connect", errno=errno.EACCES),
        *refused("fork", "vfork", "execve", "execveat"),
        SyscallRule("clone", errno.EPERM, "no_bit_of", 0, _CLONE_THREAD),
        SyscallRule("kill", errno.EPERM, "argument_is_not", 0, pid),
        SyscallRule("tgkill", errno.EPERM, "argument_is_not", 0, pid),
        # F_SETOWN and F_SETOWN_EX, by which a pipe's next byte would signal any process
        SyscallRule("fcntl", errno.EPERM, "any_bit_of", 1, _F_SETOWN),
        SyscallRule("flock", errno.EPERM),
        *(SyscallRule("fcntl", errno.EPERM, "argument_is", 1, command) for command in _LOCKING),
        SyscallRule("prlimit64", errno.EPERM, "argument_is_not", 0, 0),
        SyscallRule("prctl", errno.EPERM, "argument_is_not", 0, _PR_SET_NAME),
        *refused("tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_send_signal"),
        *refused("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
        *refused("setpriority", "ioprio_set", "migrate_pages", "move_pages"),
        *_READ_ONLY_FILES,
        # memory outside of the address space, or that stays behind, and what other processes have of it
        *refused("memfd_create", "shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl"),
        *refused("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
        *WAYS_AROUND,
    )


def isolate(limits: Limits, *, readable: Sequence[str], parent: int) -> None:
    """Put this process under the rules, for good, and let it die with `parent`, which started it."""
    seccomp.machine()
    die_with_parent(parent)
    limit_resources(limits)
    seccomp.no_new_privileges()
    _checked("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())
    _allow_reading_only(readable)
    seccomp.install(rules(os.getpid()))
    require_no_network()


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_, _layout_ = 1, "ms"  # without padding
    _fields_ = [("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def landlock_abi() -> int:
    """The version of Landlock that this kernel offers; 0: none."""
    return max(0, seccomp.system_call("landlock_create_ruleset", None, ctypes.c_size_t(0), _LANDLOCK_VERSION))


def _allow_reading_only(paths: Sequence[str]) -> None:
    """Restrict this process to reading beneath `paths` (those that exist), where this kernel has Landlock."""
    version = landlock_abi()
    if not version:
        return
    rights = (1 << _RIGHTS.get(version, 16)) - 1
    attributes = _Ruleset(
        rights, _NET_BIND_CONNECT if version >= 4 else 0, _SCOPE_UNIX_AND_SIGNAL if version >= 6 else 0
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _checked("landlock_create_ruleset", ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    for path in paths:
        with suppress(FileNotFoundError, PermissionError):
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = _PathBeneath(_READ_FILE | (_READ_DIR if os.path.isdir(path) else 0), fd)
            _checked("landlock_add_rule", ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
            os.close(fd)
    _checked("landlock_restrict_self", ruleset, 0)
    os.close(ruleset)


def _checked(name: str, *arguments: object) -> int:
    result = seccomp.system_call(name, *arguments)
    if result < 0:
        raise seccomp.unconfinable(f"{name}: {os.strerror(ctypes.get_errno())}")
    return result

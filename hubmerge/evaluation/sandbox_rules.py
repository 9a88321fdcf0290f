"""Rules for a process that runs generated code: it may compute and read Python's own library, and nothing else.

No process or program can be started, so nothing outlives it or slips out of its group; no signal reaches another
process; no socket opens, of any family (socketpair inside the process works, asyncio needs it); no file can be
opened for writing, created, renamed, removed or changed. These are seccomp rules and hold on every kernel that has
seccomp, for every user: a verdict does not depend on the machine. Capabilities are dropped, so root is an ordinary
user here. Where the kernel has Landlock, only the given folders can be read.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Sequence

from hubmerge.isolation import landlock, seccomp
from hubmerge.isolation.confinement import WAYS_AROUND, Limits, die_with_parent, limit_resources, require_no_network
from hubmerge.isolation.seccomp import SyscallRule

_CLONE_THREAD = 0x00010000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CAPABILITY_VERSION_3 = 0x20080522

_READ_ONLY_FILES: tuple[SyscallRule, ...] = (
    SyscallRule("open", errno.EROFS, "any_bit_of", 1, _WRITING),
    SyscallRule("openat", errno.EROFS, "any_bit_of", 2, _WRITING),
    SyscallRule("openat2", errno.ENOSYS),
    *(
        SyscallRule(name, errno.EROFS)
        for name in (
            *("creat", "truncate", "mkdir", "mkdirat", "mknod", "mknodat", "rmdir", "unlink", "unlinkat"),
            *("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat"),
            *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "fchownat", "lchown"),
            *("utime", "utimes", "futimesat", "utimensat"),
            *("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"),
        )
    ),
)
# memory outside of the address space, or that stays behind
_LASTING_MEMORY = tuple(SyscallRule(name) for name in ("memfd_create", "shmget", "semget", "msgget", "mq_open"))


def _alone(pid: int) -> tuple[SyscallRule, ...]:
    """Rules that refuse to start processes and to act on other ones."""
    return (
        *(SyscallRule(name) for name in ("fork", "vfork", "execve", "execveat")),
        SyscallRule("clone", errno.EPERM, "no_bit_of", 0, _CLONE_THREAD),
        SyscallRule("kill", errno.EPERM, "argument_is_not", 0, pid),
        SyscallRule("tgkill", errno.EPERM, "argument_is_not", 0, pid),
        SyscallRule("prlimit64", errno.EPERM, "argument_is_not", 0, 0),
        *(
            SyscallRule(name)
            for name in (
                *("tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_send_signal"),
                *("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
                *("setpriority", "ioprio_set", "migrate_pages", "move_pages"),
            )
        ),
    )


def rules(pid: int) -> tuple[SyscallRule, ...]:
    """All rules for the process `pid`."""
    return (
        SyscallRule("socket", errno.EACCES),
        SyscallRule("socketpair", errno.EACCES, "argument_is_not", 0, socket.AF_UNIX),
        *_alone(pid),
        *_READ_ONLY_FILES,
        *_LASTING_MEMORY,
        *WAYS_AROUND,
    )


def isolate(limits: Limits, *, readable: Sequence[str], parent: int) -> None:
    """Put this process under the rules, for good, and let it die with `parent`, which started it."""
    seccomp.machine()
    die_with_parent(parent)
    limit_resources(limits)
    seccomp.no_new_privileges()
    _drop_capabilities()
    landlock.allow_reading_only(readable)
    seccomp.install(rules(os.getpid()))
    require_no_network()


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if seccomp.system_call("capset", header, (ctypes.c_uint32 * 6)()) != 0:
        raise seccomp.unconfinable(f"capset: {os.strerror(ctypes.get_errno())}")

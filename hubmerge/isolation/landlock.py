"""Landlock through ctypes: restricts a process to reading some folders, whichever user it runs as.

Kernel documentation: userspace-api/landlock.rst. The process handles every right that this kernel knows, so that
all are refused, and allows reading beneath the given paths. Like a seccomp filter this is inherited and cannot be
undone, and it also hides other processes' memory, environment and (from ABI 6) keeps signals inside.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from hubmerge.isolation import seccomp

_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # ABI → how many file rights it knows; 16 from ABI 5
_NET_BIND_CONNECT = 0b11  # from ABI 4
_SCOPE_UNIX_AND_SIGNAL = 0b11  # from ABI 6


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def abi() -> int:
    """The version of Landlock that this kernel offers; 0: none."""
    return max(0, seccomp.system_call("landlock_create_ruleset", None, ctypes.c_size_t(0), _VERSION))


def allow_reading_only(paths: Iterable[str]) -> bool:
    """Restrict this process to reading beneath `paths` (those that exist); False: this kernel has no Landlock."""
    version = abi()
    if not version:
        return False
    rights = (1 << _RIGHTS.get(version, 16)) - 1
    attributes = _Ruleset(
        rights, _NET_BIND_CONNECT if version >= 4 else 0, _SCOPE_UNIX_AND_SIGNAL if version >= 6 else 0
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _checked("landlock_create_ruleset", ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    try:
        for path in paths:
            _allow(ruleset, path)
        _checked("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return True


def _allow(ruleset: int, path: str) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        rule = _PathBeneath(_READ_FILE | (_READ_DIR if os.path.isdir(path) else 0), fd)
        _checked("landlock_add_rule", ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(fd)


def _checked(name: str, *arguments: object) -> int:
    result = seccomp.system_call(name, *arguments)
    if result < 0:
        raise seccomp.unconfinable(f"{name}: {os.strerror(ctypes.get_errno())}")
    return result

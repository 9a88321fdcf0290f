"""Gives a process whose library needs sockets a network of its own, with loopback and nothing else.

vLLM talks to itself over 127.0.0.1, so the filter that refuses every socket would stop it. A new network namespace,
inside a new user namespace so that the process has no power over the one it came from, has a loopback interface and
no way out. Kernels and containers that do not allow this end in EvaluationError, never in a process with a network.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

from hubmerge.errors import EvaluationError

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_REQUEST = "16sh14x"  # struct ifreq: name, flags


def take_own_network() -> None:
    """Move this process, which must have a single thread, into a network that holds a loopback interface only."""
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        raise _impossible(os.strerror(ctypes.get_errno()))
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            name = struct.pack(_REQUEST, b"lo", 0)
            _, flags = struct.unpack(_REQUEST, fcntl.ioctl(control, _SIOCGIFFLAGS, name))
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack(_REQUEST, b"lo", flags | _IFF_UP))
    except OSError as error:
        raise _impossible(str(error)) from error
    others = [name for _, name in socket.if_nameindex() if name != "lo"]
    if any(_is_up(name) for name in others):
        raise _impossible(f"the interface {others[0]} is up")


def _is_up(name: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack(_REQUEST, name.encode(), 0)
        return bool(struct.unpack(_REQUEST, fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1] & _IFF_UP)


def _impossible(why: str) -> EvaluationError:
    return EvaluationError(
        "a process cannot have a network of its own on this machine",
        expected="user and network namespaces",
        got=why,
        next_step="Use the backend transformers, which needs no network.",
    )

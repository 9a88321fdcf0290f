"""pass.c as a library that this process can call: found beside the package, or else built once and kept.

`pip install` builds it where there is a compiler (setup.py). Where the package was never installed, as on a Space, or
was installed without a compiler, it is built here, in seconds, into the user's cache directory, named by a digest of
the source, the flags and the compiler. Libraries there are trusted as far as the package's own files: who can write
there can write what is run.
"""

from __future__ import annotations

import fcntl
import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from ctypes import CDLL, c_char_p, c_int64, c_void_p
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from hubmerge.settings import user_cache

SOURCE = Path(__file__).with_name("pass.c")
BUILD_S = 120  # a compiler that takes longer is ended

_FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-fno-fast-math", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-fvisibility=hidden", "-Wno-psabi",
)  # fmt: skip
# what pass.c is compiled for, by its MACHINE; whichever fits the processor best is called
_MACHINES: dict[int, tuple[str, ...]] = {1: ()}
if platform.machine() in ("x86_64", "AMD64"):
    _MACHINES[3] = ("-march=x86-64-v3",)
    _MACHINES[4] = ("-march=x86-64-v4", "-mavx512vbmi2", "-mprefer-vector-width=512")

_loading = threading.Lock()


class UnavailableError(Exception):
    """This machine has no library and cannot build one; says why."""


class Library:
    """The functions of pass.c for this processor."""

    def __init__(self, path: Path) -> None:
        """OSError or AttributeError where the file is none of ours."""
        made = CDLL(str(path))
        if c_char_p.in_dll(made, "source_digest").value != digest().encode():
            raise OSError(f"{path} was built from another version of pass.c")
        machine = made.machine()

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = next(getattr(made, f"{name}_{m}") for m in sorted(_MACHINES, reverse=True) if m <= machine)
            found.restype, found.argtypes = result, arguments
            return found

        self.workspace_bytes = function("workspace_bytes", c_int64, c_int64, c_int64)
        self.kernel_number = function("kernel_number", c_int64, c_char_p)
        self.work = function("work", None, c_void_p, c_int64, c_int64)
        self.take = function("take", c_int64, c_void_p, c_void_p, c_int64)
        self.rank = function("rank", None, c_void_p, c_void_p)
        self.take_keys = function("take_keys", c_int64, c_void_p, c_void_p, c_int64)


def library() -> Library:
    """The library, built if it is not there; UnavailableError."""
    with _loading:
        found = _library()
    if isinstance(found, str):
        raise UnavailableError(found)
    return found


@cache
def _library() -> Library | str:
    """The library, or why there is none."""
    for path in _places():
        with suppress(OSError, AttributeError):
            return Library(path)
    compiler = find_compiler()
    if compiler is None:
        return "there is no C compiler (cc, gcc, clang or the package ziglang)"
    try:
        return _kept(compiler)
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]


def is_built() -> bool:
    """Whether `library` has nothing to build."""
    compiler = None if any(_places()) else find_compiler()
    folder = user_cache()
    return compiler is None or (folder is not None and _path(folder, compiler).is_file())


def _places() -> list[Path]:
    """Where setuptools puts what it builds."""
    return sorted(SOURCE.parent.glob("_pass*.so"))


@cache
def digest() -> str:
    """Of everything that decides what a compiler makes."""
    return sha256(SOURCE.read_bytes() + repr((_FLAGS, _MACHINES)).encode()).hexdigest()


def find_compiler() -> tuple[str, ...] | None:
    """The command of a C compiler."""
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return (found,)
    return (sys.executable, "-m", "ziglang", "cc") if importlib.util.find_spec("ziglang") else None


def build(compiler: Sequence[str], target: Path) -> None:
    """pass.c as a library at `target`, which is there whole or not at all; OSError with the compiler's words."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects = []
        for machine, flags in _MACHINES.items():
            made = Path(folder, f"pass_{machine}.o")
            names = (f"-DMACHINE={machine}", f'-DDIGEST="{digest()}"')
            failed = _run((*compiler, *_FLAGS, *flags, *names, "-c", str(SOURCE), "-o", str(made)))
            if not failed:
                objects.append(str(made))
            elif machine == 1:  # an old compiler may not know the newer machines
                raise OSError(failed)
        whole = Path(folder, "pass.so")
        if failed := _run((*compiler, "-shared", *objects, "-o", str(whole))):
            raise OSError(failed)
        whole.replace(target)


def _run(command: Sequence[str]) -> str:
    """What the compiler said where it failed."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=BUILD_S)
    if done.returncode == 0:
        return ""
    said = next((line for line in done.stderr.splitlines() if "error" in line.lower()), "")
    return f"{command[0]} ended with {done.returncode}: {said}"[:200]


def _path(folder: Path, compiler: Sequence[str]) -> Path:
    binary = Path(compiler[0]).resolve()
    told = repr((digest(), str(binary), *compiler[1:], binary.stat().st_size, binary.stat().st_mtime_ns))
    return folder / "hubmerge" / f"pass-{sha256(told.encode()).hexdigest()[:32]}.so"


def _kept(compiler: Sequence[str]) -> Library:
    """The library from the user's cache, where one process builds it while the others wait."""
    folder = user_cache()
    if folder is not None:
        with suppress(OSError):
            path = _path(folder, compiler)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path.with_suffix(".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                with suppress(OSError, AttributeError):
                    return Library(path)
                build(compiler, path)
                return Library(path)
    with tempfile.TemporaryDirectory() as own:  # nothing can be kept: an open library needs no file
        path = Path(own, "pass.so")
        build(compiler, path)
        return Library(path)

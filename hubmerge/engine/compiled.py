"""pass.c as a library that this process can call: found beside the package, or else built once and kept.

`pip install` builds it where there is a compiler (setup.py). Where the package was never installed, as on a Space, or
was installed without a compiler, it is built here, in seconds, into the user's cache directory, named by a digest of
the source, the flags and the compiler. Libraries there are trusted as far as the package's own files: who can write
there can write what is run.
"""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from ctypes import CDLL, c_char_p, c_int64, c_void_p
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from hubmerge.engine.build import MACHINES, SOURCE, build, digest, find_compiler
from hubmerge.settings import user_cache


class Library:
    """The functions of pass.c for this processor."""

    def __init__(self, path: Path) -> None:
        """OSError or AttributeError where the file is none of ours."""
        made = CDLL(str(path))
        if c_char_p.in_dll(made, "source_digest").value != digest().encode():
            raise OSError(f"{path} was built from another version of pass.c")
        machine = made.machine()

        def function(name: str, result: Any, *arguments: Any) -> Any:
            # an old compiler may not have known the newest machines
            names = (f"{name}_{m}" for m in sorted(MACHINES, reverse=True) if m <= machine)
            found = next(getattr(made, name) for name in names if hasattr(made, name))
            found.restype, found.argtypes = result, arguments
            return found

        self.workspace_bytes = function("workspace_bytes", c_int64, c_int64)
        self.kernel_number = function("kernel_number", c_int64, c_char_p)
        self.work = function("work", None, c_void_p, c_int64, c_int64)
        self.take = function("take", c_int64, c_void_p, c_void_p, c_int64)
        self.rank = function("rank", None, c_void_p, c_void_p)
        self.take_keys = function("take_keys", c_int64, c_void_p, c_void_p, c_int64)


def library() -> Library:
    """The library, for who knows that there is one."""
    found = loaded()
    assert isinstance(found, Library), found
    return found


@cache
def loaded() -> Library | str:
    """The library, built if it is not there; or why this machine has none and cannot build one."""
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
    """Whether `loaded` has nothing to build."""
    compiler = None if any(_places()) else find_compiler()
    folder = user_cache()
    return compiler is None or (folder is not None and os.access(_path(folder, compiler), os.R_OK))


def _places() -> list[Path]:
    """Where setuptools puts what it builds."""
    return sorted(SOURCE.parent.glob("_pass*.so"))


def _path(folder: Path, compiler: Sequence[str]) -> Path:
    binary = Path(compiler[0]).resolve()
    told = repr((digest(), str(binary), *compiler[1:], binary.stat().st_size, binary.stat().st_mtime_ns))
    return folder / "hubmerge" / f"pass-{sha256(told.encode()).hexdigest()[:32]}.so"


def _kept(compiler: Sequence[str]) -> Library:
    """The library, built into the user's cache."""
    folder = user_cache()
    if folder is not None:
        with suppress(OSError):
            path = _path(folder, compiler)
            with suppress(OSError, AttributeError):
                return Library(path)
            build(compiler, path)
            return Library(path)
    with tempfile.TemporaryDirectory() as own:  # nothing can be kept: an open library needs no file
        path = Path(own, "pass.so")
        build(compiler, path)
        return Library(path)

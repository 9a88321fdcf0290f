"""Machine code that stays between processes: what numba compiled, in a file that its whole meaning names.

numba's own cache wants a function from a file, notices changes of that file alone, loads its whole compiler (0.4 s)
before it looks, and believes what it reads. Here a file is named by the digest of everything that decides the code
(what the caller says, the signature, the versions of numba, llvmlite, numpy and Python, the processor, the compiler's
settings), so that other code is another file and none is ever replaced by something else; it begins with a checksum
over that digest and its content, so that a torn, mixed up or rotten file is compiled anew. Files lie where numba keeps
its own and are trusted as far as those: who can write there can write what is run.
"""

from __future__ import annotations

import os
import pickle
import platform
import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, _Cache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

_SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "LLVM_PASS_TIMINGS")
_CHECKSUM_BYTES = 32


@cache
def numbas_folder() -> Path | None:
    """Where numba keeps compiled code of this package; None where it finds no folder that it may write to."""
    try:
        return Path(CompileResultCacheImpl(numbas_folder.__wrapped__).locator.get_cache_path())
    except RuntimeError:
        return None


def digest_of_files(*modules: Any) -> str:
    """The digest of the modules' source files."""
    return _digest(*(Path(module.__file__).read_bytes() for module in modules))


def keep(dispatcher: Any, identity: str, folder: Path | None) -> Any:
    """Let what `dispatcher` (of numba.njit, without a signature) compiles stay in `folder`; returns the dispatcher.

    `identity` must differ wherever the code could: the function's source, all that it calls, all constants.
    """
    dispatcher._cache = KeptCode(folder, dispatcher.py_func.__name__, identity)
    return dispatcher


def kept(*modules: Any, signature: Any = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba.njit(signature, **options) for a module's own functions, with code that stays.

    `modules`: what else decides it, beside the module of the function. In place of numba's `cache=True` on what Python
    calls; what only compiled code calls needs neither.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        files = digest_of_files(sys.modules[function.__module__], *modules)
        identity = _digest(function.__qualname__, repr(sorted(options.items())), files)
        dispatcher = keep(numba.njit(**options)(function), identity, numbas_folder())
        if signature is not None:
            dispatcher.compile(signature)
            dispatcher.disable_compile()
        return dispatcher

    return decorate


class KeptCode(_Cache):  # type: ignore[misc]
    """numba's interface to a cache, for one function."""

    def __init__(self, folder: Path | None, name: str, identity: str) -> None:
        self._folder = folder
        self._name = name
        self._identity = identity
        self._enabled = True

    @property
    def cache_path(self) -> str | None:
        return None if self._folder is None else str(self._folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was kept for the signature, ready to be called; None where there is nothing sound."""
        if not self._enabled or self._folder is None:
            return None
        digest = self._digest_of(sig, target_context.codegen())
        try:
            content = self._path(digest).read_bytes()
        except OSError:
            return None
        checksum, payload = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
        if checksum != _checksum(digest, payload):
            return None
        rtsys.initialize(target_context)  # compiled code calls it; all else of the compiler is not needed
        return CompileResult._rebuild(target_context, *pickle.loads(payload))  # noqa: S301 (see above: trust)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled, if it can be and the folder takes it; a merge does not fail for want of it."""
        if not self._enabled or self._folder is None or data.lifted or data.library.has_dynamic_globals:
            return
        digest = self._digest_of(sig, data.codegen)
        payload: bytes = dumps(data._reduce())
        path = self._path(digest)
        written = path.with_name(f"{path.name}.{uuid4().hex[:16]}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                written.write_bytes(_checksum(digest, payload) + payload)
                os.replace(written, path)
            finally:
                written.unlink(missing_ok=True)
        except OSError:
            return

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        """Remove all that was kept of this function."""
        for path in [] if self._folder is None else self._folder.glob(f"{self._name}-*.kept"):
            path.unlink(missing_ok=True)

    def _digest_of(self, sig: Any, codegen: Any) -> str:
        settings = [(name, getattr(config, name, None)) for name in _SETTINGS]
        made_by = (numba.__version__, llvmlite.__version__, np.__version__, sys.version, platform.machine())
        return _digest(self._name, self._identity, str(sig), repr(codegen.magic_tuple()), repr(made_by), repr(settings))

    def _path(self, digest: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._name}-{digest}.kept"


def _digest(*parts: str | bytes) -> str:
    total = sha256()
    for part in parts:
        total.update(sha256(part if isinstance(part, bytes) else part.encode()).digest())
    return total.hexdigest()


def _checksum(digest: str, payload: bytes) -> bytes:
    return sha256(digest.encode() + payload).digest()

"""Machine code that stays between processes, in files that their whole meaning names.

A process that finds its code kept needs no compiler, which takes twice as long to import as numpy. A file is named by
the digest of everything that decides the code: what the caller says, the source files of all modules that take part,
the versions of numba, llvmlite, numpy and Python, the processor, and numba's settings. So other code is another file
and none is ever replaced by something else. It begins with a checksum over that digest and its content, so that a
torn, mixed up or rotten file is compiled anew.

Files lie in the package's `__pycache__`; where that cannot be written to, in the user's cache directory. They are
trusted as far as the package's own: who can write there can write what is run. NUMBA_CACHE_DIR names another folder.
When code is added, files go that no process has used for UNUSED_DAYS.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import llvmlite  # type: ignore[import-untyped]
import numpy as np
from llvmlite import binding

from hubmerge import counter_rng
from hubmerge.engine import counting
from hubmerge.engine.compiled.machine_code import Code, Kinds, LinkError, ObjectCode
from hubmerge.settings import numbas_variables, user_cache
from hubmerge.statistics import histogram

UNUSED_DAYS = 30
_DAY_S = 86_400
_CHECKSUM_BYTES = 32
_HERE = Path(__file__).parent
_FOLDER_VARIABLE = "NUMBA_CACHE_DIR"


def folders() -> tuple[Path, ...]:
    """Where code may be kept: it is looked for in all of them, and new code goes to the first that takes it."""
    if chosen := numbas_variables().get(_FOLDER_VARIABLE):
        return (Path(chosen) / "hubmerge",)
    of_user = user_cache()
    return _HERE / "__pycache__", *(() if of_user is None else (of_user / "hubmerge",))


def code_of(
    name: str, kinds: Kinds, meaning: str, places: Sequence[Path], compile_now: Callable[[str], ObjectCode]
) -> Code:
    """The code that was kept as `name` for this meaning, or what `compile_now` makes for the given digest.

    `meaning` must differ wherever the code could, as far as `surroundings` do not say it.
    """
    digest = _digest(name, repr(kinds), meaning, surroundings())
    for place in places:
        path = _path(place, name, digest)
        if (made := _read(path, digest)) is not None:
            try:
                code = Code(made, kinds)
            except LinkError:  # a library that it was linked with is gone
                continue
            _note_use(path)
            return code
    made = compile_now(digest)
    code = Code(made, kinds)
    for place in places:
        if _write(_path(place, name, digest), digest, made):
            break
    return code


def is_kept(name: str, kinds: Kinds, meaning: str, places: Sequence[Path]) -> bool:
    """Whether `code_of` finds a file, sound or not."""
    digest = _digest(name, repr(kinds), meaning, surroundings())
    return any(_path(place, name, digest).is_file() for place in places)


@cache
def surroundings() -> str:
    """The digest of all that decides machine code beside its own source text."""
    made_by = (_numbas_version(), llvmlite.__version__, np.__version__, sys.version)
    return _digest(source_files(), repr(made_by), repr(_processor()), repr(_settings()))


def source_files() -> str:
    """The digest of every module that compiled code is made from or with."""
    beside = [Path(module.__file__ or "") for module in (counter_rng, counting, histogram)]
    paths = (*sorted(_HERE.glob("*.py")), *beside)
    return _digest(*(part for path in paths for part in (path.name, path.read_bytes())))


def _numbas_version() -> str | bytes:
    """Without importing it, nor its metadata's parser, which takes 40 ms."""
    found = importlib.util.find_spec("numba")
    try:
        return (Path((found and found.origin) or "").parent / "_version.py").read_bytes()
    except OSError:
        return version("numba")


def _processor() -> tuple[str, ...]:
    return binding.get_process_triple(), binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()


def _settings() -> tuple[object, ...]:
    """All that numba could read settings from, whichever of them change code."""
    variables = numbas_variables()
    variables.pop(_FOLDER_VARIABLE, None)
    try:
        of_folder = Path(".numba_config.yaml").read_bytes()
    except OSError:
        of_folder = b""
    return variables, of_folder


def _path(place: Path, name: str, digest: str) -> Path:
    return place / f"{name}-{digest}.kept"


def _read(path: Path, digest: str) -> ObjectCode | None:
    """What was kept, where it is sound."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    checksum, payload = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    if checksum != _checksum(digest, payload):
        return None
    symbol, _, image = payload.partition(b"\n")
    return ObjectCode(symbol.decode(), image)


def _write(path: Path, digest: str, made: ObjectCode) -> bool:
    """Keep it, if the folder takes it; a merge does not fail for want of it."""
    payload = made.symbol.encode() + b"\n" + made.image
    written = path.with_name(f"{path.name}.{uuid4().hex[:16]}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            written.write_bytes(_checksum(digest, payload) + payload)
            os.replace(written, path)
        finally:
            written.unlink(missing_ok=True)
    except OSError:
        return False
    _remove_unused(path.parent)
    return True


def _note_use(path: Path) -> None:
    """At most once a day, so that a merge does not write."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > _DAY_S:
            os.utime(path)


def _remove_unused(place: Path) -> None:
    """What other processes are reading they have read, or compile; none reads a file twice."""
    for path in place.glob("*.kept*"):  # and what processes left that were killed while they wrote
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > UNUSED_DAYS * _DAY_S:
                path.unlink()


def _digest(*parts: str | bytes) -> str:
    total = sha256()
    for part in parts:
        total.update(sha256(part if isinstance(part, bytes) else part.encode()).digest())
    return total.hexdigest()


def _checksum(digest: str, payload: bytes) -> bytes:
    return sha256(digest.encode() + payload).digest()

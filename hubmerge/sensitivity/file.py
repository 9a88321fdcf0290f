"""The sensitivity file: float32 tensors under the names under which the checkpoint stores its own.

It is a safetensors file whose `__metadata__` names the weights and the pairs that it was made from. It is written under
a temporary name, synced and renamed, so a file under its final name is complete. `as_model` gives it to a TensorReader,
which streams it like any other source.

The file belongs to weights rather than to a place: besides id and commit it carries a digest of the shards' hashes, so
it still fits a copy of the folder, or the same folder after it was published.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hubmerge.errors import NonFiniteError, Problem, SensitivityError, SourceNotFoundError
from hubmerge.hub.names import FileInfo
from hubmerge.machine.disk_errors import written
from hubmerge.numerics.dtypes import FLOAT_DTYPES, Float32
from hubmerge.recipe.ignore import Ignored, nothing
from hubmerge.recipe.model_name import ModelRef
from hubmerge.sources.base import Model, StoredTensor
from hubmerge.sources.header import Header, TensorEntry, header_length, parse_header, serialize_header
from hubmerge.text.wording import named

FORMAT: Literal["hubmerge-sensitivity-1"] = "hubmerge-sensitivity-1"
CHUNK_ELEMENTS = 4 * 1024 * 1024


class SensitivityMetadata(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["hubmerge-sensitivity-1"] = FORMAT
    hubmerge: str = Field(max_length=64)  # versions
    torch: str = Field(max_length=64)
    transformers: str = Field(max_length=64)
    model_id: str = Field(max_length=256)  # a folder's name alone
    model_sha: str = Field(pattern=r"^[0-9a-f]{40}$")
    model_weights: str = Field(pattern=r"^([0-9a-f]{64})?$")  # see `weights_digest`
    data: str = Field(max_length=512)
    data_digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    tokens_digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")  # of the rows as tokenized; empty: not said
    pairs: int = Field(ge=1)
    max_tokens: int = Field(ge=2)
    prompt: str = Field(max_length=256)  # columns
    answer: str = Field(max_length=256)
    dtype: Literal["float32", "bfloat16"]  # of the model while gradients were taken
    device: str = Field(max_length=64)
    threads: int = Field(default=0, ge=0)  # of the CPU's matrix products, whose low bits depend on them; 0: not said

    def to_strings(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.model_dump().items()}

    def digest(self) -> str:
        """sha256 (hex) over all of it."""
        return hashlib.sha256(repr(sorted(self.to_strings().items())).encode()).hexdigest()


@dataclass(frozen=True)
class SensitivityFile:
    """A sensitivity file by its header."""

    path: Path
    size: int  # bytes
    metadata: SensitivityMetadata
    tensors: Mapping[str, TensorEntry]

    def as_model(self) -> Model:
        """The file as a source of tensors for sources.reader; a reference of its own, no config."""
        name = self.path.name
        return Model(
            ModelRef("local", str(self.path.parent), self.metadata.digest()[:40]),
            MappingProxyType({}),
            {name: FileInfo(name, self.size)},
            {n: StoredTensor(name, entry) for n, entry in self.tensors.items()},
        )


def read_sensitivity(path: Path) -> SensitivityFile:
    """The file by its header and metadata; values are not read.

    Raises SourceNotFoundError, HeaderError, SensitivityError.
    """
    try:
        header, size = read_header(path), path.stat().st_size
    except (OSError, ValueError) as error:  # the latter for a name with a zero byte
        raise SourceNotFoundError(
            "a sensitivity file that cannot be read",
            where=str(path),
            got=str(getattr(error, "strerror", None) or error),
        ) from None
    try:
        metadata = SensitivityMetadata.model_validate(dict(header.metadata))
    except ValidationError as error:
        wrong = ", ".join(".".join(map(str, issue["loc"])) for issue in error.errors(include_url=False))
        raise SensitivityError(
            "not a sensitivity file",
            where=path.name,
            expected=f"the metadata of {FORMAT}",
            got=f"missing or wrong: {ascii(wrong)[1:-1][:200]}",
            next_step="Make one with `hubmerge sensitivity`.",
        ) from None
    if others := [t.name for t in header.tensors if t.dtype != "F32"]:
        raise SensitivityError(
            "a sensitivity file holds float32 alone", where=path.name, expected="F32", got=named(others)
        )
    return SensitivityFile(path, size, metadata, MappingProxyType({t.name: t for t in header.tensors}))


def read_header(path: Path) -> Header:
    """Raises OSError, HeaderError."""
    with path.open("rb") as file:
        return parse_header(file.read(header_length(file.read(8), path.name)), path.stat().st_size, path.name)


def check_sensitivity(file: SensitivityFile, model: Model, ignored: Ignored = nothing) -> None:
    """Raise SensitivityError with every reason why `file` is no sensitivity of `model`; it may lack what is `ignored`.

    Reads all values once, to refuse NaN, infinite and negative ones.
    """
    said = file.metadata
    problems: list[Problem] = []

    def add(what: str, expected: str, got: str) -> None:
        remake = f"Make it again with `hubmerge sensitivity {model.ref.id}`."
        problems.append(Problem(SensitivityError.code, what, file.path.name, expected, got, remake))

    if said.model_sha != model.ref.sha and not (said.model_weights and said.model_weights == weights_digest(model)):
        add("it belongs to another model", str(model.ref), f"{said.model_id}@{said.model_sha[:12]}")
    wanted = {n: t.entry.shape for n, t in model.tensors.items() if t.entry.dtype in FLOAT_DTYPES}
    if missing := [n for n in wanted if n not in file.tensors and not ignored(n)]:
        add("it lacks tensors", named(missing), "nothing")
    if extra := [n for n in file.tensors if n not in wanted]:
        add("it has tensors that the model does not store", "none", named(extra))
    found = {n: entry.shape for n, entry in file.tensors.items()}
    if others := [n for n, shape in wanted.items() if n in found and found[n] != shape]:
        shapes = [f"{n}: {list(wanted[n])} → {list(found[n])}" for n in others]
        add("it has other shapes", "the model's", named(shapes))
    if not problems and (broken := _bad_values(file)):
        add("values that no squared gradient has", "finite and at least 0", named(broken))
    if problems:
        raise SensitivityError("the sensitivity file does not fit", problems=problems)


def weights_digest(model: Model) -> str:
    """sha256 (hex) over the shards' own sha256 in the order of their names; empty where the Hub states none."""
    total = hashlib.sha256()
    for shard in sorted(model.shards):
        known = model.files[shard].sha256
        if known is None:
            if model.ref.kind == "hub":
                return ""
            with (model.ref.path / shard).open("rb") as file:
                known = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(bytes.fromhex(known))
    return total.hexdigest()


def write_tensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    metadata: Mapping[str, str],
    parts: Iterable[tuple[str, Float32]],
) -> None:
    """Write a safetensors file of squared gradients, in the order of `shapes`; durable under its name or not there.

    `parts` gives (name, elements) in that order, a tensor in one piece or several.
    NonFiniteError names a tensor with a value that is not finite, DiskError: it does not fit.
    """
    header, places = serialize_header(((name, "F32", shape) for name, shape in shapes.items()), metadata)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with written("a sensitivity file cannot be written", str(path)):
            with temporary.open("wb") as file:
                file.write(header)
                for name, values in parts:
                    if not np.isfinite(values).all():
                        raise NonFiniteError(
                            "a squared gradient is NaN or infinite",
                            where=name,
                            next_step="Check the model; with bfloat16, try --dtype float32.",
                        )
                    assert places[name][0] <= file.tell() <= places[name][1] - values.nbytes, name
                    file.write(np.ascontiguousarray(values, dtype="<f4").data)
                assert file.tell() == len(header) + 4 * sum(prod(s) for s in shapes.values())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def chunks(values: Float32) -> Iterator[Float32]:
    """`values` [n] in views of some million elements."""
    for start in range(0, values.size, CHUNK_ELEMENTS):
        yield values[start : start + CHUNK_ELEMENTS]


def _bad_values(file: SensitivityFile) -> list[str]:
    """Each tensor with values that are negative or not finite, and how many; some million are in memory at a time."""
    bad = []
    with file.path.open("rb") as source:
        for name, entry in file.tensors.items():
            source.seek(entry.begin)
            found = 0
            for start in range(0, entry.elements, CHUNK_ELEMENTS):
                wanted = min(CHUNK_ELEMENTS, entry.elements - start)
                values = np.fromfile(source, "<f4", wanted)
                if values.size < wanted:
                    raise SensitivityError("the file became shorter", where=file.path.name)
                found += wanted - int(np.count_nonzero((values >= 0) & np.isfinite(values)))  # NaN is not >= 0 either
            if found:
                bad.append(f"{name} ({found})")
    return bad

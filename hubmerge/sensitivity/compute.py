"""Computes a sensitivity file from a model and pairs: check, load, go through the pairs, divide, write.

Problems of data, tokenizer or names are found before the first gradient. During a run a folder `OUT.work` beside the
result holds the sums, the checkpoint, the staged model and, for a model from the Hub, its shards. After a kill or a
cancellation the next run goes on from the checkpoint and writes the same bytes. Bytes are equal on one machine with one
number of threads; elsewhere matrix products may be summed in another order.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from hubmerge import __version__
from hubmerge.engine.sink import sole_owner
from hubmerge.errors import (
    DiskError,
    FolderInUseError,
    FormatError,
    HeaderError,
    HubmergeError,
    MemoryLimitError,
    SensitivityError,
    TargetExistsError,
)
from hubmerge.hub.client import Hub
from hubmerge.isolation.in_child import first_line, ran_out_of_memory
from hubmerge.machine.disk_errors import written
from hubmerge.numerics.dtypes import FLOAT_DTYPES, Float32
from hubmerge.plan.disk import DISK_MARGIN_BYTES, shown_bytes
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.recipe.ignore import Ignored, nothing
from hubmerge.sensitivity.file import (
    SensitivityFile,
    SensitivityMetadata,
    chunks,
    read_header,
    read_sensitivity,
    weights_digest,
    write_tensors,
)
from hubmerge.sensitivity.network import Network, require_memory
from hubmerge.sensitivity.pairs import Pair, digest, stage_small_files, tokenized_in, tokens_digest
from hubmerge.sources.base import Model
from hubmerge.sources.staged import stage_model

Progress = Callable[[str, int, int, str], None]  # stage, done, total, unit; raises to cancel
Dtype = Literal["float32", "bfloat16"]
CHECKPOINT_EVERY = 16  # pairs
_SUMS = "sums.f32"
_CHECKPOINT = "checkpoint.safetensors"
# "lock" is of an older version
_IN_WORK = frozenset((_SUMS, _CHECKPOINT, f"{_CHECKPOINT}.tmp", "model", "inputs", "lock"))


def compute_sensitivity(
    model: Model,
    pairs: Sequence[Pair],
    out: Path,
    *,
    spec: CalibrationSpec,
    hub: Hub,
    device: str = "cpu",
    dtype: Dtype = "float32",
    progress: Progress = lambda stage, done, total, unit: None,
    resume: bool = True,
    checkpoint_every: int = CHECKPOINT_EVERY,
    at_peak: Callable[[], None] = lambda: None,
    ignored: Ignored = nothing,
) -> SensitivityFile:
    """The diagonal Fisher of `model` on `pairs`, written to `out`.

    `spec` says where the pairs came from, and how long they may be.
    `device` is "cpu" or "cuda"; MemoryLimitError where its memory does not hold the weights in `dtype`.
    `at_peak` is called when the run takes most of the disk. Stored tensors that are `ignored` need no parameter.
    With `resume`, an unfinished run of the same computation is taken up and a finished one is returned as it is.
    Otherwise both are made again; a file of another computation is never overwritten.

    Raises SensitivityError, FormatError, NonFiniteError, DiskError, MemoryLimitError, TargetExistsError, and
    FolderInUseError where another process computes the same file.
    """
    if not pairs:
        raise SensitivityError("no calibration pairs", where=spec.label, expected="at least one pair")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        known = "cpu, or cuda where there is a CUDA device"
        raise SensitivityError("no such device", expected=known, got=device, next_step="Use --device cpu.")
    where = str(model.ref)
    with tempfile.TemporaryDirectory() as folder:
        stage_small_files(model, hub, Path(folder))
        tokenized = tokenized_in(Path(folder), where, pairs, spec.max_tokens)
    metadata = _metadata(model, pairs, tokens_digest(tokenized), spec, device, dtype)
    if out.exists():
        finished = _finished(out, metadata)
        if resume:
            return finished
    with _work_folder(out) as work:
        if not resume:
            (work / _CHECKPOINT).unlink(missing_ok=True)
        floats = sum(t.entry.elements for t in model.tensors.values() if t.entry.dtype in FLOAT_DTYPES)
        require_memory(floats * (4 if dtype == "float32" else 2), where, device)
        staged = work / "model"
        stage_model(model, hub, staged, work / "inputs", lambda done, total: progress("fetch", done, total, "B"))
        progress("load model", 0, 0, "")
        network = Network.load(staged, model, dtype=dtype, device=device, ignored=ignored)
        sums = SquareSums(work, network.shapes, metadata.digest())
        network.give_gradients(sums.add)
        done = sums.restore()
        progress("sensitivity", done, len(tokenized), "pairs")
        for pair in tokenized[done:]:
            try:
                network.differentiate(pair.ids, pair.answer_tokens, f"row {pair.row} of {spec.label}")
            except HubmergeError:
                raise
            except Exception as error:  # a stranger's model: any error means the same, but for the memory's
                row, got = f"row {pair.row}", f"{len(pair.ids)} tokens"
                if ran_out_of_memory(error):
                    what, step = "a pair does not fit into the device's memory", "Lower --max-tokens."
                    raise MemoryLimitError(what, where=row, got=got, next_step=step) from None
                what, got = "a model that transformers cannot compute", f"{got}; {first_line(error)}"
                raise FormatError(what, where=f"{where}, {row}", got=got) from error
            done += 1
            if done % checkpoint_every == 0 and done < len(tokenized):
                sums.save(done)
            try:
                progress("sensitivity", done, len(tokenized), "pairs")
            except BaseException:  # cancelled, by whatever exception: what was computed is kept
                sums.save(done)
                raise
        # the means in the checkpoint's names: each sum divided by the number of pairs, rounded once
        means = (
            (stored, part / np.float32(len(tokenized)))
            for stored, tensor in network.reverted(sums.tensor)
            for part in chunks(tensor.contiguous().numpy().reshape(-1))
        )
        write_tensors(out, network.stored, metadata.to_strings(), means)
        at_peak()
        shutil.rmtree(work)
    return read_sensitivity(out)


class SquareSums:
    """One float32 sum per element of every parameter, in a mapped file, so that they need disk rather than memory.

    Every element is `sum += square(gradient)`, the square and the sum each rounded to float32, pair after pair in their
    fixed order. The mapping may hold half a pair when the process dies, so nothing ever resumes from it: a checkpoint
    is a safetensors file of its own, written whole at the end of a pair, with the number of pairs that it holds.
    Resumed sums are therefore the sums that would have been there without the kill, bit for bit.
    """

    def __init__(self, folder: Path, shapes: Mapping[str, tuple[int, ...]], identity: str) -> None:
        """A resumed run must have the same `identity`. DiskError when the sums do not fit."""
        self._checkpoint = folder / _CHECKPOINT
        self._shapes = shapes
        self._identity = identity
        total = sum(map(prod, shapes.values()))
        (folder / _SUMS).unlink(missing_ok=True)
        # the sums, a checkpoint, and the next checkpoint or the result beside it
        there = self._checkpoint.stat().st_size if self._checkpoint.is_file() else 0
        needed, free = 3 * 4 * total - there + DISK_MARGIN_BYTES, shutil.disk_usage(folder).free
        if needed > free:
            wanted, found = shown_bytes(needed, free)
            raise DiskError(
                "not enough disk",
                where=str(folder),
                expected=f"{wanted} free",
                got=found,
                next_step="Free some disk or write elsewhere.",
            )
        with written("the sums do not fit on the disk", str(folder)), (folder / _SUMS).open("xb") as file:
            # written now: a full disk would otherwise end the process when a mapped page is written
            for part in chunks(np.broadcast_to(np.float32(0), (total,))):
                file.write(part.tobytes())
        self._all: Float32 = np.memmap(folder / _SUMS, dtype="<f4", mode="r+", shape=(total,))
        ends = np.cumsum([prod(shape) for shape in shapes.values()])
        self._sums = dict(zip(shapes, np.split(self._all, ends[:-1]), strict=True))  # views

    def tensor(self, name: str) -> torch.Tensor:
        """The sums of one parameter in its shape; a view."""
        return torch.from_numpy(self._sums[name]).reshape(self._shapes[name])

    def add(self, name: str, gradient: torch.Tensor) -> None:
        """Add the squares of one gradient, of any float dtype and device; in chunks, so that no copy of it is made."""
        flat, start = gradient.detach().reshape(-1), 0
        for target in chunks(self._sums[name]):
            part = flat[start : start + target.size].to(torch.float32)
            torch.from_numpy(target).add_(part.square().to("cpu"))
            start += target.size

    def save(self, finished: int) -> None:
        """Make the sums of the first `finished` pairs durable."""
        parts = ((name, part) for name, sums in self._sums.items() for part in chunks(sums))
        write_tensors(self._checkpoint, self._shapes, {"identity": self._identity, "finished": str(finished)}, parts)

    def restore(self) -> int:
        """Take up the checkpoint, if there is one; the number of pairs that it holds.

        TargetExistsError when it belongs to another computation.
        """
        path = self._checkpoint
        if not path.is_file():
            return 0
        try:
            header = read_header(path)
        except HeaderError as error:
            step = "Start again with --restart."
            raise SensitivityError(
                "the checkpoint is damaged", where=str(path), got=error.what, next_step=step
            ) from None
        identity = header.metadata.get("identity", "")
        if identity != self._identity:
            raise TargetExistsError(
                "another computation is unfinished here",
                where=str(path.parent),
                expected=self._identity[:12],
                got=identity[:12],
                next_step="Finish it with its own settings, or start again with --restart.",
            )
        with path.open("rb") as file:
            file.seek(header.data_begin)  # the same parameters in the same order
            file.readinto(self._all.data)
        return int(header.metadata["finished"])


def _metadata(
    model: Model, pairs: Sequence[Pair], tokens: str, spec: CalibrationSpec, device: str, dtype: Dtype
) -> SensitivityMetadata:
    return SensitivityMetadata(
        hubmerge=__version__,
        torch=version("torch"),
        transformers=version("transformers"),
        model_id=model.ref.id if model.ref.kind == "hub" else model.ref.label[:256],
        model_sha=model.ref.sha,
        model_weights=weights_digest(model),
        data=spec.label[:512],
        data_digest=digest(pairs),
        tokens_digest=tokens,
        pairs=len(pairs),
        max_tokens=spec.max_tokens,
        prompt=spec.prompt,
        answer=spec.answer,
        dtype=dtype,
        device=device,
        threads=torch.get_num_threads() if device == "cpu" else 0,
    )


def _finished(out: Path, metadata: SensitivityMetadata) -> SensitivityFile:
    """The file that is there; TargetExistsError where it is not of the same computation."""
    untouched = "Choose another name; nothing was touched."
    try:
        file = read_sensitivity(out)
    except HubmergeError as error:
        raise TargetExistsError("another file is here", where=str(out), got=error.what, next_step=untouched) from None
    mine, theirs = metadata.to_strings(), file.metadata.to_strings()
    if not theirs["tokens_digest"]:  # of a version that did not say it
        mine["tokens_digest"] = ""
    if others := [key for key in mine if mine[key] != theirs[key]]:
        got = f"another {', '.join(others)}"
        raise TargetExistsError("another sensitivity file is here", where=str(out), got=got, next_step=untouched)
    return file


@contextmanager
def _work_folder(out: Path) -> Iterator[Path]:
    """`OUT.work`, for this process alone."""
    work = out.with_name(out.name + ".work")
    wait = "Wait for it, or write elsewhere."
    with sole_owner(work, used=FolderInUseError("another process computes this file", where=str(out), next_step=wait)):
        foreign = sorted({path.name for path in work.iterdir()} - _IN_WORK)
        if foreign or work.is_symlink():
            raise TargetExistsError(
                "the folder that this computation would work in has files of somebody else",
                where=str(work),
                got=", ".join(foreign[:5]) or "a link",
                next_step="Choose another --out, or move the folder away; nothing was touched.",
            )
        yield work

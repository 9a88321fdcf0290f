"""Computes a sensitivity file from a model and pairs: check, load, go through the pairs, divide, write.

Problems of data, tokenizer or names are found before the first gradient. During a run a folder `OUT.work` beside the
result holds the sums, the checkpoint, the staged model and, for a model from the Hub, its shards; the folder is removed
when the file is complete. After a kill or a cancellation the next run goes on from the checkpoint and writes the same
bytes. Bytes are equal on one machine with one number of threads; elsewhere matrix products may be summed in another
order.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hubmerge import __version__
from hubmerge.dtypes import FLOAT_DTYPES
from hubmerge.errors import DiskError, HubmergeError, MemoryLimitError, SensitivityError, TargetExistsError
from hubmerge.extras import require
from hubmerge.hub.client import Hub
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.recipe.model_name import ModelName
from hubmerge.sensitivity import staging
from hubmerge.sensitivity.calibration import Pair, digest
from hubmerge.sensitivity.file import (
    Float32,
    SensitivityFile,
    SensitivityMetadata,
    read_sensitivity,
    weights_digest,
    write_tensors,
)
from hubmerge.sensitivity.gradients import PairGradients
from hubmerge.sensitivity.names import NameMap, map_names, verify
from hubmerge.sensitivity.sums import SUM_FILES, SquareSums, chunks
from hubmerge.sensitivity.tokens import TokenizedPair, context_length, tokenize, tokens_digest
from hubmerge.sources.base import Model
from hubmerge.sources.open import open_model
from hubmerge.sources.staged import stage_model

Progress = Callable[[str, int, int, str], None]  # stage, done, total, unit; raises to cancel
Dtype = Literal["float32", "bfloat16"]
CHECKPOINT_EVERY = 16  # pairs
_LOCK = "lock"
_IN_WORK = frozenset((_LOCK, "model", "inputs", *SUM_FILES))
LOADERS = ("torch", "transformers", "psutil")  # what gradients need


def compute_sensitivity(
    model: str | Model,
    pairs: Sequence[Pair],
    out: Path,
    *,
    spec: CalibrationSpec,
    device: str = "cpu",
    dtype: Dtype = "float32",
    progress: Progress = lambda stage, done, total, unit: None,
    resume: bool = True,
    hub: Hub | None = None,
    allow_local: bool = True,
    checkpoint_every: int = CHECKPOINT_EVERY,
    at_peak: Callable[[], None] = lambda: None,
) -> SensitivityFile:
    """The diagonal Fisher of `model` on `pairs`, written to `out`.

    `model` is a folder, a Hub id, or an opened model; `spec` says where the pairs came from, and how long they may be.
    `device` is "cpu" or "cuda"; a model whose weights in `dtype` do not fit into its memory is refused.
    `at_peak` is called when the run takes most of the disk.
    With `resume`, an unfinished run of the same computation is taken up and a finished one is returned as it is.
    Otherwise both are made again; a file of another computation is never overwritten.

    Raises MissingExtraError, SensitivityError, FormatError, NonFiniteError, DiskError, MemoryLimitError,
    TargetExistsError, and what open_model raises.
    """
    require("eval", "a sensitivity", *LOADERS)
    hub = hub or Hub()
    opened = _opened(model, hub, allow_local) if isinstance(model, str) else model
    if not pairs:
        raise SensitivityError("no calibration pairs", where=spec.label, expected="at least one pair")
    device = _known_device(device)
    where = str(opened.ref)
    with tempfile.TemporaryDirectory() as folder:
        staging.stage_small_files(opened, hub, Path(folder))
        tokenized = tokenized_in(Path(folder), where, pairs, spec.max_tokens)
    metadata = _metadata(opened, pairs, tokens_digest(tokenized), spec, device, dtype)
    identity = hashlib.sha256(json.dumps(metadata.to_strings(), sort_keys=True).encode()).hexdigest()
    if out.exists():
        finished = _finished(out, metadata)
        if resume:
            return finished
    with _work_folder(out) as work:
        if not resume:
            _clear(work)
        floats = sum(t.entry.elements for t in opened.tensors.values() if t.entry.dtype in FLOAT_DTYPES)
        staging.require_memory(floats * (4 if dtype == "float32" else 2), where, device)
        staged = work / "model"
        stage_model(opened, hub, staged, work / "inputs", lambda done, total: progress("fetch", done, total, "B"))
        progress("load model", 0, 0, "")
        network = staging.load_model(staged, where, dtype=dtype, device=device)
        names = map_names(network, opened)
        verify(names, network, opened, staged)
        sums = SquareSums(work, names.shapes, identity)
        gradients = PairGradients(network, names.owner, sums.add)
        done = sums.restore()
        progress("sensitivity", done, len(tokenized), "pairs")
        for pair in tokenized[done:]:
            with _memory_limits(pair.row, len(pair.ids)):
                gradients.add_pair(pair.ids, pair.answer_tokens, f"row {pair.row} of {spec.label}")
            done += 1
            if done % checkpoint_every == 0 and done < len(tokenized):
                sums.save(done)
            try:
                progress("sensitivity", done, len(tokenized), "pairs")
            except BaseException:  # cancelled, by whatever exception: what was computed is kept
                sums.save(done)
                raise
        _write(out, metadata, opened, names, network, sums, len(tokenized))
        at_peak()
        _clear(work)
        with suppress(OSError):  # somebody put something else there meanwhile
            (work / _LOCK).unlink()
            work.rmdir()
    return read_sensitivity(out)


def tokenized_in(folder: Path, where: str, pairs: Sequence[Pair], max_tokens: int) -> tuple[TokenizedPair, ...]:
    """The pairs as the staged tokenizer in `folder` makes them, as long as the staged config has positions for."""
    context = context_length(staging.load_config(folder, where))
    return tokenize(staging.load_tokenizer(folder, where), pairs, max_tokens, context)


def _opened(text: str, hub: Hub, allow_local: bool) -> Model:
    try:
        name = ModelName.parse(text)
    except ValueError as error:
        raise SensitivityError(
            "not a model",
            where=ascii(text)[:120],
            expected="a Hub id such as org/name@revision, or ./folder",
            got=str(error).split("\n")[0][:200],
        ) from None
    return open_model(name, hub, allow_local=allow_local)


def _known_device(device: str) -> str:
    import torch

    if device == "cpu":
        return device
    kind, _, index = device.partition(":")
    if kind != "cuda" or (index and not index.isdigit()) or not torch.cuda.is_available():
        raise SensitivityError(
            "no such device",
            expected="cpu, or cuda where there is a CUDA device",
            got=device,
            next_step="Use --device cpu.",
        )
    return device if index else "cuda:0"


def _metadata(
    model: Model, pairs: Sequence[Pair], tokens: str, spec: CalibrationSpec, device: str, dtype: Dtype
) -> SensitivityMetadata:
    import torch

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
        device=device.partition(":")[0],
        threads=torch.get_num_threads() if device == "cpu" else 0,
    )


def _finished(out: Path, metadata: SensitivityMetadata) -> SensitivityFile:
    try:
        file = read_sensitivity(out)
    except HubmergeError as error:
        raise TargetExistsError(
            "another file is here",
            where=str(out),
            got=error.what,
            next_step="Choose another name; nothing was touched.",
        ) from None
    if not file.metadata.tokens_digest:  # of a version that did not say it
        metadata = metadata.model_copy(update={"tokens_digest": ""})
    if file.metadata != metadata:
        mine, theirs = metadata.to_strings(), file.metadata.to_strings()
        raise TargetExistsError(
            "another sensitivity file is here",
            where=str(out),
            got="another " + ", ".join(key for key in mine if mine[key] != theirs[key]),
            next_step="Choose another name; nothing was touched.",
        )
    return file


@contextmanager
def _work_folder(out: Path) -> Iterator[Path]:
    """`OUT.work`, for this process alone; the lock goes with the process, however it ends."""
    work = out.with_name(out.name + ".work")
    try:
        work.mkdir(parents=True, exist_ok=True)
        foreign = sorted({path.name for path in work.iterdir()} - _IN_WORK)
        if foreign or work.is_symlink():
            raise TargetExistsError(
                "the folder that this computation would work in has files of somebody else",
                where=str(work),
                got=", ".join(foreign[:5]) or "a link",
                next_step="Choose another --out, or move the folder away; nothing was touched.",
            )
        lock = (work / _LOCK).open("w")
    except OSError as error:
        raise DiskError("the output cannot be written", where=str(out), got=str(error.strerror or error)) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TargetExistsError(
                "another process computes this file", where=str(out), next_step="Wait for it, or write elsewhere."
            ) from None
        yield work


def _clear(work: Path) -> None:
    """Remove what a computation leaves in its folder, but for the lock."""
    for name in _IN_WORK - {_LOCK}:
        path = work / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _memory_limits(row: int, tokens: int) -> Iterator[None]:
    import torch

    try:
        yield
    except torch.OutOfMemoryError:
        raise MemoryLimitError(
            "a pair does not fit into the device's memory",
            where=f"row {row}",
            got=f"{tokens} tokens",
            next_step="Lower --max-tokens.",
        ) from None


def _write(
    out: Path, metadata: SensitivityMetadata, model: Model, names: NameMap, network: Any, sums: SquareSums, pairs: int
) -> None:
    """The means in the checkpoint's names: each sum divided by the number of pairs, rounded once."""
    # the order is that of the groups, so that one group is in memory at a time
    order = [stored for group in names.groups for stored in group.stored]
    shapes = {stored: model.tensors[stored].entry.shape for stored in order}

    def parts() -> Iterator[tuple[str, Float32]]:
        for group in names.groups:
            tensors = {n: sums.tensor(names.owner[n]) for n in group.parameters}
            for stored, tensor in names.stored_of(network, group, tensors):
                values: Float32 = tensor.contiguous().numpy().reshape(-1)
                for part in chunks(values):
                    yield stored, part / np.float32(pairs)

    write_tensors(out, shapes, metadata.to_strings(), parts())

"""What a machine's memory and disk mean for an evaluation. A machine that is too small says nothing of the model.

A run holds the weights, the keys and values of its batches, and itself. From headers alone the dtype is chosen: the
stored one, bfloat16 where that is wider and does not fit, or none; on the CPU before anything is fetched, on a GPU by
the process that sees its memory. Where another program may have ended a run, it is tried once more.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hubmerge.errors import DeviceError, DiskError, HubmergeError, MachineFaultError
from hubmerge.machine.disk_errors import of_disk
from hubmerge.plan.disk import shown_bytes, used_bytes
from hubmerge.sources.base import Model

SHARE_OF_CACHE = 0.25  # of the memory, for the keys and values of a batch
PROCESS_BYTES = 1_500_000_000  # for libraries, activations and logits; a quarter of a small machine's memory
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_STORED = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_NARROWER = "bfloat16"  # has the range of float32
# of the disk, for datasets' rows, answers and the job database on the same disk: this, or a twentieth of a small one
RESERVE_BYTES = 2 * 10**9
_FAULT = "fault.json"  # how far a run got before the machine may have ended it


@dataclass(frozen=True)
class Weights:
    """A model's weights as far as their memory goes."""

    stored: str  # the dtype that transformers loads them in by itself
    elements: int

    def bytes_as(self, dtype: str) -> int:
        return self.elements * ITEM_BYTES[dtype]


def weights_of(model: Model) -> Weights:
    """From its headers, and its config where that names a dtype, which is then the one that transformers takes."""
    elements: Counter[str] = Counter()
    for tensor in model.tensors.values():
        elements[tensor.entry.dtype] += tensor.entry.elements
    usual = max((d for d in elements if d in _STORED), key=lambda d: elements[d], default="F32")
    named = model.config.get("dtype") or model.config.get("torch_dtype")
    named = str(named).removeprefix("torch.")
    return Weights(named if named in ITEM_BYTES else _STORED[usual], elements.total())


def fitting_dtype(weights: Weights, asked: str, memory_bytes: int, where: str) -> str:
    """The dtype to run in within `memory_bytes`; `asked` is `auto` or the only one. DeviceError where none fits."""
    # what is left beside the process itself and the keys and values of a batch
    usable = int((1 - SHARE_OF_CACHE) * memory_bytes - min(PROCESS_BYTES, SHARE_OF_CACHE * memory_bytes))
    choices = [weights.stored, _NARROWER] if asked == "auto" else [asked]
    for dtype in choices:
        if weights.bytes_as(dtype) <= usable:
            return dtype
    least = min(choices, key=weights.bytes_as)
    held = weights.bytes_as(least)
    needed = int(min((held + PROCESS_BYTES) / (1 - SHARE_OF_CACHE), held / (1 - 2 * SHARE_OF_CACHE))) + 1
    wanted, found = shown_bytes(needed, memory_bytes)
    narrower = ITEM_BYTES[least] > ITEM_BYTES[_NARROWER]
    raise DeviceError(
        "the model does not fit in this machine's memory",
        where=where,
        expected=f"{wanted} for it in {least}",
        got=found,
        next_step=f"Evaluate it on a machine with more memory{', or in bfloat16' if narrower else ''}.",
    )


def forget_faults(workdir: Path) -> None:
    """Forget earlier faults, since the run has ended for good; the next one has two tries again."""
    (workdir / _FAULT).unlink(missing_ok=True)


def clear_weights(workdir: Path) -> None:
    for name in ("model", "inputs"):
        shutil.rmtree(workdir / name, ignore_errors=True)


def require_room(weight_bytes: int, workdir: Path, what: str) -> None:
    """DiskError where weights that are to be written would leave less than the reserve; files fetched before take no
    further room."""
    there = used_bytes([workdir / "inputs"])
    disk = shutil.disk_usage(workdir)
    reserve = min(RESERVE_BYTES, disk.total // 20)
    missing = max(0, weight_bytes - there)
    if missing and missing + reserve > disk.free:
        needed, found, kept = shown_bytes(weight_bytes + reserve, disk.free + there, reserve)
        raise DiskError(
            "the model does not fit on this disk",
            where=what,
            expected=f"{needed} free, {kept} of it for everything else",
            got=found,
            next_step="Evaluate it on a machine with more disk.",
        )


@contextmanager
def cleared_where_the_disk_is_full(workdir: Path, what: str) -> Iterator[None]:
    """Remove this run's fetched weights if they do not fit on the disk, or it fills up meanwhile."""
    try:
        yield
    except (DiskError, OSError) as error:
        known = error if isinstance(error, DiskError) else of_disk(error, what)
        if known is None:
            raise
        clear_weights(workdir)
        raise known from None


def try_once_more(error: HubmergeError, workdir: Path, what: str) -> None:
    """MachineFaultError, unless an earlier try of this run ended at the same place."""
    mark = workdir / _FAULT
    answers = workdir / "generations"
    done = sum(path.stat().st_size for path in answers.glob("*")) if answers.is_dir() else 0
    with suppress(OSError, ValueError):
        if done <= int(json.loads(mark.read_text())["done"]):
            return
    mark.write_text(json.dumps({"done": done}))
    raise MachineFaultError(
        "the machine ended the evaluation, which says nothing of the model yet",
        where=what,
        got=str(error).removeprefix(f"{error.code}: ").replace(str(workdir), "…")[:400],
        next_step="Run it again while nothing else runs here: it goes on, and ends for good if it comes no further.",
    )

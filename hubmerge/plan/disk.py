"""The disk that a merge may take, that it needs at least, and that it took.

A limit (by default the free space) covers everything that a merge writes: fetched inputs, sensitivities and output
shards. The outputs come first: all of them where they stay, two shards where each is uploaded and deleted. Then come
computed sensitivities, 4 bytes per weight of an agent, since every element of the merge needs them. The inputs get the
rest. Any rest will do, because shards that do not fit in are read by ranges.

Before the merge, while no output exists, an agent's sensitivity is computed by a network that needs its weights whole
on the disk, beside the sums and the result.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hubmerge.errors import DiskError
from hubmerge.methods import get_method
from hubmerge.numerics.dtypes import FLOAT_DTYPES
from hubmerge.plan.plan import Plan

DISK_MARGIN_BYTES = 64 * 1024 * 1024  # journal, card, database
SHARDS_ON_DISK = 2  # of an output that is uploaded: one on its way, one being written or waiting


def output_need(plan: Plan, *, uploaded: bool) -> int:
    """Bytes of output that lie on disk at once: shards, and the files beside them."""
    if not uploaded:
        return plan.output_bytes + plan.companions.bytes
    return sum(sorted(s.size for s in plan.shards)[-SHARDS_ON_DISK:]) + plan.companions.bytes


def computed_sensitivities(plan: Plan) -> dict[int, int]:
    """Agent (from 0) → bytes of its sensitivity, for those whose sensitivity has to be computed."""
    if "sensitivity" not in get_method(plan.recipe.method).extras:
        return {}
    return {k: 4 * _floats(plan, k) for k, agent in enumerate(plan.recipe.agents) if agent.sensitivity is None}


def computing_need(plan: Plan, agent: int) -> int:
    """Bytes that lie on disk at once while an agent's sensitivity is computed, its result included."""
    result = 4 * _floats(plan, agent)
    model = plan.agents[agent]
    weights = model.weight_bytes if model.ref.kind == "hub" else 0
    return weights + 3 * result  # the sums, a checkpoint of them, and the next one or the result


def _floats(plan: Plan, agent: int) -> int:
    stored = plan.agents[agent].tensors.values()
    return sum(t.entry.elements for t in stored if t.entry.dtype in FLOAT_DTYPES)


def sensitivity_need(plans: Sequence[Plan]) -> int:
    """Bytes of computed sensitivities that lie on disk throughout; plans share those of the same agent."""
    needed: dict[object, int] = {}
    for plan in plans:
        for k, size in computed_sensitivities(plan).items():
            spec = plan.recipe.agents[k].calibration or plan.recipe.calibration
            needed[plan.agents[k].ref, spec] = size
    return sum(needed.values())


def computing_peak(plan: Plan) -> int:
    """The most that lies on disk while the sensitivities are computed one after the other."""
    sizes = computed_sensitivities(plan)
    return max((computing_need(plan, k) + sum(size for j, size in sizes.items() if j < k) for k in sizes), default=0)


def least_need(plan: Plan, *, uploaded: bool) -> int:
    """The smallest disk budget with which a merge can finish; it then reads its inputs by ranges."""
    return max(output_need(plan, uploaded=uploaded) + sensitivity_need([plan]), computing_peak(plan))


def most_use(plan: Plan, *, uploaded: bool) -> int:
    """The most bytes that a merge without a limit has on the disk at once."""
    streaming = plan.download_bytes + output_need(plan, uploaded=uploaded) + sensitivity_need([plan])
    return max(streaming, computing_peak(plan))


def available_bytes(folders: Sequence[Path], limit: int | None) -> int:
    """The bytes that a merge may take in `folders` altogether, including what lies there already."""
    available = shutil.disk_usage(folders[0]).free + used_bytes(folders) - DISK_MARGIN_BYTES
    return available if limit is None else min(limit, available)


def input_budget(
    plans: Sequence[Plan],
    folders: Sequence[Path],
    cache: Path,
    limit: int | None,
    *,
    uploaded: bool = False,
    dropped: bool = False,
) -> int:
    """Bytes that fetched inputs may take; DiskError when not even the outputs and the sensitivities fit in.

    `limit`: bytes for everything that these merges write; None for the free space. `dropped`: outputs go into the null
    sink.
    """
    outputs = 0 if dropped else sum(output_need(plan, uploaded=uploaded) for plan in plans)
    needed = outputs + sensitivity_need(plans)
    free = shutil.disk_usage(folders[0]).free
    available = available_bytes((*folders, cache), limit)
    where = str(folders[0])
    if limit is not None and limit < needed:
        least, given = shown_bytes(needed, limit)
        what, step = "the disk budget is too small for the output", "Raise --disk-budget."
        raise DiskError(what, where=where, expected=f"{least} or more", got=given, next_step=step)
    if needed > available:
        least, found = shown_bytes(needed - available + free, free)
        step = "Free some disk, choose a folder on a larger one, or use a larger Space."
        raise DiskError("not enough disk", where=where, expected=f"{least} free", got=found, next_step=step)
    return available - needed


def shown_bytes(*counts: int) -> tuple[str, ...]:
    """Sizes in one unit, so that they can be compared, and with as many digits as tell them apart."""
    largest = max(counts)
    unit, scale = next(((u, s) for u, s in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)) if largest >= s), ("B", 1))
    digits = next((n for n in (2, 4, 6) if len({f"{c / scale:.{n}f}" for c in counts}) == len(set(counts))), 9)
    return tuple(f"{c / scale:.{digits if scale > 1 else 0}f} {unit}" for c in counts)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for gigabytes, which is removed afterwards even if Ctrl-C interrupts the removal."""
    made = tempfile.TemporaryDirectory(prefix="hubmerge-")
    try:
        yield Path(made.name)
    finally:
        try:
            made.cleanup()
        except KeyboardInterrupt:
            made.cleanup()
            raise


class DiskGauge:
    """The most bytes that some folders held; sampled where use is at a peak, before deletions."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._lock = threading.Lock()
        self.high_water_bytes = 0

    def sample(self) -> None:
        used = used_bytes(self._folders)
        with self._lock:
            self.high_water_bytes = max(self.high_water_bytes, used)


def used_bytes(folders: Iterable[Path], counts: Callable[[str], bool] = lambda path: True) -> int:
    """The disk that the files below `folders` take. Files may come and go meanwhile, and folders may be nested.

    `counts` tells by its path whether a file is counted.
    """
    sizes: dict[str, int] = {}
    for folder in folders:
        for parent, _, names in os.walk(folder.absolute()):
            for path in (os.path.join(parent, name) for name in names):
                if counts(path):
                    with suppress(FileNotFoundError):
                        sizes[path] = os.lstat(path).st_blocks * 512
    return sum(sizes.values())

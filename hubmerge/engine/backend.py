"""Where a merge computes: its chunks, in how many threads and how large, and its products of matrices.

Chunks are the CPU's: it has the fast pass, or the definition where this machine has no compiler. "auto" gives them to a
device only in that case. On an H200 (docs/gpu.md) a device takes as long per parameter as one core with the fast pass,
since each of some 1,400 operations is a kernel of its own; whoever names it gets it. What a method ranks before it can
merge is counted on the CPU in any case. No choice among these changes a bit.

Products of matrices (`merge_whole`) are a device's wherever there is one, forty times as fast there as on sixteen
cores. Their last bits are the device's own.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from hubmerge.engine import definition
from hubmerge.engine.definition import ChunkInputs, Rule
from hubmerge.engine.device import COUNTING, Engine, open_engine
from hubmerge.engine.memory import Shares, device_shares, shares_of, whole_bytes
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.progress import Observer
from hubmerge.engine.rules import is_whole, rule_of
from hubmerge.numerics.dtypes import Float32
from hubmerge.plan.plan import Plan
from hubmerge.statistics.statistics import Overlaps

CORES_PER_SHARD = 6  # that merge about as many bytes as one more core hashes
MOST_SHARDS = 4  # at once: each reads somewhere else
_multiplying = threading.Lock()


@dataclass(frozen=True)
class Backend:
    """What merges of the same models in one pass work with."""

    plans: Sequence[Plan]
    options: StreamOptions
    cpu: ModuleType  # definition or fast
    shares: Shares  # of the CPU
    engine: Engine | None = None
    chunks_on_device: bool = False  # and not only products of matrices
    refused: dict[str, Any] | None = None  # why a device that is there is not used, for the report's environment

    @property
    def device(self) -> Engine | None:
        """What takes chunks in place of the CPU, as long as it works."""
        return self.engine if self.chunks_on_device and self.engine is not None and self.engine.working else None

    @property
    def module(self) -> Any:
        """What counts and merges chunks now."""
        return self.device or self.cpu

    @property
    def fast(self) -> bool:
        """Whether the CPU has the fast pass."""
        return self.cpu is not definition

    @property
    def threads(self) -> int:
        """How many threads count and merge from now on."""
        return self.shares.threads if self.device is None else self._on_device[0]

    @property
    def chunk(self) -> int:
        """The size of chunks from now on in elements, a multiple of BLOCK."""
        return self.shares.chunk if self.device is None else self._on_device[1]

    @property
    def _on_device(self) -> tuple[int, int]:
        return device_shares(len(self.plans[0].agents), self.options)

    @property
    def shards_at_once(self) -> int:
        """How many output shards to write at once: more than one only on the CPU's cores."""
        whole = any(is_whole(plan, t) for plan in self.plans for t in plan.tensors())
        if self.device is not None or whole or (self.options.bursts and not self.fast):
            return 1
        return self.options.parallel_shards or max(1, min(MOST_SHARDS, self.threads // CORES_PER_SHARD))

    def whole_update(self, stored: ChunkInputs, rule: Rule) -> Float32:
        """δ* [n] of a chunk that is a whole tensor, as its method's `merge_whole` has it."""

        def on_host() -> Float32:
            from threadpoolctl import threadpool_limits

            def each(work: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
                return list(pool.map(partial(_quietly, work), parts))

            # products of one thread each: the order of a product's sums depends on their number. The limit is the
            # process's, so one tensor at a time
            with _multiplying, threadpool_limits(1), ThreadPoolExecutor(self.shares.threads) as pool:
                return np.ascontiguousarray(_quietly(partial(definition.whole_update, stored, rule), each))

        return on_host() if self.engine is None else self.engine.whole_update(stored, rule, on_host)

    def facts(self) -> dict[str, Any]:
        """For the report's environment."""
        return dict(self.refused or {}) if self.engine is None else self.engine.facts()


@contextmanager
def opened(
    plans: Sequence[Plan], options: StreamOptions, observer: Observer, *, merging: bool = True
) -> Iterator[Backend]:
    """The backend of merges of the same models in one pass, or of a probe."""
    options, cpu = _runnable(options, observer)
    trials: list[tuple[Rule, str]] = []
    if options.device == "cuda" or cpu is definition:
        trials = [trial for plan in plans for trial in _trials(plan)] if merging else [(COUNTING, "BF16")]
    whole = [whole_bytes(plan, t) for plan in plans for t in plan.tensors() if merging and is_whole(plan, t)]
    # with a quarter on top for the allocator's rounding
    largest = max(whole, default=0) * 5 // 4
    engine, refused = open_engine(options, len(plans[0].agents), trials, largest, cpu, observer.warning)
    try:
        yield Backend(plans, options, cpu, shares_of(plans, options), engine, bool(trials), refused)
    finally:
        if engine is not None:
            engine.close()


def _quietly(work: Callable[[Any], Any], part: Any) -> Any:
    """NaN and Inf are counted, not warned about; what numpy is told holds for one thread."""
    with np.errstate(all="ignore"):
        return work(part)


def _trials(plan: Plan) -> Iterator[tuple[Rule, str]]:
    """A rule for each dtype of the output, with made-up counts and thresholds."""
    k = len(plan.agents)
    overlaps = Overlaps(np.ones((k, k + 1), np.int64))
    tensors = [t for t in plan.tensors() if t.action == "merge" and t.elements and not is_whole(plan, t)]
    for dtype, tensor in {t.dtype: t for t in tensors}.items():
        rule = rule_of(plan, tensor, (1e-3,) * k, overlaps, overlaps)
        assert rule is not None
        yield rule, dtype


def _runnable(options: StreamOptions, observer: Observer) -> tuple[StreamOptions, ModuleType]:
    """`options` as this machine can follow them, and definition or fast: the definition, and a warning, where it has no
    fast pass.

    Where the fast pass is not built yet it is built here, as a stage of its own.
    """
    if options.backend == "eager":
        return options, definition
    from hubmerge.engine import compiled, fast

    to_build = not compiled.is_built()
    if to_build:
        observer.progress("compile", 0, 1, "parts")
    why = fast.unavailable()
    if to_build:
        observer.progress("compile", 1, 1, "parts")
    if why is None:
        return options, fast
    observer.warning(
        "this machine has no fast pass, so that the merge takes some sixty times as long; its bytes are the same: "
        f"{why}. It takes a C compiler (install gcc, or `pip install ziglang`) and a folder with room for it, where "
        "programs may run (XDG_CACHE_HOME or TMPDIR)"
    )
    return replace(options, backend="eager"), definition

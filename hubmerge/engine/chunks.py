"""The work on one chunk, an element range of one tensor: from stored inputs to stored output, in any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hubmerge import machine
from hubmerge.counter_rng import Key, make_key
from hubmerge.dtypes import Float32
from hubmerge.engine import definition, memory
from hubmerge.engine.counting import Counted
from hubmerge.engine.device import Contest, DeviceName, Engine, open_engine
from hubmerge.engine.distributed import ALONE, Ranks
from hubmerge.engine.parallel_shards import shards_at_once
from hubmerge.engine.progress import Observer
from hubmerge.engine.selection import BinCounts, Magnitudes, Selection
from hubmerge.errors import IncompatibleError, MemoryLimitError, NonFiniteError
from hubmerge.methods import Method, get_method
from hubmerge.methods.base import EPSILON, Scope
from hubmerge.plan.plan import Plan, PlannedTensor
from hubmerge.sources.base import StoredTensor
from hubmerge.sources.buffers import placed
from hubmerge.sources.derived import BorrowedTensor
from hubmerge.sources.header import DTYPE_BYTES
from hubmerge.sources.reader import Scratch, TensorReader
from hubmerge.statistics.statistics import Counts, Overlaps, ResultTally, Statistics, Tally

if TYPE_CHECKING:
    from hubmerge.engine.bursts import Bursts

Backend = Literal["auto", "eager"]
Sink = Literal["disk", "null"]
Sensitivities = Mapping[str, StoredTensor]  # tensor → where its sensitivity lies
Thresholds = Mapping[str, tuple[float, ...]]  # tensor → one per agent


@dataclass(frozen=True)
class StreamOptions:
    """How, never what: no field changes a bit of the result."""

    chunk_elements: int = 0  # 0: as many as memory allows
    threads: int = 0  # at most, and fewer where memory does not allow them; 0: one per core
    memory_bytes: int = 0  # of all threads' chunks and counters; 0: as this machine allows (memory.py)
    beside: tuple[Plan, ...] = ()  # other recipes that are merged in the same pass
    backend: Backend = "auto"  # "eager": never the fast pass
    device: DeviceName = "cpu"
    device_memory_bytes: int = memory.MEMORY_BYTES  # the most that the device is asked for
    engine: Engine | None = None  # of the device, while it is open: `on_device`
    device_failed: str = ""  # why a device that is there could not be opened
    parallel_shards: int = 0  # written at once; 0: as many as the cores are good for
    ranks: Ranks = ALONE  # the processes that share the work
    sink: Sink = "disk"  # "null": shards are counted and hashed, not written; by one process only
    bursts: Bursts | None = None  # where a GPU is lent for one shard at a time
    cache: Path | None = None  # folder of fetched inputs; None: in the output's working folder
    sensitivities: Path | None = None  # folder where computed ones are kept for the next merge
    disk_budget: int | None = None  # bytes that output and fetched inputs may take together; None: what is free

    @contextmanager
    def on_device(self, plan: Plan, warn: Callable[[str], None]) -> Iterator[StreamOptions]:
        """These options with the engine of their device open; with the CPU where it cannot be used."""
        if self.engine is not None or self.device == "cpu":
            yield self
            return

        opened = open_engine(
            self.device,
            len(plan.agents),
            backend_module(self.backend),
            warn,
            memory_bytes=self.device_memory_bytes,
            local_rank=self.ranks.local_rank,
            contest=self._contest(plan) if self.device == "auto" else None,
        )
        if opened.engine is None:
            yield replace(self, device="cpu", device_failed=opened.failed)  # nobody tries again
            return
        try:
            yield replace(self, engine=opened.engine)
        finally:
            opened.engine.close()

    def _contest(self, plan: Plan) -> Contest | None:
        try:
            fitting = memory.device_chunk(len(plan.agents), self.device_memory_bytes, memory.LANES)
        except MemoryLimitError:  # which opening tells
            return None
        shares, chunk = self.shares(plan), self.chunk_elements or fitting
        on_device = self.threads or min(memory.HOST_THREADS, machine.cores())
        return Contest(shares.threads, shares.chunk, on_device, chunk)

    def lasting(self) -> StreamOptions:
        """These options, with the CPU's threads and chunks if the device has failed meanwhile."""
        if self.engine is None or self.engine.working:
            return self
        return replace(self, device="cpu", engine=None)

    def device_facts(self) -> dict[str, Any]:
        """For the report's environment."""
        if self.engine is not None:
            return self.engine.facts()
        return {"device_failed": self.device_failed} if self.device_failed else {}

    def module(self) -> Any:
        """What counts and merges chunks; the choice changes no bit."""
        if self.engine is not None and self.engine.working:
            return self.engine
        return backend_module(self.backend)

    def tell(self, warn: Callable[[str], None]) -> None:
        """Pass on, in the caller's thread, what the device has to say."""
        if self.engine is not None:
            self.engine.tell(warn)

    def chunk(self, plan: Plan) -> int:
        """The chunk size in elements, a multiple of BLOCK."""
        if self.engine is not None and not self.chunk_elements:
            return memory.blocks(memory.device_chunk(len(plan.agents), self.device_memory_bytes, memory.LANES))
        return self.shares(plan).chunk

    def shares(self, plan: Plan) -> memory.Shares:
        """How memory is shared out on the CPU."""
        return memory.shares_of(
            (plan, *self.beside),
            self.wanted_threads,
            self.memory_bytes or memory.stream_bytes(machine.memory_bytes()),
            fast=self.backend != "eager",
            chunk_elements=self.chunk_elements,
        )

    def workers(self, plan: Plan) -> int:
        """How many threads count and merge."""
        return self.wanted_threads if self.engine is not None else self.shares(plan).threads

    def shards_at_once(self, plan: Plan) -> int:
        """How many output shards to write at once: more than one only on the CPU's cores."""
        whole = any(is_whole(plan, t) for t in plan.tensors())
        if self.engine is not None or self.bursts is not None or whole:
            return 1
        return self.parallel_shards or shards_at_once(self.workers(plan))

    @property
    def wanted_threads(self) -> int:
        """As many as were asked for, or as would run at once."""
        return self.threads or min(memory.HOST_THREADS if self.engine is not None else machine.cores(), machine.cores())


@dataclass(frozen=True)
class Chunk:
    tensor: PlannedTensor
    start: int
    count: int

    @property
    def ends(self) -> bool:
        """True for the last chunk of its tensor."""
        return self.start + self.count == self.tensor.elements


class Done(NamedTuple):
    """A chunk's stored output and what was counted; the counts are None where there was nothing to count."""

    data: bytes | memoryview
    inputs: Counted[Tally] | None
    result: Counted[ResultTally] | None


class Work:
    """One recipe's work on a chunk; called from several threads, holds nothing that changes."""

    def __init__(self, plan: Plan, options: StreamOptions, statistics: Statistics | None) -> None:
        self._plan = plan
        self._options = options
        self._statistics = statistics
        self._method = get_method(plan.recipe.method)
        self._model = None if statistics is None else statistics.total.overlaps

    def rule(
        self, tensor: PlannedTensor, thresholds: tuple[float, ...], overlaps: Overlaps | None = None
    ) -> definition.Rule | None:
        """What is done to every element of a tensor; None where it is copied.

        `overlaps`: of the tensor, where the model's statistics are not there.
        Scalars are computed in float64 and rounded to float32 here.
        """
        if tensor.action == "copy":
            return None
        if self._statistics is not None:
            overlaps = self._statistics.tensors[tensor.name].overlaps
        values = self._plan.values[tensor.name]
        scope = Scope(values.parameters, values.weights, self._model, overlaps, thresholds, values.own)
        method, whole = self._method, is_whole(self._plan, tensor)
        per_agent, constants = scalars_of(method, scope)
        rule = definition.Rule(
            kernel=_whole(method, tensor, scope) if whole else method.kernel,
            whole=whole,
            extras=method.extras,
            per_agent=per_agent,
            constants=constants,
            epsilon=epsilon_of(self._plan),
            rounding=self._plan.rounding,
            both_roundings=method.rescales,
        )
        if self._options.engine is not None and not whole:
            self._options.engine.check(rule, len(self._plan.agents), tensor.dtype)
        return rule

    def count_overlaps(self, stored: definition.ChunkInputs) -> Counts:
        """Where the updates of a chunk meet, [K, K+1]; on the CPU, as `count`."""
        module = backend_module(self._options.backend)
        overlaps: Counts = module.count_overlaps(stored, epsilon_of(self._plan))
        return overlaps

    def count(self, chunk: Chunk, stored: definition.ChunkInputs, selection: Selection) -> BinCounts:
        """What a chunk adds to the counts of a selection."""
        with np.errstate(all="ignore"):
            return selection.count(with_draws(self._plan, selection.magnitudes, chunk, stored))

    def __call__(
        self, chunk: Chunk, stored: definition.ChunkInputs, rule: definition.Rule | None, *, with_inputs: bool
    ) -> Done:
        tensor = chunk.tensor
        if rule is None:
            return Done(_bytes(self._copied(chunk, stored)), None, None)
        if "uniform" in rule.extras:
            stored = replace(stored, uniform_keys=draw_keys(self._plan, tensor))
        if stored.sensitivities and "sensitivity" not in rule.extras:
            stored = replace(stored, sensitivities=())
        module = definition if rule.whole else self._options.module()
        key = make_key(self._plan.recipe.seed, "rounding", tensor.name)
        with placed(tensor.begin + chunk.start * DTYPE_BYTES[tensor.dtype]):
            out = module.merge_chunk(stored, rule, tensor.dtype, key, with_inputs=with_inputs)
        return Done(_bytes(out.raw), out.inputs, out.result)

    def _copied(self, chunk: Chunk, stored: definition.ChunkInputs) -> NDArray[np.generic]:
        for model, raw in zip(self._plan.agents, stored.raws[1:], strict=False):  # `read_chunk` may leave them out
            if not np.array_equal(raw, stored.raws[0]):
                raise IncompatibleError(
                    "a tensor of integers differs from the base's and cannot be merged",
                    where=f"{chunk.tensor.name} of {model.ref}",
                    next_step=f"Remove {model.ref.id}.",
                )
        return stored.raws[0].copy()  # it is written after this thread has read the next chunk


def scalars_of(method: Method, scope: Scope) -> tuple[tuple[tuple[np.float32, ...], ...], tuple[np.float32, ...]]:
    """A kernel's scalars: per agent, and those that all share."""
    per_agent = tuple(tuple(np.float32(v) for v in row) for row in method.per_agent(scope))
    return per_agent, tuple(np.float32(v) for v in method.constants(scope))


def is_whole(plan: Plan, tensor: PlannedTensor) -> bool:
    """True where a tensor must be one chunk."""
    return tensor.action == "merge" and get_method(plan.recipe.method).needs_whole(tensor.name, tensor.shape)


MagnitudesOf = Callable[[PlannedTensor], Magnitudes | None]


def magnitudes_of(plan: Plan, options: StreamOptions) -> MagnitudesOf | None:
    """What the method ranks of a tensor before it can merge; None where it ranks nothing of any."""
    if plan.threshold is None:
        return None
    epsilon, rows, fast = epsilon_of(plan), options.shares(plan).rows, options.backend != "eager"

    def of(tensor: PlannedTensor) -> Magnitudes | None:
        threshold = plan.threshold_of(tensor) if tensor.action == "merge" else None
        return None if threshold is None else Magnitudes(threshold, epsilon, fast=fast, at_once=rows)

    return of


def with_draws(
    plan: Plan, magnitudes: Magnitudes, chunk: Chunk, stored: definition.ChunkInputs
) -> definition.ChunkInputs:
    """The inputs as `magnitudes` counts them."""
    if magnitudes.threshold.of != "dropped":
        return stored
    return replace(stored, uniform_keys=draw_keys(plan, chunk.tensor))


def _whole(method: Method, tensor: PlannedTensor, scope: Scope) -> Callable[..., Float32]:
    """A whole-tensor merge in the form of a kernel over one chunk that is the tensor."""

    def kernel(inputs: Sequence[Float32], per_agent: Any, constants: Any) -> Float32:
        deltas = [d.reshape(tensor.shape) for d in inputs[: len(per_agent)]]
        return np.ascontiguousarray(method.merge_whole(deltas, scope)).reshape(-1)

    return kernel


def draw_keys(plan: Plan, tensor: PlannedTensor) -> tuple[Key, ...]:
    """The keys of every agent's random draws in one tensor."""
    return tuple(make_key(plan.recipe.seed, "uniform", str(k), tensor.name) for k in range(len(plan.agents)))


def read_chunk(reader: TensorReader, chunk: Chunk, scratch: Scratch | None = None) -> definition.ChunkInputs:
    """The stored elements of a chunk.

    They may lie in `scratch`, or else in a buffer of this thread, and are valid until the next chunk is read there.
    """
    inputs = chunk.tensor.inputs
    if chunk.tensor.action == "copy" and all(isinstance(t, BorrowedTensor) for t in inputs[1:]):
        inputs = inputs[:1]  # everybody has the base's
    raws = reader.rows(inputs, chunk.start, chunk.count, scratch)
    dtypes = tuple(t.entry.dtype for t in inputs)
    reader.consumed(chunk.tensor, chunk.count)
    return definition.ChunkInputs(raws, dtypes, chunk.start)


def with_sensitivities(
    reader: TensorReader, chunk: Chunk, stored: definition.ChunkInputs, sensitivities: Sequence[Sensitivities]
) -> definition.ChunkInputs:
    """And what the agents' sensitivity files say of these elements; each file is a model behind the inputs'."""
    if not sensitivities or chunk.tensor.action == "copy":
        return stored
    measured: Any = tuple(
        reader.raw(len(stored.raws) + k, file[_name_in(chunk.tensor, k, file)], chunk.start, chunk.count)
        for k, file in enumerate(sensitivities)
    )
    return replace(stored, sensitivities=measured)


def _name_in(tensor: PlannedTensor, agent: int, file: Sensitivities) -> str:
    """A sensitivity file has the names that the agent's checkpoint stores."""
    return tensor.inputs[agent + 1].entry.name if tensor.name not in file else tensor.name


def backend_module(backend: Backend) -> ModuleType:
    """definition or fast; the choice changes no bit."""
    if backend == "eager":
        return definition
    from hubmerge.engine import fast  # which most commands do without

    return fast


def runnable(options: StreamOptions, observer: Observer) -> StreamOptions:
    """`options` as this machine can follow them: with the definition, and a warning, where it has no fast pass.

    Where the fast pass is not built yet it is built here, as a stage of its own.
    """
    if options.backend == "eager":
        return options
    from hubmerge.engine import compiled, fast

    to_build = not compiled.is_built()
    if to_build:
        observer.progress("compile", 0, 1, "parts")
    why = fast.unavailable()
    if to_build:
        observer.progress("compile", 1, 1, "parts")
    if why is None:
        return options
    observer.warning(
        "this machine has no fast pass, so that the merge takes some sixty times as long; its bytes are the same: "
        f"{why}. A C compiler mends it: install gcc, or `pip install ziglang`"
    )
    return replace(options, backend="eager")


def epsilon_of(plan: Plan) -> float:
    return float(plan.recipe.parameters.get("epsilon", EPSILON))


def chunks_of(tensor: PlannedTensor, size: int) -> Iterator[Chunk]:
    for start in range(0, tensor.elements, size):
        yield Chunk(tensor, start, min(size, tensor.elements - start))


def _bytes(raw: NDArray[np.generic]) -> memoryview:
    return np.ascontiguousarray(raw).data.cast("B") if raw.size else memoryview(b"")


def check_inputs(plan: Plan, name: str, tally: Tally) -> None:
    """NonFiniteError names the model."""
    if not any(tally.nonfinite.tolist()):
        return
    for model, bad in zip(plan.models, tally.nonfinite, strict=True):
        if bad:
            raise NonFiniteError(
                "NaN or Inf in an input",
                where=f"{name} of {model.ref}",
                expected="finite values",
                got=f"{bad} so far",
                next_step=f"Remove {model.ref.id}: it is broken.",
            )

"""A preview: what the agents changed in a few layers, from a few megabytes, and the method that this speaks for.

Of a few layers, spread over the depth, the largest matrix of attention and of the MLP are read in their middle, by
ranges. The counts are those of a probe of these elements alone. The bytes are not held against their files' checksums,
for which the files would have to be read whole: a preview decides nothing that is published.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from threading import Lock
from typing import Any

from hubmerge.engine.chunks import Chunk, check_inputs, read_chunk
from hubmerge.engine.counting import BLOCK, folded
from hubmerge.engine.definition import probe_chunk
from hubmerge.engine.rules import epsilon_of
from hubmerge.errors import MemoryLimitError
from hubmerge.hub.client import Hub
from hubmerge.plan.plan import Plan, PlannedTensor
from hubmerge.sources.base import Model
from hubmerge.sources.header import DTYPE_BYTES
from hubmerge.sources.reader import ShardStore, TensorReader
from hubmerge.statistics.statistics import Tally, layer_of, module_of, zero_tally
from hubmerge.statistics.summary import summarize

PREVIEW_BYTES = 8 * 1024**2  # of the elements that are looked at, in all models together
MAX_READ_BYTES = 4 * PREVIEW_BYTES  # with what computed tensors, such as those of adapters, need beside them
_LAYERS = 4
_MODULES = ("attention", "mlp")
_THREADS = 8
_DECIDES = 0.25  # of what was changed: the share from which one kind decides


@dataclass(frozen=True)
class Preview:
    """What was counted of a few layers."""

    method: str  # that the counts speak for; empty where the agents changed nothing there
    reason: str  # a sentence, without the method's name
    statistics: Mapping[str, Any]  # as `probe --json` has them under `total`
    tensors: tuple[str, ...]  # that were looked into
    layers: tuple[int, ...]  # their depths, from 0
    parameters: int  # of the whole merge
    bytes_read: int


def preview(plan: Plan, hub: Hub) -> Preview:
    """Count in a few layers what the agents changed.

    Raises NonFiniteError, what reading from the Hub raises, and MemoryLimitError past MAX_READ_BYTES.
    """
    tensors = sampled(plan)
    bytes_each = sum(DTYPE_BYTES[i.entry.dtype] for t in tensors for i in t.inputs)
    elements = max(1, PREVIEW_BYTES // max(1, bytes_each) // BLOCK) * BLOCK  # of each tensor, in its middle
    chunks = []
    for t in tensors:
        start = max(0, (t.elements - elements) // 2) // BLOCK * BLOCK
        chunks.append(Chunk(t, start, min(elements, t.elements - start)))
    store, epsilon = _Ranges(hub), epsilon_of(plan)
    with TensorReader(plan.models, store) as reader, ThreadPoolExecutor(_THREADS) as pool:

        def count(chunk: Chunk) -> Tally:
            counted = probe_chunk(read_chunk(reader, chunk), epsilon)
            check_inputs(plan, chunk.tensor.name, counted.tally)
            return folded(zero_tally(len(plan.agents)), [counted])

        # each thread asks in a copy of this context, which says until when the Hub may be asked
        counting = [pool.submit(copy_context().run, count, chunk) for chunk in chunks]
        total = sum((tally.result() for tally in counting), zero_tally(len(plan.agents)))
    method, reason = recommendation(total.shares, len(plan.agents))
    names = tuple(t.name for t in tensors)
    layers = tuple(sorted({depth for name in names if (depth := layer_of(name)) is not None}))
    figures = summarize(total, plan.labels)
    return Preview(method, reason, figures, names, layers, plan.elements, store.bytes_read)


def sampled(plan: Plan) -> list[PlannedTensor]:
    """The largest matrices of attention and MLP in a few layers; without such names, a few merged tensors."""
    merged = [t for t in plan.tensors() if t.action == "merge" and t.elements]
    found: dict[tuple[int, str], PlannedTensor] = {}
    for tensor in merged:
        depth, module = layer_of(tensor.name), module_of(tensor.name)
        if depth is not None and module in _MODULES and len(tensor.shape) > 1:
            found[depth, module] = max(found.get((depth, module), tensor), tensor, key=lambda t: t.elements)
    depths = _spread(sorted({depth for depth, _ in found}), _LAYERS)
    chosen = [found[key] for depth in depths for module in _MODULES if (key := (depth, module)) in found]
    return chosen or _spread(merged, _LAYERS * len(_MODULES))


def _spread(values: Sequence[Any], count: int) -> list[Any]:
    """At most so many of the values, as far from each other as they can be, and not at the ends."""
    if len(values) <= count:
        return list(values)
    return [values[(2 * k + 1) * len(values) // (2 * count)] for k in range(count)]


class _Ranges(ShardStore):
    """A ShardStore that keeps nothing: local files are read where they lie, and those of the Hub by ranges."""

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self.bytes_read = 0  # or being read
        self._hub = hub
        self._lock = Lock()

    def read_into(self, model: Model, shard: str, offset: int, out: memoryview) -> None:
        with self._lock:
            self.bytes_read += len(out)
            if self.bytes_read > MAX_READ_BYTES:
                raise MemoryLimitError(
                    "even a few layers of these models are too much to read for a preview",
                    where=f"{shard} in {model.ref}",
                    expected=f"at most {MAX_READ_BYTES:,} bytes",
                    got=f"{self.bytes_read:,} bytes or more",
                    next_step="Start the merge without a preview; its job counts everything.",
                )
        if model.ref.kind == "local":
            super().read_into(model, shard, offset, out)
        else:
            self._hub.read_range_into(model.ref.id, model.ref.sha, model.files[shard].path, offset, out)


def recommendation(shares: Mapping[str, float], agents: int) -> tuple[str, str]:
    """The method for which `Tally.shares` speak, and the reason as a sentence; neither where nothing was changed."""
    changed = 1 - shares["unchanged"]
    if changed <= 0:
        return "", "The agents are equal to the base in these layers."
    alone, conflict = shares["private"] / changed, shares["conflict"] / changed
    if agents == 1:
        return "task_arithmetic", "A single agent meets no other; its update can only be scaled."
    if alone >= _DECIDES:
        return "ram_plus", (
            f"{alone:.0%} of what changed was changed by one agent alone; averaging would divide it by {agents}."
        )
    if conflict >= _DECIDES:
        return "ties", (
            f"Only {alone:.0%} of what changed was changed by one agent alone, and of {conflict:.0%} agents disagree "
            "on the direction; TIES lets the stronger direction decide, averaging would cancel both."
        )
    return "linear", (
        f"Only {alone:.0%} of what changed was changed by one agent alone, and of just {conflict:.0%} agents disagree "
        "on the direction; plain averaging loses little."
    )

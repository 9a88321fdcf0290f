"""How the memory of a stream is shared out: how many threads work, how large their chunks are, how much is kept.

STREAM_BYTES are all there is, whatever the number of cores, agents or recipes. A thread takes a part for what it counts
into and a part for the chunk in its hands; what a method counts before it merges is kept in the rest (steps.py). Where
more threads are wanted than that is good for, the cheapest goes first:

    histograms    an agent's after the other's in one place, instead of all agents' at once: at most a tenth of counting
    chunks        down to GOOD_CHUNK elements
    what is kept  down to a quarter of all; a tensor that no longer fits is read twice
    chunks        down to SMALLEST_CHUNK
    threads       what a chunk costs besides its arithmetic is done by one thread at a time, so that a further thread
                  whose chunks are smaller still would bring nothing; more cores than that are for more processes

Nothing about the result depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hubmerge.engine.counting import BLOCK
from hubmerge.errors import MemoryLimitError
from hubmerge.methods import get_method
from hubmerge.sources.header import DTYPE_BYTES

if TYPE_CHECKING:
    from hubmerge.plan.plan import InputKind, Plan

STREAM_BYTES = 260_000_000  # a process of 8 agents stays 512 MB above its imports
LEAST_STREAM_BYTES = 32_000_000
KEPT_BYTES = 160_000_000  # inputs that lie there from their counting to their merging, at most
HISTOGRAM_BYTES = 32_000_000  # of all threads' histograms, unless it has to be more

LARGEST_CHUNK, GOOD_CHUNK, SMALLEST_CHUNK = 1024 * 1024, 512 * 1024, 256 * 1024  # elements
LARGEST_EAGER_CHUNK, SMALLEST_EAGER_CHUNK = 128 * 1024, 16 * 1024  # what numpy makes on the way is long, but near

THREAD, THREAD_PER_AGENT = 4_000_000, 400_000  # counters of a thread, and what the allocator keeps for it
ROW = 4 * 65_648 * 4  # one agent's histograms of keys (pass.c)

MEMORY_BYTES = 2 * 1000**3  # of a device, the driver's own context not counted
HOST_THREADS = 8  # that feed a device; more only contend for the interpreter
LANES = 3  # chunks on a device at once: one is copied in, one computed, one copied out
_LARGEST_DEVICE_CHUNK = 1 << 21  # elements

_ELSEWHERE = 192_000_000  # what a process takes beside its stream


@dataclass(frozen=True)
class Shares:
    """Of all threads together: `threads` · (`thread_bytes` + `chunk` · `element_bytes`) + `kept_bytes`."""

    threads: int
    chunk: int  # elements, a multiple of BLOCK
    rows: int  # agents whose histograms a thread has at once
    kept_bytes: int  # at most
    thread_bytes: int  # besides its chunk
    element_bytes: int


def shares_of(
    plans: Sequence[Plan], wanted_threads: int, stream_bytes: int, *, fast: bool = True, chunk_elements: int = 0
) -> Shares:
    """For merges of the same models in one pass; `chunk_elements` is taken as it is, unless it is 0."""
    agents, selects, keeps = len(plans[0].agents), _selects(plans), _keeps(plans)
    per_element = _element_bytes(plans, fused=fast)
    largest, good, smallest = (
        (LARGEST_CHUNK, GOOD_CHUNK, SMALLEST_CHUNK)
        if fast
        else (LARGEST_EAGER_CHUNK, LARGEST_EAGER_CHUNK // 2, SMALLEST_EAGER_CHUNK)
    )
    if chunk_elements:
        largest = good = smallest = blocks(chunk_elements)
    # a tensor that is shorter than a chunk takes no more than it has
    longest = max(BLOCK, blocks(max(plan.longest for plan in plans)))
    good, smallest = min(good, longest), min(smallest, longest)

    def of_thread(rows: int) -> int:
        """What is counted before the model is merged is counted by other threads, which are gone then."""
        merging, counting = agents * THREAD_PER_AGENT, rows * ROW
        return THREAD + (merging + counting if keeps else max(merging, counting))

    least = of_thread(1 if selects else 0)
    kept = stream_bytes - wanted_threads * (least + good * per_element)
    kept = min(KEPT_BYTES, max(stream_bytes // 4, kept)) if keeps else 0
    room = stream_bytes - kept
    threads = max(1, min(wanted_threads, room // (least + smallest * per_element)))
    spare = max(0, room // threads - least - good * per_element)
    rows = min(agents, 1 + spare // ROW, max(1, HISTOGRAM_BYTES // (threads * ROW))) if selects else 0
    fitting = max(0, room // threads - of_thread(rows)) // per_element // BLOCK * BLOCK
    chunk = max(BLOCK, smallest if chunk_elements else 0, min(largest, fitting))
    return Shares(threads, chunk, rows, kept, of_thread(rows), per_element)


def stream_bytes(machine_bytes: int | None) -> int:
    """What a stream may take on a machine, or in a container, of so much memory."""
    if machine_bytes is None:
        return STREAM_BYTES
    return max(LEAST_STREAM_BYTES, min(STREAM_BYTES, (machine_bytes - _ELSEWHERE) // 2))


def blocks(elements: int) -> int:
    """`elements`, or the next multiple of BLOCK."""
    return -(-elements // BLOCK) * BLOCK


def device_chunk(agents: int, memory_bytes: int, lanes: int) -> int:
    """The largest chunk, a multiple of BLOCK, of which `lanes` fit into a device's `memory_bytes`."""
    fitting = memory_bytes // (lanes * device_bytes(agents)) // BLOCK * BLOCK
    if fitting < BLOCK:
        raise MemoryLimitError(
            "not even one block fits the device's memory",
            expected=f"{lanes * device_bytes(agents) * BLOCK / 1e6:.0f} MB",
            got=f"{memory_bytes / 1e6:.0f} MB",
            next_step="Run on the CPU (--device cpu), which has no such limit.",
        )
    return min(_LARGEST_DEVICE_CHUNK, fitting)


def device_bytes(agents: int) -> int:
    """The most that a pass holds at once (definition.py, counting.py), with a quarter on top for the allocator's
    rounding: inputs as they came and in float32, differences, scaled differences and their products, masks, draws and
    sensitivities."""
    return (48 + 40 * agents) * 5 // 4


def plain_bytes(agents: int) -> int:
    """Per element in flight, operation by operation: values, differences and masks, and their scaled forms, squares
    and products."""
    return 20 + 26 * agents


def _element_bytes(plans: Sequence[Plan], *, fused: bool) -> int:
    agents = len(plans[0].agents)
    extras = {name for plan in plans for name in get_method(plan.recipe.method).extras}
    measured = 4 * agents if "sensitivity" in extras else 0
    of_inputs = max((_input_bytes(kind, agents) for kind in plans[0].input_kinds), default=0)
    # two results in flight per thread (threads.py), and one that is written
    of_outputs = sum(3 * max(map(DTYPE_BYTES.__getitem__, p.merged_dtypes), default=0) for p in plans)
    if not fused:
        return plain_bytes(agents) + measured + of_outputs - 3 * DTYPE_BYTES["F32"]
    return max(1, of_inputs + of_outputs + measured)


def _input_bytes(kind: InputKind, agents: int) -> int:
    """As they are stored, and as float32 where they differ."""
    return (agents + 1) * (DTYPE_BYTES[next(iter(kind))] if len(kind) == 1 else 8)


def _selects(plans: Sequence[Plan]) -> bool:
    return any(plan.threshold is not None for plan in plans)


def _keeps(plans: Sequence[Plan]) -> bool:
    """Whether tensors are counted just before they are merged."""
    ranked = any(plan.threshold is not None and plan.threshold.scope == "tensor" for plan in plans)
    return ranked or any(plan.overlap_scope == "tensor" for plan in plans)

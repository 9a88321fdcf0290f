"""How the memory of a stream is shared out: how many threads work, and how large their chunks are.

STREAM_BYTES are all there is, whatever the number of cores, agents or recipes. A thread takes a part for what it counts
into and a part for the chunk in its hands. Where more threads are wanted than that is good for, chunks become smaller,
down to SMALLEST_CHUNK; then there are fewer threads: what a chunk costs besides its arithmetic is done by one thread at
a time, so that a further thread whose chunks are smaller still would bring nothing. More cores than that are for more
processes. Nothing about the result depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hubmerge.engine.counting import BLOCK
from hubmerge.engine.options import DEVICE_BYTES, StreamOptions
from hubmerge.errors import MemoryLimitError
from hubmerge.machine import resources
from hubmerge.methods import get_method
from hubmerge.sources.derived import DerivedTensor
from hubmerge.sources.header import DTYPE_BYTES

if TYPE_CHECKING:  # the fast pass alone does without
    from hubmerge.plan.plan import InputKind, Plan, PlannedTensor

STREAM_BYTES = 260_000_000  # a process of 8 agents stays 512 MB above its imports
LEAST_STREAM_BYTES = 32_000_000

COMPUTING = 9  # bytes per element beside a computed input: of fp8 its bits, values and scales (derived.py)
LARGEST_CHUNK, SMALLEST_CHUNK = 1536 * 1024, 256 * 1024  # elements
LARGEST_EAGER_CHUNK, SMALLEST_EAGER_CHUNK = 128 * 1024, 16 * 1024  # what numpy makes on the way is long, but near

THREAD, THREAD_PER_AGENT = 300_000, 900_000  # scratch and counters of a thread (`laid_out` in pass.c)
COUNTERS_PER_AGENT = 786_000  # of that; updates of few magnitudes touch few of them, those of every magnitude all
ROW = 4 * 65_648 * 4  # one agent's histogram of keys, COPIES times (pass.c); a thread counts one agent after the other

HOST_THREADS = 8  # that feed a device; more only contend for the interpreter
DEVICE_LANES = 3  # chunks on a device at once: one is copied in, one computed, one copied out
_LARGEST_DEVICE_CHUNK = 1 << 21  # elements

_ELSEWHERE = 192_000_000  # what a process takes beside its stream


@dataclass(frozen=True)
class Shares:
    """Of all threads together: `threads` · (`thread_bytes` + `chunk` · `element_bytes`)."""

    threads: int
    chunk: int  # elements, a multiple of BLOCK
    thread_bytes: int  # besides its chunk
    element_bytes: int


def shares_of(plans: Sequence[Plan], options: StreamOptions) -> Shares:
    """How merges of the same models in one pass share the CPU and its memory here."""
    wanted = options.threads or resources.cores()
    there, fast = stream_bytes(resources.memory_bytes()), options.backend != "eager"
    return shared_out(plans, wanted, there, fast=fast, chunk_elements=options.chunk_elements)


def shared_out(
    plans: Sequence[Plan], wanted_threads: int, stream_bytes: int, *, fast: bool = True, chunk_elements: int = 0
) -> Shares:
    """`chunk_elements` is taken as it is, unless it is 0."""
    agents = len(plans[0].agents)
    largest, smallest = (LARGEST_CHUNK, SMALLEST_CHUNK) if fast else (LARGEST_EAGER_CHUNK, SMALLEST_EAGER_CHUNK)
    if chunk_elements:
        largest = smallest = blocks(chunk_elements)
    # a tensor that is shorter than a chunk takes no more than it has
    smallest = min(smallest, max(BLOCK, blocks(max(plan.longest for plan in plans))))
    element_bytes = _element_bytes(plans, fused=fast)
    thread_bytes = THREAD + agents * THREAD_PER_AGENT + ROW * any(plan.threshold is not None for plan in plans)
    threads = max(1, min(wanted_threads, stream_bytes // (thread_bytes + smallest * element_bytes)))
    fitting = max(0, stream_bytes // threads - thread_bytes) // element_bytes // BLOCK * BLOCK
    chunk = max(BLOCK, smallest if chunk_elements else 0, min(largest, fitting))
    return Shares(threads, chunk, thread_bytes, element_bytes)


def stream_bytes(machine_bytes: int | None) -> int:
    """What a stream may take on a machine, or in a container, of so much memory."""
    if machine_bytes is None:
        return STREAM_BYTES
    return max(LEAST_STREAM_BYTES, min(STREAM_BYTES, (machine_bytes - _ELSEWHERE) // 2))


def blocks(elements: int) -> int:
    """`elements`, or the next multiple of BLOCK."""
    return -(-elements // BLOCK) * BLOCK


def device_shares(agents: int, options: StreamOptions) -> tuple[int, int]:
    """How many threads feed a device, and the elements of their chunks: as many as are wanted, and DEVICE_LANES of them
    fit into the device's memory."""
    memory = options.device_memory_bytes or DEVICE_BYTES
    fitting = memory // (DEVICE_LANES * device_bytes(agents)) // BLOCK * BLOCK
    if fitting < BLOCK:
        raise MemoryLimitError(
            "not even one block fits the device's memory",
            expected=f"{DEVICE_LANES * device_bytes(agents) * BLOCK / 1e6:.0f} MB",
            got=f"{memory / 1e6:.0f} MB",
            next_step="Run on the CPU (--device cpu), which has no such limit.",
        )
    chunk = min(blocks(options.chunk_elements or _LARGEST_DEVICE_CHUNK), _LARGEST_DEVICE_CHUNK, fitting)
    return options.threads or min(HOST_THREADS, resources.cores()), chunk


def device_bytes(agents: int) -> int:
    """The most that a pass holds at once (definition.py, counting.py), with a quarter on top for the allocator's
    rounding: inputs as they came and in float32, differences, scaled differences and their products, masks, draws and
    sensitivities."""
    return (48 + 40 * agents) * 5 // 4


def whole_bytes(plan: Plan, tensor: PlannedTensor) -> int:
    """What a whole tensor takes where its method works on it: inputs as they are stored, and the agents' deltas."""
    agents = len(plan.agents)
    stored = sum(4 if isinstance(t, DerivedTensor) else DTYPE_BYTES[t.entry.dtype] for t in tensor.inputs)
    own = get_method(plan.recipe.method).floats(tensor.shape, agents)
    return tensor.elements * (stored + 4 * agents) + 4 * own


def _element_bytes(plans: Sequence[Plan], *, fused: bool) -> int:
    agents = len(plans[0].agents)
    extras = {name for plan in plans for name in get_method(plan.recipe.method).extras}
    measured = 4 * agents if "sensitivity" in extras else 0
    of_inputs = max((_input_bytes(kind, agents) for kind in plans[0].input_kinds), default=0)
    # two results in flight per thread (threads.py), and half as many again as one writes: few at once, on any machine
    of_outputs = sum(5 * max(map(DTYPE_BYTES.__getitem__, p.merged_dtypes), default=0) // 2 for p in plans)
    if not fused:
        # values, differences and masks, and their scaled forms, squares and products
        return 20 + 26 * agents + measured + of_outputs - 5 * DTYPE_BYTES["F32"] // 2
    return max(1, of_inputs + of_outputs + measured)


def _input_bytes(kind: InputKind, agents: int) -> int:
    """Each is at most as long as the longest of them, and one at a time is computed."""
    return (agents + 1) * max(map(DTYPE_BYTES.__getitem__, kind.dtypes)) + COMPUTING * kind.computed

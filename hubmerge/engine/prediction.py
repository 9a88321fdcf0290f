"""What a merge will need of a machine, said before it begins: peak resident memory and time.

Both are sums of a few terms whose constants were measured (benchmarks/suite.py measures them again and says how far
off they are). Memory is a constant of the method, the number of agents and the threads, because a stream holds a few
chunks and nothing else; only tensors that must be whole (`needs_whole`), adapters, the tallies of very many tensors, a
Hub to read from and other processes to talk to add to it. Time is work per element over the cores, or hashing where
that takes longer, since each shard is hashed in one thread beside the others. Fetching and publishing depend on the
network and are left out.

Where a merge will run on a CUDA device, the memory of the process that feeds it is predicted too: torch, the host's
part of the driver's context, and the pinned buffers. Of these, only `import torch` was measured, with torch's build
for the CPU; the rest is an estimate that was never compared with a device, and so is the whole. Time is predicted as
on the CPU, which does the hashing and writing in any case.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from hubmerge import machine as this_machine
from hubmerge.engine import memory
from hubmerge.engine.chunks import StreamOptions, is_whole
from hubmerge.engine.counting import BLOCK
from hubmerge.engine.device.choose import LANES, chunk_elements, device_there, host_threads
from hubmerge.engine.library import is_built
from hubmerge.engine.steps import kept_bytes, read_bytes
from hubmerge.engine.uncached import gathered_bytes
from hubmerge.errors import MemoryLimitError
from hubmerge.methods import get_method
from hubmerge.plan.disk import DISK_MARGIN_BYTES, output_need
from hubmerge.plan.plan import Plan, PlannedTensor
from hubmerge.sources.block_reader import BLOCK_BYTES, KEPT_BLOCKS
from hubmerge.sources.header import DTYPE_BYTES
from hubmerge.sources.reader import ShardKey, shard_key, sources_of
from hubmerge.sources.replacement import beyond_room
from hubmerge.statistics.histogram import BINS
from hubmerge.statistics.statistics import ResultTally

_MB = 1_000_000

# peak resident bytes
_IMPORTED = 54 * _MB  # interpreter, numpy
_CLIENT = 16 * _MB  # of the Hub
_CARD = 57 * _MB  # the figures' library, loaded when the stream is done
_SELECTION = 8 * _MB  # the code of the counting passes
_KEPT = 0.55  # of a stream's buffers, which the allocator still has when the card is made
_TENSOR, _TENSOR_PER_AGENT = 8_000, 4_000  # tallies of one tensor
_TENSOR_PER_VARIANT = 2_000  # of a further recipe in the same pass: its plan, and what became of the tensor
_TILE = 2 * 1_048_573  # of a synthetic model
_TORCH = 200 * _MB  # measured: what `import torch` 2.13.0+cpu adds to numpy (203 MB), and to a whole process (192)
# an estimate, never measured: CUDA's libraries as far as they are mapped and touched (kernels are loaded when first
# used), and what the driver keeps on the host for a context
_CONTEXT = 600 * _MB
_WHOLE = 16  # bytes per element of a whole tensor beside the plain operations: moments, gradient, result

# nanoseconds of one core at speed 1, per element unless they say otherwise; `agents` terms are per agent
_MERGE, _MERGE_AGENTS = 0.6, 1.1  # with the inputs' statistics
_MERGE_ONLY, _MERGE_ONLY_AGENTS = 1.4, 0.75  # after a probe, and what the other rounding would store
_PROBE, _PROBE_AGENTS = 0.2, 0.6
_OVERLAPS, _OVERLAPS_AGENTS = 0.1, 0.15  # of each tensor before it is merged
_SELECT_AGENTS, _DRAW_AGENTS = 0.35, 0.5  # a counting pass, and random draws
_EAGER = 60.0  # times as long, operation by operation
_READ_BYTE, _HASH_BYTE, _WRITE_BYTE = 0.2, 0.6, 0.2
_TENSOR_S = 0.5e-3  # bookkeeping per tensor and pass
_START_S = 1.2  # imports, the card with its figures
_BUILD_S = 5.0  # once on a machine, in one thread
_FLOP = 1 / 50  # of a matrix product

_REFERENCE_S = 0.0005  # what `_speed` measures at speed 1


@dataclass(frozen=True)
class Machine:
    """What time depends on."""

    cores: int
    speed: float = 1.0  # of one core, relative to the one that the constants were measured on
    to_build: bool = False  # whether its fast pass has to be built first
    device: bool = False  # that "auto" takes
    input_bytes: int | None = None  # what fetched inputs may take on its disk; None: as much as they are

    @classmethod
    def here(cls, *plans: Plan) -> Machine:
        """This machine, as far as the process may use it for `plans` together."""
        outputs = sum(output_need(plan, uploaded=False) for plan in plans)
        free = shutil.disk_usage(Path.cwd()).free - DISK_MARGIN_BYTES - outputs
        return cls(this_machine.cores(), _speed(), not is_built(), device_there(), max(0, free))


@dataclass(frozen=True)
class Prediction:
    memory_bytes: int  # peak resident, all threads and the interpreter
    seconds: float  # without fetching and publishing


def predict(plan: Plan, machine: Machine, options: StreamOptions | None = None) -> Prediction:
    """A pure function of its arguments; with the recipes that are merged in the same pass, `options.beside`."""
    options = options or StreamOptions(threads=machine.cores, device="auto")
    needed = _memory(plan, options) + _fetching(plan, machine, options)
    seconds = _seconds(plan, machine, options)
    if options.device == "cuda" or (options.device == "auto" and machine.device):
        needed += _device_bytes(plan, options)
    if machine.to_build and options.backend != "eager":
        seconds += _BUILD_S / machine.speed  # by a process of its own
    return Prediction(needed, seconds)


def _memory(plan: Plan, options: StreamOptions) -> int:
    agents, tensors = len(plan.agents), [t for t in plan.tensors() if t.action == "merge"]
    shares, together = options.shares(plan), (plan, *options.beside)
    is_one = {t.name: any(is_whole(one, t) for one in together) for t in tensors}
    whole = [t for t in tensors if is_one[t.name]]
    threads = 1 if whole else shares.threads
    longest = max((t.elements for t in tensors if not is_one[t.name]), default=0)
    # of a further recipe's outputs one fewer waits than there is room for
    less = sum(max(map(DTYPE_BYTES.__getitem__, one.merged_dtypes), default=0) for one in options.beside)
    per_thread = shares.thread_bytes + min(options.chunk(plan), longest) * max(1, shares.element_bytes - less)
    # long outputs are written from where they lie, short ones are gathered
    gathered = gathered_bytes(len(together)) * len(together) - gathered_bytes(1)
    buffers = max(threads * per_thread, threads * shares.thread_bytes + gathered) + kept_bytes(plan, options)
    if whole:
        buffers += max(_whole_bytes(t, agents) for t in whole)
    tiles = sum(_TILE for m in plan.models if m.ref.kind == "synthetic")
    lasting = _IMPORTED + plan.resident_bytes + tiles + len(tensors) * (_TENSOR + agents * _TENSOR_PER_AGENT)
    lasting += _SELECTION if any(one.threshold is not None for one in together) else 0
    lasting += len(options.beside) * len(tensors) * _TENSOR_PER_VARIANT
    lasting += _TORCH if options.ranks.size > 1 else 0
    companions = max(one.companions.bytes for one in together)  # one folder after the other is completed
    return int(lasting + max(buffers, _CARD + companions + _KEPT * threads * per_thread))


def _fetching(plan: Plan, machine: Machine, options: StreamOptions) -> int:
    """The client of the Hub, and the blocks of shards that do not fit onto the disk (block_reader.py)."""
    if not plan.download_bytes:
        return 0
    ranged: dict[ShardKey, int] = {}
    if machine.input_bytes is not None and plan.download_bytes > machine.input_bytes:
        room = machine.input_bytes // options.ranks.size
        for shards in dict.fromkeys(frozenset(_shards_of(plan, t)) for t in plan.tensors()):
            whole = sorted(shard for shard in shards if shard[0] not in ranged)
            ranged |= beyond_room(whole, lambda shard: shard[1], room)
    return _CLIENT + min(KEPT_BLOCKS * BLOCK_BYTES, sum(ranged.values()))


def _device_bytes(plan: Plan, options: StreamOptions) -> int:
    """What a device adds on the host: torch, the context, and for each lane what is copied in and out, pinned.

    Torch takes pinned memory in powers of two, and keeps what a buffer had before it grew: together less than it has
    now. The threads that read and write have the device's chunks then, larger
    than the CPU's, but there are no more than eight of them.
    """
    try:
        fitting = chunk_elements(len(plan.agents), options.device_memory_bytes, LANES)
    except MemoryLimitError:  # then it stays on the CPU (device.choose)
        return 0
    tensors = [t for t in plan.tensors() if t.action == "merge" and t.elements and not is_whole(plan, t)]
    agents = len(plan.agents)
    extras = 4 * agents * ("sensitivity" in get_method(plan.recipe.method).extras)
    sums = 3 * agents + agents * (agents + 1) // 2 + len(ResultTally.SUMS) * agents  # of each block
    lane = threads = 0
    shares = options.shares(plan)
    for tensor in tensors:
        chunk = min(options.chunk_elements or fitting, tensor.elements)
        inputs = sum(DTYPE_BYTES[t.entry.dtype] for t in tensor.inputs) + extras
        counted = 8 * (agents * BINS + sums * chunk // BLOCK)
        copied = chunk * inputs, chunk * DTYPE_BYTES[tensor.dtype] + counted
        lane = max(lane, 2 * sum(1 << (size - 1).bit_length() for size in copied))
        more = min(host_threads(), options.wanted_threads) * chunk - shares.threads * min(shares.chunk, tensor.elements)
        threads = max(threads, more * shares.element_bytes)
    torch = _TORCH if options.ranks.size == 1 else 0  # which several processes have anyway
    return torch + _CONTEXT + LANES * lane + threads


def _shards_of(plan: Plan, tensor: PlannedTensor) -> Iterator[tuple[ShardKey, int]]:
    """The files on the Hub that a tensor is made of, with their sizes."""
    for k, stored in enumerate(tensor.inputs):
        for number, part in sources_of(k, stored):
            model = plan.models[number]
            if model.ref.kind == "hub":
                yield shard_key(model, part.shard), model.files[part.shard].size


def _whole_bytes(tensor: PlannedTensor, agents: int) -> int:
    rows, columns = tensor.shape[0], prod(tensor.shape[1:])
    return tensor.elements * (memory.plain_bytes(agents) + _WHOLE) + 4 * agents * min(rows, columns) ** 2


def _seconds(plan: Plan, machine: Machine, options: StreamOptions) -> float:
    agents, method = len(plan.agents), get_method(plan.recipe.method)
    tensors = [t for t in plan.tensors() if t.action == "merge"]
    parameters = method.typical(plan.recipe.parameters)
    per_element = _MERGE + agents * _MERGE_AGENTS
    if plan.overlap_scope == "tensor":
        per_element += _OVERLAPS + agents * _OVERLAPS_AGENTS
    elif plan.overlap_scope == "model":
        per_element = _PROBE + _MERGE_ONLY + agents * (_PROBE_AGENTS + _MERGE_ONLY_AGENTS)
    if plan.threshold is not None:
        per_element += agents * _SELECT_AGENTS * (plan.passes - 1)
    per_element += agents * _DRAW_AGENTS * ("uniform" in method.extras)
    parallel = serial = 0.0
    for tensor in tensors:
        eager = is_whole(plan, tensor) or options.backend == "eager"
        parallel += tensor.elements * per_element * (_EAGER if eager else 1) * 1e-9
        if is_whole(plan, tensor):
            rows, columns = tensor.shape[0], prod(tensor.shape[1:])
            steps = getattr(parameters, "steps", 1)
            serial += steps * agents * 4 * rows * columns * min(rows, columns) * _FLOP * 1e-9
    more = sum(one.elements for one in options.beside) * (_MERGE_ONLY + agents * _MERGE_ONLY_AGENTS)
    parallel += more * 1e-9 * (1 if options.backend != "eager" else _EAGER)
    parallel += read_bytes(plan, options) * _READ_BYTE * 1e-9 + plan.passes * len(tensors) * _TENSOR_S
    outputs = sum(one.output_bytes for one in (plan, *options.beside))
    hashing, writing = (outputs * cost * 1e-9 for cost in (_HASH_BYTE, _WRITE_BYTE))
    workers = 1 if any(is_whole(plan, t) for t in tensors) else min(options.workers(plan), machine.cores)
    at_once = min(options.shards_at_once(plan), len(plan.shards) or 1) * (1 + len(options.beside))
    # the threads that hash and write need cores, too
    everything = (parallel + serial + hashing + writing) / min(workers + 2, machine.cores)
    return (_START_S + max(everything, parallel / workers, serial, hashing / at_once)) / machine.speed


@cache
def _speed() -> float:
    """How fast this core is: arithmetic in cache and a copy out of it, in a few milliseconds."""
    x, y = np.linspace(-1, 1, 1 << 16, dtype=np.float32), np.empty(1 << 16, np.float32)
    large, copied = np.zeros(1 << 20, np.float32), np.ones(1 << 20, np.float32)
    best = float("inf")
    for _ in range(5):
        begun = time.thread_time()
        for _ in range(32):
            np.multiply(x, x, out=y)
            np.add(y, x, out=y)
        copied[:] = large
        best = min(best, time.thread_time() - begun)
    return float(np.clip(_REFERENCE_S / best, 0.1, 10))


def as_facts(prediction: Prediction) -> dict[str, Any]:
    """For `plan_summary`; two digits, since more would claim too much."""
    return {
        "predicted_memory_bytes": prediction.memory_bytes,
        "predicted_seconds": float(f"{prediction.seconds:.2g}"),
    }

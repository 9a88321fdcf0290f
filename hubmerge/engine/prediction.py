"""What a merge will need of a machine, said before it begins: peak resident memory and time.

Memory is a promise: a constant of the method, the number of agents and the threads, because a stream holds a few
chunks and nothing else. Only tensors that must be whole (`needs_whole`), adapters, the tallies of very many tensors,
the tokens of a vocabulary that has grown, a Hub to read from, a device and an agent whose sensitivity is computed add
to it.

Time is the elements that are read, at a rate that is measured on this machine in a few milliseconds, what each tensor
takes besides, and the products of matrices of whole tensors. Fetching and publishing depend on the network and are left
out, as sensitivities are.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hubmerge.engine.compiled import is_built
from hubmerge.engine.memory import COUNTERS_PER_AGENT, shares_of, whole_bytes
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.rules import is_whole, operations_of
from hubmerge.engine.uncached import gathered_bytes
from hubmerge.machine import resources as this_machine
from hubmerge.machine.resources import device_there
from hubmerge.plan.disk import DISK_MARGIN_BYTES, computed_sensitivities, output_need
from hubmerge.plan.plan import Plan
from hubmerge.sources.block_reader import BLOCK_BYTES, KEPT_BLOCKS

_MB = 1_000_000

# peak resident bytes
_IMPORTED = 58 * _MB  # interpreter, numpy, this package; 54 to 59 were measured
_CLIENT = 16 * _MB  # of the Hub
_CARD = 20 * _MB  # template, statistics and figures, when the stream is done
_TENSOR, _TENSOR_PER_AGENT, _TENSOR_PER_VARIANT = 8_000, 4_000, 3_500  # tallies of one tensor
_TOKEN, _TOKEN_PER_AGENT = 300, 80  # of the tokens of a vocabulary, which are read where one has grown
_DEVICE = 1060 * _MB  # torch for CUDA, the driver's context on the host, pinned buffers
_NETWORK = 380 * _MB  # torch, transformers and what reads calibration data
_DELTA_AND_OUTPUT = 6  # bytes per element of each of two whole tensors that are in hand beside a device

DEVICE_OPERATIONS = 3e13  # additions and multiplications a second in products of float32; 5e13 on an H200
CORE_OPERATIONS = 8e10  # the same of one core at speed 1
_RATE_NS = 1.7  # of one core at speed 1, per element of an input and pass, with statistics, hashing and writing
_EAGER = 30.0  # times as long, operation by operation
_TENSOR_S = 0.0002  # of one core at speed 1, the interpreter's, per tensor of an input and pass
_START_S = 0.5  # imports and the card
_BUILD_S = 5.0  # of the fast pass, once on a machine
_REFERENCE_S = 0.0005  # what `_speed` measures at speed 1


@dataclass(frozen=True)
class Machine:
    """What time depends on."""

    cores: int
    speed: float = 1.0  # of one core, relative to the one that the rate was measured on
    to_build: bool = False  # whether its fast pass has to be built first
    device: bool = False  # whether it has one
    input_bytes: int | None = None  # what fetched inputs may take on its disk; None: as much as they are

    @classmethod
    def here(cls, *plans: Plan) -> "Machine":
        """This machine, as far as the process may use it for `plans` together."""
        outputs = sum(output_need(plan, uploaded=False) for plan in plans)
        free = shutil.disk_usage(Path.cwd()).free - DISK_MARGIN_BYTES - outputs
        return cls(this_machine.cores(), _speed(), not is_built(), device_there(), max(0, free))


@dataclass(frozen=True)
class Prediction:
    memory_bytes: int  # peak resident, all threads and the interpreter
    seconds: float  # without fetching and publishing


def predict(
    plan: Plan, machine: Machine, options: StreamOptions | None = None, *, beside: Sequence[Plan] = ()
) -> Prediction:
    """A pure function of its arguments; `beside`: other recipes that are merged in the same pass."""
    options, plans = options or StreamOptions(threads=machine.cores, device="auto"), (plan, *beside)
    whole = any(is_whole(p, t) for p in plans for t in p.tensors())
    on_device = options.device == "cuda" or (options.device == "auto" and machine.device and whole)
    needed = _memory(plans, options, on_device=on_device)
    seconds = _seconds(plans, machine, options, on_device=on_device)
    if plan.download_bytes:
        needed += _CLIENT
        if machine.input_bytes is not None and plan.download_bytes > machine.input_bytes:
            needed += min(KEPT_BLOCKS * BLOCK_BYTES, plan.download_bytes)  # of shards that are read by ranges
    needed += _DEVICE * on_device
    if sizes := [size for p in plans for size in computed_sensitivities(p).values()]:
        needed += _NETWORK + 2 * max(sizes)  # an agent's weights in float32, and the sums of their squared gradients
    if machine.to_build and options.backend != "eager":
        seconds += _BUILD_S / machine.speed
    return Prediction(needed, seconds)


def _memory(plans: Sequence[Plan], options: StreamOptions, *, on_device: bool) -> int:
    agents, tensors = len(plans[0].agents), [t for t in plans[0].tensors() if t.action == "merge"]
    shares = shares_of(plans, options)
    whole = [t for t in tensors if any(is_whole(plan, t) for plan in plans)]
    longest = max((t.elements for t in tensors if t not in whole), default=0)
    # of the fast pass's counters the middle between what updates of few magnitudes and of every magnitude touch
    untouched = agents * COUNTERS_PER_AGENT // 2 if options.backend != "eager" else 0
    buffers = shares.threads * (shares.thread_bytes - untouched + min(shares.chunk, longest) * shares.element_bytes)
    buffers += gathered_bytes(len(plans)) * len(plans)
    if on_device:
        buffers += max((2 * t.elements * (2 * (agents + 1) + _DELTA_AND_OUTPUT) for t in whole), default=0)
    else:
        buffers += max((whole_bytes(p, t) for p in plans for t in tensors if is_whole(p, t)), default=0)
    of_tensor = _TENSOR + agents * _TENSOR_PER_AGENT + (len(plans) - 1) * _TENSOR_PER_VARIANT
    tokens = max((len(m.tokens.ids) for m in plans[0].models if m.tokens is not None), default=0)
    kept = plans[0].resident_bytes + tokens * (_TOKEN + agents * _TOKEN_PER_AGENT)
    card = _CARD + max(plan.companions.bytes for plan in plans)  # one folder after the other is completed
    return _IMPORTED + kept + len(tensors) * of_tensor + max(buffers, card)


def _seconds(plans: Sequence[Plan], machine: Machine, options: StreamOptions, *, on_device: bool) -> float:
    # a pass that only counts, or a further recipe in the same pass, takes about half as long
    passes = (1 + max(plan.passes for plan in plans) + len(plans) - 1) / 2
    read = (len(plans[0].agents) + 1) * passes
    work = plans[0].elements * read * _RATE_NS * 1e-9 * (_EAGER if options.backend == "eager" else 1)
    start = _START_S + sum(len(shard.tensors) for shard in plans[0].shards) * read * _TENSOR_S
    threads = shares_of(plans, options).threads
    operations = sum(operations_of(plan, t) for plan in plans for t in plan.tensors())
    products = operations / DEVICE_OPERATIONS if on_device else operations / CORE_OPERATIONS / threads / machine.speed
    return products + (start + work / min(threads + 2, machine.cores)) / machine.speed


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
    seconds = float(f"{prediction.seconds:.2g}")
    return {"predicted_memory_bytes": prediction.memory_bytes, "predicted_seconds": seconds}

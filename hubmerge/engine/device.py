"""A CUDA device: it multiplies the matrices of whole tensors, and takes chunks where it is to; or the CPU takes over.

Chunks go there and back in bounded memory (lanes.py). Before its first one a device must reproduce small ones bit for
bit; one that computes otherwise (another rounding, flushed subnormals, fused operations) or fails in any way is not
used. Products must be as exact as float32 is.

Once it has passed, a device that fails (out of memory, driver error) is left for good: the chunk or tensor in hand and
all that follow are computed on the CPU from the same host memory, and the observer is warned once. An error that is not
the device's own is raised then, as it is a mistake of ours. torch, which takes two seconds to import, is asked only
where the machine shows a device that there is work for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hubmerge.engine.definition import Rule
from hubmerge.engine.memory import device_shares
from hubmerge.engine.options import DEVICE_BYTES, StreamOptions
from hubmerge.errors import DeviceError, MemoryLimitError, reason_of
from hubmerge.machine import resources
from hubmerge.machine.extras import require
from hubmerge.plan.disk import shown_bytes

if TYPE_CHECKING:
    import torch  # which a merge on the CPU does without

    from hubmerge.engine.lanes import Engine

Warn = Callable[[str], None]


def _first(inputs: Any, per_agent: Any, constants: Any) -> Any:
    return inputs[0]


COUNTING = Rule(_first, (), (), (), 1e-5, "nearest", both_roundings=False)  # of a probe, which merges nothing


def require_cuda() -> None:
    """MissingExtraError or DeviceError without a CUDA device: who asks for one by its name wants no other."""
    require("gpu", "a CUDA device")
    import torch

    if torch.cuda.is_available():
        return
    raise DeviceError(
        "no CUDA device",
        where="--device cuda",
        expected="a GPU, its driver and a torch that was built for CUDA",
        got=f"torch {torch.__version__}, which finds none",
        next_step="Leave --device out, and the CPU does the work.",
    )


def open_engine(
    options: StreamOptions, agents: int, trials: Sequence[tuple[Rule, str]], whole: int, host: ModuleType, warn: Warn
) -> tuple[Engine | None, dict[str, Any]]:
    """The options' device, once it has passed its trials; `host` is the module that does the same on the CPU.

    `trials`: rules of chunks, each with the output's dtype; empty: it gets no chunks. `whole`: the bytes that the
    largest tensor takes whose matrices it would multiply; 0: none.
    Without a device the CPU works; the facts beside say why one that is there is not used.
    """
    if options.device == "cpu" or not (trials or whole):
        return None, {}
    if options.device == "auto" and not (options.bursts or resources.device_there()):
        return None, {}
    engine = None
    try:
        if trials:
            device_shares(agents, options)  # MemoryLimitError
        if options.device_memory_bytes and whole > options.device_memory_bytes:
            needed, there = shown_bytes(whole, options.device_memory_bytes)
            raise MemoryLimitError(
                "the largest tensor does not fit the device's memory",
                expected=needed,
                got=there,
                next_step="Leave --device-memory out.",
            )
        place = _place(options.ranks.local_rank)
        if place is None:
            warn("torch finds no CUDA device here; the CPU goes on")
            return None, {}
        from hubmerge.engine.lanes import Engine

        engine = Engine(place, host, memory_bytes=options.device_memory_bytes or (0 if whole else DEVICE_BYTES))
        for rule, dtype in trials:
            engine.prove(rule, agents, dtype)
        if whole:
            engine.prove_products()
    except Exception as error:  # noqa: BLE001 (torch's have no common type, and the CPU gives the same)
        if engine is not None:
            engine.close()
        why = reason_of(error)
        warn(f"the CUDA device cannot be used, the CPU goes on: {why}")
        return None, {"device_failed": why}
    return engine, {}


def _place(local_rank: int) -> torch.device | None:
    """Processes of one machine take its devices in turn."""
    require("gpu", "a CUDA device")
    import torch

    if not torch.cuda.is_available():
        return None
    return torch.device("cuda", local_rank % torch.cuda.device_count())

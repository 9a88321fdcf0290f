"""Which device a merge runs on, and how much of it.

"auto" takes a CUDA device where the kernel of this machine shows one, and the CPU otherwise: torch, which takes two
seconds to import, is not asked unless there is something to find. Nothing about the result depends on the choice, so
whatever goes wrong while a device is opened costs a warning and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from hubmerge import machine
from hubmerge.engine.counting import BLOCK
from hubmerge.errors import DeviceError, MemoryLimitError
from hubmerge.extras import require

if TYPE_CHECKING:
    from hubmerge.engine.device.engine import Engine

DeviceName = Literal["cpu", "cuda", "auto"]

MEMORY_BYTES = 2 * 1000**3  # of the device, the driver's own context not counted
LANES = 3  # chunks on the device at once: one is copied in, one computed, one copied out
HOST_THREADS = 8  # that read, feed lanes and wait; more only contend for the interpreter
_LARGEST_CHUNK = 1 << 21  # elements
_NODES = ("nvidia[0-9]*", "dxg", "kfd")  # the device files of CUDA, of CUDA on WSL, of ROCm


def device_there(nodes: Path = Path("/dev")) -> bool:
    """True where the machine has a device that torch might use."""
    return any(any(nodes.glob(pattern)) for pattern in _NODES)


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
        next_step="Leave --device out: the CPU gives the same bits.",
    )


@dataclass(frozen=True)
class Opened:
    """What became of a device."""

    engine: Engine | None = None  # None: the CPU
    failed: str = ""  # why a device that is there is not used


def open_engine(
    device: DeviceName,
    agents: int,
    host: ModuleType,
    warn: Callable[[str], None],
    *,
    memory_bytes: int = MEMORY_BYTES,
    local_rank: int = 0,
) -> Opened:
    """The engine of `device` for so many agents; what cannot be used is said and left, whatever the reason.

    Processes of one machine take its devices in turn, by their `local_rank`.
    """
    if device == "cpu" or (device == "auto" and not device_there()):
        return Opened()
    try:
        require("gpu", "a CUDA device")
        chunk_elements(agents, memory_bytes, LANES)
        import torch

        from hubmerge.engine.device.engine import Engine

        if not torch.cuda.is_available():
            warn("torch finds no CUDA device here; the CPU goes on with the same result")
            return Opened()
        place = torch.device("cuda", local_rank % torch.cuda.device_count())
        return Opened(Engine(place, host, memory_bytes=memory_bytes))
    except Exception as error:  # noqa: BLE001 (torch's have no common type, and the CPU gives the same)
        why = reason(error)
        warn(f"the CUDA device cannot be used, the CPU goes on with the same result: {why}")
        return Opened(failed=why)


def reason(error: Exception) -> str:
    """One line; what is not the runtime's own message bears the error's class, as it may be a mistake of ours."""
    if isinstance(error, MemoryLimitError):
        problem = error.problems[0]
        return f"{problem.what} (expected {problem.expected}, got {problem.got})"
    text = (str(error).splitlines() or [""])[0]
    told = type(error) is not RuntimeError and not type(error).__module__.startswith("torch")
    return (f"{type(error).__name__}: {text}" if told or not text else text)[:200]


def chunk_elements(agents: int, memory_bytes: int, lanes: int) -> int:
    """The largest chunk, a multiple of BLOCK, of which `lanes` fit into `memory_bytes` at once."""
    fitting = memory_bytes // (lanes * bytes_per_element(agents)) // BLOCK * BLOCK
    if fitting < BLOCK:
        raise MemoryLimitError(
            "not even one block fits the device's memory",
            expected=f"{lanes * bytes_per_element(agents) * BLOCK / 1e6:.0f} MB",
            got=f"{memory_bytes / 1e6:.0f} MB",
            next_step="Run on the CPU (--device cpu), which has no such limit.",
        )
    return min(_LARGEST_CHUNK, fitting)


def bytes_per_element(agents: int) -> int:
    """The most that a pass holds at once (definition.py, counting.py), with a quarter on top for the allocator's
    rounding: inputs as they came and in float32, differences, scaled differences and their products, masks, draws and
    sensitivities."""
    return (48 + 40 * agents) * 5 // 4


def host_threads() -> int:
    return min(HOST_THREADS, machine.cores())

"""How a merge is done, as plain data: no field changes a bit of the result."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from hubmerge.engine.distributed import ALONE, Ranks
from hubmerge.errors import DeviceError

DEVICE_BYTES = 2 * 1000**3  # of a device's memory for chunks, the driver's own context not counted

Device = Literal["auto", "cpu", "cuda"]


def check_device(name: str) -> None:
    """DeviceError where there is no such choice."""
    if name not in get_args(Device):
        known, step = ", ".join(get_args(Device)), "CUDA_VISIBLE_DEVICES says which GPU."
        raise DeviceError("there is no such device", expected=known, got=ascii(name)[1:-1][:80], next_step=step)


@dataclass(frozen=True)
class StreamOptions:
    """How, never what."""

    chunk_elements: int = 0  # 0: as many as memory allows
    threads: int = 0  # at most, and fewer where memory does not allow them; 0: one per core
    backend: Literal["auto", "eager"] = "auto"  # "eager": never the fast pass
    device: Device = "cpu"
    device_memory_bytes: int = 0  # the most that the device is asked for; 0: DEVICE_BYTES, or what whole tensors take
    bursts: bool = False  # a GPU is lent for one shard at a time (bursts.py)
    parallel_shards: int = 0  # written at once; 0: as many as the cores are good for
    ranks: Ranks = ALONE  # the processes that share the work
    sink: Literal["disk", "null"] = "disk"  # "null": shards are counted and hashed, not written; by one process only
    cache: Path | None = None  # folder of fetched inputs; None: in the output's working folder
    sensitivities: Path | None = None  # folder where computed ones are kept for the next merge
    disk_budget: int | None = None  # bytes that output and fetched inputs may take together; None: what is free

    def __post_init__(self) -> None:
        check_device(self.device)

"""How many cores and how much memory this process may really use.

A container sees its host's cores and memory, but its control groups may allow less. The groups above a group limit it
too, so the least of all limits counts: in version 2 (one tree, `cpu.max` and `memory.max`) and in version 1 (a tree per
controller, `cpu.cfs_quota_us` and `memory.limit_in_bytes`). They are looked for below /sys/fs/cgroup, where systemd and
containers have them. A quota of one and a half cores counts as two, which wait now and then. A limit that cannot be
read is ignored.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from hubmerge.errors import SettingsError

_DEVICES = ("nvidia[0-9]*", "dxg", "kfd")  # the device files of CUDA, of CUDA on WSL, of ROCm
_TOOL_S = 10.0  # that the driver's tool may take
_MOST_DIGITS = 20  # of a number that means anything here


@cache
def cores() -> int:
    """How many threads of this process can run at once, at least 1."""
    try:
        own = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on every system
        own = os.cpu_count() or 1
    return max(1, min(own, group_limits().cores or own))


def require_linux(what: str) -> None:
    """SettingsError where the operating system is another one, whose processes could be neither bound nor confined."""
    if sys.platform != "linux":
        raise SettingsError(
            f"{what} runs on Linux alone",
            got=sys.platform,
            next_step="Run it in a container (the Dockerfile makes one); merging, `diff` and `publish` work here, too.",
        )


def device_there(nodes: Path = Path("/dev")) -> bool:
    """True where the machine has a device that torch might use."""
    return any(any(nodes.glob(pattern)) for pattern in _DEVICES)


@cache
def memory_bytes() -> int | None:
    """The memory that this process may use, at most the machine's; None where the system does not say it."""
    try:
        installed: int | None = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        installed = None
    known = [n for n in (installed, group_limits().memory_bytes) if n is not None and n > 0]
    return min(known, default=None)


@cache
def gpu_memory_bytes() -> int | None:
    """The whole memory of the smallest NVIDIA GPU, as its driver's tool says it; None where nothing says it.

    torch would say it too, but takes hundreds of megabytes and a context on the GPU for that.
    """
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(command, capture_output=True, check=True, timeout=_TOOL_S, stdin=subprocess.DEVNULL)
        sizes = [int(word) for word in told.stdout.split() if word.isdigit() and len(word) <= _MOST_DIGITS]
        return min(sizes, default=0) * 2**20 or None
    return None


def oom_kills() -> int | None:
    """How many processes the kernel has ended for want of memory since it started; None where it does not say."""
    with suppress(OSError, ValueError), Path("/proc/vmstat").open(encoding="ascii") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
    return None


@dataclass(frozen=True)
class GroupLimits:
    """The limits of this process's control groups; None: no limit."""

    cores: int | None = None
    memory_bytes: int | None = None


def group_limits(system: Path = Path("/")) -> GroupLimits:
    """What the control groups of this process allow; `system` is the folder that holds /proc and /sys."""
    processors: list[int] = []
    memory: list[int] = []
    for folder in _groups(system):
        of_version_1 = [_numbers(folder / f"cpu.cfs_{name}_us", 1)[0] for name in ("quota", "period")]
        for quota, period in (_numbers(folder / "cpu.max", 2), of_version_1):
            if quota and period:  # rounded up: a quota below one period is one core for a part of the time
                processors.append(-(-quota // period))
        limits = [_numbers(folder / name, 1)[0] for name in ("memory.max", "memory.limit_in_bytes")]
        memory += [limit for limit in limits if limit]
    return GroupLimits(min(processors, default=None), min(memory, default=None))


def _groups(system: Path) -> Iterator[Path]:
    """The folders of this process's groups and of all groups above them. In a container a tree may begin at its own
    group, whose name is told from a root above: then what is found there is the tree's root. Controllers that share a
    tree of version 1 are told in one order and have a folder in another, but each has a link of its own name."""
    for line in _lines(system / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        inside = PurePosixPath("" if ".." in path.split("/") else path.lstrip("/"))
        for tree in (controllers, *controllers.split(",")):  # nothing in version 2
            for part in (inside, *inside.parents):
                yield system / "sys/fs/cgroup" / tree / part


def _numbers(path: Path, count: int) -> list[int | None]:
    """The first words of a file as numbers; None for a word that is no positive number, such as "max" or −1."""
    words = next(_lines(path), "").split()
    plain = [int(w) if w.isascii() and w.isdigit() and len(w) <= _MOST_DIGITS else 0 for w in words[:count]]
    return [n or None for n in plain] + [None] * (count - len(plain))


def _lines(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return iter(())
    return iter(text.splitlines())

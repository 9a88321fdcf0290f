"""A machine to measure on, and rows as a comparison leaves them."""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.metering import Suite

SIX = {"linear", "task_arithmetic", "ties", "dare_ties", "ram", "ram_plus"}
MACHINE = {"memory_bytes": 24 * 10**9}


def place(tmp_path: Path, *shapes: str, compare: tuple[str, ...] = tuple(SIX)) -> Suite:
    return Suite(argparse.Namespace(data=tmp_path / "data", repeat=1, shapes=list(shapes), compare=list(compare)))


def ran(shape: str, what: str, method: str = "", peak: int = 10**9, **more: Any) -> dict[str, Any]:
    figures = {"wall_s": 1.0, "cpu_s": 1.0, "peak_rss_bytes": peak, "disk_high_water_bytes": 5}
    return {"shape": shape, "what": what, "method": method, **figures, **more}

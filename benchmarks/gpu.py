"""Everything there is to know on a machine with a GPU, in one command and one JSON document.

    python -m benchmarks.gpu [--shape qwen2.5-7b] [--layers N] [--methods ram_plus …] [--skip-tests] [--out DIR]
                             [--json docs/data/gpu.json]

First the tests marked `gpu` (bits, memory, the way back to the CPU). Then merges of three synthetic agents of a
published shape, which are read as fast as from the page cache, on the GPU and on the CPU of the same machine: whole
processes, interpreter, imports, hashing and writing included. The shards of both must have the same hashes. With
`--json` the document is kept for the page, to which `python -m benchmarks.suite page` adds it on any machine.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import metering
from benchmarks.synthetic import DENSITIES

METHODS = ("ram_plus", "ram", "ties", "dare_ties", "task_arithmetic", "linear")  # what is asked of most first


def main(argv: Sequence[str] | None = None) -> int:
    """Print the JSON; 1 when a test failed or the bytes differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-7b")
    parser.add_argument("--layers", type=int, default=0, help="0: all of the shape")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--devices", nargs="+", default=["cuda", "cpu"])
    parser.add_argument(
        "--out", type=Path, help="where the outputs are written and deleted; default: a temporary folder"
    )
    parser.add_argument("--skip-tests", action="store_true")
    parser.add_argument("--json", type=Path, help="the document's file, besides standard output")
    arguments = parser.parse_args(argv)
    if "cuda" in arguments.devices and cuda_device() is None:
        print("skipped: torch sees no CUDA device on this machine; --devices cpu leaves it out", file=sys.stderr)
        return 0
    hashes: dict[str, set[str]]
    found: dict[str, Any] = {"machine": machine(), "shape": arguments.shape, "layers": arguments.layers}
    if not arguments.skip_tests:
        found["tests"] = gpu_tests()
    found["merges"], hashes = [], {}
    with tempfile.TemporaryDirectory(prefix="hubmerge-gpu-", dir=arguments.out) as scratch:
        for method, device in product(arguments.methods, arguments.devices):
            merge = merged(Path(scratch), method, device, arguments.shape, arguments.layers)
            hashes.setdefault(method, set()).add(json.dumps(merge.pop("sha256", None)))
            found["merges"].append(merge)
            found["same_bytes"] = all(len(several) == 1 and "null" not in several for several in hashes.values())
            text = json.dumps(found, indent=1) + "\n"
            if arguments.json:  # so far: a lent machine may be taken back
                arguments.json.write_text(text)
    print(text, end="")
    failed = any(m["exit_code"] for m in found["merges"]) or found.get("tests", {}).get("exit_code")
    return int(bool(failed) or not found["same_bytes"])


def cuda_device() -> str | None:
    """The name of the device, if there is any."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def machine() -> dict[str, Any]:
    import torch

    return {**metering.machine(), "device": cuda_device(), "torch": torch.__version__, "cuda": torch.version.cuda}


def gpu_tests() -> dict[str, Any]:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/engine"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"exit_code": done.returncode, "summary": done.stdout.strip().splitlines()[-1:], "tail": done.stdout[-4000:]}


def merged(scratch: Path, method: str, device: str, shape: str, layers: int) -> dict[str, Any]:
    """One merge in a process of its own; its output is deleted."""
    source = f"synthetic:{shape}"
    only = f"&layers={layers}" if layers else ""
    base = f"{source}?layers={layers}" if layers else source
    agents = [f"{source}?agent={k}&density={density}{only}" for k, density in enumerate(DENSITIES, 1)]
    recipe = scratch / "recipe.json"
    recipe.write_text(json.dumps({"base": base, "agents": agents, "method": method}), encoding="utf-8")
    out = scratch / f"{method}-{device}"
    command = [sys.executable, "-m", "hubmerge", "merge", str(recipe), "--out", str(out), "--device", device]
    started = time.monotonic()
    done = subprocess.run([*command, "--license", "apache-2.0"], capture_output=True, text=True, check=False)
    wall = time.monotonic() - started
    result: dict[str, Any] = {"method": method, "asked": device, "exit_code": done.returncode, "wall_s": round(wall, 2)}
    if done.returncode:
        return result | {"error": done.stderr[-2000:]}
    report = json.loads((out / "hubmerge.json").read_text(encoding="utf-8"))
    shutil.rmtree(out)
    environment = report["environment"]
    kept = ("device", "device_failed", "seconds", "peak_rss_bytes", "peak_device_bytes", "threads")
    return result | {
        "parameters": report["parameters"],
        "parameters_per_s": round(report["parameters"] / wall),
        **{name: environment[name] for name in kept if name in environment},
        "sha256": [f["sha256"] for f in report["files"]],
    }


if __name__ == "__main__":
    sys.exit(main())

"""The parts of docs/benchmarks.md beside the comparison with mergekit (side_by_side.py): one function per section."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.board import synthetic as synthetic_results
from benchmarks.gpu import cuda_device
from benchmarks.metering import TURNS, FailedRunError, Suite, inspected, measure, merging
from benchmarks.synthetic import DENSITIES
from hubmerge.machine.resources import cores
from hubmerge.sources.synthetic import SHAPES
from localhub.process import LocalHubProcess
from localhub.protocol import open_hub
from localhub.seed import seed_folder

ROOT = Path(__file__).resolve().parents[1]
GPU = ROOT / "docs" / "data" / "gpu.json"
KILLS = ROOT / "docs" / "data" / "kills.json"
AGENTS = len(DENSITIES)
SIZES = (("qwen2.5-0.5b", 0), ("qwen2.5-1.5b", 0), ("qwen2.5-7b", 0), ("mixtral-8x7b", 4))  # layers; 0: all
LARGE = (
    ("llama-70b", "ram", 1),
    ("llama-70b", "ties", 1),
    ("llama-405b", "ram", 1),
    ("qwen3-30b-a3b", "ram", 1),
    ("llama-70b", "ram", 0),
)
RESULTS = 300  # of the board whose start is measured
REPO = "ada/results"


def floor(suite: Suite) -> Iterator[dict[str, Any]]:
    """Steady state: the stream and its floor by turns, with and without hashing; where hashed, sha256 alone, too."""
    for shape in suite.shapes:
        family = suite.family(shape)
        base, agents = str(family / "base"), [str(family / f"agent{k}") for k in range(AGENTS)]
        alone = []
        for method, passes in (("ram", 1), ("ram_plus", 2)):
            recipe = suite.recipe(method, base, agents)
            for hashed in (False, True):
                flags = () if hashed else ("--no-hash",)
                runs: dict[str, Callable[[], dict[str, Any]]] = {
                    "stream": partial(suite.stream_once, recipe, *flags),
                    "floor": partial(suite.stream_once, recipe, "--floor", str(passes), *flags),
                }
                if hashed:
                    runs["hash"] = partial(_hash_alone, base)
                found = suite.by_turns(runs)
                if hashed:
                    alone.append(found.pop("hash"))
                turns = max(TURNS, suite.repeat)
                yield {"shape": shape, "method": method, "hashed": hashed, "turns": turns, **found}
        yield {"shape": shape, "method": "hash", "stream": min(alone, key=lambda row: row["wall_s"])}


def _hash_alone(model: str) -> dict[str, Any]:
    """sha256 of as many bytes as a model has, by one thread per core, each with its part."""
    code = (
        "import hashlib, os, sys, time\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "size = sum(p.stat().st_size for p in os.scandir(sys.argv[1]))\ncores = int(sys.argv[2])\n"
        "block = bytes(1 << 21)\n"
        "def part(_):\n    digest, (blocks, rest) = hashlib.sha256(), divmod(size // cores, len(block))\n"
        "    for _ in range(blocks): digest.update(block)\n"
        "    digest.update(block[:rest])\n"
        "start, cpu = time.monotonic(), time.process_time()\n"
        "with ThreadPoolExecutor(cores) as pool: list(pool.map(part, range(cores)))\n"
        "print(time.monotonic() - start, time.process_time() - cpu)\n"
    )
    wall, cpu = map(float, measure([sys.executable, "-c", code, model, str(cores())]).output.split())
    return {"wall_s": round(wall, 4), "cpu_s": round(cpu, 4)}


def agents(suite: Suite) -> Iterator[dict[str, Any]]:
    for method in ("linear", "ram", "ties"):
        for k in (2, 4, 6, 8):
            recipe = suite.synthetic("qwen2.5-0.5b", k, method, layers=6)
            yield {"method": method, "agents": k, **suite.stream(recipe, "--sink", "null", "--no-hash")}


def processes(suite: Suite) -> Iterator[dict[str, Any]]:
    """The same merge by one process with one thread, one with two, and two with one each; several output shards."""
    family = suite.family("0.5b")
    agents = [str(family / f"agent{k}") for k in range(AGENTS)]
    for method in ("ram", "ram_plus"):
        recipe = suite.recipe(method, str(family / "base"), agents)
        for count, threads in ((1, 1), (1, 2), (2, 1)):
            launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(count)] if count > 1 else []
            flags = ("--out", str(suite.out), "--threads", str(threads))
            merge = merging(recipe, *flags, module="benchmarks.several_shards")
            row = suite.best([sys.executable, *launcher, *merge])
            yield {"method": method, "processes": count, "threads": threads, **row}


def sizes(suite: Suite) -> Iterator[dict[str, Any]]:
    """Cost per parameter of whole models, but for the largest, of which the first layers stand for all."""
    for shape, layers in SIZES:
        for method in ("ram", "ram_plus"):
            recipe = suite.synthetic(shape, AGENTS, method, layers)
            row = suite.stream(recipe, "--sink", "null", "--no-hash")
            yield {"shape": shape, "layers": layers, "method": method, **row}


def chunks(suite: Suite) -> Iterator[dict[str, Any]]:
    recipe = suite.synthetic("qwen2.5-0.5b", AGENTS, "ram", layers=6)
    for thousand in (16, 64, 128, 256, 512, 1024, 2048):
        flags = ("--sink", "null", "--no-hash", "--chunk-elements", str(thousand * 1024))
        yield {"chunk_elements": thousand * 1024, **suite.stream(recipe, *flags)}


def large(suite: Suite) -> Iterator[dict[str, Any]]:
    """Whole processes on full tensor shapes, hashed, into the null sink: one layer of all, and once a whole model."""
    for shape, method, layers in LARGE:
        plan = inspected(suite.synthetic(shape, AGENTS, method))
        recipe = suite.synthetic(shape, AGENTS, method, layers)
        predicted = inspected(recipe)
        row, report = suite.once([sys.executable, *merging(recipe, "--null-sink")])
        yield {
            "shape": shape,
            "method": method,
            "layers": layers,
            **row,
            "merge_s": json.loads(report)["environment"]["seconds"],
            "elements": predicted["parameters"],
            "largest": max(prod(dims) for _, dims in SHAPES[shape].tensors(1)),
            "all_elements": plan["parameters"],
            "predicted_memory_bytes": predicted["predicted_memory_bytes"],
            "all_predicted_memory_bytes": plan["predicted_memory_bytes"],
            "all_predicted_seconds": plan.get("predicted_seconds"),
        }


def startup(suite: Suite) -> Iterator[dict[str, Any]]:
    """Commands that answer at once; `leaderboard` draws a table of `RESULTS` results, from a folder and from a Hub."""
    recipe = suite.synthetic("qwen2.5-0.5b", AGENTS, "ram")
    results = suite.place / "results"
    shutil.rmtree(results, ignore_errors=True)
    for path, data in synthetic_results(RESULTS):
        (results / path).parent.mkdir(parents=True, exist_ok=True)
        (results / path).write_bytes(data)

    def row(name: str, *arguments: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
        command = [sys.executable, "-m", "hubmerge", *arguments]
        return {"command": name, **suite.best(command, repeat=3, environment=environment)}

    yield row("inspect", "inspect", str(recipe))
    yield row("methods", "methods")
    yield row("leaderboard", "leaderboard", "--results", str(results))
    place = suite.place / "hub"
    shutil.rmtree(place, ignore_errors=True)
    hub = open_hub(place)
    seed_folder(hub, REPO, "dataset", results, author="ada", message="results")
    hub.store.close()
    with LocalHubProcess(place) as process:
        environment = {
            "HF_ENDPOINT": process.endpoint,
            "HF_TOKEN": process.tokens["ada"],
            "HF_HUB_DISABLE_XET": "1",
            "HUBMERGE_DATA": str(place / "data"),
        }
        yield row("leaderboard --results REPO", "leaderboard", "--results", REPO, environment=environment)
    code = (
        "import sys, pathlib, tempfile\nfrom localhub.process import LocalHubProcess\n"
        "with tempfile.TemporaryDirectory() as d, LocalHubProcess(pathlib.Path(d)): pass\n"
    )
    yield {"command": "localhub", **suite.best([sys.executable, "-c", code], repeat=3)}


def gpu(suite: Suite) -> list[dict[str, Any]]:
    """Every method on the device and on the CPU, in a file of its own, since it comes from another machine."""
    if cuda_device() is None:
        print("gpu: skipped, no CUDA device; what was measured on a machine with one stays", flush=True)
        return []
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(suite.place), "--json", str(GPU)]
    return _in_its_file("gpu", command)


def kills(suite: Suite) -> list[dict[str, Any]]:
    return _in_its_file("kills", [sys.executable, "-m", "benchmarks.kills", "--kills", "150", "--out", str(KILLS)])


def _in_its_file(name: str, command: list[str]) -> list[dict[str, Any]]:
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise FailedRunError(f"python -m benchmarks.{name} ended with {code}, see above")
    return []

"""All measurements of docs/benchmarks.md, and the page.

    python -m benchmarks.suite [SECTION …] [--data DIR] [--repeat 2] [--shapes 0.5b 1.5b] [--compare METHOD …]

Sections: comparison (hubmerge, mergekit and cp on the same files, whole processes), floor, agents, processes, sizes,
chunks, large (70B and 405B tensors into a null sink), startup, page (only draw what was measured before). The figures
of a section replace those of its last run in docs/data/benchmarks.json. mergekit needs `make mergekit` once.

Machines are shared, so every row carries the load that it began with; of `--repeat` runs the one with the least CPU
time is kept, with its own wall time. Streams and their floors, which are compared by wall time, run by turns, three
times each at least, and the one with the least wall time is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.metering import measure
from benchmarks.synthetic import DENSITIES, SHAPES, write_family
from hubmerge.machine import cores

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data" / "benchmarks.json"
MERGEKIT = ROOT / ".cache" / "mergekit" / "bin" / "mergekit-yaml"
FLAGS = ("--lazy-unpickle", "--no-copy-tokenizer", "--no-write-model-card", "--quiet")
AGENTS = len(DENSITIES)
TURNS = 3  # of what is compared by wall time, at least

# method → what mergekit calls it, its document's parameters, and each agent's. hubmerge merges the same document
METHODS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "linear": ("linear", {"normalize": True}, {"weight": 1.0}),
    "task_arithmetic": ("task_arithmetic", {}, {"weight": 1.0}),
    "ties": ("ties", {}, {"weight": 1.0, "density": 0.2}),
    "dare_ties": ("dare_ties", {}, {"weight": 1.0, "density": 0.5}),
    "ram": ("ram", {}, {}),
    "ram_plus": ("ramplus_tl", {}, {}),
}


class Suite:
    """Where the files lie and how often things are measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.place: Path = options.data.resolve()
        self.repeat: int = options.repeat
        self.shapes: list[str] = options.shapes
        self.compared: list[str] = options.compare
        self.out = self.place / "merged"
        self.place.mkdir(parents=True, exist_ok=True)

    def family(self, shape: str) -> Path:
        write_family(SHAPES[shape], self.place / shape)
        return (self.place / shape).resolve()

    def recipe(self, method: str, base: str, agents: Sequence[str], **more: Any) -> Path:
        path = self.place / "recipe.yaml"
        path.write_text(json.dumps({"base": base, "agents": list(agents), "method": method, **more}))
        return path

    def synthetic(self, shape: str, agents: int, method: str, layers: int = 0) -> Path:
        cut = f"layers={layers}&" if layers else ""
        names = [f"synthetic:{shape}?{cut}agent={k + 1}&density=0.1" for k in range(agents)]
        return self.recipe(method, f"synthetic:{shape}?{cut}".rstrip("?&"), names)

    def best(self, command: Sequence[str], repeat: int = 0) -> dict[str, Any]:
        """The run with the least CPU time; `out` is emptied before each."""
        rows = []
        for _ in range(repeat or self.repeat):
            shutil.rmtree(self.out, ignore_errors=True)
            load = os.getloadavg()[0]
            run = measure(list(command))
            rows.append({**run.to_json(), "disk_bytes": _size(self.out), "load": round(load, 1)})
        shutil.rmtree(self.out, ignore_errors=True)
        return min(rows, key=lambda row: row["cpu_s"])

    def stream(self, recipe: Path, *flags: str, repeat: int = 0) -> dict[str, Any]:
        """`benchmarks.stream_meter`: steady state, measured from inside."""
        return min((self.stream_once(recipe, *flags) for _ in range(repeat or self.repeat)), key=lambda r: r["cpu_s"])

    def stream_once(self, recipe: Path, *flags: str) -> dict[str, Any]:
        load = os.getloadavg()[0]
        run = measure([sys.executable, "-m", "benchmarks.stream_meter", str(recipe), "--out", str(self.place), *flags])
        return {**json.loads(run.output), "load": round(load, 1)}

    def by_turns(self, runs: Mapping[str, Callable[[], dict[str, Any]]]) -> dict[str, dict[str, Any]]:
        """Each of `runs` in turn, again and again; of each the one with the least wall time."""
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
        for _ in range(max(TURNS, self.repeat)):
            for name, run in runs.items():
                found[name].append(run())
        return {name: min(rows, key=lambda row: row["wall_s"]) for name, rows in found.items()}


def comparison(suite: Suite) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(shape: str, what: str, method: str, values: dict[str, Any]) -> None:
        rows.append({"shape": shape, "what": what, "method": method, **values})
        print(rows[-1], flush=True)

    for shape in suite.shapes:
        family = suite.family(shape)
        base, agents = str(family / "base"), [str(family / f"agent{k}") for k in range(AGENTS)]
        add(shape, "imports", "", suite.best([sys.executable, "-c", "import hubmerge.line, hubmerge.compiled"]))
        add(shape, "cp inputs", "", suite.best(["cp", "-r", str(family), str(suite.out)]))
        add(shape, "cp output", "", suite.best(["cp", "-r", base, str(suite.out)]))
        for method, (theirs, document, own) in METHODS.items():
            path = _document(suite.place, theirs, document, own, base, agents)
            recipe = suite.recipe(method, base, agents) if theirs == "linear" else path  # that has no base there
            predicted = json.loads(measure([sys.executable, "-m", "hubmerge", "inspect", str(recipe), "--json"]).output)
            ours = suite.best([sys.executable, "-m", "hubmerge", "merge", str(recipe), "--out", str(suite.out)])
            add(shape, "hubmerge", method, {**ours, **{k: v for k, v in predicted.items() if "predicted" in k}})
            if MERGEKIT.is_file() and method in suite.compared:
                flags = (*FLAGS, "-j", str(cores()))
                slow = suite.best([str(MERGEKIT), str(path), str(suite.out), *flags], repeat=1)
                add(shape, "mergekit", method, slow)
        if MERGEKIT.is_file():
            code = "import mergekit.scripts.run_yaml"
            add(shape, "mergekit, imports", "", suite.best([str(MERGEKIT.parent / "python"), "-c", code], repeat=2))
    return rows


def _document(
    place: Path, method: str, document: dict[str, Any], own: dict[str, Any], base: str, agents: Sequence[str]
) -> Path:
    content = {
        "merge_method": method,
        **({} if method == "linear" else {"base_model": base}),  # which would count as one more model
        "models": [{"model": agent, "parameters": own} for agent in agents],
        "parameters": document,
        "dtype": "bfloat16",  # as stored: mergekit is faster and smaller with it than with float32
    }
    path = place / "mergekit.yaml"
    path.write_text(json.dumps(content))
    return path


def floor(suite: Suite) -> list[dict[str, Any]]:
    """Steady state: the stream and its floor by turns, with and without hashing; where hashed, sha256 alone, too."""
    rows = []
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
                rows.append(
                    {"shape": shape, "method": method, "hashed": hashed, "turns": max(TURNS, suite.repeat), **found}
                )
                print(rows[-1], flush=True)
        rows.append({"shape": shape, "method": "hash", "stream": min(alone, key=lambda row: row["wall_s"])})
    return rows


def _hash_alone(model: str) -> dict[str, Any]:
    """sha256 of as many bytes as a model has, by one thread per core, each with its part."""
    code = (
        "import hashlib, os, sys, time\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "size = sum(p.stat().st_size for p in os.scandir(sys.argv[1]))\ncores = len(os.sched_getaffinity(0))\n"
        "block = bytes(1 << 21)\n"
        "def part(_):\n    digest, (blocks, rest) = hashlib.sha256(), divmod(size // cores, len(block))\n"
        "    for _ in range(blocks): digest.update(block)\n"
        "    digest.update(block[:rest])\n"
        "start, cpu = time.monotonic(), time.process_time()\n"
        "with ThreadPoolExecutor(cores) as pool: list(pool.map(part, range(cores)))\n"
        "print(time.monotonic() - start, time.process_time() - cpu)\n"
    )
    wall, cpu = map(float, measure([sys.executable, "-c", code, model]).output.split())
    return {"wall_s": round(wall, 4), "cpu_s": round(cpu, 4)}


def agents(suite: Suite) -> list[dict[str, Any]]:
    rows = []
    for method in ("linear", "ram", "ties"):
        for k in (2, 4, 6, 8):
            recipe = suite.synthetic("qwen2.5-0.5b", k, method, layers=6)
            rows.append({"method": method, "agents": k, **suite.stream(recipe, "--sink", "null", "--no-hash")})
            print(rows[-1], flush=True)
    return rows


def processes(suite: Suite) -> list[dict[str, Any]]:
    """The same merge by one process with one thread, one with two, and two with one each; several output shards."""
    family = suite.family("0.5b")
    agents = [str(family / f"agent{k}") for k in range(AGENTS)]
    rows = []
    for method in ("ram", "ram_plus"):
        recipe = suite.recipe(method, str(family / "base"), agents)
        for count, threads in ((1, 1), (1, 2), (2, 1)):
            launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(count)] if count > 1 else []
            module = ["-m", "benchmarks.several_shards", "merge", str(recipe), "--out", str(suite.out)]
            command = [sys.executable, *launcher, *module]
            row = suite.best([*command, "--threads", str(threads)])
            rows.append({"method": method, "processes": count, "threads": threads, **row})
            print(rows[-1], flush=True)
    return rows


def sizes(suite: Suite) -> list[dict[str, Any]]:
    """Cost per parameter; from 7B on only the first layers, since each is like the other."""
    rows = []
    cases = (("qwen2.5-0.5b", 0), ("qwen2.5-1.5b", 0), ("qwen2.5-7b", 2), ("mixtral-8x7b", 1))
    for shape, layers in cases:
        for method in ("ram", "ram_plus"):
            recipe = suite.synthetic(shape, AGENTS, method, layers)
            row = suite.stream(recipe, "--sink", "null", "--no-hash")
            rows.append({"shape": shape, "layers": layers, "method": method, **row})
            print(rows[-1], flush=True)
    return rows


def chunks(suite: Suite) -> list[dict[str, Any]]:
    rows = []
    recipe = suite.synthetic("qwen2.5-0.5b", AGENTS, "ram", layers=6)
    for thousand in (16, 64, 128, 256, 512, 1024, 2048):
        flags = ("--sink", "null", "--no-hash", "--chunk-elements", str(thousand * 1024))
        rows.append({"chunk_elements": thousand * 1024, **suite.stream(recipe, *flags)})
        print(rows[-1], flush=True)
    return rows


def large(suite: Suite) -> list[dict[str, Any]]:
    """Full tensor shapes, one layer of all: the memory is the whole model's, the time its share."""
    rows = []
    for shape, method in (("llama-70b", "ram"), ("llama-70b", "ties"), ("llama-405b", "ram"), ("qwen3-30b-a3b", "ram")):
        recipe = suite.synthetic(shape, AGENTS, method, layers=1)
        row = suite.stream(recipe, "--sink", "null", repeat=1)
        predicted = json.loads(measure([sys.executable, "-m", "hubmerge", "inspect", str(recipe), "--json"]).output)
        whole = suite.synthetic(shape, AGENTS, method)
        plan = json.loads(measure([sys.executable, "-m", "hubmerge", "inspect", str(whole), "--json"]).output)
        rows.append(
            {
                "shape": shape,
                "method": method,
                **row,
                "all_elements": plan["parameters"],
                "predicted_memory_bytes": predicted["predicted_memory_bytes"],
                "all_predicted_memory_bytes": plan["predicted_memory_bytes"],
                "all_predicted_seconds": plan["predicted_seconds"],
            }
        )
        print(rows[-1], flush=True)
    return rows


def startup(suite: Suite) -> list[dict[str, Any]]:
    recipe = suite.synthetic("qwen2.5-0.5b", AGENTS, "ram")
    rows = []
    for name, command in (
        ("inspect", ["inspect", str(recipe)]),
        ("methods", ["methods"]),
        ("leaderboard --help", ["leaderboard", "--help"]),
    ):
        rows.append({"command": name, **suite.best([sys.executable, "-m", "hubmerge", *command], repeat=3)})
    code = (
        "import sys, pathlib, tempfile\nfrom hubmerge.localhub.process import LocalHubProcess\n"
        "with tempfile.TemporaryDirectory() as d, LocalHubProcess(pathlib.Path(d)): pass\n"
    )
    rows.append({"command": "localhub", **suite.best([sys.executable, "-c", code], repeat=3)})
    print(*rows, sep="\n", flush=True)
    return rows


SECTIONS: dict[str, Callable[[Suite], list[dict[str, Any]]]] = {
    "startup": startup,
    "comparison": comparison,
    "floor": floor,
    "agents": agents,
    "processes": processes,
    "sizes": sizes,
    "chunks": chunks,
    "large": large,
}


def machine() -> dict[str, Any]:
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "processor": model,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).is_file() else []


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else 0


def main() -> None:
    from benchmarks.benchmark_page import write_page

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, "page", []], default=list(SECTIONS))
    parser.add_argument("--data", type=Path, default=ROOT / "benchmarks" / "out")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["0.5b"])
    parser.add_argument(
        "--compare", nargs="*", choices=list(METHODS), default=list(METHODS), help="methods that mergekit runs, too"
    )
    options = parser.parse_args()
    suite = Suite(options)
    for name in options.sections:
        if name == "page":
            continue
        rows = SECTIONS[name](suite)
        kept = json.loads(DATA.read_text()) if DATA.is_file() else {}
        kept[name] = {"machine": machine(), "rows": _merged(kept.get(name, {}).get("rows", []), rows)}
        DATA.write_text(json.dumps(kept, indent=1) + "\n")
    write_page(json.loads(DATA.read_text()))


def _merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A section that was measured for some shapes keeps the others."""
    measured = {row.get("shape") for row in new}
    return [row for row in old if "shape" in row and row["shape"] not in measured] + new


if __name__ == "__main__":
    main()

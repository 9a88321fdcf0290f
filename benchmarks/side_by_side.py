"""hubmerge, mergekit and cp on the same files, whole processes, on the CPU.

mergekit needs `make mergekit` once. It is ended before it takes the last of the machine's memory: above its imports it
holds the largest tensor many times over (RAM 60 bytes per element of it, TIES 40). What it is not run for has a row
that says why.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.metering import RESERVE_BYTES, OutOfMemoryError, Suite, available_memory, inspected, merging
from benchmarks.synthetic import DENSITIES
from hubmerge.machine.resources import cores

ROOT = Path(__file__).resolve().parents[1]
MERGEKIT = ROOT / ".cache" / "mergekit" / "bin" / "mergekit-yaml"
FLAGS = ("--lazy-unpickle", "--no-copy-tokenizer", "--no-write-model-card", "--quiet")

# method → what mergekit calls it, its document's parameters, and each agent's. hubmerge merges the same document
METHODS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "linear": ("linear", {"normalize": True}, {"weight": 1.0}),
    "task_arithmetic": ("task_arithmetic", {}, {"weight": 1.0}),
    "ties": ("ties", {}, {"weight": 1.0, "density": 0.2}),
    "dare_ties": ("dare_ties", {}, {"weight": 1.0, "density": 0.5}),
    "ram": ("ram", {}, {}),
    "ram_plus": ("ramplus_tl", {}, {}),
}

Row = Mapping[str, Any]


def comparison(suite: Suite) -> Iterator[dict[str, Any]]:
    def row(shape: str, what: str, method: str, values: Row) -> dict[str, Any]:
        return {"shape": shape, "what": what, "method": method, **values}

    for shape in suite.shapes:
        family = suite.family(shape)
        base, agents = str(family / "base"), [str(family / f"agent{k}") for k in range(len(DENSITIES))]
        imports = [sys.executable, "-c", "import hubmerge.line, hubmerge.engine.fast"]
        yield row(shape, "imports", "", suite.best(imports))
        if MERGEKIT.is_file():
            imports = [str(MERGEKIT.parent / "python"), "-c", "import mergekit.scripts.run_yaml"]
            yield row(shape, "mergekit, imports", "", suite.best(imports, repeat=2))
        yield row(shape, "cp inputs", "", suite.best(["cp", "-r", str(family), str(suite.out)]))
        yield row(shape, "cp output", "", suite.best(["cp", "-r", base, str(suite.out)]))
        for method, (theirs, document, own) in METHODS.items():
            path = _document(suite.place, theirs, document, own, base, agents)
            recipe = suite.recipe(method, base, agents) if theirs == "linear" else path  # that has no base there
            predicted = {k: v for k, v in inspected(recipe).items() if "predicted" in k}
            ours = suite.best([sys.executable, *merging(recipe, "--out", str(suite.out))])
            yield row(shape, "hubmerge", method, {**ours, **predicted})
            yield row(shape, "mergekit", method, _mergekit(suite, method, path))


def _mergekit(suite: Suite, method: str, document: Path) -> Row:
    """One run, or why there is none."""
    if not MERGEKIT.is_file():
        return {"not_run": "absent"}
    if method not in suite.compared:
        return {"not_run": "left out"}
    available = available_memory() - RESERVE_BYTES
    try:
        command = [str(MERGEKIT), str(document), str(suite.out), *FLAGS, "-j", str(cores())]
        return suite.best(command, repeat=1, reserve_bytes=RESERVE_BYTES)
    except OutOfMemoryError as error:
        return {"not_run": "broken off", "taken_bytes": error.taken_bytes, "available_bytes": available}


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

"""The targets of docs/benchmarks.md beside what was measured; what was not has a row that says so."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from hubmerge.sources.synthetic import SHAPES

TITLES = {
    "linear": "linear",
    "task_arithmetic": "task arithmetic",
    "ties": "TIES",
    "dare_ties": "DARE-TIES",
    "ram": "RAM",
    "ram_plus": "RAM+",
}
WANTED = {"linear": 8, "task_arithmetic": 8, "ties": 20, "dare_ties": 20, "ram": 20, "ram_plus": 20}
GPU_WANTED_S = 15.0
NOT_MEASURED = "not measured"

Row = Mapping[str, Any]
Target = tuple[str, str, str]  # what is wanted, what was measured, whether it is met


def targets(rows: Mapping[str, Sequence[Row]], machines: Mapping[str, Row], gpu: Row | None) -> list[Target]:
    return [
        *_beside_mergekit(rows.get("comparison", ()), machines.get("comparison", {})),
        *_beside_the_floor(rows.get("floor", ())),
        *_large(rows.get("large", ())),
        _on_a_gpu(gpu),
        *_flatness(rows.get("sizes", ())),
        *_linearity(rows.get("agents", ())),
        *_startup(rows.get("startup", ())),
    ]


def _beside_mergekit(rows: Sequence[Row], machine: Row) -> Iterator[Target]:
    for shape in shapes_of(rows):
        pairs = pairs_of(rows, shape)
        for method, wanted in WANTED.items():
            name = f"{TITLES[method]} at {shape}: ≥ {wanted}× mergekit's speed, wall and CPU"
            if method not in pairs:
                yield name, why_not(_theirs(rows, shape, method), machine), NOT_MEASURED
                continue
            ours, theirs = pairs[method]
            wall, cpu = theirs["wall_s"] / ours["wall_s"], theirs["cpu_s"] / ours["cpu_s"]
            yield name, f"{wall:.1f}×, {cpu:.1f}×", _met(min(wall, cpu) >= wanted)
        for method in ("ram", "ram_plus"):
            name = f"{TITLES[method]} at {shape}: ≤ 1/50 of mergekit's peak memory, both above their imports"
            if method not in pairs:
                yield name, why_not(_theirs(rows, shape, method), machine), NOT_MEASURED
                continue
            ours, theirs = pairs[method]
            own = ours["peak_rss_bytes"] - one_of(rows, shape, "imports")["peak_rss_bytes"]
            others = theirs["peak_rss_bytes"] - one_of(rows, shape, "mergekit, imports")["peak_rss_bytes"]
            yield name, f"1/{others / own:.0f}", _met(own * 50 <= others)


def _theirs(rows: Sequence[Row], shape: str, method: str) -> Row:
    return next((r for r in rows if (r["shape"], r["what"], r["method"]) == (shape, "mergekit", method)), {})


def why_not(row: Row, machine: Row) -> str:
    """Why mergekit has no figures in this row."""
    match row.get("not_run"):
        case "absent":
            return "not run: mergekit is not installed here"
        case "broken off":
            taken, free = gigabytes(row["taken_bytes"]), gigabytes(row["available_bytes"])
            return (
                f"broken off: mergekit had taken {taken} and went on; the machine has "
                f"{gigabytes(machine['memory_bytes'])}, of which {free} were free"
            )
        case _:
            return "not run"


def _beside_the_floor(rows: Sequence[Row]) -> Iterator[Target]:
    for row in rows:
        if row["method"] == "hash":
            continue
        title, shape = TITLES[row["method"]], row["shape"]
        if not row["hashed"]:
            ratio, wanted = row["stream"]["wall_s"] / row["floor"]["wall_s"], 1.3 if row["method"] == "ram" else 1.5
            name = f"{title} at {shape}, imports and hashing left out: ≤ {wanted}× of the floor"
        else:
            alone = next(r for r in rows if r["method"] == "hash" and r["shape"] == shape)
            ratio, wanted = row["stream"]["wall_s"] / alone["stream"]["wall_s"], 1.2
            name = f"{title} at {shape}, hashed: ≤ {wanted}× of hashing the output on all cores"
        yield name, f"{ratio:.1f}×", _met(ratio <= wanted)


def _large(rows: Sequence[Row]) -> Iterator[Target]:
    for row in rows:
        if row["shape"].startswith("llama"):
            part = "Tensors" if row["layers"] else "All tensors"
            name = f"{part} of {row['shape']}, three agents, {TITLES[row['method']]}: ≤ 1 GB peak RSS"
            yield name, f"{row['peak_rss_bytes'] / 1e6:.0f} MB", _met(row["peak_rss_bytes"] <= 1e9)


def _on_a_gpu(gpu: Row | None) -> Target:
    name = f"One H200, three agents of 7B, inputs in the page cache: RAM+ ≤ {GPU_WANTED_S:.0f} s in all"
    device = (gpu or {}).get("machine", {}).get("device")
    if gpu is None or not device:
        return name, "not measured: no GPU", NOT_MEASURED
    rows = [r for r in gpu["merges"] if r["method"] == "ram_plus" and not r["exit_code"]]
    row = min(rows, key=lambda r: float(r["wall_s"]), default=None)
    if row is None or (gpu.get("shape"), gpu.get("layers")) != ("qwen2.5-7b", 0):
        return name, f"not measured: no whole 7B on {device}", NOT_MEASURED
    found = f"{row['wall_s']:.1f} s on a machine with {device} (`--device {row['asked']}`)"
    if row.get("device_failed"):
        return name, f"{found}, which failed", _met(False)
    return name, found, _met(row["wall_s"] <= GPU_WANTED_S) if "H200" in device else NOT_MEASURED


def _flatness(rows: Sequence[Row]) -> Iterator[Target]:
    found = {(r["shape"], r["method"]): r for r in rows}
    for method in ("ram", "ram_plus"):
        small, large = found.get(("qwen2.5-1.5b", method)), found.get(("qwen2.5-7b", method))
        if small and large:
            name = f"{TITLES[method]}: cost per parameter from 1.5B to 7B flat (± 15%)"
            change = large["cpu_ns_per_element"] / small["cpu_ns_per_element"] - 1
            part = part_of(large)
            measured = f"{change:+.0%}" + (f", but only on {part}" if part else "")
            yield name, measured, NOT_MEASURED if part else _met(abs(change) <= 0.15)


def part_of(row: Row) -> str:
    """What a row's model is of the whole shape, where it is a part: its layers, and the share that is none."""
    shape, layers = SHAPES[row["shape"]], row["layers"]
    if not layers:
        return ""
    outer = sum(prod(dims) for _, dims in shape.tensors(0))
    here, whole = outer / sum(prod(dims) for _, dims in shape.tensors(layers)), outer / shape.parameters
    return f"{layers} of its {shape.layers} layers, {here:.0%} embedding and head (of the whole: {whole:.0%})"


def _linearity(rows: Sequence[Row]) -> Iterator[Target]:
    by_method: dict[str, dict[int, float]] = {}
    for row in rows:
        by_method.setdefault(row["method"], {})[row["agents"]] = row["cpu_ns_per_element"]
    for method, costs in by_method.items():
        if {2, 8} <= costs.keys():
            ratio = costs[8] / costs[2]
            name = f"{TITLES[method]}: linear in the number of agents, 8 against 2 at most 4× (+ 15%)"
            yield name, f"{ratio:.1f}×", _met(ratio <= 4 * 1.15)


def _startup(rows: Sequence[Row]) -> Iterator[Target]:
    for row in rows:
        yield f"`{row['command']}` starts in < 1 s", f"{row['wall_s']:.2f} s", _met(row["wall_s"] < 1)


def _met(value: bool) -> str:
    return "yes" if value else "**no**"


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def shapes_of(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(r["shape"] for r in rows))


def one_of(rows: Sequence[Row], shape: str, what: str) -> Row:
    return next(r for r in rows if r["shape"] == shape and r["what"] == what)


def pairs_of(rows: Sequence[Row], shape: str) -> dict[str, tuple[Row, Row]]:
    """Method → hubmerge's row and mergekit's, where both ran."""
    of = {(r["what"], r["method"]): r for r in rows if r["shape"] == shape and "not_run" not in r}
    return {m: (of["hubmerge", m], of["mergekit", m]) for m in TITLES if {("hubmerge", m), ("mergekit", m)} <= set(of)}

"""docs/benchmarks.md and its figures from what was measured: docs/data/benchmarks.json, gpu.json and kills.json.

What stands outside the markers of the page is written by hand and kept. Targets: page_targets.py; figures:
page_figures.py.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page_figures import bars, lines
from benchmarks.page_targets import TITLES, WANTED, Row, pairs_of, part_of, shapes_of, targets, why_not
from benchmarks.sections import RESULTS

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


def write_page(data: Mapping[str, Any], docs: Path = DOCS) -> None:
    """Write what stands between the markers of `docs`/benchmarks.md, and figures, from `data` and `docs`/data."""
    path, figures = docs / "benchmarks.md", docs / "figures"
    figures.mkdir(exist_ok=True)
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = {name: section["rows"] for name, section in data.items()}
    machines = {name: section["machine"] for name, section in data.items()}
    gpu, kills = _measured(docs / "data" / "gpu.json"), _measured(docs / "data" / "kills.json")
    parts = [
        "## Targets\n\n" + table(("target", "measured", "met"), targets(rows, machines, gpu)),
        *(
            render(rows[name], machines[name], figures) + f"\n\n{_machine(machines[name], rows[name])}"
            for name, render in RENDER.items()
            if name in rows
        ),
        _gpu(gpu),
        *([_kills(kills)] if kills else []),
    ]
    path.write_text(f"{before}{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}{after}", encoding="utf-8")


def _measured(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _machine(machine: Row, rows: Sequence[Row]) -> str:
    loads = [v for row in rows for v in _loads(row)]
    load = f"; load of the machine when a run began: {min(loads)} to {max(loads)}" if loads else ""
    memory = machine["memory_bytes"] / 2**30
    return (
        f"*{machine['processor']}, {machine['cores']} cores, {memory:.0f} GiB, Python {machine['python']}, "
        f"{machine['date']}{load}.*"
    )


def _loads(row: Row) -> list[float]:
    inner = [v["load"] for v in row.values() if isinstance(v, dict) and "load" in v]
    return [*inner, *([row["load"]] if "load" in row else [])]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    top = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*top, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)])


def _comparison(rows: Sequence[Row], machine: Row, figures: Path) -> str:
    parts = [
        "## Side by side",
        "",
        "Whole processes: interpreter, imports, card and figures included. Three agents in bfloat16, sharing the page "
        "cache; both merge the same mergekit document (for `linear`, which has no base there, hubmerge gets a recipe). "
        "hubmerge counts the card's statistics and hashes its output, mergekit 0.1.5 does neither and "
        "runs with `--lazy-unpickle --no-copy-tokenizer --no-write-model-card`, `dtype: bfloat16` and as many threads "
        "as cores. Predicted: what `hubmerge inspect` said before. Most disk: the most that the output folder and the "
        "folder for temporary files held at any time, sampled every 50 ms.",
    ]
    for shape in shapes_of(rows):
        cells = [_compared(row, machine) for row in rows if row["shape"] == shape]
        run = {r["method"] for r in rows if (r["shape"], r["what"]) == (shape, "mergekit")}
        cells += [(f"mergekit: {TITLES[m]}", why_not({}, machine), "", "", "", "") for m in TITLES if m not in run]
        parts += ["", table((shape, "wall, s", "CPU, s", "peak RSS", "most disk", "predicted"), cells)]
        ratios = {
            TITLES[m]: (t["cpu_s"] / o["cpu_s"], t["wall_s"] / o["wall_s"])
            for m, (o, t) in pairs_of(rows, shape).items()
        }
        if ratios:
            name = f"benchmarks_{shape.replace('.', '_')}.svg"
            bars(figures / name, shape, ratios, {TITLES[m]: wanted for m, wanted in WANTED.items()})
            parts += ["", f"![How much faster than mergekit, by method, {shape}](figures/{name})"]
    return "\n".join(parts)


def _compared(row: Row, machine: Row) -> tuple[str, ...]:
    name = f"{row['what']}: {TITLES[row['method']]}" if row["method"] else row["what"]
    if "not_run" in row:
        return name, why_not(row, machine), "", "", "", ""
    told = ""
    if "predicted_seconds" in row:
        told = f"{row['predicted_seconds']:g} s, {_mb(row['predicted_memory_bytes'])}"
    memory, disk = _mb(row["peak_rss_bytes"]), _mb(row["disk_high_water_bytes"])
    return name, f"{row['wall_s']:.1f}", f"{row['cpu_s']:.1f}", memory, disk, told


def _floor(rows: Sequence[Row], machine: Row, figures: Path) -> str:
    cells: list[Sequence[object]] = []
    for row in rows:
        if row["method"] == "hash":
            cells.append((row["shape"], "sha256 of the output alone, all cores", "", "", *_times(row["stream"])))
            continue
        name = TITLES[row["method"]] + (", hashed" if row["hashed"] else "")
        cells.append((row["shape"], name, *_times(row["stream"]), *_times(row["floor"])))
    head = ("shape", "", "stream, wall s", "stream, CPU s", "floor, wall s", "floor, CPU s")
    turns = min(row["turns"] for row in rows if row["method"] != "hash")
    return (
        "## Floor\n\nThe stream in its steady state (imports and card left out) beside its floor: every "
        "input read once (RAM+: twice), as many bytes as the output has written once, by all cores. Both begin with "
        "the inputs in the page cache and write past it where the file system can; they ran by turns, "
        f"{turns} times each, and the run with the least wall time of each is shown.\n\n"
    ) + table(head, cells)


def _times(row: Row) -> tuple[str, str]:
    return f"{row['wall_s']:.2f}", f"{row['cpu_s']:.2f}"


def _agents(rows: Sequence[Row], machine: Row, figures: Path) -> str:
    methods = list(dict.fromkeys(r["method"] for r in rows))
    counts = sorted({r["agents"] for r in rows})
    cost = {(r["method"], r["agents"]): r["cpu_ns_per_element"] for r in rows}
    cells = [(k, *(f"{cost[m, k]:.1f}" for m in methods)) for k in counts]
    lines(figures / "benchmarks_agents.svg", "agents", {TITLES[m]: [(k, cost[m, k]) for k in counts] for m in methods})
    head = ("agents", *(f"{TITLES[m]}, ns" for m in methods))
    return (
        "## Agents\n\nCPU time per parameter, statistics included, into a null sink.\n\n"
        + table(head, cells)
        + "\n\n![CPU time per parameter by number of agents](figures/benchmarks_agents.svg)"
    )


def _processes(rows: Sequence[Row], machine: Row, figures: Path) -> str:
    cells = [
        (TITLES[r["method"]], r["processes"], r["threads"], f"{r['wall_s']:.1f}", f"{r['cpu_s']:.1f}",
         _mb(r["peak_rss_bytes"]))
        for r in rows
    ]  # fmt: skip
    head = ("method", "processes", "threads of each", "wall, s", "CPU of all, s", "peak RSS of one")
    return (
        "## Processes\n\nWhole processes at 0.5b in output shards of 128 MiB, started by `torchrun` where there are "
        "two: each of those imports torch and the Hub's client, and learns what the others counted.\n\n"
    ) + table(head, cells)


def _sizes(rows: Sequence[Row], machine: Row, figures: Path) -> str:
    cells = [
        (r["shape"] + (f", {part_of(r)}" if r["layers"] else ""), TITLES[r["method"]],
         f"{r['elements'] / 1e9:.2f} B", f"{r['cpu_ns_per_element']:.1f}", f"{r['wall_s']:.1f}",
         _mb(r["peak_rss_bytes"]))
        for r in rows
    ]  # fmt: skip
    head = ("shape", "method", "parameters", "CPU ns per parameter", "wall, s", "peak RSS")
    return (
        "## Size\n\nThree synthetic agents into the null sink, not hashed, steady state. Models are whole where a row "
        "says nothing else. Cost per parameter depends on the mix of small and large tensors, so that of a few layers, "
        "most of which is embedding and head, says little about a whole model.\n\n"
    ) + table(head, cells)


def _chunks(rows: Sequence[Row], machine: Row, figures: Path) -> str:
    cells = [
        (f"{r['chunk_elements'] // 1024} K", f"{r['cpu_ns_per_element']:.1f}", f"{r['wall_s']:.2f}",
         _mb(r["peak_rss_bytes"]))
        for r in rows
    ]  # fmt: skip
    points = [(r["chunk_elements"] / 1024, r["cpu_ns_per_element"]) for r in rows]
    lines(figures / "benchmarks_chunks.svg", "thousand elements per chunk", {"RAM": points}, logarithmic=True)
    head = ("chunk, elements", "CPU ns per parameter", "wall, s", "peak RSS")
    return (
        "## Chunk size\n\nRAM, three agents, into a null sink; the bits are the same for all.\n\n"
        + table(head, cells)
        + "\n\n![CPU time per parameter by chunk size](figures/benchmarks_chunks.svg)"
    )


def _large(rows: Sequence[Row], machine: Row, figures: Path) -> str:
    cells = [
        (r["shape"] + ("" if r["layers"] else ", all of it"), TITLES[r["method"]],
         f"{r['largest'] / 1e9:.2f} B", f"{r['elements'] / 1e9:.2f} B", _mb(r["peak_rss_bytes"]),
         _mb(r["predicted_memory_bytes"]), f"{r['wall_s']:.0f}",
         f"{r['merge_s'] * r['all_elements'] / r['elements'] / 3600:.2f} h",
         f"{told / 3600:.2f} h" if (told := r["all_predicted_seconds"]) else "—")
        for r in rows
    ]  # fmt: skip
    head = ("shape", "method", "largest tensor", "merged here", "peak RSS", "predicted", "wall, s", "whole model",
            "predicted")  # fmt: skip
    return (
        "## Large models\n\nThree synthetic agents, embedding, head and one layer in their full shapes (where a row "
        "does not say that it was all), hashed, whole processes (`hubmerge merge --null-sink`), card and figures "
        "included. Computing the inputs takes some 20 MB, which are not predicted. The whole model's memory differs by "
        "the tallies of its other tensors, about 20 KB each. The time for the whole model is extrapolated from the "
        "part.\n\n"
    ) + table(head, cells)


def _gpu(found: Row | None) -> str:
    """What docs/data/gpu.json says (benchmarks/gpu.py)."""
    title = "## GPU\n\n"
    if found is None:
        return f"{title}Not measured: no GPU. `python -m benchmarks.gpu --json docs/data/gpu.json` measures on one."
    cells = [
        (TITLES.get(m["method"], m["method"]), _device(m), f"{m['wall_s']:.1f}", f"{m['seconds']:.1f}",
         f"{m['parameters_per_s'] / 1e9:.2f} B", _mb(m.get("peak_device_bytes", 0)),
         _mb(m["peak_rss_bytes"]) if "peak_rss_bytes" in m else "not measured")
        for m in found["merges"] if not m["exit_code"]
    ]  # fmt: skip
    failed = [f"{m['method']} on {m['asked']}" for m in found["merges"] if m["exit_code"] or m.get("device_failed")]
    head = ("method", "device", "wall, s", "merge, s", "parameters per s", "device memory", "peak RSS")
    part = f", first {found['layers']} layers" if found.get("layers") else ""
    tests = f" Tests marked `gpu`: {' '.join(found['tests']['summary'])}." if "tests" in found else ""
    machine = found["machine"]
    told = f"{machine['device']}, {machine['cores']} cores, torch {machine['torch']}, CUDA {machine['cuda']}"
    return (
        f"{title}Whole processes, written and hashed: three synthetic agents of {found.get('shape', '7B')}{part}, read "
        f"as fast as from the page cache.{_same(found)}{tests}"
        f"{' **Failed: ' + ', '.join(failed) + '.**' if failed else ''}\n\n"
        f"{table(head, cells)}\n\n*{told}{', ' + machine['date'] if 'date' in machine else ''}.*"
    )


def _device(merge: Row) -> str:
    """What was asked for, and what "auto" took."""
    return f"auto: {merge.get('device', 'cpu')}" if merge["asked"] == "auto" else str(merge["asked"])


def _same(found: Row) -> str:
    if len({merge["asked"] for merge in found["merges"]}) < 2:
        return ""
    return f" The bytes are {'' if found['same_bytes'] else '**not** '}the same on both."


def _kills(found: Row) -> str:
    """What docs/data/kills.json says (benchmarks/kills.py)."""
    cells = [
        (c["model"], c["kills"], c["repos"], c["runs"], len(c["failures"]), _mb(c["disk_high_water_bytes"]),
         _mb(c["disk_budget_bytes"]), ", ".join(f"{stage} {count}" for stage, count in c["kills_by_stage"].items()))
        for c in found["campaigns"]
    ]  # fmt: skip
    head = ("campaign", "kills", "repos", "runs", "failures", "most disk", "of", "in the stage")
    machine = f"\n\n{_machine(found['machine'], [])}" if "machine" in found else ""
    how = (
        f"`hubmerge run` from and to an embedded Hub, ended by SIGKILL at {found['kills']} random moments "
        "and started again until it got through. A failure is any other byte than an undisturbed run's, any number of "
        "commits but one, anything left on the disk or in the Hub's uploads, or more disk than there was to take. "
        "`tight` has a disk budget of half of what its merge would take, so that inputs are fetched twice."
    )
    return f"## Kills\n\n{how}\n\n{table(head, cells)}{machine}"


def _startup(rows: Sequence[Row], machine: Row, figures: Path) -> str:
    cells = [(f"`{r['command']}`", f"{r['wall_s']:.2f}", f"{r['cpu_s']:.2f}", _mb(r["peak_rss_bytes"])) for r in rows]
    told = (
        f"Whole processes. `leaderboard` draws the table of {RESULTS} results, from a folder and from a dataset on an "
        "embedded Hub, whose files are kept once they were fetched. Of three runs the one with the least CPU time.\n\n"
    )
    return f"## Start-up\n\n{told}" + table(("command", "wall, s", "CPU, s", "peak RSS"), cells)


RENDER: dict[str, Callable[[Sequence[Row], Row, Path], str]] = {
    "comparison": _comparison,
    "floor": _floor,
    "agents": _agents,
    "processes": _processes,
    "sizes": _sizes,
    "chunks": _chunks,
    "large": _large,
    "startup": _startup,
}


def _mb(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"

"""docs/benchmarks.md and its figures from docs/data/benchmarks.json: targets beside what was measured.

What stands outside the markers of the page is written by hand and kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
FIGURES = ROOT / "docs" / "figures"
KILLS = ROOT / "docs" / "data" / "kills.json"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
HEAD = f"""# Benchmarks

What a merge costs, beside mergekit, a copy of the same bytes, and the floor of the machine. Everything between the
markers is written by `make bench` from [docs/data/benchmarks.json](data/benchmarks.json).

{BEGIN}
{END}
"""
TITLES = {
    "linear": "linear",
    "task_arithmetic": "task arithmetic",
    "ties": "TIES",
    "dare_ties": "DARE-TIES",
    "ram": "RAM",
    "ram_plus": "RAM+",
}
WANTED = {"linear": 8, "task_arithmetic": 8, "ties": 20, "dare_ties": 20, "ram": 20, "ram_plus": 20}
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_MARKERS = "osD^"

Row = Mapping[str, Any]


def write_page(data: Mapping[str, Any]) -> None:
    rows = {name: section["rows"] for name, section in data.items()}
    FIGURES.mkdir(exist_ok=True)
    page = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else HEAD
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = [_targets(rows)]
    for name, render in RENDER.items():
        if name in rows:
            parts.append(render(rows[name]) + f"\n\n{_machine(data[name]['machine'], rows[name])}")
    if KILLS.is_file():
        parts.append(_kills())
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}{after}", encoding="utf-8")


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
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)])


def _targets(rows: Mapping[str, Sequence[Row]]) -> str:
    found: list[tuple[str, str, str]] = []
    for shape in _shapes(rows.get("comparison", ())):
        pairs = _pairs(rows["comparison"], shape)
        for method, (ours, theirs) in pairs.items():
            wall, cpu = theirs["wall_s"] / ours["wall_s"], theirs["cpu_s"] / ours["cpu_s"]
            found.append(
                (
                    f"{TITLES[method]} at {shape}: ≥ {WANTED[method]}× mergekit's speed, wall and CPU",
                    f"{wall:.1f}×, {cpu:.1f}×",
                    _met(min(wall, cpu) >= WANTED[method]),
                )
            )
        found += [_memory_target(rows["comparison"], shape, m) for m in ("ram", "ram_plus") if m in pairs]
    for row in rows.get("floor", ()):
        if row["method"] == "hash":
            continue
        ratio = row["stream"]["wall_s"] / row["floor"]["wall_s"]
        if not row["hashed"]:
            wanted = 1.3 if row["method"] == "ram" else 1.5
            name = f"{TITLES[row['method']]} at {row['shape']}, imports and hashing left out: ≤ {wanted}× of the floor"
            found.append((name, f"{ratio:.1f}×", _met(ratio <= wanted)))
        else:
            alone = next(r for r in rows["floor"] if r["method"] == "hash" and r["shape"] == row["shape"])
            over = row["stream"]["wall_s"] / alone["stream"]["wall_s"]
            name = f"{TITLES[row['method']]} at {row['shape']}, hashed: ≤ 1.2× of hashing the output on all cores"
            found.append((name, f"{over:.1f}×", _met(over <= 1.2)))
    for row in rows.get("large", ()):
        if row["shape"].startswith("llama"):
            name = f"Tensors of {row['shape']}, three agents, {TITLES[row['method']]}: ≤ 1 GB peak RSS"
            found.append((name, _mb(row["peak_rss_bytes"]), _met(row["peak_rss_bytes"] <= 1e9)))
    found += _flatness(rows)
    for row in rows.get("startup", ()):
        found.append((f"`{row['command']}` starts in < 1 s", f"{row['wall_s']:.2f} s", _met(row["wall_s"] < 1)))
    return "## Targets\n\n" + table(("target", "measured", "met"), found)


def _met(value: bool) -> str:
    return "yes" if value else "**no**"


def _memory_target(rows: Sequence[Row], shape: str, method: str) -> tuple[str, str, str]:
    """Peak above the imports, of both."""
    ours, theirs = _pairs(rows, shape)[method]
    own = ours["peak_rss_bytes"] - _one(rows, shape, "imports")["peak_rss_bytes"]
    others = theirs["peak_rss_bytes"] - _one(rows, shape, "mergekit, imports")["peak_rss_bytes"]
    name = f"{TITLES[method]} at {shape}: ≤ 1/50 of mergekit's peak memory, both above their imports"
    return name, f"1/{others / own:.0f}", _met(own * 50 <= others)


def _flatness(rows: Mapping[str, Sequence[Row]]) -> list[tuple[str, str, str]]:
    found = []
    sizes = {(r["shape"], r["method"]): r["cpu_ns_per_element"] for r in rows.get("sizes", ())}
    for method in ("ram", "ram_plus"):
        small, large = sizes.get(("qwen2.5-1.5b", method)), sizes.get(("qwen2.5-7b", method))
        if small and large:
            change = large / small - 1
            name = f"{TITLES[method]}: cost per parameter from 1.5B to 7B flat (± 15 %)"
            found.append((name, f"{change:+.0%}", _met(abs(change) <= 0.15)))
    by_method: dict[str, dict[int, float]] = {}
    for row in rows.get("agents", ()):
        by_method.setdefault(row["method"], {})[row["agents"]] = row["cpu_ns_per_element"]
    for method, costs in by_method.items():
        ratio = (costs[8] / costs[2]) if {2, 8} <= set(costs) else None
        if ratio:
            name = f"{TITLES[method]}: linear in the number of agents, 8 against 2 at most 4× (+ 15 %)"
            found.append((name, f"{ratio:.1f}×", _met(ratio <= 4 * 1.15)))
    return found


def _shapes(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(r["shape"] for r in rows))


def _one(rows: Sequence[Row], shape: str, what: str) -> Row:
    return next(r for r in rows if r["shape"] == shape and r["what"] == what)


def _pairs(rows: Sequence[Row], shape: str) -> dict[str, tuple[Row, Row]]:
    of = {(r["what"], r["method"]): r for r in rows if r["shape"] == shape}
    return {m: (of["hubmerge", m], of["mergekit", m]) for m in TITLES if {("hubmerge", m), ("mergekit", m)} <= set(of)}


def _comparison(rows: Sequence[Row]) -> str:
    parts = [
        "## Side by side",
        "",
        "Whole processes: interpreter, imports, card and figures included. Three agents in bfloat16, sharing the page "
        "cache; both merge the same mergekit document (for `linear`, which has no base there, hubmerge gets a recipe). "
        "hubmerge counts the card's statistics and hashes its output, mergekit 0.1.5 does neither and "
        "runs with `--lazy-unpickle --no-copy-tokenizer --no-write-model-card`, `dtype: bfloat16` and as many threads "
        "as cores. Predicted: what `hubmerge inspect` said before.",
    ]
    for shape in _shapes(rows):
        lines = []
        for row in (r for r in rows if r["shape"] == shape):
            told = ""
            if "predicted_seconds" in row:
                told = f"{row['predicted_seconds']:g} s, {_mb(row['predicted_memory_bytes'])}"
            name = f"{row['what']}: {TITLES[row['method']]}" if row["method"] else row["what"]
            lines.append(
                (name, f"{row['wall_s']:.1f}", f"{row['cpu_s']:.1f}", _mb(row["peak_rss_bytes"]),
                 _mb(row["disk_bytes"]), told)
            )  # fmt: skip
        head = (shape, "wall, s", "CPU, s", "peak RSS", "disk", "predicted")
        parts += ["", table(head, lines)]
        ratios = {m: (t["cpu_s"] / o["cpu_s"], t["wall_s"] / o["wall_s"]) for m, (o, t) in _pairs(rows, shape).items()}
        if ratios:
            name = f"benchmarks_{shape.replace('.', '_')}.png"
            _bars(FIGURES / name, shape, ratios)
            parts += ["", f"![How much faster than mergekit, by method, {shape}](figures/{name})"]
    return "\n".join(parts)


def _floor(rows: Sequence[Row]) -> str:
    lines: list[Sequence[object]] = []
    for row in rows:
        if row["method"] == "hash":
            lines.append((row["shape"], "sha256 of the output alone, all cores", "", "", *_times(row["stream"])))
            continue
        name = TITLES[row["method"]] + (", hashed" if row["hashed"] else "")
        lines.append((row["shape"], name, *_times(row["stream"]), *_times(row["floor"])))
    head = ("shape", "", "stream, wall s", "stream, CPU s", "floor, wall s", "floor, CPU s")
    turns = min((row.get("turns", 0) for row in rows if row["method"] != "hash"), default=0)
    how = (
        " Both begin with the inputs in the page cache and write past it where the file system can; they ran by turns, "
        f"{turns} times each, and the run with the least wall time of each is shown."
        if turns
        else ""
    )
    return (
        "## Floor\n\nThe stream in its steady state (imports, compiled code and card left out) beside its floor: every "
        f"input read once (RAM+: twice), as many bytes as the output has written once, by all cores.{how}\n\n"
    ) + table(head, lines)


def _times(row: Row) -> tuple[str, str]:
    return f"{row['wall_s']:.2f}", f"{row['cpu_s']:.2f}"


def _agents(rows: Sequence[Row]) -> str:
    methods = list(dict.fromkeys(r["method"] for r in rows))
    counts = sorted({r["agents"] for r in rows})
    cost = {(r["method"], r["agents"]): r["cpu_ns_per_element"] for r in rows}
    lines = [(k, *(f"{cost[m, k]:.1f}" for m in methods)) for k in counts]
    _lines(FIGURES / "benchmarks_agents.png", "agents", {TITLES[m]: [(k, cost[m, k]) for k in counts] for m in methods})
    head = ("agents", *(f"{TITLES[m]}, ns" for m in methods))
    return (
        "## Agents\n\nCPU time per parameter, statistics included, into a null sink.\n\n"
        + table(head, lines)
        + "\n\n![CPU time per parameter by number of agents](figures/benchmarks_agents.png)"
    )


def _processes(rows: Sequence[Row]) -> str:
    lines = [
        (TITLES[r["method"]], r["processes"], r["threads"], f"{r['wall_s']:.1f}", f"{r['cpu_s']:.1f}",
         _mb(r["peak_rss_bytes"]))
        for r in rows
    ]  # fmt: skip
    head = ("method", "processes", "threads of each", "wall, s", "CPU of all, s", "peak RSS of one")
    return (
        "## Processes\n\nWhole processes at 0.5b in output shards of 128 MiB, started by `torchrun` where there are "
        "two: each of those imports torch and the Hub's client, and learns what the others counted.\n\n"
    ) + table(head, lines)


def _sizes(rows: Sequence[Row]) -> str:
    lines = [
        (r["shape"] + (f", first {r['layers']} of its layers" if r["layers"] else ""), TITLES[r["method"]],
         f"{r['elements'] / 1e9:.2f} B", f"{r['cpu_ns_per_element']:.1f}", f"{r['wall_s']:.1f}",
         _mb(r["peak_rss_bytes"]))
        for r in rows
    ]  # fmt: skip
    head = ("shape", "method", "parameters", "CPU ns per parameter", "wall, s", "peak RSS")
    return "## Size\n\nThree synthetic agents into a null sink, without hashing.\n\n" + table(head, lines)


def _chunks(rows: Sequence[Row]) -> str:
    lines = [
        (f"{r['chunk_elements'] // 1024} K", f"{r['cpu_ns_per_element']:.1f}", f"{r['wall_s']:.2f}",
         _mb(r["peak_rss_bytes"]))
        for r in rows
    ]  # fmt: skip
    points = [(r["chunk_elements"] / 1024, r["cpu_ns_per_element"]) for r in rows]
    _lines(FIGURES / "benchmarks_chunks.png", "thousand elements per chunk", {"RAM": points}, logarithmic=True)
    head = ("chunk, elements", "CPU ns per parameter", "wall, s", "peak RSS")
    return (
        "## Chunk size\n\nRAM, three agents, into a null sink; the bits are the same for all.\n\n"
        + table(head, lines)
        + "\n\n![CPU time per parameter by chunk size](figures/benchmarks_chunks.png)"
    )


def _large(rows: Sequence[Row]) -> str:
    lines = [
        (r["shape"], TITLES[r["method"]], f"{r['largest'] / 1e9:.2f} B", f"{r['elements'] / 1e9:.2f} B",
         _mb(r["peak_rss_bytes"]), _mb(r["predicted_memory_bytes"]), f"{r['wall_s']:.0f}",
         f"{r['wall_s'] * r['all_elements'] / r['elements'] / 3600:.2f} h",
         f"{r['all_predicted_seconds'] / 3600:.2f} h")
        for r in rows
    ]  # fmt: skip
    head = ("shape", "method", "largest tensor", "merged here", "peak RSS", "predicted", "wall, s", "whole model",
            "predicted")  # fmt: skip
    return (
        "## Large models\n\nThree synthetic agents, embedding, head and one layer in their full shapes, hashed, into a "
        "null sink. Memory is measured; the whole model's differs by the tallies of its other tensors, about 20 KB "
        "each, and by the card's figures, about 50 MB, if those come to more than the stream's buffers. The time for "
        "the whole model is extrapolated from the part.\n\n"
    ) + table(head, lines)


def _kills() -> str:
    """What docs/data/kills.json says (benchmarks/kills.py)."""
    found = json.loads(KILLS.read_text(encoding="utf-8"))
    lines = [
        (c["model"], c["kills"], c["repos"], c["runs"], len(c["failures"]), _mb(c["disk_high_water_bytes"]),
         _mb(c["disk_budget_bytes"]), ", ".join(f"{stage} {count}" for stage, count in c["kills_by_stage"].items()))
        for c in found["campaigns"]
    ]  # fmt: skip
    head = ("campaign", "kills", "repos", "runs", "failures", "most disk", "of", "in the stage")
    return (
        f"## Kills\n\n`hubmerge run` from and to an embedded Hub, ended by SIGKILL at {found['kills']} random moments "
        "and started again until it got through. A failure is any other byte than an undisturbed run's, any number of "
        "commits but one, anything left on the disk or in the Hub's uploads, or more disk than there was to take. "
        "`tight` has a disk budget of half of what its merge would take, so that inputs are fetched twice.\n\n"
    ) + table(head, lines)


def _startup(rows: Sequence[Row]) -> str:
    lines = [(f"`{r['command']}`", f"{r['wall_s']:.2f}", f"{r['cpu_s']:.2f}", _mb(r["peak_rss_bytes"])) for r in rows]
    return "## Start-up\n\n" + table(("command", "wall, s", "CPU, s", "peak RSS"), lines)


RENDER: dict[str, Callable[[Sequence[Row]], str]] = {
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


def _bars(path: Path, shape: str, ratios: Mapping[str, tuple[float, float]]) -> None:
    """How many times as fast as mergekit, CPU and wall; the target as a tick."""
    figure, axes = _axes(2.6)
    for place, (method, (cpu, wall)) in enumerate(ratios.items()):
        axes.barh(place - 0.19, cpu, 0.36, color=_COLORS[0], label="CPU time" if not place else None)
        axes.barh(place + 0.19, wall, 0.36, color=_COLORS[1], label="wall time" if not place else None)
        axes.plot([WANTED[method]] * 2, [place - 0.42, place + 0.42], color="black", linewidth=1.5,
                  label="target" if not place else None)  # fmt: skip
    axes.set_yticks(range(len(ratios)), [TITLES[m] for m in ratios])
    axes.invert_yaxis()
    axes.set_xlabel(f"times as fast as mergekit, {shape}, whole processes")
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    figure.savefig(path, metadata={"Software": None})


def _lines(
    path: Path, label: str, series: Mapping[str, Sequence[tuple[float, float]]], *, logarithmic: bool = False
) -> None:
    figure, axes = _axes(2.8)
    for number, (name, points) in enumerate(series.items()):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, marker=_MARKERS[number], color=_COLORS[number], label=name)
    if logarithmic:
        axes.set_xscale("log", base=2)
    ticks = sorted({x for points in series.values() for x, _ in points})
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(label)
    axes.set_ylabel("CPU ns per parameter")
    if len(series) > 1:
        axes.legend(frameon=False)
    figure.savefig(path, metadata={"Software": None})


def _axes(height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes

"""The figures of docs/benchmarks.md: bars beside mergekit, and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_MARKERS = "osD^"


def bars(path: Path, shape: str, ratios: Mapping[str, tuple[float, float]], wanted: Mapping[str, float]) -> None:
    """By title: how many times as fast as mergekit, CPU and wall; what is wanted as a tick."""
    figure, axes = _axes(2.6)
    for place, (title, (cpu, wall)) in enumerate(ratios.items()):
        axes.barh(place - 0.19, cpu, 0.36, color=_COLORS[0], label="CPU time" if not place else None)
        axes.barh(place + 0.19, wall, 0.36, color=_COLORS[1], label="wall time" if not place else None)
        axes.plot([wanted[title]] * 2, [place - 0.42, place + 0.42], color="black", linewidth=1.5,
                  label="target" if not place else None)  # fmt: skip
    axes.set_yticks(range(len(ratios)), list(ratios))
    axes.invert_yaxis()
    axes.set_xlabel(f"times as fast as mergekit, {shape}, whole processes")
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    figure.savefig(path, metadata={"Software": None})


def lines(
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

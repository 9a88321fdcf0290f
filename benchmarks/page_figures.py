"""The figures of docs/benchmarks.md: bars beside mergekit, and lines."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from hubmerge.output.drawing import LABEL, ROW, TICKS, TITLE, WIDTH, Drawing, Panel, numbers, ticks, width_of

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_TARGET = "#000000"
_EDGE = 16.0  # pixels


def bars(path: Path, shape: str, ratios: Mapping[str, tuple[float, float]], wanted: Mapping[str, float]) -> None:
    """By title: how many times as fast as mergekit, CPU and wall; what is wanted as a tick."""
    height, top, last = 34.0 * len(ratios), ROW + _EDGE, len(ratios) - 1
    label = f"times as fast as mergekit, {shape}, whole processes"
    drawing = Drawing(top + height + TICKS + LABEL + _EDGE, label)
    drawing.legend(8, [(_COLORS[0], "CPU time"), (_COLORS[1], "wall time"), (_TARGET, "target")])
    left = max(map(width_of, ratios)) + 2 * _EDGE
    most = 1.05 * max([*wanted.values(), *(value for pair in ratios.values() for value in pair)])
    panel = Panel(drawing, left, top, WIDTH - _EDGE - left, height, (0.0, most), (-0.5, last + 0.5))
    panel.x_axis(numbers(ticks(*panel.x)), label, grid=True)
    for n, (title, values) in enumerate(ratios.items()):
        for k, value in enumerate(values):
            panel.bar((0.0, value), (last - n + 0.37 - 0.37 * k, last - n + 0.01 - 0.37 * k), _COLORS[k])
        drawing.line([panel.at(wanted[title], last - n + end) for end in (0.42, -0.42)], _TARGET, 2.0)
    panel.y_axis([(last - n, title) for n, title in enumerate(ratios)])
    path.write_bytes(drawing.svg())


def lines(
    path: Path, label: str, series: Mapping[str, Sequence[tuple[float, float]]], *, logarithmic: bool = False
) -> None:
    entries = [(color, name) for color, name in zip(_COLORS, series, strict=False)]
    drawing = Drawing(TITLE + 220 + TICKS + LABEL + _EDGE, label)
    placed = {x: math.log2(x) if logarithmic else x for points in series.values() for x, _ in points}
    most = 1.05 * max(y for points in series.values() for _, y in points)
    room = 0.03 * (max(placed.values()) - min(placed.values())) or 0.5
    ends = (min(placed.values()) - room, max(placed.values()) + room)
    panel = Panel(drawing, 72.0, TITLE + 6, WIDTH - 72.0 - _EDGE, 214.0, ends, (0.0, most))
    panel.y_axis(numbers(ticks(*panel.y)), "CPU ns per parameter", grid=True)
    panel.x_axis([(place, f"{x:g}") for x, place in sorted(placed.items())], label)
    for n, points in enumerate(series.values()):
        line = [panel.at(placed[x], y) for x, y in points]
        drawing.line(line, _COLORS[n], 1.6)
        for point in line:
            drawing.marker(point, n, _COLORS[n])
    if len(series) > 1:
        drawing.legend(6, entries, lines=[""] * len(entries))
    path.write_bytes(drawing.svg())

"""The card's figures: what each agent changed where, with whom it shares it, and how alike the agents are.

Pure functions of the report to PNG bytes, the same bytes for the same report and matplotlib. Labels are a stranger's
text: cut to a length and rid of what the font cannot show. Margins follow from the widths that they then have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hubmerge.output.figure_canvas import (
    EDGE,
    ROW,
    SHADE_BAR,
    SIZE,
    TICK,
    TITLE,
    WIDTH,
    X_LABEL,
    X_TICKS,
    Axes,
    Canvas,
    Point,
    beside,
    legend,
    legend_shape,
    number,
    shade_bar,
    ticks,
    widest,
)
from hubmerge.output.figure_renderer import font
from hubmerge.output.report import Report

DENSITY = "figures/density_by_layer.png"
OVERLAP = "figures/overlap.png"
PAIRS = "figures/pairs.png"

_LABEL = 22  # characters
_EMPTY = (0.93, 0.93, 0.93)
_ANNOTATED = 10  # a heatmap of more agents has no room for numbers
# Okabe and Ito's palette, told apart under every common colour blindness; black comes last. Markers repeat the
# difference, and line styles go on where the colours end.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C7A00", "#000000")
_MARKERS = "osD^vPX*"
_DASHES = ((), (5.2, 2.2), (1.4, 2.3), (9.0, 2.2, 1.4, 2.2))  # points drawn, left out, …
_PANEL = 2.1  # inches: the height of axes beside which nothing is listed
_TURNED = 30.0  # degrees: names of modules

_Place = tuple[float, float, float, float]  # left, bottom, width and height of axes


def render_figures(report: Report) -> dict[str, bytes]:
    """Path below the repo → PNG."""
    statistics = report.statistics
    labels = [short_label(str(a["agent"])) for a in statistics["total"]["agents"]]
    draw: dict[str, Callable[[Sequence[str], Mapping[str, Any]], Canvas]] = {
        DENSITY: _density,
        OVERLAP: _overlap,
        PAIRS: _pairs,
    }
    return {name: function(labels, statistics).png() for name, function in draw.items()}


def _density(labels: Sequence[str], statistics: Mapping[str, Any]) -> Canvas:
    layers = sorted((int(depth), part) for depth, part in statistics["layers"].items())
    names = [short_label(name) for name in statistics["modules"]]
    bars = _percents(labels, statistics["modules"].values())
    columns, rows = legend_shape(labels)
    down, across = (widest(names) * f(math.radians(_TURNED)) for f in (math.sin, math.cos))
    below = max(X_TICKS + (X_LABEL if layers else 0.0), TICK + down + 0.13)
    bottom = EDGE + ROW * rows + 0.05 + below
    canvas = Canvas(bottom + _PANEL + TITLE)
    left = EDGE
    if layers:
        curves = _percents(labels, [part for _, part in layers])
        left += beside(ticks(_largest(curves)))
        gap = beside(ticks(_largest(bars))) + 0.2
        room = WIDTH - left - gap - 1.5 * EDGE
        # the first name, which leans out to the left of its axes, stays clear of the other axes' numbers
        gap += max(0.0, across - gap - 0.2 * room / max(len(names), 1))
        room = WIDTH - left - gap - 1.5 * EDGE
        _draw_layers(canvas, (left, bottom, 0.6 * room, _PANEL), [depth for depth, _ in layers], curves)
        left += 0.6 * room + gap
    else:
        left += max(beside(ticks(_largest(bars))), across)
    _draw_modules(canvas, (left, bottom, WIDTH - left - 1.5 * EDGE, _PANEL), names, bars)

    def beside_label(k: int, x: float, y: float, width: float) -> None:
        if layers:
            _draw_curve(canvas, k, [(x, y), (x + width, y)], [(x + width / 2, y)])
        else:
            canvas.box(x, y - 0.04, width, 0.08, _COLORS[k % len(_COLORS)])

    legend(canvas, labels, columns, beside_label)
    return canvas


def _percents(labels: Sequence[str], parts: Iterable[Mapping[str, Any]]) -> list[list[float]]:
    """Per agent the density in every part of the model, in percent."""
    parts = list(parts)
    return [[100 * part["agents"][k]["density"] for part in parts] for k in range(len(labels))]


def _largest(rows: Iterable[Sequence[float]]) -> float:
    return max((value for row in rows for value in row), default=0.0)


def _draw_layers(canvas: Canvas, place: _Place, depths: Sequence[int], curves: Sequence[Sequence[float]]) -> None:
    most = _largest(curves)
    space = max(0.05 * (depths[-1] - depths[0]), 0.1)
    axes = Axes(canvas, *place, (depths[0] - space, depths[-1] + space), (0.0, 1.05 * most or 1.0))
    axes.title("by layer")
    axes.grid("y", ticks(most))
    axes.frame()
    axes.x_ticks(ticks(depths[-1], depths[0], whole=True))
    axes.y_ticks(ticks(most))
    axes.label("layer", "changed elements, %", ticks(most))
    for k, curve in enumerate(curves):
        points = [(axes.at_x(depth), axes.at_y(value)) for depth, value in zip(depths, curve, strict=True)]
        _draw_curve(canvas, k, points, points)


def _draw_curve(canvas: Canvas, k: int, line: Sequence[Point], marks: Sequence[Point]) -> None:
    color = _COLORS[k % len(_COLORS)]
    canvas.line(line, color, 1.4, _DASHES[k // len(_COLORS) % len(_DASHES)])
    canvas.marks(marks, _MARKERS[k % len(_MARKERS)], color)


def _draw_modules(canvas: Canvas, place: _Place, names: Sequence[str], bars: Sequence[Sequence[float]]) -> None:
    most = _largest(bars)
    axes = Axes(canvas, *place, (-0.5, max(len(names), 1) - 0.5), (0.0, 1.05 * most or 1.0))
    axes.title("by module type")
    axes.grid("y", ticks(most))
    width = 0.8 / max(len(bars), 1)
    shown = width * (0.95 if len(bars) < 10 else 1.0)  # with a gap where there is room for one
    for k, values in enumerate(bars):
        for m, value in enumerate(values):
            x = m - 0.4 + k * width
            axes.box(x, 0.0, x + shown, value, _COLORS[k % len(_COLORS)])
    axes.frame()
    axes.x_names(names, _TURNED)
    axes.y_ticks(ticks(most))
    axes.label("", "changed elements, %", ticks(most))


def _overlap(labels: Sequence[str], statistics: Mapping[str, Any]) -> Canvas:
    total = statistics["total"]
    groups = _groups(len(labels))
    colors = [_shade(step, len(groups)) for step in range(len(groups))]
    lengths = [
        [100 * sum(a["shared_with"][c - 1] for c in group) / max(total["elements"], 1) for group in groups.values()]
        for a in total["agents"]
    ]
    shares = [100 * share for share in total["overlap_share"]]
    bottom = EDGE + ROW + 0.05 + X_TICKS + X_LABEL
    panel = min(max(_PANEL, 0.25 * len(labels) + 0.4), 8.0)
    canvas = Canvas(bottom + panel + TITLE)
    left = EDGE + TICK + widest(labels)
    gap = beside(ticks(_largest([shares[1:]]))) + 0.2
    room = WIDTH - left - gap - 1.5 * EDGE
    _draw_sharing(canvas, (left, bottom, 0.6 * room, panel), labels, lengths, colors)
    of_count = [color for color, group in zip(colors, groups.values(), strict=True) for _ in group]
    _draw_counts(canvas, (left + 0.6 * room + gap, bottom, 0.4 * room, panel), shares, of_count)
    legend(canvas, list(groups), len(groups), lambda g, x, y, width: canvas.box(x, y - 0.04, width, 0.08, colors[g]))
    return canvas


def _draw_sharing(
    canvas: Canvas, place: _Place, labels: Sequence[str], lengths: Sequence[Sequence[float]], colors: Sequence[Any]
) -> None:
    """Per agent a bar whose parts are the elements that it changed alone, with one other, …"""
    longest = max(map(sum, lengths), default=0.0)
    axes = Axes(canvas, *place, (0.0, 1.03 * longest or 1.0), (max(len(labels), 1) - 0.5, -0.5))
    axes.title("changed alone and with others")
    axes.grid("x", ticks(longest))
    for row, parts in enumerate(lengths):
        start = 0.0
        for color, length in zip(colors, parts, strict=True):
            axes.box(start, row - 0.35, start + length, row + 0.35, color)
            start += length
    axes.frame()
    axes.x_ticks(ticks(longest))
    axes.y_ticks(range(len(labels)), labels)
    axes.label("elements, %", "")


def _draw_counts(canvas: Canvas, place: _Place, shares: Sequence[float], colors: Sequence[Any]) -> None:
    """shares[c]: of the elements that c agents changed."""
    agents, most = len(shares) - 1, _largest([shares[1:]])
    axes = Axes(canvas, *place, (0.4, max(agents + 1, 2) - 0.4), (0.0, 1.12 * most or 1.0))
    axes.title("changed by how many")
    axes.grid("y", ticks(most))
    few = agents <= _ANNOTATED
    for count, (share, color) in enumerate(zip(shares[1:], colors, strict=True), 1):
        axes.box(count - 0.35, 0.0, count + 0.35, share, color)
        if few:
            shown = f"{share:.{3 if agents <= 5 else 2}g}"
            canvas.text(axes.at_x(count), axes.at_y(share) + 0.04, shown, size=SIZE - 2, across=0.5)
    axes.frame()
    axes.x_ticks(range(1, agents + 1) if few else ticks(agents, 1, whole=True))
    axes.y_ticks(ticks(most))
    axes.label(f"agents (nobody: {shares[0]:.3g}%)", "elements, %", ticks(most))


def _groups(agents: int) -> dict[str, range]:
    """Name → numbers of agents that changed an element; the long tail of many agents in one."""
    names = {"alone": range(1, 2)} | {f"by {c}": range(c, c + 1) for c in range(2, min(agents, 5) + 1)}
    if agents > 5:
        names.popitem()
        names["by 5 or more"] = range(5, agents + 1)
    return names


def _shade(step: int, steps: int) -> Any:
    """From light (alone) to dark (all): cividis, which reads the same to colour-blind eyes and in grey."""
    from matplotlib import colormaps

    return colormaps["cividis_r"](0.15 + 0.85 * step / max(steps - 1, 1))


def _pairs(labels: Sequence[str], statistics: Mapping[str, Any]) -> Canvas:
    from matplotlib import colormaps

    pairs = statistics["total"]["pairs"]
    panels = (
        ("jaccard", "Jaccard index", "cividis", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        ("cosine", "cosine of the updates", "PuOr", (-1.0, -0.5, 0.0, 0.5, 1.0)),
    )
    few = len(labels) <= _ANNOTATED
    size = SIZE if few else 6.0
    panel = max(2.4, 0.11 * len(labels))
    bottom = EDGE + X_TICKS
    canvas = Canvas(bottom + panel + TITLE)
    numbered = [f"{label}  {n}" for n, label in enumerate(labels, 1)]
    shown = range(0, len(labels), 1 + len(labels) // 25)  # of the numbers below
    left = EDGE + TICK + widest(numbered, size)
    scale, scale_numbers = SHADE_BAR, TICK + widest(map(number, panels[1][3]), SIZE - 1)
    width = (WIDTH - left) / 2 - 2 * EDGE - scale - scale_numbers
    for place, (key, title, colors, marks) in enumerate(panels):
        shade = _Scale(colormaps[colors], marks[0])
        ends = len(labels) - 0.5
        axes = Axes(canvas, left, bottom, width, panel, (-0.5, ends), (ends, -0.5))
        axes.title(title)
        _draw_matrix(axes, _matrix(len(labels), pairs, key), shade, few)
        axes.x_ticks(shown, [str(n + 1) for n in shown], size)
        if not place:
            axes.y_ticks(range(len(labels)), numbered, size)
        shade_bar(canvas, left + width + EDGE, bottom, panel, (marks[0], 1.0), marks, shade)
        left += width + EDGE + scale + scale_numbers + EDGE
    return canvas


@dataclass(frozen=True)
class _Scale:
    """Colours of the values from `least` to 1."""

    colors: Any
    least: float

    def __call__(self, value: float) -> Any:
        return _EMPTY if math.isnan(value) else self.colors((value - self.least) / (1.0 - self.least))


def _draw_matrix(axes: Axes, grid: Sequence[Sequence[float]], shade: _Scale, numbered: bool) -> None:
    for row, values in enumerate(grid):
        for column, value in enumerate(values):
            color = shade(value)
            axes.box(column - 0.5, row - 0.5, column + 0.5, row + 0.5, color)
            if numbered and row != column:
                red, green, blue, *_ = color
                axes.canvas.text(
                    axes.at_x(column),
                    axes.at_y(row),
                    f"{round(value, 2) + 0.0:.2f}",  # + 0.0: no "-0.00"
                    size=SIZE if len(grid) <= 5 else 5.5,
                    across=0.5,
                    middle=True,
                    color="black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white",
                )


def _matrix(agents: int, pairs: Sequence[Mapping[str, Any]], key: str) -> list[list[float]]:
    """The pairs, which come row by row above the diagonal, as a symmetric matrix; the diagonal is empty."""
    grid = [[math.nan] * agents for _ in range(agents)]
    values = iter(pairs)
    for k in range(agents):
        for m in range(k + 1, agents):
            grid[k][m] = grid[m][k] = float(next(values)[key])
    return grid


def short_label(text: str, most: int = _LABEL) -> str:
    """Foreign text that fits beside an axis: its two ends, in characters that the font has."""
    known = font().get_charmap()
    shown = "".join(c if c.isprintable() and ord(c) in known else "?" for c in text)
    if len(shown) <= most:
        return shown
    half = (most - 1) // 2
    return f"{shown[:half]}…{shown[-half:]}"

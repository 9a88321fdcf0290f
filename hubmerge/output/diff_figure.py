"""The figure of a difference: what changed by layer and module type, how strongly, and how large single changes are.

A pure function to PNG bytes, the same bytes for the same difference and matplotlib, as the card's figures are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hubmerge.output.diff import Diff, Measure, Side
from hubmerge.output.figure_canvas import (
    EDGE,
    SHADE_BAR,
    SIZE,
    TICK,
    TITLE,
    WIDTH,
    X_LABEL,
    X_TICKS,
    Axes,
    Canvas,
    beside,
    number,
    shade_bar,
    text_width,
    ticks,
    widest,
)
from hubmerge.output.figures import short_label

_ROW = 0.26  # inches: of a module type
_HISTOGRAM = 1.6  # inches: height
_GAP = 0.15
_HEADING = 0.3
_EMPTY = "#ededed"  # no such tensor there
_BAR = "#0072B2"
_MARK = "#D55E00"
_LOG10_2 = math.log10(2.0)
_NAME = 46  # characters of a model's name
_PANELS: tuple[tuple[Measure, str], ...] = (
    ("density", "changed elements, %"),
    ("relative_l2", "relative change ‖δ‖ / ‖θ0‖, %"),
)


def draw(diff: Diff) -> bytes:
    """A PNG of 1,200 pixels' width."""
    modules = list(diff.modules)
    panel = _ROW * max(len(modules), 1)
    below = X_TICKS + X_LABEL
    heights = [_HISTOGRAM, *(panel for _ in _PANELS)]
    canvas = Canvas(EDGE + sum(h + below + TITLE + _GAP for h in heights) - _GAP + _HEADING)
    bottom = EDGE + below
    _histogram(canvas, bottom, diff)
    for measure, title in reversed(_PANELS):
        bottom += heights[0] + TITLE + _GAP + below
        heights = heights[1:]
        _panel(canvas, bottom, panel, diff, modules, measure, title)
    top = bottom + panel + TITLE + 0.1
    canvas.text(WIDTH / 2, top, f"{_name(diff.base)}  →  {_name(diff.agent)}", size=SIZE + 2, across=0.5)
    return canvas.png()


def _name(side: Side) -> str:
    return short_label(side.id if side.kind == "hub" else side.id.rstrip("/").rsplit("/", 1)[-1] or side.id, _NAME)


def _panel(
    canvas: Canvas, bottom: float, height: float, diff: Diff, modules: Sequence[str], measure: Measure, title: str
) -> None:
    """Layers by module types as shades, and beside them the whole of each module type as a bar."""
    names = [short_label(name) for name in modules]
    wholes = [_percent(getattr(change, measure)) for change in diff.modules.values()]
    cells = {key: _percent(cell[measure]) for key, cell in _cells(diff, modules).items()}
    left = EDGE + TICK + widest(names)
    room = WIDTH - left - 1.5 * EDGE
    rows = (len(modules) - 0.5, -0.5)
    if cells:
        most = max(cells.values())
        marks = ticks(most)
        scale = SHADE_BAR + TICK + widest(map(number, marks), SIZE - 1)
        width = 0.62 * room
        heat = Axes(canvas, left, bottom, width, height, (-0.5, len(diff.layers) - 0.5), rows)
        heat.title(title)
        shade = _shades(most)
        heat.box(heat.x[0], rows[0], heat.x[1], rows[1], _EMPTY)
        for (column, row), value in cells.items():
            heat.box(column - 0.5, row - 0.5, column + 0.5, row + 0.5, shade(value))
        heat.frame()
        heat.y_ticks(range(len(names)), names)
        depths = list(diff.layers)
        shown = [round(n) for n in ticks(len(depths) - 1, 0, whole=True)]
        heat.x_ticks(shown, [str(depths[n]) for n in shown])
        heat.label("layer", "")
        shade_bar(canvas, left + width + EDGE, bottom, height, (0.0, most or 1.0), marks, shade)
        left, room = left + width + EDGE + scale + 0.25, room - width - EDGE - scale - 0.25
    longest = max(wholes, default=0.0)
    numbers = [f"{value:.3g}" for value in wholes]
    bars = Axes(canvas, left, bottom, room - widest(numbers, SIZE - 1) - 0.08, height, (0.0, longest or 1.0), rows)
    bars.title("whole model" if cells else title)
    for row, (value, text) in enumerate(zip(wholes, numbers, strict=True)):
        bars.box(0.0, row - 0.36, value, row + 0.36, _BAR)
        canvas.text(bars.at_x(value) + 0.05, bars.at_y(row), text, size=SIZE - 1, middle=True)
    bars.frame()
    if not cells:
        bars.y_ticks(range(len(names)), names)


def _cells(diff: Diff, modules: Sequence[str]) -> dict[tuple[int, int], Mapping[str, float | None]]:
    """Column and row → what is known of that module type in that layer."""
    row_of = {name: row for row, name in enumerate(modules)}
    return {
        (column, row_of[name]): cell
        for column, depth in enumerate(diff.layers)
        for name, cell in diff.grid.get(depth, {}).items()
    }


def _shades(most: float) -> Callable[[float], Any]:
    """cividis reads the same to colour-blind eyes and in grey."""
    from matplotlib import colormaps

    colors = colormaps["cividis"]
    return lambda value: colors(value / most if most else 0.0)


def _histogram(canvas: Canvas, bottom: float, diff: Diff) -> None:
    """How many elements have a |δ| of which power of two."""
    total = diff.total
    shares = {m.exponent: 100 * m.elements / max(total.elements, 1) for m in diff.magnitudes}
    most = max(shares.values(), default=0.0)
    marks = ticks(most)
    left = EDGE + beside(marks)
    first, last = min(shares, default=-20), max(shares, default=-1)
    limits = {_limit(diff.epsilon): "changed: above"} | (
        {} if not total.max else {_limit(total.max / 100): "1% of the largest"}
    )
    span = (min([first, *limits]) - 0.5, max(last + 1.0, *limits) + 0.5)
    axes = Axes(canvas, left, bottom, WIDTH - left - 1.5 * EDGE, _HISTOGRAM, span, (0.0, 1.25 * most or 1.0))
    axes.title("how large single changes are")
    axes.grid("y", marks)
    for exponent, share in shares.items():
        axes.box(exponent + 0.06, 0.0, exponent + 0.94, share, _BAR)
    for line, (place, words) in enumerate(limits.items()):
        x = axes.at_x(place)
        canvas.box(x, bottom, 0.012, _HISTOGRAM, _MARK)
        fits = x + 0.05 + text_width(words, SIZE - 1) < WIDTH - EDGE
        y = bottom + _HISTOGRAM - 0.12 - 0.15 * line
        canvas.text(x + (0.05 if fits else -0.04), y, words, size=SIZE - 1, across=0.0 if fits else 1.0, color=_MARK)
    axes.frame()
    powers = range(math.ceil(span[0] * _LOG10_2), math.floor(span[1] * _LOG10_2) + 1)
    shown = [p for p in powers if p % (1 + len(powers) // 12) == 0]
    axes.x_ticks([p / _LOG10_2 for p in shown], [_power(p) for p in shown])
    axes.y_ticks(marks)
    axes.label(f"|δ| (exactly the base's value: {100 * total.identical_share:.3g}%)", "elements, %", marks)
    if not shares:
        canvas.text(left + axes.width / 2, bottom + _HISTOGRAM / 2, "nothing changed", across=0.5)


def _limit(value: float) -> float:
    return math.log2(value)


def _power(exponent: int) -> str:
    """10⁻⁶"""
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _percent(value: float | None) -> float:
    return 100 * (value or 0.0)

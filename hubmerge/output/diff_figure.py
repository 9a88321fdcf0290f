"""The figure of a difference: what changed by layer and module type, how strongly, and how large single changes are.

A pure function to SVG, the same bytes for the same difference, as the card's figures are.
"""

import math
from collections.abc import Sequence

from hubmerge.output.diff import Diff, Measure, Side
from hubmerge.output.drawing import (
    CIVIDIS,
    LABEL,
    SIZE,
    TICKS,
    TITLE,
    WIDTH,
    Drawing,
    Panel,
    Shades,
    numbers,
    ticks,
    width_of,
)
from hubmerge.output.figures import short_label
from hubmerge.text.markdown import percent

_EDGE = 12.0  # pixels around everything
_ROW = 25.0  # pixels: of a module type
_HISTOGRAM = 150.0  # pixels: height
_BETWEEN = 14.0  # pixels between panels
_SCALE = 62.0  # pixels: of a scale with its numbers
_BAR = "#0072B2"
_EMPTY = "#ededed"
_MARK = "#B54300"
_LOG10_2 = math.log10(2.0)
_NAME = 46  # characters of a model's name
_PANELS: tuple[tuple[Measure, str], ...] = (
    ("density", "changed elements, %"),
    ("relative_l2", "relative change ‖δ‖ / ‖θ0‖, %"),
)


def draw(diff: Diff) -> bytes:
    """Two panels, of layers by module types, and the histogram of |δ|, as SVG of 800 pixels' width."""
    panel = _ROW * max(len(diff.modules), 2)
    step = TITLE + panel + TICKS + LABEL + _BETWEEN
    title = f"{_name(diff.base)}  →  {_name(diff.agent)}"
    drawing = Drawing(34 + 2 * step + TITLE + _HISTOGRAM + TICKS + LABEL + _EDGE, title)
    drawing.text(WIDTH / 2, 24, title, size=SIZE + 3, anchor="middle")
    for n, (measure, words) in enumerate(_PANELS):
        _measure(drawing, 34 + n * step + TITLE, panel, diff, measure, words)
    _histogram(drawing, 34 + 2 * step + TITLE, diff)
    return drawing.svg()


def _name(side: Side) -> str:
    return short_label(side.id if side.kind == "hub" else side.id.rstrip("/").rsplit("/", 1)[-1] or side.id, _NAME)


def _measure(drawing: Drawing, top: float, height: float, diff: Diff, measure: Measure, title: str) -> None:
    """Layers by module types as shades, and beside them the whole of each module type as a bar."""
    names = [short_label(name) for name in diff.modules]
    last = max(len(names), 1) - 1
    beside = max(map(width_of, names), default=0.0) + 2 * _EDGE
    depths = list(diff.layers)
    cells = [[diff.grid.get(depth, {}).get(name) for depth in depths] for name in diff.modules]
    values = [[math.nan if cell is None else _percent(cell[measure]) for cell in row] for row in cells]
    known = [value for row in values for value in row if not math.isnan(value)]
    rows = (-0.5, last + 0.5)
    left = beside
    if known:
        width = 0.62 * (WIDTH - beside) - _SCALE
        heat = Panel(drawing, beside, top, width, height, (-0.5, len(depths) - 0.5), rows)
        shades = Shades(CIVIDIS, 0.0, max(known) or 1.0)
        heat.title(title)
        _heatmap(heat, values, shades)
        few = range(0, len(depths), 1 + (len(depths) - 1) // 12)  # those that have room for a number
        heat.x_axis([(n, str(depths[n])) for n in few], "layer")
        shades.scale(drawing, heat.left + width + 6, top, height)
        left = beside + width + _SCALE + _EDGE
    wholes = [_percent(getattr(change, measure)) for change in diff.modules.values()]
    bars = Panel(drawing, left, top, WIDTH - _EDGE - left, height, (0.0, 1.25 * max(wholes, default=0.0) or 1.0), rows)
    bars.title("whole model" if known else title)
    for n, value in enumerate(wholes):
        bars.bar((0.0, value), (last - n - 0.36, last - n + 0.36), _BAR)
        x, y = bars.at(value, last - n)
        drawing.text(x + 5, y + 4, f"{value:.3g}", size=SIZE - 1)
    bars.y_axis([])
    for n, name in enumerate(names):
        drawing.text(beside - 6, bars.at(0.0, last - n)[1] + 4, name, anchor="end")


def _heatmap(panel: Panel, grid: Sequence[Sequence[float]], shades: Shades) -> None:
    """One shade a value, row by row from the top, grey where it is NaN."""
    last = len(grid) - 1
    for row, values in enumerate(grid):
        for column, value in enumerate(values):
            color = _EMPTY if math.isnan(value) else shades.at(value)
            panel.bar((column - 0.5, column + 0.5), (last - row - 0.5, last - row + 0.5), color)


def _histogram(drawing: Drawing, top: float, diff: Diff) -> None:
    """How many elements have a |δ| of which power of two."""
    total = diff.total
    shares = {m.exponent: 100 * m.elements / max(total.elements, 1) for m in diff.magnitudes}
    limits = {math.log2(diff.epsilon): "changed: above"}
    if total.max:
        limits[math.log2(total.max / 100)] = "1% of the largest"
    first, last = min(shares, default=-20), max(shares, default=-1)
    ends = (min([first, *limits]) - 0.5, max(last + 1.0, *limits) + 0.5)
    left, most = 72.0, 1.25 * max(shares.values(), default=0.0) or 1.0
    panel = Panel(drawing, left, top, WIDTH - _EDGE - left, _HISTOGRAM, ends, (0.0, most))
    panel.title("how large single changes are")
    panel.y_axis(numbers(ticks(*panel.y)), "elements, %", grid=True)
    powers = range(math.ceil(ends[0] * _LOG10_2), math.floor(ends[1] * _LOG10_2) + 1)
    shown = [p for p in powers if p % (1 + len(powers) // 12) == 0]
    below = f"|δ| (exactly the base's value: {percent(total.identical_share)})"
    panel.x_axis([(p / _LOG10_2, _power(p)) for p in shown], below)
    for exponent, share in shares.items():
        panel.bar((exponent + 0.06, exponent + 0.94), (0.0, share), _BAR)
    for line, (place, words) in enumerate(limits.items()):
        x, _ = panel.at(place, 0.0)
        drawing.line([(x, top), (x, top + _HISTOGRAM)], _MARK)
        left_half = place < sum(ends) / 2
        anchor, away = ("start", 5) if left_half else ("end", -5)
        drawing.text(x + away, top + 14 + 16 * line, words, size=SIZE - 1, anchor=anchor, color=_MARK)
    if not shares:
        drawing.text(left + panel.width / 2, top + _HISTOGRAM / 2, "nothing changed", anchor="middle")


def _power(exponent: int) -> str:
    """10⁻⁶"""
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _percent(value: float | None) -> float:
    return 100 * (value or 0.0)

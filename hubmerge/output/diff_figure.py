"""The figure of a difference: what changed by layer and module type, how strongly, and how large single changes are.

A pure function to PNG bytes, the same bytes for the same difference and matplotlib, as the card's figures are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hubmerge.output.diff import Diff, Measure, Side
from hubmerge.output.figures import SIZE, finish, heatmap, new_figure, png, short_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

_ROW = 0.26  # inches: of a module type
_HISTOGRAM = 1.6  # inches: height
_BESIDE = 0.8  # inches: title, numbers and label of a panel
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
    return png(lambda: figure_of(diff))


def figure_of(diff: Diff) -> Figure:
    """Two panels, of layers by module types, and the histogram of |δ|."""
    panel = _ROW * max(len(diff.modules), 2)
    heights = [panel + _BESIDE, panel + _BESIDE, _HISTOGRAM + _BESIDE]
    figure = new_figure(sum(heights) + 0.4)
    figure.suptitle(f"{_name(diff.base)}  →  {_name(diff.agent)}", fontsize=SIZE + 2)
    parts = figure.subfigures(3, 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, (measure, title) in zip(parts[:2], _PANELS, strict=True):
        _panel(part, diff, measure, title)
    _histogram(parts[2].subplots(), diff)
    return figure


def _name(side: Side) -> str:
    return short_label(side.id if side.kind == "hub" else side.id.rstrip("/").rsplit("/", 1)[-1] or side.id, _NAME)


def _panel(figure: SubFigure, diff: Diff, measure: Measure, title: str) -> None:
    """Layers by module types as shades, and beside them the whole of each module type as a bar."""
    names = [short_label(name) for name in diff.modules]
    wholes = [_percent(getattr(change, measure)) for change in diff.modules.values()]
    depths = list(diff.layers)
    cells = [[diff.grid.get(depth, {}).get(name) for depth in depths] for name in diff.modules]
    if any(cell is not None for row in cells for cell in row):
        heat, bars = figure.subplots(1, 2, width_ratios=[2, 1], sharey=True)
        values = [[math.nan if cell is None else _percent(cell[measure]) for cell in row] for row in cells]
        most = max(value for row in values for value in row if not math.isnan(value))
        heatmap(heat, values, "cividis", 0.0, most or 1.0)
        finish(heat, title, "layer", whole=True)
        heat.set_xticks(shown := _few(len(depths)), [str(depths[n]) for n in shown])
        heat.set_xlim(-0.5, len(depths) - 0.5)
        bars.tick_params(left=False, labelleft=False)
    else:
        bars = figure.subplots()
    drawn = bars.barh(range(len(names)), wholes, 0.72, color=_BAR)
    bars.bar_label(drawn, [f"{value:.3g}" for value in wholes], padding=4, fontsize=SIZE - 1)
    bars.set(xlim=(0, 1.25 * max(wholes, default=0.0) or 1.0), ylim=(max(len(names), 1) - 0.5, -0.5))
    bars.set_title("whole model" if any(map(any, cells)) else title)
    bars.set_xticks([])
    bars.set_yticks(range(len(names)), names)


def _few(count: int) -> range:
    """The positions from 0 to `count` − 1 that have room for a number."""
    return range(0, count, 1 + (count - 1) // 12)


def _histogram(axes: Axes, diff: Diff) -> None:
    """How many elements have a |δ| of which power of two."""
    total = diff.total
    shares = {m.exponent: 100 * m.elements / max(total.elements, 1) for m in diff.magnitudes}
    limits = {math.log2(diff.epsilon): "changed: above"}
    if total.max:
        limits[math.log2(total.max / 100)] = "1% of the largest"
    first, last = min(shares, default=-20), max(shares, default=-1)
    axes.bar([e + 0.5 for e in shares], list(shares.values()), 0.88, color=_BAR)
    axes.set_xlim(min([first, *limits]) - 0.5, max(last + 1.0, *limits) + 0.5)
    axes.set_ylim(0, 1.25 * max(shares.values(), default=0.0) or 1.0)
    below = f"|δ| (exactly the base's value: {100 * total.identical_share:.3g}%)"
    finish(axes, "how large single changes are", below, "elements, %", grid="y")
    middle = sum(axes.get_xlim()) / 2
    for line, (place, words) in enumerate(limits.items()):
        axes.axvline(place, color=_MARK, linewidth=1)
        side, away = ("left", 4) if place < middle else ("right", -4)
        axes.annotate(
            words,
            (place, 0.97 - 0.11 * line),
            xycoords=axes.get_xaxis_transform(),
            xytext=(away, 0),
            textcoords="offset points",
            size=SIZE - 1,
            ha=side,
            va="top",
            color=_MARK,
        )
    powers = range(*(math.ceil(end * _LOG10_2) for end in axes.get_xlim()))
    shown = [p for p in powers if p % (1 + len(powers) // 12) == 0]
    axes.set_xticks([p / _LOG10_2 for p in shown], [_power(p) for p in shown])
    if not shares:
        axes.text(0.5, 0.5, "nothing changed", transform=axes.transAxes, ha="center")


def _power(exponent: int) -> str:
    """10⁻⁶"""
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _percent(value: float | None) -> float:
    return 100 * (value or 0.0)

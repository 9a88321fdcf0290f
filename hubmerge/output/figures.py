"""The card's figures: what each agent changed where, with whom it shares it, and how alike the agents are.

Pure functions of the report to PNG bytes, the same bytes for the same report and matplotlib. Labels are a stranger's
text: they are cut to a length, rid of what the font cannot show, and never read as mathematics.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hubmerge.output.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

DENSITY = "figures/density_by_layer.png"
OVERLAP = "figures/overlap.png"
PAIRS = "figures/pairs.png"

WIDTH = 8.0  # inches; cards show about 800 pixels, so that 9 points read as 12 pixels
SIZE = 9.0  # points
_FONT = "DejaVu Sans"  # it comes with matplotlib
_STYLE = {
    "figure.dpi": 150,
    "font.family": _FONT,
    "font.size": SIZE,
    "text.parse_math": False,
    "axes.titlesize": SIZE + 1,
    "axes.titley": 1.0,  # a free place would be looked for by measuring every label several times
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
}

_LABEL = 22  # characters
_SHORT = 14  # characters of a label that fits beside two others
_EMPTY = "#ededed"
_ANNOTATED = 10  # a heatmap of more agents has no room for numbers
# Okabe and Ito's palette, told apart under every common colour blindness; black comes last. Markers repeat the
# difference, and line styles go on where the colours end.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C7A00", "#000000")
_MARKERS = "osD^vPX*"
_LINES = ("-", "--", ":", "-.")
# how the parameters divide; the pages show the same, lighter in the dark
SHARE_COLORS = {"private": "#0f766e", "overlap": "#3b82f6", "conflict": "#d97706", "unchanged": "#cbd5e1"}
_SHARE_NAMES = {
    "private": "one agent",
    "overlap": "several, same sign",
    "conflict": "several, opposite signs",
    "unchanged": "none",
}
_PANEL = 2.1  # inches: the height of axes beside which nothing is listed
_WHOLE = 0.85  # inches: a bar of all elements with its title and its legend
_ROW = 0.2  # inches: of a legend

_drawing = threading.Lock()  # threads may not share matplotlib's fonts and settings


def render_figures(report: Report) -> dict[str, bytes]:
    """Path below the repo → PNG."""
    statistics = report.statistics
    labels = [short_label(str(a["agent"])) for a in statistics["total"]["agents"]]
    draw: dict[str, Callable[[Sequence[str], Mapping[str, Any]], Figure]] = {
        DENSITY: _density,
        OVERLAP: _overlap,
        PAIRS: _pairs,
    }
    return {name: png(lambda f=function: f(labels, statistics)) for name, function in draw.items()}  # type: ignore[misc]


def png(draw: Callable[[], Figure]) -> bytes:
    """The PNG of the figure that `draw` returns, without metadata, which would name the version of matplotlib."""
    # imported here, as below: matplotlib takes a third of a second, and most commands draw nothing
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with _drawing, rc_context(_STYLE):
        draw().savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def new_figure(height: float) -> Figure:
    """An empty figure, `height` inches high, whose margins follow from what is written beside its axes."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure((WIDTH, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06))


def finish(axes: Axes, title: str, x: str = "", y: str = "", *, grid: str = "", whole: bool = False) -> None:
    """Title, labels, and few round numbers in plain digits; `whole`: those of x are integers."""
    from matplotlib.ticker import MaxNLocator

    axes.set(title=title, xlabel=x, ylabel=y)
    for axis, integers in ((axes.xaxis, whole), (axes.yaxis, False)):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=integers))
        axis.set_major_formatter(lambda value, _: f"{value:.6g}".replace("-", "−"))
    if grid:
        axes.grid(axis=grid)  # type: ignore[arg-type]


def _density(labels: Sequence[str], statistics: Mapping[str, Any]) -> Figure:
    layers = sorted((int(depth), part) for depth, part in statistics["layers"].items())
    names = [short_label(name) for name in statistics["modules"]]
    bars = _percents(labels, statistics["modules"].values())
    figure = new_figure(_PANEL + 1.1 + _ROW * _legend_rows(labels))
    *left, right = figure.subplots(1, 2 if layers else 1, width_ratios=[3, 2] if layers else None, squeeze=False)[0]
    handles: list[Any] = []
    for axes in left:
        depths = [depth for depth, _ in layers]
        curves = _percents(labels, [part for _, part in layers])
        for k, curve in enumerate(curves):
            color, line = _COLORS[k % len(_COLORS)], _LINES[k // len(_COLORS) % len(_LINES)]
            marker = _MARKERS[k % len(_MARKERS)]
            handles += axes.plot(depths, curve, line, color=color, linewidth=1.4, marker=marker, markersize=4)
        axes.set_ylim(0, 1.05 * _largest(curves) or 1.0)
        finish(axes, "by layer", "layer", "changed elements, %", grid="y", whole=True)
    width = 0.8 / max(len(bars), 1)
    for k, values in enumerate(bars):
        places = [m - 0.4 + k * width for m in range(len(names))]
        shown = width * (0.95 if len(bars) < 10 else 1.0)  # with a gap where there is room for one
        drawn = right.bar(places, values, shown, align="edge", color=_COLORS[k % len(_COLORS)])
        if not left:
            handles.append(drawn)
    right.set_ylim(0, 1.05 * _largest(bars) or 1.0)
    finish(right, "by module type", "", "changed elements, %", grid="y")
    right.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
    _legend(figure, handles, labels)
    return figure


def _percents(labels: Sequence[str], parts: Iterable[Mapping[str, Any]]) -> list[list[float]]:
    """Per agent the density in every part of the model, in percent."""
    parts = list(parts)
    return [[100 * part["agents"][k]["density"] for part in parts] for k in range(len(labels))]


def _largest(rows: Iterable[Sequence[float]]) -> float:
    return max((value for row in rows for value in row), default=0.0)


def _legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    figure.legend(handles, labels, loc="outside lower center", ncols=_legend_columns(labels))


def _legend_columns(labels: Sequence[str]) -> int:
    return min(len(labels), 3 if max(map(len, labels)) <= _SHORT else 2)


def _legend_rows(labels: Sequence[str]) -> int:
    return -(-len(labels) // _legend_columns(labels))


def _overlap(labels: Sequence[str], statistics: Mapping[str, Any]) -> Figure:
    total = statistics["total"]
    groups = _groups(len(labels))
    colors = [_shade(step, len(groups)) for step in range(len(groups))]
    shares = [100 * share for share in total["overlap_share"]]
    panels = min(max(_PANEL, 0.25 * len(labels) + 0.4), 8.0)
    figure = new_figure(panels + 0.9 + _WHOLE)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[_WHOLE, panels + 0.9])[:, 0]
    _whole(above, total["shares"])
    sharing, counts = below.subplots(1, 2, width_ratios=[3, 2])

    # per agent a bar whose parts are the elements that it changed alone, with one other, …
    ends = [0.0] * len(labels)
    handles = []
    for color, group in zip(colors, groups.values(), strict=True):
        shared = (sum(a["shared_with"][c - 1] for c in group) for a in total["agents"])
        lengths = [100 * elements / max(total["elements"], 1) for elements in shared]
        handles.append(sharing.barh(range(len(labels)), lengths, 0.7, left=ends, color=color))
        ends = [end + length for end, length in zip(ends, lengths, strict=True)]
    sharing.set(xlim=(0, 1.03 * max(ends) or 1.0), ylim=(len(labels) - 0.5, -0.5))
    finish(sharing, "changed alone and with others", "elements, %", grid="x")
    sharing.set_yticks(range(len(labels)), labels)

    of_count = [color for color, group in zip(colors, groups.values(), strict=True) for _ in group]
    bars = counts.bar(range(1, len(shares)), shares[1:], 0.7, color=of_count)
    counts.set(xlim=(0.4, max(len(shares), 2) - 0.4), ylim=(0, 1.12 * max(shares[1:]) or 1.0))
    finish(counts, "changed by how many", f"agents (nobody: {shares[0]:.3g}%)", "elements, %", grid="y", whole=True)
    if len(labels) <= _ANNOTATED:
        digits = 3 if len(labels) <= 5 else 2
        counts.bar_label(bars, [f"{share:.{digits}g}" for share in shares[1:]], padding=2, fontsize=SIZE - 2)
        counts.set_xticks(range(1, len(shares)))
    below.legend(handles, list(groups), loc="outside lower center", ncols=len(groups))
    return figure


def _whole(figure: SubFigure, shares: Mapping[str, float]) -> None:
    """All elements as one bar, to scale, with its own legend."""
    axes = figure.subplots()
    left, bars = 0.0, list[Any]()
    for name in SHARE_COLORS:
        share = 100 * shares[name]
        bars.append(axes.barh([0], [share], 0.8, left=left, color=SHARE_COLORS[name]))
        left += share
    axes.set(xlim=(0, 100), ylim=(-0.4, 0.4), title="all elements, changed by")
    axes.set_axis_off()
    words = [f"{_SHARE_NAMES[name]}: {100 * shares[name]:.3g}%" for name in SHARE_COLORS]
    figure.legend(bars, words, loc="outside lower center", ncols=len(words), fontsize=SIZE - 1)


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


def _pairs(labels: Sequence[str], statistics: Mapping[str, Any]) -> Figure:
    agents, pairs = len(labels), statistics["total"]["pairs"]
    few = agents <= _ANNOTATED
    figure = new_figure(max(2.4, 0.11 * agents) + 0.6)
    panels = figure.subplots(1, 2)
    for axes, (key, title, colors, least) in zip(
        panels,
        (("jaccard", "Jaccard index", "cividis", 0.0), ("cosine", "cosine of the updates", "PuOr", -1.0)),
        strict=True,
    ):
        grid = _matrix(agents, pairs, key)
        image = heatmap(axes, grid, colors, least, 1.0, bar=not few)  # cells with numbers need no bar
        axes.set_title(title)
        shown = range(0, agents, 1 + agents // 25)
        axes.set_xticks(shown, [str(n + 1) for n in shown], fontsize=SIZE if few else 6)
        axes.set_yticks([])
        for row in range(agents) if few else ():
            for column in range(agents):
                if row != column:
                    red, green, blue, _ = image.cmap(image.norm(grid[row][column]))
                    axes.text(
                        column,
                        row,
                        f"{round(grid[row][column], 2) + 0.0:.2f}",  # + 0.0: no "-0.00"
                        size=SIZE if agents <= 5 else 5.5,
                        ha="center",
                        va="center",
                        color="black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white",
                    )
    numbered = [f"{label}  {n}" for n, label in enumerate(labels, 1)]
    panels[0].set_yticks(range(agents), numbered, fontsize=SIZE if few else 6)
    return figure


def heatmap(
    axes: Axes, grid: Sequence[Sequence[float]], colors: str, least: float, most: float, *, bar: bool = True
) -> Any:
    """One shade a value, nothing where it is NaN; `bar`: beside it, which shade is which value."""
    from matplotlib import colormaps

    shades = colormaps[colors].with_extremes(bad=_EMPTY)
    image = axes.imshow(grid, cmap=shades, vmin=least, vmax=most, aspect="auto", interpolation="nearest")
    if bar:
        assert axes.figure is not None
        drawn = axes.figure.colorbar(image, ax=axes, pad=0.02)
        drawn.outline.set_visible(False)
        drawn.ax.tick_params(labelsize=SIZE - 1)
    return image


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
    from matplotlib.font_manager import findfont, get_font

    known = get_font(findfont(_FONT)).get_charmap()
    shown = "".join(c if c.isprintable() and ord(c) in known else "?" for c in text)
    if len(shown) <= most:
        return shown
    half = (most - 1) // 2
    return f"{shown[:half]}…{shown[-half:]}"

"""The card's figures: what each agent changed where, with whom it shares it, and how alike the agents are.

Pure functions of the report to PNG bytes, the same bytes for the same report and matplotlib. Drawn on Agg through
the object interface: there is no global figure, so that threads may draw at once. Labels are a stranger's text:
never read as mathematics, cut to a length, and rid of what the font cannot show.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hubmerge.report import Report

DENSITY = "figures/density_by_layer.png"
OVERLAP = "figures/overlap.png"
PAIRS = "figures/pairs.png"

_WIDTH = 8.0  # inches; cards show about 800 pixels, so that 9 points read as 12 pixels
_DPI = 150
_FONT = "DejaVu Sans"  # comes with matplotlib
_SIZE = 9.0  # points
_LABEL = 22  # characters
_LEGEND_COLUMNS = 3
_ANNOTATED = 10  # a heatmap of more agents has no room for numbers
# Okabe and Ito's palette, told apart under every common colour blindness; black comes last. Markers repeat the
# difference, and line styles go on where the colours end.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C7A00", "#000000")
_MARKERS = "osD^vPX*"
_LINES = ("-", "--", ":", "-.")
_GRID = {"color": "#dddddd", "linewidth": 0.6}


def render_figures(report: Report) -> dict[str, bytes]:
    """Path below the repo → PNG."""
    statistics = report.statistics
    labels = [_label(str(a["agent"])) for a in statistics["total"]["agents"]]
    draw: dict[str, Callable[[Any, Sequence[str], Mapping[str, Any]], None]] = {
        DENSITY: _density,
        OVERLAP: _overlap,
        PAIRS: _pairs,
    }
    return {name: _png(function, labels, statistics, _height(name, len(labels))) for name, function in draw.items()}


def _height(name: str, agents: int) -> float:
    """Inches: agents are rows of bars or of a legend."""
    if name == PAIRS:
        return 3.0
    if name == OVERLAP:
        return min(max(3.2, 1.6 + 0.25 * agents), 9.0)
    return 3.2 + 0.2 * -(-agents // _LEGEND_COLUMNS)


def _png(
    draw: Callable[[Any, Sequence[str], Mapping[str, Any]], None],
    labels: Sequence[str],
    statistics: Mapping[str, Any],
    height: float,
) -> bytes:
    # imported here: matplotlib takes half a second and 40 MB, and most commands draw nothing
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained", facecolor="white")
    canvas = FigureCanvasAgg(figure)
    draw(figure, labels, statistics)
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_fontfamily(_FONT)
    buffer = io.BytesIO()
    canvas.print_png(buffer, metadata={"Software": None})  # it would name the version of matplotlib
    return buffer.getvalue()


def _density(figure: Any, labels: Sequence[str], statistics: Mapping[str, Any]) -> None:
    layers, modules = statistics["layers"], statistics["modules"]
    by_depth = sorted((int(depth), part) for depth, part in layers.items())
    if by_depth:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        depths = [depth for depth, _ in by_depth]
        handles = [
            left.plot(
                depths,
                [100 * part["agents"][k]["density"] for _, part in by_depth],
                color=_COLORS[k % len(_COLORS)],
                linestyle=_LINES[k // len(_COLORS) % len(_LINES)],
                marker=_MARKERS[k % len(_MARKERS)],
                markersize=4,
                linewidth=1.4,
            )[0]
            for k in range(len(labels))
        ]
        left.xaxis.get_major_locator().set_params(integer=True)
        _finish(left, "by layer", "layer", "changed elements, %")
        left.set_ylim(bottom=0)
    else:
        right, handles = figure.subplots(), []
    names = list(modules)
    width = 0.8 / max(len(labels), 1)
    bars = [
        right.bar(
            [m + (k - (len(labels) - 1) / 2) * width for m in range(len(names))],
            [100 * modules[name]["agents"][k]["density"] for name in names],
            width=width,
            color=_COLORS[k % len(_COLORS)],
            edgecolor="white",
            linewidth=0.4,
        )
        for k in range(len(labels))
    ]
    right.set_xticks(range(len(names)), [_label(name) for name in names], rotation=30, ha="right")
    _finish(right, "by module type", "", "changed elements, %")
    right.set_ylim(bottom=0)
    handles = handles or bars
    legend = figure.legend(
        handles,
        [str(k) for k in range(len(handles))],
        loc="outside lower center",
        ncols=_LEGEND_COLUMNS,
        frameon=False,
        fontsize=_SIZE,
    )
    for text, label in zip(legend.get_texts(), labels, strict=True):
        # set afterwards: a legend leaves out labels that begin with an underscore
        text.set_parse_math(False)
        text.set_text(label)


def _overlap(figure: Any, labels: Sequence[str], statistics: Mapping[str, Any]) -> None:
    total = statistics["total"]
    agents = total["agents"]
    groups = _groups(len(agents))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    start = [0.0] * len(agents)
    for number, (name, group) in enumerate(groups.items()):
        values = [100 * sum(a["shared_with"][c - 1] for c in group) / max(total["elements"], 1) for a in agents]
        left.barh(range(len(agents)), values, left=start, color=_shade(number, len(groups)), label=name, height=0.7)
        start = [s + v for s, v in zip(start, values, strict=True)]
    left.set_yticks(range(len(labels)), labels)
    left.invert_yaxis()
    _finish(left, "changed alone and with others", "elements, %", "", grid="x")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=_SIZE)
    shares = [100 * share for share in total["overlap_share"]]
    colors = [_shade(number, len(groups)) for number, group in enumerate(groups.values()) for _ in group]
    bars = right.bar(range(1, len(shares)), shares[1:], color=colors, width=0.7)
    if len(agents) <= _ANNOTATED:
        digits = 3 if len(agents) <= 5 else 2
        right.bar_label(bars, [f"{share:.{digits}g}" for share in shares[1:]], fontsize=_SIZE - 2, padding=2)
        right.set_xticks(range(1, len(shares)))
    else:
        right.xaxis.get_major_locator().set_params(integer=True)
    right.margins(y=0.12)
    _finish(right, "changed by how many", f"agents (nobody: {shares[0]:.3g}%)", "elements, %")


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


def _pairs(figure: Any, labels: Sequence[str], statistics: Mapping[str, Any]) -> None:
    from matplotlib import colormaps

    pairs = statistics["total"]["pairs"]
    panels = (("jaccard", "Jaccard index", "cividis", 0.0), ("cosine", "cosine of the updates", "PuOr", -1.0))
    numbers = range(1, len(labels) + 1)
    few = len(labels) <= _ANNOTATED
    size = _SIZE if few else 6.0
    for axes, (key, title, colors, least) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
        grid = _matrix(len(labels), pairs, key)
        image = axes.imshow(
            grid, cmap=colormaps[colors].with_extremes(bad="#eeeeee"), vmin=least, vmax=1.0, aspect="auto"
        )
        axes.set_xticks(range(len(labels)), [str(n) for n in numbers])
        axes.set_yticks(range(len(labels)), [f"{label}  {n}" for n, label in zip(numbers, labels, strict=True)])
        axes.tick_params(labelsize=size, length=2)
        axes.set_title(title, fontsize=_SIZE + 1)
        axes.spines[:].set_visible(False)
        bar = figure.colorbar(image, ax=axes, pad=0.03)
        bar.ax.tick_params(labelsize=_SIZE - 1)
        if few:
            _annotate(axes, image, grid)


def _annotate(axes: Any, image: Any, grid: Sequence[Sequence[float]]) -> None:
    for row, values in enumerate(grid):
        for column, value in enumerate(values):
            if row != column:
                red, green, blue, _ = image.cmap(image.norm(value))
                bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
                axes.text(
                    column,
                    row,
                    f"{round(value, 2) + 0.0:.2f}",  # + 0.0: no "-0.00"
                    ha="center",
                    va="center",
                    color="black" if bright else "white",
                    fontsize=_SIZE if len(grid) <= 5 else 5.5,
                )


def _matrix(agents: int, pairs: Sequence[Mapping[str, Any]], key: str) -> list[list[float]]:
    """The pairs, which come row by row above the diagonal, as a symmetric matrix; the diagonal is empty."""
    grid = [[math.nan] * agents for _ in range(agents)]
    values = iter(pairs)
    for k in range(agents):
        for m in range(k + 1, agents):
            grid[k][m] = grid[m][k] = float(next(values)[key])
    return grid


def _finish(axes: Any, title: str, x: str, y: str, *, grid: str = "y") -> None:
    axes.set_title(title, fontsize=_SIZE + 1)
    axes.set_xlabel(x, fontsize=_SIZE)
    axes.set_ylabel(y, fontsize=_SIZE)
    axes.tick_params(labelsize=_SIZE, length=2)
    axes.grid(axis=grid, **_GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _label(text: str) -> str:
    """Foreign text that fits beside an axis: its two ends, in characters that the font has."""
    from matplotlib.font_manager import findfont, get_font

    known = get_font(findfont(_FONT)).get_charmap()
    shown = "".join(c if c.isprintable() and ord(c) in known else "?" for c in text)
    if len(shown) <= _LABEL:
        return shown
    half = (_LABEL - 1) // 2
    return f"{shown[:half]}…{shown[-half:]}"

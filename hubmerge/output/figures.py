"""The card's figures: what each agent changed where, and with whom it shares it.

Pure functions of the report to SVG, the same bytes for the same report. Labels are a stranger's text: they are cut to a
length and rid of what cannot be seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hubmerge.output.drawing import (
    LABEL,
    SIZE,
    TICKS,
    TITLE,
    WIDTH,
    Drawing,
    Panel,
    Shades,
    legend_height,
    numbers,
    ticks,
    width_of,
)
from hubmerge.output.report import Report
from hubmerge.text.markdown import percent

DENSITY = "figures/density_by_layer.svg"
OVERLAP = "figures/overlap.svg"

_LABEL = 22  # characters
_ANNOTATED = 10  # bars of more agents have no room for numbers
# Okabe and Ito's palette, told apart under every common colour blindness; black comes last. Markers repeat the
# difference, and dashes go on where the colours end.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C7A00", "#000000")
_DASHES = ("", "6 3", "8 3 2 3", "2 3")
# how the parameters divide; the pages show the same, lighter in the dark
SHARE_COLORS = {"private": "#0f766e", "overlap": "#3b82f6", "conflict": "#d97706", "unchanged": "#cbd5e1"}
_SHARE_NAMES = {
    "private": "one agent",
    "overlap": "several, same sign",
    "conflict": "several, opposite signs",
    "unchanged": "none",
}
_PANEL = 200.0  # pixels: the height of a panel beside which nothing is listed
_EDGE = 12.0  # pixels around everything
_AXIS = 72.0  # pixels: numbers and label beside a panel
_CHANGED = "changed elements, %"


def render_figures(report: Report) -> dict[str, bytes]:
    """Path below the repo → SVG."""
    statistics = report.statistics
    labels = [short_label(str(a["agent"])) for a in statistics["total"]["agents"]]
    numbered = [f"{label} · {n}" for n, label in enumerate(labels, 1)]
    told = labels if len({*labels}) == len(labels) else numbered  # what is cut may read alike
    return {
        DENSITY: _density(told, statistics),
        OVERLAP: _overlap(told, statistics),
    }


def _density(labels: Sequence[str], statistics: Mapping[str, Any]) -> bytes:
    layers = sorted((int(depth), part) for depth, part in statistics["layers"].items())
    names = [short_label(name) for name in statistics["modules"]]
    colors = [_COLORS[k % len(_COLORS)] for k in range(len(labels))]
    dashes = [_DASHES[k // len(_COLORS) % len(_DASHES)] for k in range(len(labels))]
    entries = list(zip(colors, labels, strict=True))
    below = max(TICKS + LABEL, 14 + 0.5 * max(map(width_of, names), default=0.0))
    height = TITLE + _PANEL + below + 12 + legend_height(entries) + _EDGE
    drawing = Drawing(height, "Changed elements by layer and module")
    space = WIDTH - _EDGE
    if layers:
        depths = [depth for depth, _ in layers]
        curves = _percents(labels, [part for _, part in layers])
        room = 0.04 * (depths[-1] - depths[0]) or 0.5
        ends = (depths[0] - room, depths[-1] + room)
        panel = Panel(drawing, _AXIS, TITLE, 0.54 * space - _AXIS, _PANEL, ends, (0.0, 1.05 * _largest(curves) or 1.0))
        panel.title("by layer")
        panel.y_axis(numbers(ticks(*panel.y)), _CHANGED, grid=True)
        panel.x_axis(numbers(ticks(depths[0], depths[-1], whole=True)), "layer")
        for k, curve in enumerate(curves):
            points = [panel.at(depth, value) for depth, value in zip(depths, curve, strict=True)]
            drawing.line(points, colors[k], 1.6, dashes[k])
            for point in points:
                drawing.marker(point, k, colors[k])
    bars = _percents(labels, statistics["modules"].values())
    left = (0.56 * space if layers else 0.0) + _AXIS
    across = (-0.5, max(len(names), 1) - 0.5)
    panel = Panel(drawing, left, TITLE, space - left, _PANEL, across, (0.0, 1.05 * _largest(bars) or 1.0))
    panel.title("by module type")
    panel.y_axis(numbers(ticks(*panel.y)), _CHANGED, grid=True)
    panel.x_axis(list(enumerate(names)), turned=True)
    width = 0.8 / len(labels)
    shown = width * (0.95 if len(labels) < 10 else 1.0)  # with a gap where there is room for one
    for k, values in enumerate(bars):
        for m, value in enumerate(values):
            first = m - 0.4 + k * width
            panel.bar((first, first + shown), (0.0, value), colors[k])
    drawing.legend(TITLE + _PANEL + below + 12, entries, lines=dashes if layers else None)
    return drawing.svg()


def _percents(labels: Sequence[str], parts: Iterable[Mapping[str, Any]]) -> list[list[float]]:
    """Per agent the density in every part of the model, in percent."""
    parts = list(parts)
    return [[100 * part["agents"][k]["density"] for part in parts] for k in range(len(labels))]


def _largest(rows: Iterable[Sequence[float]]) -> float:
    return max((value for row in rows for value in row), default=0.0)


def _overlap(labels: Sequence[str], statistics: Mapping[str, Any]) -> bytes:
    total = statistics["total"]
    groups = _groups(len(labels))
    shades = Shades((SHARE_COLORS["overlap"], "#172554"))  # of several agents: the darker, the more
    several = (shades.at(step / max(len(groups) - 2, 1)) for step in range(len(groups) - 1))
    colors = [SHARE_COLORS["private"], *several]
    shares = {name: total["shares"][name] for name in SHARE_COLORS}
    whole = [(SHARE_COLORS[name], f"{_SHARE_NAMES[name]}: {percent(share)}") for name, share in shares.items()]
    entries = list(zip(colors, groups, strict=True))
    panel = min(max(_PANEL, 24.0 * len(labels)), 640.0)
    top = TITLE + 26 + 10 + legend_height(whole) + 14 + TITLE
    drawing = Drawing(
        top + panel + TICKS + LABEL + 12 + legend_height(entries) + _EDGE, "What is changed alone and together"
    )

    # all elements as one bar, to scale
    bar, left = Panel(drawing, _EDGE, TITLE, WIDTH - 2 * _EDGE, 26, (0.0, 1.0)), 0.0
    bar.title("all elements, changed by")
    for name, share in shares.items():
        bar.bar((left, left + share), (0.0, 1.0), SHARE_COLORS[name])
        left += share
    drawing.legend(TITLE + 36, whole)

    # per agent a bar whose parts are the elements that it changed alone, with one other, …
    rows = [
        [100 * sum(a["shared_with"][c - 1] for c in group) / max(total["elements"], 1) for group in groups.values()]
        for a in total["agents"]
    ]
    beside = max(map(width_of, labels)) + 2 * _EDGE
    across = (0.0, 1.03 * max(map(sum, rows)) or 1.0)
    sharing = Panel(drawing, beside, top, 0.62 * WIDTH - beside, panel, across, (-0.5, len(labels) - 0.5))
    sharing.title("changed alone and with others")
    sharing.x_axis(numbers(ticks(*across)), "elements, %", grid=True)
    last = len(labels) - 1
    for k, parts in enumerate(rows):
        end = 0.0
        for color, part in zip(colors, parts, strict=True):
            sharing.bar((end, end + part), (last - k - 0.35, last - k + 0.35), color)
            end += part
    sharing.y_axis([(last - k, label) for k, label in enumerate(labels)])

    by_count = [100 * share for share in total["overlap_share"]]
    across = (0.4, max(len(by_count), 2) - 0.4)
    left = 0.62 * WIDTH + _AXIS
    counts = Panel(drawing, left, top, WIDTH - _EDGE - left, panel, across, (0.0, 1.12 * max(by_count[1:]) or 1.0))
    counts.title("changed by how many")
    counts.y_axis(numbers(ticks(*counts.y)), "elements, %", grid=True)
    few = len(labels) <= _ANNOTATED
    marks = list(range(1, len(by_count))) if few else ticks(1, len(by_count) - 1, whole=True)
    counts.x_axis(numbers(marks), f"agents (nobody: {percent(total['overlap_share'][0])})")
    of_count = [color for color, group in zip(colors, groups.values(), strict=True) for _ in group]
    for c, (color, share) in enumerate(zip(of_count, by_count[1:], strict=True), 1):
        counts.bar((c - 0.35, c + 0.35), (0.0, share), color)
        if few:
            x, y = counts.at(c, share)
            drawing.text(x, y - 4, f"{share:.{3 if len(labels) <= 5 else 2}g}", size=SIZE - 2, anchor="middle")
    drawing.legend(top + panel + TICKS + LABEL + 12, entries)
    return drawing.svg()


def _groups(agents: int) -> dict[str, range]:
    """Name → numbers of agents that changed an element; the long tail of many agents in one."""
    names = {"alone": range(1, 2)} | {f"by {c}": range(c, c + 1) for c in range(2, min(agents, 5) + 1)}
    if agents > 5:
        names.popitem()
        names["by 5 or more"] = range(5, agents + 1)
    return names


def short_label(text: str, most: int = _LABEL) -> str:
    """Foreign text that fits beside an axis: its two ends, without what cannot be seen, such as a turn of direction."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    if len(shown) <= most:
        return shown
    half = (most - 1) // 2
    return f"{shown[:half]}…{shown[-half:]}"

"""Score against density as an SVG of our own: no script, no foreign markup, the page's colours.

A point per merge that carries no flag, linked to the merge's page; hover or focus tells its name. Where there are few,
each has its 95% interval as a whisker. The density axis is logarithmic where the densities span more than a factor
of 20.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hubmerge.board.values import Row, SuiteBoard
from hubmerge.hub.names import is_hub_id
from hubmerge.output.scores import Estimate
from workflows.app.board_table import interval_text
from workflows.app.format import el, model_href, model_link, percent_text
from workflows.app.panels import fold, method_title, table

WIDTH, HEIGHT = 640, 376
LEFT, RIGHT, TOP, BOTTOM = 66, 16, 14, 88
MAX_POINTS = 300
LISTED = 50  # of them in the table below the chart, and at most so many have their interval drawn
_LOG_FROM = 20.0
_HUES = 7  # methods with a colour of their own; the rarer ones share a grey


@dataclass(frozen=True)
class _Point:
    row: Row
    density: float
    score: Estimate


def score_chart(suite: SuiteBoard, domain: str | None = None) -> Markup:
    """The chart of one domain, or of the overall score; a sentence where there is nothing to draw."""
    points = _points(suite, domain)
    if not points:
        return el("p", "No merge with a known density has a score here yet.", cls="hm-dim hm-empty")
    across, named_densities = _axis([p.density for p in points])
    low = max(0.0, math.floor(10 * min(p.score.low for p in points)) / 10)
    high = min(1.0, math.ceil(10 * max(p.score.high for p in points)) / 10)
    high = high if high > low else low + 0.1

    def down(score: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - score) / (high - low)

    counts = Counter(_method(p) for p in points)
    named = sorted(sorted(counts, key=lambda m: (-counts[m], m))[:_HUES])
    hues = {method: k for k, method in enumerate(named)}
    parts = [*_grid(low, high, down), *_ticks(named_densities, across)]
    whiskers = len(points) <= LISTED  # more would hide the points
    parts += [_mark(p, across, down, hues.get(_method(p), _HUES), whiskers=whiskers) for p in points]
    svg = el(
        "svg",
        *parts,
        cls="hm-chart",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="group",
        aria_label="Score by share of weights changed; the table below has the values",
    )
    entries = [(m[:40], hues[m]) for m in named] + ([("other methods", _HUES)] if len(counts) > _HUES else [])
    legend = el("ul", *(el("li", el("i", cls=f"hm-hue-{hue}"), text) for text, hue in entries), cls="hm-legend")
    said = el("p", f"The best {MAX_POINTS} merges.", cls="hm-dim") if len(points) == MAX_POINTS else None
    return el("figure", svg, el("figcaption", said, legend), cls="hm-chart-frame")


def chart_table(suite: SuiteBoard, domain: str | None = None) -> Markup | None:
    every = _points(suite, domain)
    points = every[:LISTED]
    if not points:
        return None
    rows = [
        (model_link(p.row.model, p.row.sha), interval_text(p.score), percent_text(p.density), _method(p)[:80])
        for p in points
    ]
    heads = ("Model", "Score", "Weights changed", "Method")
    title = "The chart as a table" if len(rows) == len(every) else f"The best {len(rows)} of the chart as a table"
    return fold(title, table(heads, rows))


def _method(point: _Point) -> str:
    return method_title(point.row.facts.method or "unknown")


def _points(suite: SuiteBoard, domain: str | None) -> list[_Point]:
    found = []
    for row in suite.rows:
        line = row.domain(domain) if domain else None
        score = line.score if line else row.overall if domain is None else None
        if score is not None and row.facts.density and not row.superseded and not row.flags:
            found.append(_Point(row, row.facts.density, score))
            if len(found) == MAX_POINTS:
                break
    return found


def _axis(densities: Sequence[float]) -> tuple[Callable[[float], float], list[float]]:
    """Density → x, and the densities that the axis names."""
    low, high = min(densities), max(densities)
    scale: Callable[[float], float] = math.log if high / low > _LOG_FROM else float
    back: Callable[[float], float] = math.exp if scale is math.log else float
    first, last = scale(low), scale(high)
    named = [back(first + (last - first) * k / 4) for k in range(5)] if high > low else [low]
    pad = 0.06 * (last - first) or (0.1 * abs(last) or 1.0)
    begin, width = first - pad, last - first + 2 * pad
    return lambda density: LEFT + (WIDTH - LEFT - RIGHT) * (scale(density) - begin) / width, named


def _grid(low: float, high: float, down: Callable[[float], float]) -> list[Markup]:
    lines = []
    steps = round((high - low) * 10)
    for k in range(0, steps + 1, 2 if steps > 5 else 1):
        score = low + k / 10
        y = f"{down(score):.1f}"
        lines.append(el("line", x1=f"{LEFT}", x2=f"{WIDTH - RIGHT}", y1=y, y2=y, cls="hm-line"))
        lines.append(el("text", f"{100 * score:.0f}", x=f"{LEFT - 8}", y=y, cls="hm-end"))
    middle = f"{(TOP + HEIGHT - BOTTOM) / 2:.0f}"
    title = el(
        "text", "Score, percent", x="14", y=middle, cls="hm-middle hm-upright", transform=f"rotate(-90 14 {middle})"
    )
    return [*lines, title]


def _ticks(values: Sequence[float], across: Callable[[float], float]) -> list[Markup]:
    y = f"{HEIGHT - BOTTOM + 26}"  # clear of the lowest score's number, also in the large letters of a phone
    marks = [el("text", percent_text(v), x=f"{across(v):.1f}", y=y, cls="hm-middle hm-below") for v in values]
    center = f"{(LEFT + WIDTH - RIGHT) / 2:.0f}"
    return [*marks, el("text", "Weights that any agent changed", x=center, y=f"{HEIGHT - 10}", cls="hm-middle")]


def _mark(
    point: _Point, across: Callable[[float], float], down: Callable[[float], float], hue: int, *, whiskers: bool
) -> Markup:
    x, y = f"{across(point.density):.1f}", f"{down(point.score.value):.1f}"
    y1, y2 = f"{down(point.score.high):.1f}", f"{down(point.score.low):.1f}"
    facts = f"{point.row.model}: {interval_text(point.score)}, {percent_text(point.density)} of the weights changed"
    shapes = (
        el("title", facts),
        el("line", x1=x, x2=x, y1=y1, y2=y2, cls="hm-whisker") if whiskers else None,
        el("circle", cx=x, cy=y, r="5"),
    )
    cls = f"hm-point hm-hue-{hue}"
    if not is_hub_id(point.row.model):
        return el("g", *shapes, cls=cls)
    return el("a", *shapes, cls=cls, href=model_href(point.row.model), aria_label=facts)

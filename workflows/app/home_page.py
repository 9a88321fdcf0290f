"""Home, `/`: what this is for, what it gains, and the ways in; then the latest merges and what is under way."""

from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup

from hubmerge.board.source import DatasetBoard
from hubmerge.board.values import Board, Row
from hubmerge.errors import HubmergeError
from hubmerge.settings import Settings
from workflows.app.format import el, join, model_link
from workflows.app.frame import AT_ONCE, LOADING, PURPOSE, html
from workflows.service import Service

LATEST = 5
# percent right: base, the skill's own agent, plain average, RAM+; docs/data/zoo_evaluation.json has their source
MEASURED = {
    "math": ("Math", (30.2, 97.8, 74.8, 86.2)),
    "tool": ("Tool use", (14.6, 99.6, 59.8, 98.2)),
    "mem": ("Memory", (28.2, 81.6, 46.0, 78.0)),
}
_BARS = (("The agent alone", "agent"), ("Plain average", "average"), ("Merged here", "merged"))
_ZOO = ("zoo/base", "zoo/math-agent", "zoo/tool-agent", "zoo/mem-agent")  # on the embedded Hub
_PUBLIC = (  # that the paper of RAM merged (arXiv:2601.13572)
    "Qwen/Qwen2.5-7B-Instruct",
    "Gen-Verse/ReasonFlux-Coder-7B",
    "emrecanacikgoz/Qwen2.5-7B-Instruct-ToolRL-grpo-cold",
    "BytedTsinghua-SIA/RL-MemoryAgent-7B",
)


def home_page(demo: Any, service: Service, settings: Settings, board: DatasetBoard | None) -> None:
    base, *agents = example_models(settings)
    fields = [("base", base), *(("agent", agent) for agent in agents), ("method", "ram_plus")]
    example = f"merge?{urlencode(fields, safe='/', quote_via=quote)}"
    first = el("a", "Try the example", href=example, cls="hm-button hm-first")
    ways = el("p", first, el("a", "Choose models", href="merge", cls="hm-button"), cls="hm-ways")
    about = el(
        "p",
        "Reinforcement learning changes few of a model's parameters, and each agent changes different ones. Averaging "
        "divides what only one agent learned; merging here keeps it at full strength.",
    )
    opening = el("header", el("h1", PURPOSE), about, ways, cls="hm-home")
    html(join(opening, skills_figure()), "home")
    demo.load(lambda: _standing(service, board), None, [html(LOADING, "now")], **AT_ONCE)


def example_models(settings: Settings) -> tuple[str, ...]:
    """A base, then agents of it that the Hub in use has."""
    return _ZOO if settings.is_loopback else _PUBLIC


def skills_figure() -> Markup:
    """Three agents, their average and their merge, skill by skill, each bar with a line where the base stands."""
    line = el("span", el("i", cls="hm-base-line"), "The base")  # which stands in the bars
    skills = []
    for name, (base, *scores) in MEASURED.values():
        bars = []
        for (label, kind), score in zip(_BARS, scores, strict=True):
            fill = el("span", cls=f"hm-of-{kind}", style=f"width: {score:.1f}%")
            track = el("span", fill, el("i", style=f"left: {base:.1f}%"), cls="hm-gain", aria_hidden="true")
            bars.append(el("li", el("span", label), el("b", f"{score:.1f}%"), track))
        bars.append(el("li", line, el("b", f"{base:.1f}%")))
        skills.append(el("section", el("h2", name), el("ul", *bars)))
    caption = el(
        "figcaption",
        "Right answers to 500 held-out questions per skill, of three small agents that were trained from one base, "
        "their plain average, and their merge with RAM+. They were computed in float32; as they are stored, in "
        "bfloat16, scores on the leaderboard differ by about a point.",
    )
    return el("figure", el("div", *skills, cls="hm-skills"), caption, cls="hm-measured")


def _standing(service: Service, board: DatasetBoard | None) -> Markup:
    """What is under way, and the latest merges with the skills that they kept."""
    try:
        counts = zip(service.under_way(), ("merging", "evaluating", "waiting"), strict=True)
        parts = [f"{number} {what}" for number, what in counts if number]
        now = f"Now: {', '.join(parts)}." if parts else "Nothing is running at the moment."
    except HubmergeError:  # the page is of use without
        now = "What is running cannot be told at the moment."
    told = el("p", now, " ", el("a", "See the activity", href="activity"), cls="hm-dim")
    return join(_latest(board), told)


def _latest(source: DatasetBoard | None) -> Markup | None:
    rows: list[Row] = []
    if source is not None:
        with suppress(HubmergeError):  # the page is of use without
            rows = latest_merges(source.board())
    if not rows:
        return None
    told = [el("span", f"keeps {row.skills.text}" if row.skills else "", cls="hm-dim") for row in rows]
    items = [el("li", model_link(row.model, row.sha), kept) for row, kept in zip(rows, told, strict=True)]
    more = el("a", "All on the leaderboard", href="leaderboard")
    return el("section", el("h2", "Latest merges"), el("ul", *items), el("p", more), cls="hm-latest")


def latest_merges(board: Board) -> list[Row]:
    """The newest merges whose skills kept are known, each model once."""
    known = [r for s in board.suites for r in s.rows if r.skills and r.skills.skills and not (r.flags or r.superseded)]
    once: dict[str, Row] = {}
    for row in sorted(known, key=lambda row: row.created, reverse=True):
        once.setdefault(row.model, row)
    return list(once.values())[:LATEST]

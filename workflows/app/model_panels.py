"""The first things on a model's page: a verdict, its scores beside its parents' as a picture, and how to use it."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from markupsafe import Markup

from hubmerge.board.values import Board, Row, SuiteBoard, TaskLine
from hubmerge.errors import HubmergeError
from hubmerge.evaluation.tasks import registry
from hubmerge.hub.names import is_hub_id
from hubmerge.output.card_scores import way_of_asking
from hubmerge.output.scores import Estimate, verdict
from hubmerge.output.task import snippet, task_of
from workflows.app.board_table import domain_title
from workflows.app.format import diff_href, el, join, link
from workflows.app.panels import section
from workflows.app.service import BoardSource, JobView

MOST_DRAWN = 12  # parents beside one score


def found_rows(board: Board, model: str, sha: str | None) -> list[tuple[SuiteBoard, Row]]:
    """The model's rows, all of one commit: the asked one, else the one that no newer supersedes."""
    rows = [(s, r) for s in board.suites for r in s.rows if r.model == model]
    if sha is None and rows:
        sha = max((r for _, r in rows), key=lambda r: (not r.superseded, r.created, r.sha)).sha
    return [(s, r) for s, r in rows if r.sha == sha]


def published_row(view: JobView, source: BoardSource | None) -> Row | None:
    """The board's row of a published merge, once it is evaluated."""
    if source is None or not view.result or not view.evaluations or view.evaluations[0].state != "done":
        return None
    merge = view.evaluations[0]
    try:
        rows = found_rows(source.board(), merge.model, merge.sha)
    except HubmergeError:  # the pages of jobs are of use without
        return None
    return rows[0][1] if rows else None


def verdict_panel(row: Row) -> Markup | None:
    """What a reader wants first; nothing where too little is scored for it."""
    said = verdict(row.skills, row.domains) if row.facts.is_merge else None
    return el("p", said, cls="hm-verdict") if said else None


def ways_on(model: str, base: str | None) -> Markup | None:
    """What can be done with a model from here."""
    if not is_hub_id(model):
        return None
    ways = [link(f"merge?agent={quote(model, safe='/')}", "Merge it with others")]
    if base is not None and is_hub_id(base):
        ways.append(link(diff_href(base, model), "Compare it with its base"))
    ways.append(link("leaderboard", "All models"))
    return el("nav", *ways, cls="hm-ways-on", aria_label="What to do with this model")


def scores_picture(row: Row) -> Markup | None:
    """Per skill a line for the merge, for each agent and for the base: a dot in its interval, from 0 to 100%."""
    if not row.domains or not row.parents:
        return None
    agents = [p for p in row.parents if p.role == "agent"][:MOST_DRAWN]
    bases = [p for p in row.parents if p.role == "base"]
    groups = []
    for line in row.domains:
        lines = [_line("This merge", "merge", line.score)]
        lines += [_line(p.id, "agent", p.domains.get(line.domain)) for p in agents]
        lines += [_line(p.id, "base", p.domains.get(line.domain)) for p in bases]
        groups.append(el("div", el("h3", domain_title(line.domain)), el("ul", *lines, cls="hm-dots"), cls="hm-skill"))
    told = el(
        "figcaption",
        "Dots are scores, from 0 to 100%; bars are their 95% intervals. The base comes last.",
        cls="hm-dim",
    )
    return section("Beside its parents", el("figure", *groups, told, cls="hm-picture"))


def _line(name: str, role: str, score: Estimate | None) -> Markup:
    label = el("span", name, cls="hm-dots-name")
    if score is None:
        return el("li", label, el("span", "not scored", cls="hm-dim"), cls=f"hm-dots-{role}")
    low, value, high = (min(max(100 * x, 0.0), 100.0) for x in (score.low, score.value, score.high))
    track = el(
        "span",
        el("i", cls="hm-range", style=f"left:{low:.2f}%;width:{max(high - low, 0.0):.2f}%"),
        el("i", cls="hm-dot", style=f"left:{value:.2f}%"),
        cls="hm-track",
        aria_hidden="true",
    )
    said = el("span", f"{value:.0f}%", el("small", f" {low:.0f} to {high:.0f}"), cls="hm-dots-value")
    return el("li", label, track, said, cls=f"hm-dots-{role}")


def use_it(model: str, tasks: Sequence[TaskLine]) -> Markup | None:
    """Python that loads the model and lets it answer, and how the evaluation asked."""
    if not is_hub_id(model):
        return None
    code = snippet(task_of({"architectures": ["LlamaForCausalLM"]}), model)  # what is scored writes text
    return section("Use it", el("pre", el("code", code), cls="hm-snippet", tabindex="0"), _prompts(tasks))


def _prompts(tasks: Sequence[TaskLine]) -> Markup | None:
    """The prompt of each task that was scored; tasks that ask alike together."""
    asked: dict[tuple[str, str], list[str]] = {}
    for line in tasks:
        task = registry().get(line.task)
        if task is not None:
            way = way_of_asking(task.chat, line.few_shot)
            asked.setdefault((way, task.asked), []).append(task.title)
    if not asked:
        return None
    parts = [
        join(el("p", f"{', '.join(titles)}, {way}:"), el("pre", el("code", text), cls="hm-snippet", tabindex="0"))
        for (way, text), titles in asked.items()
    ]
    told = el("p", "What stands in braces differs from question to question; answers are greedy.", cls="hm-dim")
    return el("details", el("summary", "The prompts that the scores were measured with"), told, *parts)

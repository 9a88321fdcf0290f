"""The leaderboard as the value of a gr.Dataframe: numbers that sort as numbers and read as text with intervals.

Every cell is plain text, except the model's: a link to its page on this site, made from a checked repo name. Columns of
foreign text have the datatype "str", which gradio shows literally.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from hubmerge.board.export import flag_text
from hubmerge.board.values import Row, SuiteBoard
from hubmerge.hub.names import is_hub_id
from hubmerge.markdown import short_count
from hubmerge.output.intervals import Estimate
from workflows.app.format import bytes_text, el, link, time_text

VIEWS = ("Scores", "Skills kept", "Merges")
MAX_ROWS = 2000  # sent to a browser; the CSV has all
MAX_TEXT = 120
NOTHING = "–"


@dataclass(frozen=True)
class Column:
    """A heading, gradio's datatype, the value that is sorted by, and the text that is read."""

    title: str
    datatype: str
    value: Callable[[Row], Any]
    text: Callable[[Row], str]
    width: int = 110  # pixels


def model_href(model: str, sha: str = "") -> str:
    return f"model?model={quote(model, safe='')}" + (f"&sha={quote(sha, safe='')}" if sha else "")


def model_link(model: str, sha: str = "", text: object = "") -> Any:
    """A link to a model's page here; text only, where the name is none of a repo."""
    return link(model_href(model, sha), text or model) if is_hub_id(model) else el("span", text or model)


def columns(suite: SuiteBoard, view: str) -> tuple[Column, ...]:
    chosen = {"Scores": _score_columns, "Skills kept": _skill_columns, "Merges": _merge_columns}[view](suite)
    return (
        Column("Rank", "number", lambda r: r.rank, lambda r: NOTHING if r.rank is None else str(r.rank), 70),
        Column("Model", "html", _model_cell, _model_cell, 260),
        *chosen,
        _text("Run by", lambda r: r.run_by, 120),
        _text("Flags", lambda r: "; ".join(map(flag_text, r.flags)), 160),
    )


def table(suite: SuiteBoard, view: str, *, merges_only: bool = False) -> dict[str, Any]:
    """Headings, data and what is displayed."""
    chosen = columns(suite, view)
    rows = [r for r in suite.rows if r.facts.is_merge or not merges_only][:MAX_ROWS]
    return {
        "headers": [c.title for c in chosen],
        "data": [[c.value(r) for c in chosen] for r in rows],
        "metadata": {"display_value": [[c.text(r) for c in chosen] for r in rows]},
    }


def _model_cell(row: Row) -> str:
    marks = []
    if row.status == "failed":
        marks.append("failed")
    if row.superseded:
        marks.append("older commit")
    marks += [f.kind for f in row.flags if f.inherited_from is None]
    marks += ["inherits a flag"] if any(f.inherited_from for f in row.flags) else []
    badges = [el("span", " ", el("small", mark, cls="hm-mark")) for mark in dict.fromkeys(marks)]
    sha = row.sha if row.superseded else ""
    return str(el("span", model_link(row.model, sha), *badges))


def _score_columns(suite: SuiteBoard) -> Sequence[Column]:
    return (
        _estimate("Overall", lambda r: r.overall),
        _text("Skills kept", skills_text, 230),
        *(_estimate(_heading(d), _domain_score(d)) for d in suite.domains if len(suite.domains) > 1),
        _text("Method", lambda r: r.facts.method or ("" if r.facts.is_merge else "not a merge"), 130),
        _number("Parameters", lambda r: r.facts.parameters, short_count),
        _text("License", lambda r: r.facts.license or "not stated"),
        _text("Evaluated", lambda r: time_text(r.created), 150),
    )


def _skill_columns(suite: SuiteBoard) -> Sequence[Column]:
    return (
        Column("Best first", "number", lambda r: r.skills_rank, lambda r: str(r.skills_rank or NOTHING), 90),
        _text("Skills kept", skills_text, 260),
        *(_text(task[:40], _gain_kept(task), 150) for task in _skills_of(suite)),
        _text("Synergy", lambda r: ", ".join(_synergy(r)), 150),
        _estimate("Instruction vs base", lambda r: r.instruction_change, sign=True, width=150),
        _text("Parents scored", lambda r: _parents(r), 120),
    )


def _skills_of(suite: SuiteBoard) -> Sequence[str]:
    """The tasks that are a skill of some merge's parents, as the rows have them in order."""
    return list(dict.fromkeys(s.task for row in suite.rows if row.skills for s in row.skills.skills))


def _gain_kept(task: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        return next((s.text for s in (row.skills.skills if row.skills else ()) if s.task == task), NOTHING)

    return text


def _merge_columns(suite: SuiteBoard) -> Sequence[Column]:
    return (
        _estimate("Overall", lambda r: r.overall),
        _text("Method", lambda r: r.facts.method or "", 130),
        _number("Agents", lambda r: r.agents or None, lambda n: f"{n:.0f}", 80),
        _number("Density", lambda r: r.facts.density, _share, 90),
        _number("Overlap", lambda r: r.facts.overlap, _share, 90),
        _number("Conflict", lambda r: r.facts.conflict, _share, 90),
        _text("Effective λ", lambda r: scales_text(r.facts.effective_scales), 130),
        _number("Size", lambda r: r.facts.size_bytes, bytes_text, 100),
        _text("Author", lambda r: r.facts.author),
        _text("License", lambda r: r.facts.license or "not stated"),
        _number("Ancestors", lambda r: len(r.ancestors) or None, lambda n: f"{n:.0f}", 100),
    )


def _heading(domain: str) -> str:
    return domain[:40]


def _domain_score(name: str) -> Callable[[Row], Estimate | None]:
    return lambda row: line.score if (line := row.domain(name)) else None


def _synergy(row: Row) -> list[str]:
    return [d.domain + ("" if d.synergy_certain else " (within chance)") for d in row.domains if d.synergy]


def _parents(row: Row) -> str:
    scored = sum(p.status == "scored" for p in row.parents)
    return f"{scored} of {len(row.parents)}" if row.parents else ""


def _estimate(title: str, of: Callable[[Row], Estimate | None], *, sign: bool = False, width: int = 120) -> Column:
    def value(row: Row) -> float | None:
        estimate = of(row)
        return None if estimate is None else round(100 * estimate.value, 4)

    return Column(title, "number", value, lambda row: estimate_text(of(row), sign=sign), width)


def _number(title: str, of: Callable[[Row], float | None], text: Callable[[float], str], width: int = 110) -> Column:
    return Column(title, "number", of, lambda row: NOTHING if (n := of(row)) is None else text(n), width)


def _text(title: str, of: Callable[[Row], str], width: int = 110) -> Column:
    def shown(row: Row) -> str:
        text = " ".join(of(row).split())
        return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"

    return Column(title, "str", shown, shown, width)


def estimate_text(estimate: Estimate | None, *, sign: bool = False) -> str:
    """71.2 ±3.1: percent, and half of the interval's width."""
    if estimate is None:
        return NOTHING
    value = f"{100 * estimate.value:+.1f}" if sign else f"{100 * estimate.value:.1f}"
    return f"{value.replace('-', '−')} ±{50 * (estimate.high - estimate.low):.1f}"


def interval_text(estimate: Estimate | None, *, sign: bool = False) -> str:
    """71.2 (68.0 to 74.1)."""
    if estimate is None:
        return NOTHING
    form = "{:+.1f}" if sign else "{:.1f}"
    value, low, high = (form.format(100 * v).replace("-", "−") for v in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low} to {high})"


def scales_text(scales: Sequence[float | None]) -> str:
    return ", ".join(NOTHING if s is None else f"{s:.3g}" for s in scales)


def skills_text(row: Row) -> str:
    """3 of 3 skills: 88 · 99 · 95 %; nothing for what is no merge or has a parent without a score."""
    return row.skills.text if row.skills else NOTHING


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"

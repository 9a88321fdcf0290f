"""The columns of the leaderboard: what each is called, sorts by and shows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from hubmerge.board.export import flag_text
from hubmerge.board.values import Row, SuiteBoard
from hubmerge.evaluation.tasks import registry
from hubmerge.output.scores import Estimate, Skill, domain_words
from hubmerge.text.markdown import short_count
from workflows.app.format import bytes_text, el, model_link, percent_text, time_text
from workflows.app.panels import method_title

VIEWS = {"scores": "Scores", "skills": "Skills kept", "merges": "Merges"}
ALWAYS = ("rank", "model")
MAX_TEXT = 120
NOTHING = "–"


@dataclass(frozen=True)
class Column:
    """A heading, the value that is sorted by, and what is read; numbers sort from the highest at first."""

    key: str  # in addresses
    title: str
    value: Callable[[Row], Any]
    text: Callable[[Row], object]
    is_number: bool = True

    @property
    def falls_first(self) -> bool:
        return self.is_number and self.key not in ("rank", "best")


def columns(suite: SuiteBoard) -> Mapping[str, Column]:
    """Every column that a board may show, by its key."""
    several = len(suite.domains) > 1
    skills = dict.fromkeys(s.task for row in suite.rows if row.skills for s in row.skills.skills)  # of some merge
    is_signed = any(r.signed for r in suite.rows)  # where nothing is, a mark on every row says nothing
    found = (
        Column("rank", "Rank", lambda r: r.rank, lambda r: NOTHING if r.rank is None else str(r.rank)),
        Column("model", "Model", lambda r: r.model.lower(), lambda r: _model_cell(r, is_signed), is_number=False),
        Column("kept", "Skills kept", lambda r: (s := r.skills) and s.order, skills_text),
        *(_domain_score(d) for d in suite.domains if several),
        _estimate("overall", "Overall", lambda r: r.overall),
        Column("best", "Rank by skills", lambda r: r.skills_rank, lambda r: str(r.skills_rank or NOTHING)),
        *(_gain(t) for t in skills),
        _text("synergy", "Synergy", _synergy),
        _estimate("instruction", "Instruction vs base", lambda r: r.instruction_change, sign=True),
        _text("parents", "Parents scored", _parents),
        _text("method", "Method", _method),
        _number("agents", "Agents", lambda r: r.agents or None, lambda n: f"{n:.0f}"),
        _number("density", "Weights changed", lambda r: r.facts.density, percent_text),
        _number("overlap", "Changed by several", lambda r: r.facts.overlap, percent_text),
        _number("conflict", "In opposite directions", lambda r: r.facts.conflict, percent_text),
        _text("scales", "Effective scale", _scales),
        _number("parameters", "Parameters", lambda r: r.facts.parameters, short_count),
        _number("size", "Size", lambda r: r.facts.size_bytes, bytes_text),
        _text("license", "License", lambda r: r.facts.license or "not stated"),
        _text("author", "Author", lambda r: r.facts.author),
        _number("ancestors", "Ancestors", lambda r: len(r.ancestors) or None, lambda n: f"{n:.0f}"),
        Column("evaluated", "Evaluated", lambda r: r.created, lambda r: time_text(r.created)),
        _text("run_by", "Run by", lambda r: r.run_by),
        _text("flags", "Flags", lambda r: "; ".join(map(flag_text, r.flags))),
    )
    return {column.key: column for column in found}


def default_columns(every: Mapping[str, Column], view: str) -> tuple[str, ...]:
    """What a view shows, in order."""
    scores, gains = ([key for key in every if key.startswith(kind)] for kind in ("score-", "gain-"))
    chosen = {
        "scores": ["kept", *scores, "overall"],
        "skills": ["best", "kept", *gains, "synergy", "instruction", "parents"],
        "merges": ["overall", "method", "agents", "density", "overlap", "conflict", "size", "license"],
    }
    return (*ALWAYS, *chosen[view])


def _model_cell(row: Row, in_signed_suite: bool) -> Markup:
    marks = []
    if row.status == "failed":
        marks.append("failed")
    if row.superseded:
        marks.append("older commit")
    marks += [f.kind for f in row.flags if f.inherited_from is None]
    marks += ["inherits a flag"] if any(f.inherited_from for f in row.flags) else []
    notes = [row.run_by] if in_signed_suite and not row.signed else []
    notes += [f"in {row.narrowed.partition(',')[0][:20]}"] if row.narrowed else []
    badges = [el("span", " ", el("small", mark, cls="hm-mark")) for mark in dict.fromkeys(marks)]
    badges += [el("span", " ", el("small", note, cls="hm-mark hm-note")) for note in notes]
    sha = row.sha if row.superseded else ""
    return el("span", model_link(row.model, sha), *badges)


def _method(row: Row) -> str:
    return method_title(row.facts.method) if row.facts.method else "" if row.facts.is_merge else "not a merge"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def task_title(name: str) -> str:
    known = registry().get(name)
    return known.title if known else name.replace("_", " ").strip().capitalize()


def _gain(task: str) -> Column:
    def of(row: Row) -> Skill | None:
        return next((s for s in (row.skills.skills if row.skills else ()) if s.task == task), None)

    title = f"{task_title(task)[:40]} kept"
    return Column(
        f"gain-{task}",
        title,
        lambda r: (s := of(r)) and s.gain_kept.value,
        lambda r: s.text if (s := of(r)) else NOTHING,
    )


def domain_title(domain: str) -> str:
    words = domain_words(domain)
    return words[:1].upper() + words[1:40]


def _domain_score(name: str) -> Column:
    return _estimate(f"score-{name}", domain_title(name), lambda r: line.score if (line := r.domain(name)) else None)


def _synergy(row: Row) -> str:
    return ", ".join(d.domain + ("" if d.synergy_certain else " (within chance)") for d in row.domains if d.synergy)


def _parents(row: Row) -> str:
    scored = sum(p.status == "scored" for p in row.parents)
    return f"{scored} of {len(row.parents)}" if row.parents else ""


def _scales(row: Row) -> str:
    return ", ".join(NOTHING if s is None else f"{s:.3g}" for s in row.facts.effective_scales)


def _estimate(key: str, title: str, of: Callable[[Row], Estimate | None], *, sign: bool = False) -> Column:
    def value(row: Row) -> float | None:
        return None if (estimate := of(row)) is None else estimate.value

    def text(row: Row) -> object:
        """71.2 above 68.0 to 74.1, since an interval seldom has its score in the middle."""
        if (estimate := of(row)) is None:
            return NOTHING
        score, low, high = _percents(estimate, sign=sign)
        return el("span", score, el("small", f" {low} to {high}"))

    return Column(key, title, value, text)


def _number(key: str, title: str, of: Callable[[Row], float | None], text: Callable[[float], str]) -> Column:
    return Column(key, title, of, lambda row: NOTHING if (n := of(row)) is None else text(n))


def _text(key: str, title: str, of: Callable[[Row], str]) -> Column:
    def shown(row: Row) -> str:
        return _cut(" ".join(of(row).split()))

    return Column(key, title, lambda row: shown(row).lower() or None, shown, is_number=False)


def interval_text(estimate: Estimate | None, *, sign: bool = False) -> str:
    """71.2 (68.0 to 74.1)."""
    if estimate is None:
        return NOTHING
    value, low, high = _percents(estimate, sign=sign)
    return f"{value} ({low} to {high})"


def _percents(estimate: Estimate, *, sign: bool) -> tuple[str, str, str]:
    form = "{:+.1f}" if sign else "{:.1f}"
    value, low, high = (form.format(100 * v).replace("-", "−") for v in (estimate.value, estimate.low, estimate.high))
    return value, low, high


def skills_text(row: Row) -> str:
    """The skills kept; before that how many parents are scored, and nothing for what is no merge."""
    if row.skills:
        return row.skills.text
    is_awaited = row.status == "done" and any(p.status != "scored" for p in row.parents)
    return f"{_parents(row)} parents scored" if is_awaited else NOTHING


def share_text(value: float | None) -> str:
    """A share in percent, where it is known."""
    return NOTHING if value is None else percent_text(value)

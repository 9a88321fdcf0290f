"""Panels of a job: its state, the stages, progress, what the agents changed, and how it ended.

Every function is pure; the numbers come as untyped JSON from the job's record, so each is looked up with care and
left out where it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from hubmerge.errors import LoginError
from hubmerge.markdown import short_count
from hubmerge.methods import registry
from hubmerge.output.card import fetch_facts, of_last_run
from workflows.app.format import (
    bytes_text,
    diff_href,
    duration_text,
    el,
    job_href,
    join,
    link,
    moment,
    number_of,
    percent_text,
    repo_link,
    time_text,
)
from workflows.app.panels import facts_grid, notice, problems_panel, section, table, warnings_panel
from workflows.app.service import JobView

TERMINAL = ("done", "failed", "cancelled")
STAGES = {
    "resolve": "Resolve",
    "calibration": "Calibration",
    "plan": "Plan",
    "verify": "Verify",
    "compile": "Compile",
    "download": "Download",
    "probe": "Measure",
    "merge": "Merge",
    "card": "Card",
    "publish": "Publish",
}
EVALUATION_STAGES = {
    "resolve": "Resolve",
    "fetch model": "Model",
    "fetch data": "Questions",
    "start lighteval": "Start",
    "load model": "Load",
    "generate": "Answer",
    "score": "Score",
    "record": "Record",
    "publish": "Cards",
}
_ALIASES = {"fetch": "download"}
_ABOUT_STAGES = {"compile": "Compiling what every merge on this machine needs, once."}
_STATES = {
    "queued": ("Queued", "info"),
    "running": ("Running", "busy"),
    "cancelling": ("Cancelling", "warn"),
    "done": ("Done", "good"),
    "failed": ("Failed", "bad"),
    "cancelled": ("Cancelled", "dim"),
    "needs login": ("Needs login", "warn"),
}
_SHARES = (
    ("private", "one agent only"),
    ("overlap", "several, same sign"),
    ("conflict", "several, opposite signs"),
    ("unchanged", "none"),
)


def needs_login(view: JobView) -> bool:
    """Whether the job waits for, or failed for want of, its owner's sign-in."""
    if view.state == "queued":
        end = moment(view.signed_in_until)
        return end is not None and end <= datetime.now(UTC)
    return view.state == "failed" and (view.error or {}).get("code") in (LoginError.code, "E_SEAL")


def _shown_state(view: JobView) -> str:
    return "needs login" if needs_login(view) else view.state


def badge(state: str) -> Markup:
    label, kind = _STATES.get(state, (state, "info"))
    return el("span", label, cls=f"hm-badge hm-{kind}", data_state=state)


def job_header(view: JobView) -> Markup:
    """Target, state and the dates of a job."""
    facts = [
        ("Started by", view.user),
        *_subject(view),
        ("Submitted", time_text(view.created)),
    ]
    if view.started and (elapsed := _elapsed(view)) is not None:
        facts.append(("Took" if view.state in TERMINAL else "Running for", duration_text(elapsed)))
    if view.attempt > 1:
        facts.append(("Attempt", str(view.attempt)))
    if view.signed_in_until and view.state not in TERMINAL:
        facts.append(("Signed in until", time_text(view.signed_in_until)))
    return join(el("div", el("h1", view.target), badge(_shown_state(view)), cls="hm-title"), facts_grid(facts))


def _subject(view: JobView) -> list[tuple[str, str]]:
    if view.kind == "evaluate":
        return [("What", "Evaluation"), ("Suite", view.suite)]
    if view.kind == "diff":
        return [("What", "Comparison"), ("Visibility", "private" if view.private else "public")]
    return [("Method", _method_title(view.recipe)), ("Visibility", "private" if view.private else "public")]


def _elapsed(view: JobView) -> float | None:
    start, end = moment(view.started), moment(view.finished) or datetime.now(UTC)
    return (end - start).total_seconds() if start else None


def _method_title(recipe: Mapping[str, Any]) -> str:
    name = str(recipe.get("method", "unknown"))
    method = registry().get(name)
    return method.title if method else name


def stage_track(view: JobView) -> Markup:
    """The stages in order: passed, current (or where it stopped), and to come."""
    titles = _stages(view)
    current = _stage(view)
    names = list(titles)
    at = names.index(current) if current in names else -1
    items = []
    for k, name in enumerate(names):
        if view.state == "done" or (k < at and view.state != "queued"):
            kind = "passed"
        elif k == at and view.state != "queued":
            kind = {"failed": "broken", "cancelled": "stopped"}.get(view.state, "current")
        else:
            kind = "ahead"
        step = {"aria_current": "step"} if kind == "current" else {}
        items.append(el("li", titles[name], cls=f"hm-{kind}", data_stage=name, **step))
    return el("ol", *items, cls="hm-stages", aria_label="Stages")


def _stages(view: JobView) -> Mapping[str, str]:
    if view.kind == "evaluate":
        return EVALUATION_STAGES
    if view.kind == "diff":
        first = ["compile"] if view.stage == "compile" else []
        return {name: STAGES[name] for name in ("resolve", *first, "download", "probe")}
    current = _stage(view)
    # only where a job is at it: weighing by sensitivities, resumed, or the first on a machine
    left_out = {"calibration", "verify", "compile"} - {current}
    if not _probes(view.recipe):
        left_out |= {"probe"} - {current}
    return {name: title for name, title in STAGES.items() if name not in left_out}


def _probes(recipe: Mapping[str, Any]) -> bool:
    """Whether a merge counts the whole model first."""
    method = registry().get(str(recipe.get("method", "")))
    if method is None:
        return False
    try:
        parameters = method.typical(recipe.get("parameters") or {})
    except ValueError:  # of a version with other parameters
        return False
    return method.overlap_scope(parameters) == "model"


def _stage(view: JobView) -> str:
    return view.stage if view.kind == "evaluate" else _ALIASES.get(view.stage, view.stage)


def progress_panel(view: JobView) -> Markup | None:
    """Bar, throughput and remaining time of the current stage; the place in the queue while waiting."""
    if view.state == "queued":
        place = {None: "It starts as soon as a worker is free.", 1: "It is next."}.get(
            view.queue_position, f"{(view.queue_position or 1) - 1} ahead of it."
        )
        return notice("info", "Waiting in the queue", el("p", place))
    if view.state not in ("running", "cancelling"):
        return None
    if view.state == "cancelling":
        return notice("warn", "Cancelling", el("p", "It stops at the next safe point; nothing half-done is published."))
    done, total = number_of(view.progress, "done"), number_of(view.progress, "total")
    if done is None or not total:
        return el("div", el("div", cls="hm-fill hm-moving"), cls="hm-bar", role="progressbar", aria_label="Working")
    share = min(max(done / total, 0.0), 1.0)
    unit = str((view.progress or {}).get("unit", ""))
    bytes_ = unit in ("B", "bytes")
    parts = [f"{bytes_text(done)} of {bytes_text(total)}" if bytes_ else f"{_count(done)} of {_count(total)} {unit}"]
    if speed := number_of(view.progress, "per_second"):
        if bytes_ or speed >= 1:  # 0.03 parts in a second tell nobody anything
            parts.append(f"{bytes_text(speed)}/s" if bytes_ else f"{_count(speed)} {unit}/s")
        parts.append(f"about {duration_text((total - done) / speed)} left in this stage")
    bar = el(
        "div",
        el("div", cls="hm-fill", style=f"width:{share * 100:.2f}%"),
        cls="hm-bar",
        role="progressbar",
        aria_label="Progress of this stage",
        aria_valuemin="0",
        aria_valuemax="100",
        aria_valuenow=f"{share * 100:.0f}",
    )
    amount = el("div", el("strong", percent_text(share)), el("span", " · ".join(parts)), cls="hm-amount")
    about = _ABOUT_STAGES.get(view.stage)
    return el("div", amount, bar, el("p", about, cls="hm-dim") if about else None)


def _count(number: float) -> str:
    return short_count(round(number))


def outcome_panel(view: JobView, endpoint: str) -> Markup | None:
    """How the job ended: the repo, or the reason why there is none; or that it cannot begin."""
    if view.state == "queued" and needs_login(view):
        again = link(f"merge?job={quote(view.id, safe='')}", "Sign in and start it once more")
        sentence = f"The sign-in that it would act with ended at {time_text(view.signed_in_until)}."
        return notice("warn", "It needs your login", el("p", sentence), el("p", again, ": it keeps its place."))
    if view.state == "done" and view.result and view.kind == "evaluate":
        return _recorded(view, view.result)
    if view.kind == "diff" and view.models and view.state == "done":
        return notice("good", "Compared", el("p", link(diff_href(*view.models), "What the training changed")))
    if view.state == "done" and view.result:
        repo = str(view.result.get("repo") or view.target)
        commit = str(view.result.get("commit") or "")
        return notice(
            "good",
            "Published",
            el("p", repo_link(endpoint, repo), cls="hm-result"),
            el("p", "Commit ", el("code", commit[:12])) if commit else None,
            _run_facts(view.result.get("run")),
        )
    if view.state == "failed":
        what = {"evaluate": "evaluation", "diff": "comparison"}.get(view.kind, "merge")
        title = f"The {what} failed"
        return problems_panel(view.error or {}, title)
    if view.state == "cancelled":
        return notice("info", "Cancelled", el("p", "Nothing was published."))
    return None


def _run_facts(run: object) -> Markup | None:
    """What the merge took of time, memory, disk and network."""
    if not isinstance(run, Mapping):
        return None
    facts: list[tuple[str, str]] = []
    if (seconds := number_of(run, "seconds")) is not None:
        took = duration_text(seconds) if seconds >= 0.5 else "under 1 s"
        facts.append(("Merged in", took + of_last_run(run)))
    for key, name in (("peak_rss_bytes", "Memory at its peak"), ("disk_high_water_bytes", "Disk at its peak")):
        if (amount := number_of(run, key)) is not None:
            facts.append((name, bytes_text(amount)))
    fetch = run.get("fetch")
    if isinstance(fetch, Mapping):
        facts += fetch_facts(fetch)
    return facts_grid(facts) if facts else None


def _recorded(view: JobView, result: Mapping[str, Any]) -> Markup:
    """The scores by domain, and where they stand now."""
    scores = result.get("scores")
    known = [(k, v) for k, v in scores.items() if isinstance(v, int | float)] if isinstance(scores, Mapping) else []
    return notice(
        "good",
        "Recorded",
        facts_grid((str(domain), percent_text(float(value))) for domain, value in known) if known else None,
        el("p", link(f"model?model={quote(view.target, safe='')}", "The model on the leaderboard")),
    )


def statistics_panel(view: JobView) -> Markup | None:
    """What the agents changed and where they meet, as far as it has been counted."""
    values = view.statistics
    if not values or not number_of(values, "elements"):
        return None
    elements = number_of(values, "elements") or 0
    agents = [a for a in values.get("agents") or () if isinstance(a, Mapping)]
    pairs = [p for p in values.get("pairs") or () if isinstance(p, Mapping)]
    counted = "counted so far" if view.state not in TERMINAL else "counted"
    return section(
        "What the agents changed",
        el("p", f"{_count(elements)} parameters {counted}.", cls="hm-dim"),
        _share_bar(values.get("shares") or {}),
        table(("Agent", "Changed", "of it unique", "of it shared", "Shared / unique"), [_agent_row(a) for a in agents]),
        _concentration_table(agents),
        _overlap_table(values.get("overlap_share") or (), len(agents)),
        table(("Pair", "Jaccard", "Cosine", "Same sign"), [_pair_row(p) for p in pairs]) if pairs else None,
    )


def _share_bar(shares: Mapping[str, Any]) -> Markup:
    """All parameters as one bar, to scale: those changed by one agent, by several, and by none."""
    known = [(name, text, share) for name, text in _SHARES if (share := number_of(shares, name)) is not None]
    parts = [
        el("div", cls=f"hm-part hm-{name}", style=f"width:{min(share, 1.0) * 100:.3f}%")
        for name, _, share in known
        if share > 0
    ]
    legend = [
        el("li", el("i", cls=f"hm-{name}"), f"{text}: ", el("strong", percent_text(share)))
        for name, text, share in known
    ]
    said = ", ".join(f"{text}: {percent_text(share)}" for _, text, share in known)
    bar = el("div", *parts, cls="hm-stack", role="img", aria_label=f"Share of the parameters changed by {said}")
    return el("figure", bar, el("figcaption", "Changed by", el("ul", *legend)), cls="hm-shares")


def _agent_row(agent: Mapping[str, Any]) -> Sequence[object]:
    density, unique = number_of(agent, "density"), number_of(agent, "unique_share")
    rho = agent.get("rho")
    changed = density is not None and density > 0
    return (
        str(agent.get("agent", "")),
        _meter(density),
        percent_text(unique) if unique is not None and changed else "–",
        percent_text(1 - unique) if unique is not None and changed else "–",
        "∞" if rho == "inf" else f"{rho:.3g}" if isinstance(rho, int | float) else "–",
    )


def _concentration_table(agents: Sequence[Mapping[str, Any]]) -> Markup | None:
    """How unevenly each update is spread; nothing before it was counted."""
    rows = [_concentration_row(a) for a in agents if number_of(a, "gini") is not None]
    head = ("Concentration", "Gini of |δ|", "|δ| in the top 1 %", "in the top 5 %", "L0 sparsity", "Kurtosis")
    return table(head, rows) if rows else None


def _concentration_row(agent: Mapping[str, Any]) -> Sequence[object]:
    shares = [number_of(agent, key) for key in ("top_1_mass", "top_5_mass", "l0_sparsity")]
    gini, kurtosis = number_of(agent, "gini"), number_of(agent, "kurtosis")
    return (
        str(agent.get("agent", "")),
        "–" if gini is None else f"{gini:.3f}",
        *("–" if s is None else percent_text(s) for s in shares),
        "–" if kurtosis is None else f"{kurtosis:.3g}",
    )


def _meter(share: float | None) -> Markup | str:
    if share is None:
        return "–"
    fill = el("span", cls="hm-meter-fill", style=f"width:{min(share, 1.0) * 100:.2f}%")
    return el("span", el("span", fill, cls="hm-meter"), percent_text(share), cls="hm-cell")


def _overlap_table(shares: Sequence[Any], agents: int) -> Markup | None:
    """How many agents changed an element: 0 … K."""
    values = [s for s in shares if isinstance(s, int | float)]
    if agents < 3 or len(values) != agents + 1:
        return None  # with two agents the bar above says the same
    columns = ("no agent", "1 agent", *(f"{c} agents" for c in range(2, agents + 1)))
    return table(("Changed by", *columns), [("Parameters", *(percent_text(s) for s in values))])


def _pair_row(pair: Mapping[str, Any]) -> Sequence[object]:
    names = [str(n) for n in pair.get("agents") or ()]
    numbers = [number_of(pair, key) for key in ("jaccard", "cosine", "sign_agreement")]
    shown = ["–" if n is None else f"{n:.3f}" for n in numbers[:2]]
    return (" + ".join(names), *shown, "–" if numbers[2] is None else percent_text(numbers[2]))


def job_panel(view: JobView, endpoint: str) -> tuple[Markup, Markup, Markup]:
    """The three parts of a job's page: head with progress and outcome, warnings, statistics."""
    head = join(job_header(view), stage_track(view), progress_panel(view), outcome_panel(view, endpoint))
    return head, join(warnings_panel(view.warnings)), join(statistics_panel(view))


def job_list(views: Sequence[JobView]) -> Markup:
    """A visitor's jobs, newest first."""
    rows = [
        (
            link(job_href(v.id), v.target),
            badge(_shown_state(v)),
            _what(v),
            _where(v),
            time_text(v.created),
        )
        for v in views
    ]
    return table(("Model", "State", "What", "Stage", "Submitted"), rows)


def _what(view: JobView) -> str:
    if view.kind == "merge":
        return _method_title(view.recipe)
    return f"Evaluation: {view.suite}" if view.kind == "evaluate" else "Comparison"


def _where(view: JobView) -> str:
    if view.state == "queued":
        return "" if view.queue_position is None else f"number {view.queue_position} in the queue"
    if view.state not in ("running", "cancelling"):
        return ""
    stage = _stage(view)
    done, total = number_of(view.progress, "done"), number_of(view.progress, "total")
    share = f" {percent_text(min(done / total, 1.0))}" if done is not None and total else ""
    return {**STAGES, **EVALUATION_STAGES}.get(stage, stage) + share

"""The steps of a job: which it has passed, what it does now and what is left of it, and the log of what happened."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import ceil
from typing import Any

from markupsafe import Markup

from hubmerge.methods import registry
from hubmerge.text.markdown import short_count
from workflows.app.format import bytes_text, duration_text, el, moment, percent_text
from workflows.app.panels import coded, fold, notice, table
from workflows.values import JobView, LogLine, Scoring, number, number_of, table_of

TERMINAL = ("done", "failed", "cancelled")
# stage → its name, and what the job does then
_MERGE = {
    "resolve": ("Read", "It reads which files the models have, and whether they fit each other."),
    "calibration": ("Calibrate", "It measures which weights of each agent matter most."),
    "plan": ("Plan", "It plans every part of the new model."),
    "verify": ("Check", "It checks what an earlier attempt finished, so as not to do it again."),
    "compile": ("Set up", "It compiles what every merge on this machine needs, once; later merges skip this."),
    "download": ("Download", "It downloads the models."),
    "probe": ("Measure", "It counts what each agent changed, and where agents meet."),
    "merge": ("Merge", "It merges the models, part by part."),
    "card": ("Describe", "It writes the model's card and draws its figures."),
    "publish": ("Publish", "It uploads the new model."),
}
_EVALUATION = {
    "resolve": _MERGE["resolve"],
    "fetch model": ("Fetch model", "It downloads the model."),
    "fetch data": ("Fetch questions", "It downloads the questions."),
    "start lighteval": ("Start", "It starts the evaluation."),
    "load model": ("Load", "It loads the model."),
    "generate": ("Answer", "The model answers the questions."),
    "score": ("Score", "The answers are scored."),
    "record": ("Record", "The scores are recorded."),
    "publish": ("Update cards", "It writes the scores on cards."),
}
STAGES = {stage: name for stage, (name, _) in _MERGE.items()}
EVALUATION_STAGES = {stage: name for stage, (name, _) in _EVALUATION.items()}
_ALIASES = {"fetch": "download", "select": "probe", "sensitivity": "calibration"}
_ALIASES |= dict.fromkeys(("upload", "commit"), "publish")


def is_under_way(view: JobView) -> bool:
    """Whether a page that shows the job still has something to wait for: its end, or its scores."""
    return view.state not in TERMINAL or any(s.state not in TERMINAL for s in view.evaluations)


def stage_track(view: JobView) -> Markup:
    """The way of a job, from its place in the queue to the scores: passed, current (or where it stopped), to come."""
    titles = {"queued": "Wait", **_stages(view)}
    stage = "queued" if view.state == "queued" else stage_of(view)
    at = list(titles).index(stage) if stage in titles else 0
    steps = []
    for k, (name, title) in enumerate(titles.items()):
        kind = "passed" if view.state == "done" or k < at else "ahead"
        if kind == "ahead" and k == at:
            kind = {"failed": "broken", "cancelled": "stopped"}.get(view.state, "current")
        steps.append((name, title, kind))
    if view.evaluations:
        own, *parents = view.evaluations
        steps.append(("evaluated", "Evaluate", _scoring_kind([own])))
        steps.append(("parents", "Evaluate parents", _scoring_kind(parents)))
    items = (
        el("li", title, cls=f"hm-{kind}", data_stage=name, aria_current="step" if kind == "current" else "")
        for name, title, kind in steps
    )
    return el("ol", *items, cls="hm-stages", aria_label="Stages")


def _scoring_kind(scorings: Sequence[Scoring]) -> str:
    states = {scoring.state for scoring in scorings}
    if states <= {"done"}:
        return "passed"
    if "running" in states or ("done" in states and not states & {"failed", "cancelled"}):
        return "current"
    return "broken" if states <= set(TERMINAL) else "ahead"


def _stages(view: JobView) -> Mapping[str, str]:
    if view.kind == "evaluate":
        return EVALUATION_STAGES
    if view.kind == "diff":
        first = ["compile"] if view.stage == "compile" else []
        return {name: STAGES[name] for name in ("resolve", *first, "download", "probe")}
    current = stage_of(view)
    met = {current, *(stage_of(view, line.stage) for line in view.log)}
    # only where a job met it: weighing by sensitivities, resumed, or the first on a machine
    left_out = {"calibration", "plan", "verify", "compile", "probe"} - met
    method = registry().get(str(view.recipe.get("method", "")))
    with suppress(ValueError):  # of a version with other parameters
        if method and method.overlap_scope(method.typical(table_of(view.recipe, "parameters"))) == "model":
            left_out.discard("probe")
    return {name: title for name, title in STAGES.items() if name not in left_out}


def stage_of(view: JobView, stage: str | None = None) -> str:
    """The job's present stage, or an earlier one, by the name that pages know it by."""
    stage = view.stage if stage is None else stage
    return stage if view.kind == "evaluate" else _ALIASES.get(stage, stage)


def progress_panel(view: JobView, now: datetime | None = None) -> Markup | None:
    """What the job does now, in a sentence, with a bar and what is left; while it waits, its place."""
    now = now or datetime.now(UTC)
    if view.state == "queued":
        problem = next(iter((view.error or {}).get("problems") or ()), None)
        if view.attempt and problem:
            where = re.sub(r"(@[0-9a-f]{12})[0-9a-f]{28}\b", r"\1", str(problem.get("where") or ""))
            told = ": ".join(filter(None, (where, problem.get("what"))))
            again = "Nothing is needed from you: it is tried again by itself."
            return notice("warn", "It did not work this time", el("p", told), el("p", again), el("p", place_text(view)))
        return notice("info", "Waiting for its turn", el("p", place_text(view)))
    if view.state == "cancelling":
        return notice("warn", "Cancelling", el("p", "It stops at the next safe point; nothing half-done is published."))
    if view.state != "running":
        return None
    begun = next((line.time for line in reversed(view.log) if line.kind in ("stage", "claimed")), None)
    spent = (now - began).total_seconds() if (began := moment(begun)) else 0.0
    said = el("p", _doing(stage_of(view), view.kind, "It is being set up."), cls="hm-doing")
    done, total = number_of(view.progress, "done"), number_of(view.progress, "total")
    known = done is not None and bool(total) and not (done == 0 and total == 1)
    share = min(max((done or 0) / (total or 1), 0.0), 1.0) if known else None
    parts = [] if share is None else _amounts(view.progress or {}, done or 0, total or 0)
    left = _left(view, now) if share is not None and share < 1 else None
    if left is not None:
        parts.append("almost done with this step" if left < 1 else f"about {duration_text(left)} left in this step")
    elif view.typical_s is not None and view.typical_s >= 1:
        parts.append(f"{duration_text(spent)} so far; it usually takes about {duration_text(view.typical_s)}")
    elif spent >= 1:
        parts.append(f"{duration_text(spent)} so far")
    if left is None and view.typical_s is not None and spent < view.typical_s:
        left = view.typical_s - spent
    after = view.after_s
    if view.predicted_s is not None and stage_of(view) in _BEFORE_THE_PASSES:
        after = max(after or 0.0, view.predicted_s)
    whole = None  # while the step takes longer than it usually does
    if after is not None and left is not None:
        whole = el("p", f"About {_about(left + after)} left {_UNTIL.get(view.kind, 'in all')}.", cls="hm-left")
    strong = el("strong", percent_text(share)) if share is not None else None
    amount = el("div", strong, el("span", " · ".join(parts)), cls="hm-amount") if parts else None
    if share is None:
        fill, marks = el("div", cls="hm-fill hm-moving"), {"aria_label": "Working"}
    else:
        fill = el("div", cls="hm-fill", style=f"width:{share * 100:.2f}%")
        marks = {"aria_label": "Progress of this step", "aria_valuemin": "0", "aria_valuemax": "100"}
        marks["aria_valuenow"] = f"{share * 100:.0f}"
    return el("div", said, amount, el("div", fill, cls="hm-bar", role="progressbar", **marks), whole)


# before the weights are read; what is left is at least what the plan predicts
_BEFORE_THE_PASSES = ("resolve", "calibration", "plan", "verify", "compile", "download")
_UNTIL = {"merge": "until it is published", "evaluate": "until its scores are recorded", "diff": "until it is done"}


def _about(seconds: float) -> str:
    """Rounded up to 5 s, a minute or 5 minutes, since more would be no estimate."""
    step = 5 if seconds <= 60 else 60 if seconds <= 3600 else 300
    return duration_text(max(ceil(seconds / step), 1) * step).removesuffix(" 0 s").removesuffix(" 0 min")


def _doing(stage: str, kind: str, otherwise: str) -> str:
    return (_EVALUATION if kind == "evaluate" else _MERGE).get(stage, ("", otherwise))[1]


def place_text(view: JobView) -> str:
    """Where a job that waits stands, and how long it will."""
    ahead = (view.queue_position or 1) - 1
    place = {0: "It is next.", 1: "1 job is ahead of it."}.get(ahead, f"{ahead} jobs are ahead of it.")
    if view.queue_position is None:
        place = "It starts as soon as a worker is free."
    if view.typical_s is None or view.typical_s < 1:
        return place
    return f"{place} It starts in about {duration_text(view.typical_s)}, going by earlier jobs."


def _left(view: JobView, now: datetime) -> float | None:
    """Seconds left in the stage: what the last report says, less the time since; None where that is over, and the
    share that is done would say otherwise.
    """
    speed, said = number_of(view.progress, "per_second"), moment(str((view.progress or {}).get("at", "")))
    done, total = number_of(view.progress, "done"), number_of(view.progress, "total")
    if not speed or done is None or total is None:
        return None
    left = number((total - done) / speed - ((now - said).total_seconds() if said else 0.0))
    return left if left is not None and left >= 0 else None


def _amounts(progress: Mapping[str, Any], done: float, total: float) -> list[str]:
    """How much is done, and how much is done in a second where that is known."""
    speed, unit = number_of(progress, "per_second"), str(progress.get("unit", ""))
    if unit in ("B", "bytes"):
        return [f"{bytes_text(done)} of {bytes_text(total)}", *([f"{bytes_text(speed)}/s"] if speed else [])]
    words = "weights" if unit == "elements" else unit
    pace = [f"{short_count(round(speed))} {words}/s"] if speed and speed >= 1 else []  # 0.03 parts tell nothing
    return [f"{short_count(round(done))} of {short_count(round(total))} {words}".rstrip(), *pace]


def log_panel(view: JobView) -> Markup | None:
    """What happened, folded: every step with its time and how long it took, warnings, and attempts."""
    if not view.log:
        return None
    form = "%H:%M:%S" if len({line.time[:10] for line in view.log}) == 1 else "%Y-%m-%d %H:%M:%S"
    rows = []
    for k, line in enumerate(view.log):
        words = _said(line, view)
        if words is None:
            continue
        after = next((later.time for later in view.log[k + 1 :] if later.kind != "warning"), None)
        begin, end = moment(line.time), moment(after)
        took = duration_text((end - begin).total_seconds()) if line.kind == "stage" and begin and end else ""
        rows.append((el("time", f"{begin:{form}}" if begin else "", datetime=line.time), coded(words), took))
    return fold("What happened so far", table(("At (UTC)", "What", "Took"), rows), cls="hm-section")


def _said(line: LogLine, view: JobView) -> str | None:
    if line.kind == "stage":
        return _doing(stage_of(view, line.stage), view.kind, line.stage)
    attempt = line.attempt or 1
    return {
        "submitted": "It was submitted.",
        "claimed": "It began." if attempt == 1 else f"It began again, attempt {attempt}.",
        "warning": f"Warning: {line.text}",
        "retry": f"It failed and is tried again: {line.text}",
        "lost": "The machine gave it up; it goes on from what was finished.",
        "released": "The app was restarted; it goes on from what was finished.",
        "cancel_requested": "Somebody asked to cancel it.",
        "done": "It was done.",
        "failed": f"It failed: {line.text}",
        "cancelled": "It was cancelled.",
    }.get(line.kind)

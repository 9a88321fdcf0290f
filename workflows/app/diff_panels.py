"""Panels of a comparison: its models, its progress, and what the training changed. Pure, escaped (format.py)."""

from __future__ import annotations

from base64 import b64encode

from markupsafe import Markup

from hubmerge.output.diff import TOP, Diff
from hubmerge.output.diff_words import (
    NOTHING_CHANGED,
    TOP_TITLES,
    Table,
    compared,
    facts,
    layer_table,
    module_table,
    thresholds,
    top_table,
    verdict,
)
from hubmerge.plan.plan import Plan
from workflows.app.format import bytes_text, el, join, repo_link
from workflows.app.job_panels import badge
from workflows.app.job_steps import progress_panel, stage_track
from workflows.app.panels import notice, problems_panel, section, table, warnings_panel
from workflows.app.service import JobView

LISTED = 10  # tensors


def models_panel(plan: Plan, endpoint: str) -> Markup:
    """The two models with their commits, and how much there is to read."""
    cells = []
    for word, model in (("Before", plan.base), ("After", plan.agents[0])):
        ref, dtypes = model.ref, sorted({t.entry.dtype for t in model.tensors.values()})
        pinned = join(repo_link(endpoint, ref.id, ref.sha), el("code", ref.sha[:12], cls="hm-sha"))
        cells.append((word, pinned, model.kind, ", ".join(dtypes), bytes_text(model.weight_bytes)))
    return table(("Role", "Model", "Kind", "Stored as", "Size"), cells)


def not_compared(plan: Plan, *, signed_in: bool) -> Markup:
    how = "Compare reads both, which takes seconds to minutes." if signed_in else "Sign in to have them compared."
    told = notice("info", "These models fit, and were not compared yet", el("p", how))
    return join(told, warnings_panel(plan.warnings))


def job_standing(job: JobView) -> Markup:
    """The progress of the comparison, or the reason why there is none."""
    if job.state == "failed":
        return problems_panel(job.error or {}, "The comparison failed")
    if job.state == "cancelled":
        return notice("info", "It was cancelled", el("p", "Compare starts it again."))
    return join(el("p", badge(job.state)), stage_track(job), progress_panel(job), warnings_panel(job.warnings))


def diff_panel(diff: Diff, figure: bytes) -> Markup:
    """The changes of the training: a figure, and tables of numbers."""
    told = el("p", f"{compared(diff)}.", cls="hm-dim")
    if diff.nothing_changed:
        return join(notice("good", NOTHING_CHANGED), told, warnings_panel(diff.warnings))
    source = f"data:image/svg+xml;base64,{b64encode(figure).decode('ascii')}"
    picture = el("img", src=source, alt="What changed by layer and module type, and how large single changes are")
    tops = [_section(top_table(diff, by, LISTED), folded=by != TOP[0]) for by in TOP_TITLES]
    layers = _section(layer_table(diff), folded=True) if diff.layers else None
    pairs = el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in facts(diff)), cls="hm-pairs")
    return join(
        el("p", el("strong", verdict(diff))),
        told,
        warnings_panel(diff.warnings),
        el("figure", picture, cls="hm-figure", tabindex="0"),
        _section(module_table(diff)),
        layers,
        *tops,
        _folded("The update in numbers", join(pairs, el("p", thresholds(diff), cls="hm-dim"))),
    )


def _section(content: Table, *, folded: bool = False) -> Markup:
    shown = table(content.head, content.rows)
    if not folded:
        return section(content.title, shown)
    return _folded(content.title, shown)


def _folded(title: str, content: object) -> Markup:
    return el("details", el("summary", title), content, cls="hm-section")

"""The report: everything that is known of a finished merge, as one typed value.

`hubmerge.json` holds it, and the card and its figures are made from it alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from hubmerge import __version__
from hubmerge.engine.stream import MergeResult
from hubmerge.methods import get_method
from hubmerge.methods.base import Scope
from hubmerge.methods.tensor_values import Values, by_layer
from hubmerge.output.task import task_of
from hubmerge.plan.compatibility import architecture
from hubmerge.plan.plan import Plan
from hubmerge.sources.ancestry import Ancestor, ancestors_in
from hubmerge.sources.base import Model
from hubmerge.sources.companions import MODULES
from hubmerge.statistics.statistics import Overlaps, Tally
from hubmerge.statistics.summary import summarize
from hubmerge.text.markdown import factor
from hubmerge.text.wording import counted

SCHEMA = 3
SIXTEEN_BITS = ("BF16", "F16")


@dataclass(frozen=True)
class Parent:
    """One input, pinned."""

    role: str  # "base" or "agent"
    label: str
    kind: str  # "hub" or "local"
    id: str
    sha: str
    requested: str  # the branch or tag that was asked for
    license: str | None  # as its card states it
    gated: bool
    private: bool
    weight: float  # where it differs from tensor to tensor: its mean over what this agent alone changed
    made_from: tuple[Ancestor, ...] = ()  # as a public parent states it


@dataclass(frozen=True)
class OutputFile:
    name: str
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class AgentOutcome:
    """How much of one agent the output holds; fields are None where the region is empty."""

    agent: str
    scale: float | None  # λt, where the method multiplies the agent's unique updates by its weight and a λ of its own
    effective_scale: float | None  # measured on the stored output, unique region
    # the same, had the other rounding mode been used; measured where the method rescales and 16 bits are written
    effective_scale_other_rounding: float | None
    kept_unique: float | None  # ⟨δ*, δt⟩/⟨δt, δt⟩ before rounding; the unique region's counterpart of `kept_shared`
    kept_shared: float | None


@dataclass(frozen=True, repr=False)
class Report:
    """A finished merge. JSON in and out without loss (`to_json`, `from_json`)."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    schema: int
    hubmerge: str  # version
    identity: str  # sha256 of pinned inputs, recipe and target; the job's id
    target: str  # repo id, or "" for a folder
    created: str  # UTC, ISO 8601
    recipe: Mapping[str, Any]
    recipe_yaml: str  # with every model pinned
    method: Mapping[str, Any]  # name, title, formula, papers, parameters
    parents: tuple[Parent, ...]
    architecture: str
    parameters: int  # elements of the output
    dtype: tuple[str, ...]
    rounding: str
    files: tuple[OutputFile, ...]  # weights
    statistics: Mapping[str, Any]  # total, modules, layers: see docs/statistics.md
    outcomes: tuple[AgentOutcome, ...]
    result: Mapping[str, int]  # elements, changed, rounded, nonfinite
    license: Mapping[str, str]  # id, and name/link for "other"
    warnings: tuple[str, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)  # versions, hardware, seconds, peak memory
    evaluations: tuple[Mapping[str, Any], ...] = ()
    # what each agent's sensitivity rests on: data, digest of the rows as tokenized, pairs, torch, transformers, file
    sensitivities: tuple[Mapping[str, Any], ...] = ()
    tokenizer: str = "base"  # whose: the base's, with agents' tokens ("union"), or that of the agent so labelled
    task: Mapping[str, Any] = field(default_factory=dict)  # Task.as_dict; {} in reports of before it was known

    def __repr__(self) -> str:
        merge = f"{self.method['title']} of {counted(len(self.recipe['agents']), 'agent')}"
        return f"<Report {self.identity[:16]}: {merge}, {self.parameters:,} parameters>"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Report":
        json.dumps(data, allow_nan=False)  # ValueError for what could not be written again
        if data["schema"] != SCHEMA:
            raise ValueError(f"a report of schema {data['schema']!r}, where {SCHEMA} is known"[:200])
        parents = [p | {"made_from": ancestors_in(p.get("made_from"))} for p in data["parents"]]
        return TypeAdapter(cls).validate_python({**data, "parents": parents})


def make_report(
    plan: Plan,
    merged: MergeResult,
    *,
    identity: str,
    target: str,
    created: str,
    license: Mapping[str, str],
    environment: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> Report:
    """The report of a finished merge."""
    method = get_method(plan.recipe.method)
    statistics = merged.statistics
    labels = statistics.agents
    total = statistics.total
    result = merged.total
    scales, weights = _intended(plan, merged, total)
    own = {label: dict(a.parameters) for label, a in zip(labels, plan.recipe.agents, strict=True) if a.parameters}
    varying = by_layer(plan.recipe.given, plan.values, labels)
    # elsewhere the tally holds a copy of what was stored
    both_roundings = method.rescales and any(d in SIXTEEN_BITS for d in plan.merged_dtypes)
    return Report(
        schema=SCHEMA,
        hubmerge=__version__,
        identity=identity,
        target=target,
        created=created,
        recipe=plan.recipe.to_dict(),
        recipe_yaml=plan.recipe.to_yaml(),
        method={
            **{name: getattr(method, name) for name in ("name", "title", "summary", "formula")},
            "papers": [asdict(p) for p in method.papers],
            "parameters": dict(plan.recipe.parameters),
            **({"own": own} if own else {}),
            **({"by_layer": varying} if varying else {}),
        },
        parents=(
            _parent(plan.base, "base", plan.base_label, 1.0),
            *(_parent(m, "agent", label, w) for m, label, w in zip(plan.agents, labels, weights, strict=True)),
        ),
        architecture=architecture(plan.base),
        parameters=plan.elements,
        dtype=tuple(sorted({t.dtype for t in plan.tensors()})),
        rounding=plan.rounding,
        files=tuple(OutputFile(s.filename, s.size, s.sha256) for s in merged.shards),
        statistics={
            "epsilon": statistics.epsilon,
            "agents": list(labels),
            "total": summarize(total, labels),
            "modules": {name: summarize(t, labels) for name, t in statistics.by_module().items()},
            "layers": {str(depth): summarize(t, labels) for depth, t in statistics.by_layer().items()},
        },
        outcomes=tuple(
            AgentOutcome(label, scale, stored, other if both_roundings else None, *kept)
            for label, scale, stored, other, *kept in zip(
                labels,
                scales,
                result.effective_scale,
                result.effective_scale_other,
                result.kept_unique,
                result.kept_shared,
                strict=True,
            )
        ),
        result={name: getattr(result, name) for name in ("elements", "changed", "rounded", "nonfinite")},
        license=dict(license),
        warnings=(*plan.warnings, *notes),
        environment=dict(environment),
        sensitivities=tuple(
            {"agent": label, **rows.as_dict()} for label, rows in zip(labels, plan.calibration, strict=False)
        ),
        tokenizer=_tokenizer(plan, labels),
        task=task_of(
            plan.config, modules=MODULES in plan.base.files, stated=plan.base.card.get("pipeline_tag")
        ).as_dict(),
    )


def _tokenizer(plan: Plan, labels: Sequence[str]) -> str:
    if plan.vocabulary is None:
        return "base"
    if plan.vocabulary.united:
        return "union"
    return labels[plan.vocabulary.donor - 1] if plan.vocabulary.donor else "base"


def _intended(plan: Plan, merged: MergeResult, total: Tally) -> tuple[tuple[float | None, ...], tuple[float, ...]]:
    """λt per agent on its unique region where the method has one, and its weight.

    Where tensors have their own, it is their mean by Σ δt² there, which is what `effective_scale` measures of the
    output: the weight such that weight times λt is the mean of their product.
    """
    method, agents = get_method(plan.recipe.method), len(plan.agents)

    def scope(values: Values, tensor: Overlaps | None) -> Scope:
        return Scope(values.parameters, values.weights, total.overlaps, tensor, own=values.own)

    first = plan.values.distinct[0]
    scales = method.scales(scope(first, None))
    if plan.overlap_scope != "tensor" and not plan.values.vary:
        return scales, first.weights
    sums = np.zeros((3, agents))  # Σ λt Σ δt², Σ wt λt Σ δt², and Σ Σ δt²
    plain = np.zeros((2, agents))  # Σ wt n and Σ n, for agents without a unique element
    for name, result in merged.result.items():
        values = plan.values[name]
        lambdas = method.scales(scope(values, merged.statistics.tensors[name].overlaps))
        own = np.array([1.0 if scale is None else scale for scale in lambdas])
        sums += np.array([own, own * values.weights, np.ones(agents)]) * result.unique_norm
        plain += np.array([values.weights, np.ones(agents)]) * result.elements
    means = tuple(
        float(a / b) if b and scale is not None else scale for a, b, scale in zip(sums[0], sums[2], scales, strict=True)
    )
    if not plan.values.vary:
        return means, first.weights
    weights = tuple(
        float(both / alone if alone else w / max(n, 1))
        for both, alone, w, n in zip(sums[1], sums[0], *plain, strict=True)
    )
    return means, weights


def _parent(model: Model, role: str, label: str, weight: float) -> Parent:
    ref = model.ref
    pinned = (ref.kind, ref.id, ref.sha, ref.requested)
    return Parent(role, label, *pinned, model.license, model.gated, model.private, weight, model.made_from)


def sweep_table(reports: Mapping[str, Report]) -> str:
    """A Markdown table of the variants: how much each kept of every agent."""
    [labels] = {tuple(o.agent for o in r.outcomes) for r in reports.values()}
    head = ["variant", *(f"{label}: unique, shared" for label in labels), "changed", "sha256"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, report in reports.items():
        kept = [f"{factor(o.effective_scale)}, {factor(o.kept_shared)}" for o in report.outcomes]
        changed = f"{report.result['changed'] / max(report.result['elements'], 1):.2%}"
        lines.append("| " + " | ".join([f"`{name}`", *kept, changed, f"`{report.files[0].sha256[:12]}`"]) + " |")
    return (
        "What each variant kept of an agent: its unique updates as stored (effective λ), and its shared ones "
        "before rounding.\n\n" + "\n".join(lines) + "\n"
    )

"""The card's scores: every task beside every parent, and per domain what the merge kept of the best parent.

A row of `report.evaluations` is a mapping with `task`, `metric` and `value` (None: the run failed), and optionally
`domain`, `stderr`, `samples`, `model` (a parent's label, or nothing for the merge itself), and what pins the
measurement: `suite`, `suite_version`, `few_shot`, `dataset`, `dataset_revision`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hubmerge.markdown import Markdown, factor, percent
from hubmerge.output.domains import ParentLine, domain_line, domain_order
from hubmerge.output.intervals import Estimate, mean, score_interval
from hubmerge.output.report import Parent

_MERGE = "this merge"
_ID = re.compile(r"[A-Za-z0-9][\w.\-]{0,95}(/[A-Za-z0-9][\w.\-]{0,95})?", re.ASCII)
_NAME = re.compile(r"[\w.:\-]{1,100}", re.ASCII)

# tasks whose dataset the Hub lists as a benchmark: task → (dataset, the benchmark's task id)
BENCHMARKS: Mapping[str, tuple[str, str]] = {"gsm8k": ("openai/gsm8k", "gsm8k")}


def scores_view(rows: Sequence[Mapping[str, Any]], parents: Sequence[Parent]) -> dict[str, Any] | None:
    """What the template prints; None without rows."""
    if not rows:
        return None
    models = list(dict.fromkeys([_MERGE, *(str(r.get("model") or _MERGE) for r in rows)]))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        line = lines.setdefault((str(row.get("task", "—")), str(row.get("metric", "—"))), {})
        line[str(row.get("model") or _MERGE)] = _score(row)
    return {
        "models": models,
        "lines": [(task, metric, [line.get(m, "—") for m in models]) for (task, metric), line in lines.items()],
        "domains": _domains(rows, parents),
    }


def _score(row: Mapping[str, Any]) -> str:
    value, samples = row.get("value"), row.get("samples")
    if not isinstance(value, int | float):
        return "failed" if value is None else str(value)
    estimate = _estimate(row)
    if estimate is None:
        return factor(value)
    cut = row.get("truncated")
    told = f", {cut:,} prompts cut" if isinstance(cut, int) and cut > 0 else ""
    return f"{factor(value)} ({factor(estimate.low)} to {factor(estimate.high)}, n = {samples:,}{told})"


def _estimate(row: Mapping[str, Any]) -> Estimate | None:
    value, samples, stderr = row.get("value"), row.get("samples"), row.get("stderr")
    if not isinstance(value, int | float) or not isinstance(samples, int) or samples < 1 or not 0 <= value <= 1:
        return None
    return score_interval(value, samples, stderr if isinstance(stderr, int | float) else None)


def _domains(rows: Sequence[Mapping[str, Any]], parents: Sequence[Parent]) -> list[tuple[str, Any, Any, str, str]]:
    """(domain, merge, best parent, retention, verdict) where the merge and a parent have a score of the same tasks."""
    found: dict[str, dict[str, dict[str, Estimate]]] = {}
    for row in rows:
        estimate = _estimate(row)
        if estimate is not None and row.get("domain"):
            tasks = found.setdefault(str(row["domain"]), {}).setdefault(str(row.get("model") or _MERGE), {})
            tasks[str(row.get("task"))] = estimate
    view = []
    for domain in sorted(found, key=domain_order):
        own = found[domain].get(_MERGE)
        if own is None:
            continue
        score = mean(list(own.values()))
        lines = [_parent(p, domain, found[domain].get(p.label, {}), own) for p in parents]
        line = domain_line(domain, score, lines)
        if line.best_parent is not None:
            best = next(p for p in lines if p.id == line.best_parent).domains[domain]
            kept = "—" if line.retention is None else _kept(line.retention)
            view.append((domain, _range(score), f"{line.best_parent}: {_range(best)}", kept, line.verdict))
    return view


def _parent(parent: Parent, domain: str, tasks: Mapping[str, Estimate], own: Mapping[str, Estimate]) -> ParentLine:
    role: Literal["base", "agent"] = "base" if parent.role == "base" else "agent"
    if tasks.keys() != own.keys():
        return ParentLine(role, parent.label, parent.sha, parent.weight, "not scored")
    return ParentLine(role, parent.label, parent.sha, parent.weight, "scored", {domain: mean(list(tasks.values()))})


def _range(estimate: Estimate) -> Markdown:
    return Markdown(f"{factor(estimate.value)} ({factor(estimate.low)} to {factor(estimate.high)})")


def _kept(retention: Estimate) -> str:
    high = f"to {percent(retention.high)}" if math.isfinite(retention.high) else "or more"
    return f"{percent(retention.value)} ({percent(retention.low)} {high})"


def model_index(name: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The card header's `model-index`: the merge's scores on tasks that are no registered benchmark."""
    results = []
    for row in rows:
        task, metric, dataset = (str(row.get(key) or "") for key in ("task", "metric", "dataset"))
        revision, estimate = str(row.get("dataset_revision") or ""), _estimate(row)
        texts = _NAME.fullmatch(task) and _NAME.fullmatch(metric) and _ID.fullmatch(dataset)
        if row.get("model") or estimate is None or not texts or is_benchmark(row):
            continue
        described = {"type": dataset, "name": task}
        if re.fullmatch(r"[0-9a-f]{40}", revision):
            described["revision"] = revision
        results.append(
            {
                "task": {"type": "text-generation"},
                "dataset": described,
                "metrics": [{"type": metric, "name": metric, "value": round(estimate.value, 6), "verified": False}],
            }
        )
    return [{"name": name, "results": results}] if results else []


def is_benchmark(row: Mapping[str, Any]) -> bool:
    """The row's score belongs to a registered benchmark, hence into `.eval_results/`."""
    return BENCHMARKS.get(str(row.get("task")), ("", ""))[0] == row.get("dataset")

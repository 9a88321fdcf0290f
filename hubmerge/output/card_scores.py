"""The card's scores: the skills that the merge kept, its domains beside the best parent, every task beside them all.

A row of `report.evaluations` is a mapping with `task`, `metric` and `value` (None: the run failed), and optionally
`domain`, `title`, `stderr`, `samples`, `model` (a parent's label, or nothing for the merge itself), how it was asked
(`prompt` with what differs between questions in braces, `chat`: by the chat template), and what pins the measurement:
`suite`, `suite_version`, `few_shot`, `dataset`, `dataset_revision`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from hubmerge.hub.names import is_hub_id, is_sha
from hubmerge.output.report import Parent
from hubmerge.output.scores import (
    DomainLine,
    Estimate,
    ParentLine,
    domain_line,
    domain_order,
    mean,
    score_interval,
    skills_kept,
    verdict,
)
from hubmerge.text.markdown import factor

_MERGE = "this merge"
_NAME = re.compile(r"[\w.:@=&\-]{1,100}", re.ASCII)

# tasks whose dataset the Hub lists as a benchmark: task → (dataset, the benchmark's task id)
BENCHMARKS: Mapping[str, tuple[str, str]] = {"gsm8k": ("openai/gsm8k", "gsm8k")}


def scores_view(rows: Sequence[Mapping[str, Any]], parents: Sequence[Parent]) -> dict[str, Any] | None:
    """The values that the template prints; None without rows."""
    if not rows:
        return None
    models = list(dict.fromkeys([_MERGE, *(str(r.get("model") or _MERGE) for r in rows)]))
    named = {str(r["task"]): str(r["title"]) for r in rows if r.get("task") and r.get("title")}
    titles = {task: named.get(task, task) for task in (str(r.get("task", "—")) for r in rows)}
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        line = lines.setdefault((str(row.get("task", "—")), str(row.get("metric", "—"))), {})
        line[str(row.get("model") or _MERGE)] = _score(row)
    return {
        "models": models,
        "lines": [(titles[task], metric, [line.get(m, "—") for m in models]) for (task, metric), line in lines.items()],
        "titles": titles,
        "prompts": _prompts(rows, titles),
        "asked": plainly_asked((r.get("chat"), r.get("few_shot"), str(r["prompt"])) for r in _asked(rows)),
        **_against_parents(rows, parents),
    }


def _prompts(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(tasks, how their prompt reaches the model, prompt) of the merge's own scores; tasks that ask alike together."""
    asked: dict[tuple[str, str], list[str]] = {}
    for row in _asked(rows):
        asked.setdefault((way_of_asking(row.get("chat"), row.get("few_shot")), str(row["prompt"])), []).append(
            titles[str(row.get("task", "—"))]
        )
    return [(", ".join(dict.fromkeys(tasks)), way, text) for (way, text), tasks in asked.items()]


def _asked(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The merge's own scores whose prompt is known."""
    return [row for row in rows if row.get("prompt") and not row.get("model")]


def plainly_asked(asked: Iterable[tuple[object, object, str]]) -> str | None:
    """The first prompt of (chat, solved examples, prompt), where all stand alone and without a chat template."""
    prompts = list(asked)
    return prompts[0][2] if prompts and not any(chat or few_shot for chat, few_shot, _ in prompts) else None


def way_of_asking(chat: object, few_shot: object) -> str:
    """How a prompt reaches the model, in words."""
    way = "in the model's chat template where it has one" if chat else "as plain text, without a chat template"
    if not isinstance(few_shot, int) or few_shot < 1:
        return way
    return f"after {few_shot} solved example{'s' * (few_shot != 1)}, {way}"


def _score(row: Mapping[str, Any]) -> str:
    value, samples = row.get("value"), row.get("samples")
    if not isinstance(value, int | float):
        return "failed" if value is None else str(value)
    estimate = _estimate(row)
    if estimate is None:
        return factor(value)
    cut = row.get("truncated")
    told = f", {cut:,} prompts cut" if isinstance(cut, int) and cut > 0 else ""
    return f"{str(estimate)[:-1]}, n = {samples:,}{told})"


def _estimate(row: Mapping[str, Any]) -> Estimate | None:
    value, samples, stderr = row.get("value"), row.get("samples"), row.get("stderr")
    if not isinstance(value, int | float) or not isinstance(samples, int) or samples < 1 or not 0 <= value <= 1:
        return None
    return score_interval(value, samples, stderr if isinstance(stderr, int | float) else None)


def _against_parents(rows: Sequence[Mapping[str, Any]], parents: Sequence[Parent]) -> dict[str, Any]:
    """The domains in which the merge and a parent have a score of the same tasks, and the skills kept of them."""
    found: dict[str, dict[str, dict[str, Estimate]]] = {}
    for row in rows:
        estimate = _estimate(row)
        if estimate is not None and row.get("domain"):
            tasks = found.setdefault(str(row["domain"]), {}).setdefault(str(row.get("model") or _MERGE), {})
            tasks[str(row.get("task"))] = estimate
    own = {domain: models[_MERGE] for domain, models in found.items() if _MERGE in models}
    lines = [_parent(p, {domain: found[domain].get(p.label, {}) for domain in own}, own) for p in parents]
    scored = {domain for p in lines for domain in p.domains}
    domains = [domain_line(d, mean(list(own[d].values())), lines) for d in sorted(scored, key=domain_order)]
    skills = skills_kept({(d, t): e for d, tasks in own.items() for t, e in tasks.items()}, lines)
    return {
        "domains": [_domain(line, lines) for line in domains],
        "skills": skills,
        "verdict": verdict(skills, domains),
    }


def _domain(line: DomainLine, parents: Sequence[ParentLine]) -> tuple[str, str, str, str]:
    """(domain, merge, best parent, verdict)."""
    best = next(p for p in parents if p.id == line.best_parent)
    return line.domain, f"{line.score}", f"{best.id}: {best.domains[line.domain]}", line.verdict


def _parent(
    parent: Parent, found: Mapping[str, Mapping[str, Estimate]], own: Mapping[str, Mapping[str, Estimate]]
) -> ParentLine:
    """A parent's scores in the domains where it has those of the merge's tasks."""
    role: Literal["base", "agent"] = "base" if parent.role == "base" else "agent"
    equal = {domain: tasks for domain, tasks in found.items() if tasks.keys() == own[domain].keys()}
    status: Literal["scored", "not scored"] = "scored" if equal else "not scored"
    means = {domain: mean(list(tasks.values())) for domain, tasks in equal.items()}
    each = {(domain, task): estimate for domain, tasks in equal.items() for task, estimate in tasks.items()}
    return ParentLine(role, parent.label, parent.sha, parent.weight, status, means, each)


def model_index(name: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The card header's `model-index`: the merge's scores on tasks that are no registered benchmark."""
    results = []
    for row in rows:
        task, metric, dataset = (str(row.get(key) or "") for key in ("task", "metric", "dataset"))
        revision, estimate = str(row.get("dataset_revision") or ""), _estimate(row)
        texts = _NAME.fullmatch(task) and _NAME.fullmatch(metric) and is_hub_id(dataset)
        if row.get("model") or estimate is None or not texts or is_benchmark(row):
            continue
        described = {"type": dataset, "name": task}
        if is_sha(revision):
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

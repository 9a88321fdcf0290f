"""The summary of a plan or a sweep, before a weight moves, in words and units: the same on a terminal and on a page.

`plan_summary` has the exact numbers under its keys (`inspect --json`, the API); the words give each a label and a unit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hubmerge.engine.prediction import Machine, as_facts, predict
from hubmerge.errors import printable
from hubmerge.methods import get_method
from hubmerge.methods.tensor_values import by_layer
from hubmerge.plan.compatibility import architecture
from hubmerge.plan.disk import least_need, most_use
from hubmerge.plan.plan import Plan
from hubmerge.sources.base import Model
from hubmerge.text.markdown import duration, short_count, size

# the labels of what the summary has under a key, in the order of the rows
_COMPATIBILITY = {
    "method": "Method",
    "variants": "Variants",
    "architecture": "Architecture",
    "parameters": "Parameters",
    "dtype": "Stored as",
    "output_bytes": "Size of the result",
    "identity": "Identity",
    "identities": "Identities",
}
_COST = {
    "input_bytes": "Weights to read",
    "download_bytes": "To download",
    "disk_least_bytes": "Disk, uploading while merging",
    "folder_disk_least_bytes": "Disk, merging to a folder",
    "predicted_memory_bytes": "Memory at its peak",
    "predicted_seconds": "Time to merge",
    "passes": "Passes over the weights",
}
LABELS: Mapping[str, str] = {"base": "Base", "agents": "Agent", **_COMPATIBILITY, **_COST}


@dataclass(frozen=True)
class Group:
    """Rows of label and text under a title."""

    title: str
    rows: tuple[tuple[str, str], ...]


def models_of(models: Sequence[Model], weights: Sequence[str]) -> Group:
    """Rows for the base and the agents, which count from 1, with facts about each; `weights` are the agents'."""
    rows = []
    for number, (model, weight) in enumerate(zip(models, ("", *weights), strict=True)):
        kind = "" if model.kind == "weights" else f"{model.kind}, "
        times = "" if weight in ("", "1") else f", weight {weight}"
        license_name = f"license {model.license}" if model.license else "no license stated"
        label = LABELS["base"] if number == 0 else f"{LABELS['agents']} {number}"
        rows.append((label, f"{model.ref}{times} ({kind}{size(model.weight_bytes)}, {license_name})"))
    return Group("Models", tuple(rows))


def plan_summary(plan: Plan) -> dict[str, Any]:
    """The plan as plain data for `inspect`, the API and the form; its predictions are for this machine."""
    return {
        "method": plan.recipe.method,
        "base": str(plan.base.ref),
        "agents": [str(a.ref) for a in plan.agents],
        "kinds": [m.kind for m in plan.models],
        "architecture": architecture(plan.base),
        "parameters": plan.elements,
        "tensors": sum(1 for _ in plan.tensors()),
        "dtype": sorted({t.dtype for t in plan.tensors()}),
        "rounding": plan.rounding,
        "shards": len(plan.shards),
        "output_bytes": plan.output_bytes,
        "companion_bytes": plan.companions.bytes,
        "input_bytes": plan.input_bytes,
        "download_bytes": plan.download_bytes,
        # streamed to the Hub, each shard leaves the disk when it is uploaded; a folder keeps them
        "disk_least_bytes": least_need(plan, uploaded=True),
        "disk_most_bytes": most_use(plan, uploaded=True),
        "folder_disk_least_bytes": least_need(plan, uploaded=False),
        "folder_disk_most_bytes": most_use(plan, uploaded=False),
        "resident_bytes": plan.resident_bytes,
        "passes": plan.passes,
        **as_facts(predict(plan, Machine.here(plan))),
        **({"varying": rows} if (rows := by_layer(plan.recipe.given, plan.values, plan.labels)) else {}),
        "identity": plan.identity,
        "warnings": list(plan.warnings),
    }


def fit_of(summary: Mapping[str, Any]) -> Group:
    """The group that says that the models fit, and what the merge makes of them."""
    return Group("Compatibility: these models fit", tuple(_rows(summary, _COMPATIBILITY)))


def cost_of(summary: Mapping[str, Any], *, to_folder: bool = True) -> Group:
    """The group on what the merge costs here. `to_folder`: also the disk where the result stays."""
    keys = [key for key in _COST if to_folder or key != "folder_disk_least_bytes"]
    return Group("Cost, on this machine", tuple(_rows(summary, keys)))


def _rows(summary: Mapping[str, Any], keys: Iterable[str]) -> list[tuple[str, str]]:
    return [(LABELS[key], _told(key, summary)) for key in keys if key in summary]


def _told(key: str, summary: Mapping[str, Any]) -> str:
    value = summary[key]
    match key:
        case "method":
            return f"{get_method(value).title} ({value})"
        case "variants":
            together = " + ".join(map(str, summary["merged_together"]))
            return f"{len(value)}, merged in passes of {together}: {', '.join(value)}"
        case "parameters":
            return f"{short_count(value)} in {summary['tensors']:,} tensors"
        case "dtype":
            return f"{', '.join(value)}, {summary['rounding']} rounding"
        case "output_bytes":
            files = summary.get("shards")
            among = "" if files is None else f" in {files} {'file' if files == 1 else 'files'}"
            more = summary.get("companion_bytes", 0)
            return f"{size(value)}{among}" + (f", and {size(more)} of other files" if more else "")
        case "disk_least_bytes" | "folder_disk_least_bytes":
            least, most = size(value), size(summary[key.replace("least", "most")])
            return least if least == most else f"{least} at least, {most} at most"
        case "predicted_memory_bytes":
            kept = summary.get("resident_bytes", 0)
            return f"about {size(value)}" + (f", {size(kept)} of it for adapters" if kept else "")
        case "predicted_seconds":
            weighs = "sensitivity" in get_method(summary.get("method", "linear")).extras
            return f"about {_about(value)}, without downloads" + (" and sensitivities" if weighs else "")
        case "identities":
            return ", ".join(identity[:16] for identity in value)
        case "identity":
            return str(value)[:16]
    return size(value) if key.endswith("_bytes") else str(value)


def _about(seconds: float) -> str:
    """A number with only as many digits as a prediction deserves."""
    return duration(seconds) if seconds >= 59.5 else f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"


def in_words(groups: Sequence[Group], warnings: Sequence[str]) -> str:
    """The groups, then the warnings."""
    widest = max(len(label) for group in groups for label, _ in group.rows)
    lines: list[str] = []
    for group in groups:
        lines += [*([""] if lines else []), group.title]
        lines += [f"  {label:<{widest}}  {printable(text)}" for label, text in group.rows]
    if warnings:
        lines += ["", "Warnings", *(f"  - {printable(warning)}" for warning in warnings)]
    return "\n".join(lines) + "\n"

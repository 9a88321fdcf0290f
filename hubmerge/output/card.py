"""The model card: a pure function of the report, YAML header and Markdown body.

The header holds only values that match the Hub's own patterns; all other foreign text reaches the body through the
escaping of markdown.py. The template has the text and the report the figures. This module decides from the figures, by
the thresholds below, what the card calls kept, lost or doubtful.

card_scores.py has the scores, and says what a row of `report.evaluations` holds.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from hubmerge.hub.names import is_hub_id, is_sha
from hubmerge.methods import registry
from hubmerge.methods.varying import worded
from hubmerge.output.card_scores import model_index, scores_view
from hubmerge.output.report import SIXTEEN_BITS, Parent, Report
from hubmerge.output.task import HUB_TAGS, Task, snippet, task_of
from hubmerge.plan.licenses import KNOWN, UNDECIDED, option, stated_names
from hubmerge.settings import DEFAULT_ENDPOINT
from hubmerge.sources.ancestry import Ancestor
from hubmerge.text.markdown import Markdown, code, duration, environment, factor, link, size
from hubmerge.text.plain_yaml import dump_plain_yaml

_ARXIV = re.compile(r"\d{4}\.\d{4,5}(v\d{1,2})?")

_UNFIT = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError)
_WIDEST = 60  # characters of a name in the lineage
_NAME_WIDTH = 96  # characters of a license's name on the Hub
LOST_AT_LEAST = 0.01  # the share of a rescaling or an update that rounding may take before the card calls it lost
LEAST_RESCALING = 1e-3  # of |λ − 1|: the measured factors are right to about a millionth, less is no share of this
SAME_SIZE = 0.01  # the most by which the norms of two updates may differ and still be called the same
DENSE_FROM = 0.5  # an agent that changed more than this is no sparse update, and most of it meets others


def render_card(report: Report, *, figures: Collection[str] = (), endpoint: str = DEFAULT_ENDPOINT) -> str:
    """README.md of the merged model. `figures`: the names, out of `render_figures`, that lie beside it."""
    body = environment(Path(__file__).parent).get_template("card.md.jinja").render(_view(report, figures, endpoint))
    return f"---\n{dump_plain_yaml(metadata(report))}---\n\n{body}"


def card_of(report: Report, files: Iterable[str], endpoint: str) -> str:
    """The card of a report that was read, beside those files; ValueError where it lacks what a card tells."""
    try:
        return render_card(report, figures=[name for name in files if name.startswith("figures/")], endpoint=endpoint)
    except (*_UNFIT, AssertionError, StopIteration, TemplateError) as error:
        raise ValueError(f"no card can be made of it: {error!r}"[:200]) from None


def metadata(report: Report) -> dict[str, Any]:
    """The card's YAML header. A value that the Hub would refuse is left out or becomes `other`."""
    bases = [p.id for p in report.parents if p.kind == "hub" and is_hub_id(p.id)]
    data: dict[str, Any] = {}
    if bases:
        data |= {"base_model": list(dict.fromkeys(bases)), "base_model_relation": "merge"}
    task = _task(report)
    data |= {"library_name": task.library, **({"pipeline_tag": task.pipeline_tag} if task.pipeline_tag else {})}
    data["tags"] = list(dict.fromkeys(("merge", "hubmerge", _slug(str(report.method["name"])))))
    name = report.target.rpartition("/")[2] or _slug(str(report.method["name"]))
    if is_hub_id(name) and (index := model_index(name, report.evaluations)):
        data["model-index"] = index
    stated = str(report.license.get("id", "unknown"))
    if stated in KNOWN or stated in UNDECIDED - {"other"}:
        return data | {"license": stated}
    data |= {"license": "other", "license_name": _license_name(str(report.license.get("name", stated)))}
    if url := _license_url(report):
        data["license_link"] = url
    return data


def _task(report: Report) -> Task:
    if not report.task:
        return task_of({"architectures": [report.architecture]})
    task = Task(**report.task)
    return replace(task, pipeline_tag=task.pipeline_tag if task.pipeline_tag in HUB_TAGS else None)


def _license_url(report: Report) -> str | None:
    url = report.license.get("link", "")
    return url if re.fullmatch(r"https://[\w.\-]+(/[\w.\-/]*)?", url, re.ASCII) else None


def _license_name(name: str) -> str:
    """The name as the Hub takes it; of a list that is too long the first ones, and that there are more."""
    if len(name) <= _NAME_WIDTH:
        return _slug(name)
    first = name[: _NAME_WIDTH - len("-and-more")]
    return _slug(first.rpartition("-and-")[0] or first) + "-and-more"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:_NAME_WIDTH] or "unnamed"


@dataclass(frozen=True)
class Loss:
    """The share of one agent that rounding to nearest takes; a negative share is added."""

    agent: str
    before: float  # λ, or the share of the update, that the method computed
    after: float  # what is left of it in the stored weights
    of: str  # what `share` is a share of
    share: float


def _view(report: Report, figures: Collection[str], endpoint: str) -> dict[str, Any]:
    """The values that the template prints."""
    statistics = report.statistics
    agents = [p for p in report.parents if p.role == "agent"]
    base = next(p for p in report.parents if p.role == "base")
    total = statistics["total"]
    labels = [str(a["agent"]) for a in total["agents"]]
    weights = {p.label: p.weight for p in agents}
    losses = [loss for loss in _roundings(report, weights) if abs(loss.share) > LOST_AT_LEAST]
    target = report.target or None
    method = registry().get(str(report.method["name"]))
    title = target or f"{report.method['title']} of {', '.join(labels)}"
    license = str(report.license.get("name") or report.license.get("id", "unknown"))
    open_license = report.license.get("id", "unknown") == "unknown"
    evaluation = scores_view(report.evaluations, report.parents)
    return {
        "report": report,
        "title": title,
        "base": _parent_link(base, endpoint),
        "parents": [(p, _parent_link(p, endpoint), _revision(p, endpoint)) for p in report.parents],
        "total": total,
        "labels": labels,
        "concentrated": [a for a in total["agents"] if a.get("gini") is not None],
        "example": next((a for a in total["agents"] if a.get("l0_sparsity") is not None), None),
        # how far any of the shares taken from a histogram may be off
        "concentration_error": max(
            (e or 0.0 for a in total["agents"] for e in (a.get("error") or {}).values()), default=0.0
        ),
        "epsilon": f"{statistics['epsilon']:g}",
        "parameters": [(name, worded(value)) for name, value in _parameters(report)],
        "legend": _legend(report.method),
        "compared": total["elements"],
        # the agents whose weight differs from tensor to tensor
        "varying_weights": {
            parent.label
            for parent, agent in zip(agents, report.recipe.get("agents") or (), strict=False)
            if isinstance(agent, Mapping) and isinstance(agent.get("weight"), list)
        },
        "by_layer": report.method.get("by_layer") or [],
        "papers": [
            (p, link(Markdown(f"arXiv:{p['arxiv']}"), f"https://arxiv.org/abs/{p['arxiv']}") if _on_arxiv(p) else "")
            for p in report.method["papers"]
        ],
        "bibtex": "\n\n".join(_bibtex(p) for p in report.method["papers"] if _on_arxiv(p)),
        "kept_unique": _range([o.kept_unique for o in report.outcomes]),
        "kept_shared": _range([o.kept_shared for o in report.outcomes]),
        "weighted": any(p.weight != 1.0 for p in agents),
        "lambdas": any(o.scale is not None for o in report.outcomes),
        "other_rounding": ("stochastic" if report.rounding == "nearest" else "nearest")
        if any(o.effective_scale_other_rounding is not None for o in report.outcomes)
        else None,
        "sixteen_bits": any(d in SIXTEEN_BITS for d in report.dtype),
        "all_sixteen_bits": all(d in SIXTEEN_BITS for d in report.dtype),
        "losses": losses,
        "lost_of": "λ" if all(loss.of == _OF_LAMBDA for loss in losses) else "the updates",
        "lost": any(loss.share > 0 for loss in losses),
        "anomalies": _anomalies(report, losses),
        "bytes": sum(f.size for f in report.files),
        "lineage": "\n".join(
            [
                f"{_cut(title)} · {_cut('license not stated' if open_license else license)}",
                *_made_from(report.parents, base.id),
            ]
        ),
        "license": license,
        "license_open": open_license,
        "license_reason": report.license.get("reason"),
        "license_url": (url := _license_url(report)) and link(url, url),
        "environment": _environment(report.environment),
        "figures": {
            stem: Markdown(path) if (path := f"figures/{stem}.svg") in figures else None
            for stem in ("density_by_layer", "overlap")
        },
        "snippet": snippet(_task(report), target or "path/to/this/folder", (evaluation or {}).get("asked")),
        "command": f"hubmerge run recipe.yaml --to {shlex.quote(target)}{option(report.license)}"
        if target
        else "hubmerge merge recipe.yaml --out merged",
        "has_local": any(p.kind != "hub" for p in report.parents),
        "weighed": method is not None and "sensitivity" in method.extras,
        "matrix_products": method is not None and method.matrix_products,
        "evaluation": evaluation,
    }


def _made_from(parents: Sequence[Parent | Ancestor], base: str) -> list[str]:
    """What a merge was made from as a tree, a model a line, with what these were made from as far as their repos tell.

    Only models that are merges themselves, or were trained from another model than `base`, the whole merge's, go on
    below: that every agent was trained from the base says the line of the base.
    """
    lines = []
    for parent in parents:
        last = parent is parents[-1]
        told = _cut(parent.label if isinstance(parent, Parent) and parent.kind != "hub" else parent.id)
        if parent.role:  # else a card names it, and says no more
            weight = "" if parent.role == "base" or parent.weight == 1 else f" × {parent.weight:.3g}"
            told += f" · {parent.role}{weight} · {_cut(parent.license or 'no license stated')}"
        lines.append(f"{'└─' if last else '├─'} {told}")
        if parent.role != "base" and any(below.id != base for below in parent.made_from):
            lines += [("   " if last else "│  ") + line for line in _made_from(parent.made_from, base)]
    return lines


def _cut(text: str) -> str:
    """In one line, and no longer than a phone's screen is wide."""
    line = " ".join(text.split())
    return line if len(line) <= _WIDEST else line[: _WIDEST - 1] + "…"


def _parameters(report: Report) -> list[tuple[str, Any]]:
    """The method's parameters, and those that agents have of their own."""
    own = report.method.get("own") or {}
    return [
        *report.method["parameters"].items(),
        *((f"{key} of {label}", value) for label, table in own.items() for key, value in table.items()),
    ]


def _parent_link(parent: Parent, endpoint: str) -> Markdown:
    if parent.kind == "hub" and is_hub_id(parent.id):
        return link(parent.id, f"{endpoint}/{parent.id}")
    return code(parent.label)


def _revision(parent: Parent, endpoint: str) -> Markdown:
    if parent.kind == "hub" and is_hub_id(parent.id) and is_sha(parent.sha):
        return link(parent.sha, f"{endpoint}/{parent.id}/tree/{parent.sha}")
    return code(parent.sha)


def _on_arxiv(paper: Mapping[str, Any]) -> bool:
    return bool(_ARXIV.fullmatch(str(paper["arxiv"])))


def _bibtex(paper: Mapping[str, Any]) -> str:
    identifier, title = str(paper["arxiv"]), re.sub(r"[{}\\\\\s]+", " ", str(paper["title"]))
    return (
        f"@misc{{arxiv.{identifier},\n  title = {{{{{title}}}}},\n  year = {{20{identifier[:2]}}},\n"
        f"  eprint = {{{identifier}}},\n  archivePrefix = {{arXiv}}\n}}"
    )


def _range(values: Sequence[float | None]) -> str | None:
    """Least to greatest of the values that exist, once when they read the same."""
    present = [v for v in values if v is not None]
    if not present:
        return None
    ends = list(dict.fromkeys(factor(v, 2) for v in (min(present), max(present))))
    return " to ".join(ends)


_OF_LAMBDA = "λ − 1"


def _roundings(report: Report, weights: Mapping[str, float]) -> list[Loss]:
    """The loss of each agent for which rounding to nearest was measured: of λ − 1 where the method rescales the agent,
    of the update itself elsewhere. Measured factors contain the agent's weight, λ does not.

    The factor before rounding is measured too, so that rounding is blamed only for its own share: elements that are
    counted as unique may have got another factor than the formula's λ.
    """
    found = []
    # 32 bits are rounded in one way
    used = report.rounding == "nearest" or not any(d in SIXTEEN_BITS for d in report.dtype)
    for outcome in report.outcomes:
        before = outcome.kept_unique
        after = outcome.effective_scale if used else outcome.effective_scale_other_rounding
        if not before or after is None:
            continue
        weight = weights.get(outcome.agent, 1.0)
        rescaling = before / weight - 1 if weight and outcome.scale not in (None, 1.0) else 0.0
        if abs(rescaling) >= LEAST_RESCALING:
            share = (before - after) / weight / rescaling
            found.append(Loss(outcome.agent, before / weight, after / weight, _OF_LAMBDA, share))
        else:
            found.append(Loss(outcome.agent, before, after, "the update", 1 - after / before))
    return found


def _legend(method: Mapping[str, Any]) -> str:
    """The meaning of the formula's letters."""
    formula = str(method["formula"])
    active = "changed" if "epsilon" in method["parameters"] else "are active at"
    letters = {
        "w": "w its weight",
        "K": "K the number of agents",
        "(c ": f"c the number of agents that {active} an element",
        "c = 1": f"c the number of agents that {active} an element",
        "u": "u a draw between 0 and 1",
        "F": "F its sensitivity",
        "S": "S its sensitivity",
    }
    words = re.sub(r"[A-Za-z]{2,}|‖²_F|‖_F", " ", formula)  # names of parameters, "mean", "of", and the norm's index
    said = dict.fromkeys(text for letter, text in letters.items() if letter in words)
    return ", ".join(("δ is what an agent changed of the base", *said))


def _anomalies(report: Report, losses: Sequence[Loss]) -> list[tuple[str, list[str]]]:
    """(what, the labels it concerns) for every finding that a reader must not miss."""
    epsilon = report.statistics["epsilon"]
    rows = report.statistics["total"]["agents"]
    norms = {str(r["agent"]): float(r["l2"]) for r in rows}
    twins = [
        (one, two)
        for p in report.statistics["total"]["pairs"]
        for one, two in [p["agents"]]
        if p["both_changed"] and p["jaccard"] == 1.0 and p["sign_agreement"] == 1.0 and p["cosine"] > 0.9999
        if abs(norms[one] - norms[two]) <= SAME_SIZE * norms[one]
    ]
    silent = [r for r in rows if not r["changed"]]
    # a method that looks only at updates above ε takes nothing of this agent
    lost = [str(r["agent"]) for r in silent if not r["max"] or "epsilon" in report.method["parameters"]]
    faint = [str(r["agent"]) for r in silent if str(r["agent"]) not in lost]
    dense = [str(r["agent"]) for r in rows if r["density"] > DENSE_FROM]
    rounded = [loss.agent for loss in losses if loss.share > 0 and report.rounding == "nearest"]
    findings = (
        ("Rounding to nearest took part of its update (see what the merge kept)", rounded),
        (f"Changed nothing above {epsilon:g}, so that the merge holds nothing of it", lost),
        (f"Changed nothing above {epsilon:g}, so that the statistics hold nothing of it", faint),
        (f"Changed more than {DENSE_FROM:.0%} of the weights, which is no sparse update", dense),
        ("Practically the same update twice", [" / ".join(pair) for pair in twins]),
        ("No known license is stated", [p.label for p in report.parents if not {*stated_names(p.license)} <= {*KNOWN}]),
        ("Gated, with terms that bind every user of the merge", [p.label for p in report.parents if p.gated]),
    )
    return [(what, who) for what, who in findings if who]


_HARDWARE_NAMES = {
    "device": "Device",
    "cpu": "CPU",
    "seconds": "Time",
    "peak_rss_bytes": "Peak memory",
    "peak_device_bytes": "Peak device memory",
    "device_failed": "Device given up",
    "bursts": "Calls of a lent GPU",
    "disk_high_water_bytes": "Disk at its peak",
    "fetch": "Fetched",
}


_PACKAGES = ("hubmerge", "huggingface_hub", "numpy", "torch")  # written as they are


def fetch_facts(fetch: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows (name, value) on what the inputs' cache fetched, in words; values that are no numbers are left out."""
    numbers = {k: v for k, v in fetch.items() if isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 63}
    get = numbers.get

    def shards_of(key: str) -> str:
        return f"{(count := get(key, 0)):,} shard{'' if count == 1 else 's'}"

    processes = get("processes", 1)
    fetched = [size(get("bytes", 0)), f"{shards_of('shards')} whole"]
    if again := get("refetched_shards"):
        fetched.append(f"{again:,} of them again, since they had not fitted in")
    if ranged := get("ranged_shards"):
        fetched.append(f"{ranged:,} more by ranges ({size(get('range_bytes', 0))})")
    rows = [("Fetched", ", ".join(fetched)), ("Found on disk", f"{shards_of('hits')} of an earlier pass or run")]
    if "high_water_bytes" in numbers:
        room = f", of {size(numbers['budget_bytes'])} that they could take" if "budget_bytes" in numbers else ""
        where = f" in the largest of {processes:,} processes" if processes > 1 else ""
        rows.append(("Inputs on disk", f"{size(numbers['high_water_bytes'])} at their peak{where}{room}"))
    return rows


def of_last_run(environment: Mapping[str, Any]) -> str:
    """What follows the time of a merge that was cut short and resumed."""
    return ", the last run of a resumed merge" if environment.get("resumed") is True else ""


def _environment(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows (name, value) with units; entries without a known name follow unchanged."""
    rows = []
    others = (k for k in values if k not in _HARDWARE_NAMES and k != "resumed")
    for key in (*(k for k in _HARDWARE_NAMES if k in values), *others):
        value = values[key]
        if key == "fetch" and isinstance(value, Mapping):
            rows += fetch_facts(value)
            continue
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = (
                size(value) if key.endswith("_bytes") else duration(value) if key.endswith("seconds") else f"{value:g}"
            )
        elif isinstance(value, Mapping):
            text = ", ".join(f"{name} {version}" for name, version in value.items())
        else:
            text = str(value)
        if key == "peak_rss_bytes" and values.get("processes", 1) != 1:
            text += ", the largest process"
        if key == "seconds":
            text += of_last_run(values)
        rows.append((_HARDWARE_NAMES.get(key, key if key in _PACKAGES else key.capitalize()), text))
    return rows

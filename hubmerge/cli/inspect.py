"""`hubmerge inspect RECIPE`: what headers alone tell of a merge or of a sweep, as a table or as JSON; and
`hubmerge probe RECIPE`: the statistics of a recipe's agents (docs/statistics.md).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Any

from hubmerge.cli.options import stream_options
from hubmerge.cli.terminal import Terminal
from hubmerge.engine.prediction import Machine, Prediction, as_facts, predict
from hubmerge.engine.stream import layout_of
from hubmerge.hub.login import hub_of_user
from hubmerge.line import Request, prepare, prepare_variants, probe
from hubmerge.methods.varying import varies, worded, written
from hubmerge.output.plan_words import Group, cost_of, fit_of, in_words, models_of, plan_summary
from hubmerge.plan.disk import output_need, sensitivity_need
from hubmerge.plan.licenses import strictest
from hubmerge.plan.plan import Plan
from hubmerge.recipe.file import load_recipe, read_document, recipe_in
from hubmerge.recipe.sweep import sweep_in
from hubmerge.settings import Settings
from hubmerge.statistics.statistics import SCHEMA
from hubmerge.statistics.summary import summarize


def run_cli(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    hub = hub_of_user(settings)
    terminal.stage("resolve")
    document = read_document(arguments.recipe)
    sweep, request = sweep_in(document), Request(allow_local=True)
    if sweep is None:
        plan = prepare(recipe_in(document), hub, request, terminal).plan
        summary = plan_summary(plan)
    else:
        recipes = [recipe for _, recipe in sweep.variants]
        prepared = prepare_variants(recipes, hub, request, terminal)
        plan = prepared[0].plan
        summary = _of_sweep([name for name, _ in sweep.variants], [one.plan for one in prepared])
    if (decision := strictest([m.license for m in plan.models])).needs_choice:
        summary["warnings"] = [*summary["warnings"], f"publishing needs --license: {decision.reason}"]
    terminal.close()
    weights = [f"{w:g}" if isinstance(w, float) else worded(written(w)) for w in plan.recipe.weights]
    groups = [models_of(plan.models, weights), fit_of(summary)]
    given = plan.recipe.given.settings() if sweep is None else ()
    if varying := [(name, worded(written(setting))) for name, setting in given if varies(setting)]:
        groups.append(Group("Varying by layer or tensor", tuple(varying)))
    groups.append(cost_of(summary))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    terminal.say(in_words(groups, summary["warnings"], width), **summary)
    return 0


_OF_ALL = ("base", "agents", "kinds", "architecture", "parameters", "tensors", "input_bytes", "download_bytes")


def _of_sweep(names: Sequence[str], plans: Sequence[Plan]) -> dict[str, Any]:
    """The summary of a sweep: variants of one pass take their memory together, and passes their time in turn."""
    passes: dict[object, list[Plan]] = {}
    for plan in plans:
        passes.setdefault(layout_of(plan), []).append(plan)
    machine = Machine.here(*plans)
    said = [predict(first, machine, beside=more) for first, *more in passes.values()]
    needed = Prediction(max(one.memory_bytes for one in said), sum(one.seconds for one in said))
    common = plan_summary(plans[0])
    least = sum(output_need(plan, uploaded=False) for plan in plans) + sensitivity_need(plans)
    return {
        **{key: common[key] for key in _OF_ALL},
        "variants": list(names),
        "merged_together": [len(group) for group in passes.values()],
        "output_bytes": sum(plan.output_bytes for plan in plans),
        "folder_disk_least_bytes": least,
        "folder_disk_most_bytes": least + plans[0].download_bytes,
        **as_facts(needed),
        "identities": [plan.identity for plan in plans],
        "warnings": list(dict.fromkeys(warning for plan in plans for warning in plan.warnings)),
    }


def run_probe(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    """The command `probe`; returns the exit code."""
    hub, options = hub_of_user(settings), stream_options(arguments, settings)
    terminal.stage("resolve")
    prepared = prepare(load_recipe(arguments.recipe), hub, Request(allow_local=True, calibrate="not"), terminal)
    terminal.stage("probe")
    statistics = probe(prepared, hub, options, terminal)
    terminal.close()
    labels = statistics.agents
    total = summarize(statistics.total, labels)
    terminal.say(
        _table(total),
        schema=SCHEMA,
        identity=prepared.identity,
        epsilon=statistics.epsilon,
        agents=list(labels),
        total=total,
        modules={n: summarize(t, labels) for n, t in statistics.by_module().items()},
        layers={str(n): summarize(t, labels) for n, t in statistics.by_layer().items()},
        tensors={n: summarize(t, labels) for n, t in statistics.tensors.items()},
    )
    return 0


def _table(total: Any) -> str:
    width = max(24, *(len(agent["agent"]) for agent in total["agents"]))
    lines = [f"{'agent':<{width}} {'changed':>8} {'unique':>8} {'shared':>8} {'ρ':>7}"]
    for agent in total["agents"]:
        n = max(total["elements"], 1)
        rho = agent["rho"] if isinstance(agent["rho"], str) else f"{agent['rho']:.3f}"
        lines.append(
            f"{agent['agent']:<{width}} {agent['density']:>8.2%} {agent['unique'] / n:>8.2%} "
            f"{agent['shared'] / n:>8.2%} {rho:>7}"
        )
    lines.append("changed by 0, 1, 2, … agents: " + ", ".join(f"{share:.2%}" for share in total["overlap_share"]))
    shares = total["shares"]
    lines.append(f"changed by several: signs conflict in {shares['conflict']:.2%}, agree in {shares['overlap']:.2%}")
    for pair in total["pairs"]:
        lines.append(
            f"{' / '.join(pair['agents'])}: Jaccard {pair['jaccard']:.3f}, cosine {pair['cosine']:.3f}, "
            f"signs agree {pair['sign_agreement']:.1%}"
        )
    return "\n".join(lines) + "\n"

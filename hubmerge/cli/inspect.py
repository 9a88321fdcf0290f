"""`hubmerge inspect RECIPE`: what headers alone tell of a merge or of a sweep, as a table or as JSON."""

from collections.abc import Sequence
from typing import Any

from hubmerge.cli.terminal import Terminal
from hubmerge.engine.prediction import Machine, Prediction, as_facts, predict
from hubmerge.engine.stream import layout_of
from hubmerge.hub.login import hub_of_user
from hubmerge.line import Request, prepare, prepare_variants
from hubmerge.methods.varying import varies, worded, written
from hubmerge.output.plan_words import Group, cost_of, fit_of, in_words, models_of, plan_summary
from hubmerge.plan.disk import output_need, sensitivity_need
from hubmerge.plan.licenses import strictest
from hubmerge.plan.plan import Plan
from hubmerge.recipe.file import read_document, recipe_in
from hubmerge.recipe.sweep import sweep_in
from hubmerge.settings import Settings


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
    terminal.say(in_words(groups, summary["warnings"]), **summary)
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

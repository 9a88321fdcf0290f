"""A LoRA adapter under evaluation is merged onto the base that its config names: transformers gets a whole checkpoint.

The merge has this one agent, so it is W + s·B·A in float32, rounded once to the base's dtype. The tokenizer is the
adapter's where its repo has one, else the base's.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hubmerge.engine.journal import Journal
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.progress import Unobserved
from hubmerge.engine.stream import merge
from hubmerge.errors import EvaluationError, IncompatibleError, SourceNotFoundError
from hubmerge.hub.client import Hub
from hubmerge.plan.plan import Plan, make_plan
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.recipe import Recipe
from hubmerge.sources.base import Model
from hubmerge.sources.companions import makes_tokenizer
from hubmerge.sources.open import open_model
from hubmerge.sources.reader import LocalOrFetched, TensorReader
from hubmerge.sources.staged import stage_settings, write_index


def on_its_base(adapter: Model, hub: Hub) -> Plan:
    """The plan of an adapter on the base that its config names, which is opened on the Hub.

    Raises EvaluationError where it names none that everybody may read who may read the adapter, and where the two do
    not fit; GatedError for a base that this token may not read.
    """
    assert adapter.adapter is not None
    name, revision = adapter.adapter.base_name, adapter.adapter.base_revision
    try:
        named = ModelName(id=name or "", revision=revision)
    except ValueError:
        raise _without_base(adapter, ascii("@".join(filter(None, (name, revision))) or "none")[1:-1][:120]) from None
    base = _open_base(adapter, named, hub)
    own = {"model": ModelName(id=adapter.ref.id, local=adapter.ref.kind == "local")}
    recipe = Recipe.model_validate(
        {"base": named, "agents": [own], "method": "linear", "parameters": {"base_weight": 0.0}}
    )
    try:
        return make_plan(recipe, base, [adapter])
    except IncompatibleError as error:
        raise EvaluationError(
            "the adapter does not fit its base",
            where=f"{adapter.ref} on {base.ref}",
            got=error.problems[0].what,
            next_step="Its config must name the base that it was trained on.",
        ) from None


def _open_base(adapter: Model, name: ModelName, hub: Hub) -> Model:
    """A private base of a public adapter is as good as none: its name must not show that it exists, nor its answers."""
    try:
        base = open_model(name, hub, allow_local=False)
        public = adapter.ref.kind == "hub" and not hub.repo_state(adapter.ref.id, adapter.ref.sha).private
        if not (public and hub.repo_state(base.ref.id, base.ref.sha).private):
            return base
    except SourceNotFoundError:
        pass
    raise _without_base(adapter, str(name))


def _without_base(adapter: Model, named: str) -> EvaluationError:
    return EvaluationError(
        "the adapter's base is not there, or private",
        where=str(adapter.ref),
        expected="base_model_name_or_path in its config: a public model on the Hub, and a revision of it, if any",
        got=named,
        next_step="Merge it with its base first, and evaluate the result.",
    )


def stage_on_base(
    plan: Plan, hub: Hub, folder: Path, inputs: Path, progress: Callable[[int, int, str], None]
) -> list[str]:
    """Merge an adapter into `folder`, made anew, for transformers; returns notes on what was left out.

    `progress` is called with the bytes that were fetched into `inputs`, then with the elements that were merged. What
    it raises ends the merge.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fetched = 0

    def fetching(_: str, count: int) -> None:
        nonlocal fetched
        fetched += count
        progress(fetched, plan.download_bytes, "B")

    class Merging(Unobserved):
        def progress(self, stage: str, done: int, total: int, unit: str) -> None:
            if fetched >= plan.download_bytes:
                progress(done, total, unit)

    journal = Journal.open(folder, plan)
    with TensorReader(plan.models, LocalOrFetched(hub, inputs, fetching)) as reader:
        merge(plan, reader, journal, folder, StreamOptions(), Merging())
    journal.close()
    [adapter] = plan.agents
    tokenizer = adapter if any(map(makes_tokenizer, adapter.files)) else plan.base
    notes = stage_settings(replace(plan.base, config=plan.config), hub, folder, tokenizer)
    if len(plan.shards) > 1:
        write_index(folder, {t.name: shard.filename for shard in plan.shards for t in shard.tensors}, plan.output_bytes)
    return notes

"""Before a weight moves: the models pinned, the plan made, license and target checked, or every problem at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hubmerge.hub.client import Hub
from hubmerge.methods import get_method
from hubmerge.output.publish import Target, check_target
from hubmerge.plan.equal_weights import refuse_equal_folders
from hubmerge.plan.licenses import choose, strictest
from hubmerge.plan.modules import module_problems
from hubmerge.plan.plan import Plan, make_plan, refusal
from hubmerge.recipe.recipe import Recipe
from hubmerge.sources.base import Model
from hubmerge.sources.companions import reader
from hubmerge.sources.open import open_models


@dataclass(frozen=True)
class Prepared:
    """A merge that nothing known speaks against."""

    plan: Plan
    license: Mapping[str, str]
    target: Target | None
    identity: str  # over the pinned inputs, the recipe and the target
    allow_local: bool = False  # whether paths of this machine may be read
    published: bool = False  # the target holds this very merge already


def prepare(
    recipe: Recipe,
    hub: Hub,
    *,
    target: Target | None = None,
    license_choice: str | None = None,
    allow_local: bool = False,
    commits: Sequence[str | None] = (),
    tell: Callable[[int, int], None] = lambda done, total: None,
    begin: Callable[[str], None] = lambda stage: None,
    calibrate: Literal["here", "apart", "not"] = "here",
) -> Prepared:
    """Pin and check everything that headers, cards and the target can tell; raises with every problem.

    A license that the parents leave open must be chosen where there is a `target`; a folder may leave it open.
    `commits`: where an unfinished merge goes on (pins.py). `tell`: how many headers have been read. `begin`: a
    stage begins. `calibrate`: where the calibration data is read and tokenized, without which a method that weighs by
    sensitivities has no identity of its own: `apart` is a process with limits, for what a stranger names.
    """
    base, agents = open_models(recipe, hub, allow_local=allow_local, commits=commits, tell=tell)
    read = _as_it_is if calibrate == "not" else _calibration(hub, allow_local, begin, apart=calibrate == "apart")
    licensed = target is not None
    prepared = _checked(recipe, base, agents, hub, target, license_choice, allow_local, read, licensed=licensed)
    _refuse_modules(base, agents, hub)
    return prepared


def prepare_variants(
    recipes: Sequence[Recipe],
    hub: Hub,
    *,
    license_choice: str | None = None,
    licensed: bool = False,
    allow_local: bool = False,
    commits: Sequence[str | None] = (),
    tell: Callable[[int, int], None] = lambda done, total: None,
    begin: Callable[[str], None] = lambda stage: None,
) -> list[Prepared]:
    """`prepare` for several recipes over the same models, which are opened once. `licensed`: they will be published."""
    base, agents = open_models(recipes[0], hub, allow_local=allow_local, commits=commits, tell=tell)
    read = _calibration(hub, allow_local, begin)
    prepared = [
        _checked(recipe, base, agents, hub, None, license_choice, allow_local, read, licensed=licensed)
        for recipe in recipes
    ]
    _refuse_modules(base, agents, hub)
    return prepared


def _checked(
    recipe: Recipe,
    base: Model,
    agents: tuple[Model, ...],
    hub: Hub,
    target: Target | None,
    license_choice: str | None,
    allow_local: bool,
    read: Callable[[Plan], Plan],
    *,
    licensed: bool,
) -> Prepared:
    plan = make_plan(recipe, base, agents)
    if target is not None:
        target.refuse_to_expose(plan.sources)
    refuse_equal_folders(plan.models)
    decision = strictest([m.license for m in plan.models])
    if licensed or license_choice is not None:
        decision = choose(decision, license_choice)
    plan = read(plan)
    if target is not None:
        target.refuse_to_expose(plan.sources)  # the data, too
    identity = plan.identity_at(target.repo if target else "")
    published = target is not None and check_target(hub, target, identity).state == "ours"
    return Prepared(plan, decision.as_dict(), target, identity, allow_local, published)


def _as_it_is(plan: Plan) -> Plan:
    return plan


def _calibration(
    hub: Hub, allow_local: bool, begin: Callable[[str], None], *, apart: bool = False
) -> Callable[[Plan], Plan]:
    """Reads what the sensitivities of plans over the same models rest on; nothing is imported for others."""
    readers: list[Callable[[Plan], Plan]] = []

    def read(plan: Plan) -> Plan:
        if "sensitivity" not in get_method(plan.recipe.method).extras:
            return plan
        if not readers:
            begin("calibration")
            from hubmerge.sensitivity.rows import Calibration

            readers.append(Calibration(hub, allow_local, apart=apart).of)
        return readers[0](plan)

    return read


def _refuse_modules(base: Model, agents: Sequence[Model], hub: Hub) -> None:
    if problems := module_problems(base, agents, reader(hub)):
        raise refusal(problems)

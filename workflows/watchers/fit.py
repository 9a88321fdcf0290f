"""Whether one agent fits its base, from headers, configs and licenses: the plan's checks for a pair.

A plan lists the problems of a whole set. Here each candidate is checked alone, so that a misfit is left out by name and
does not stop the set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from hubmerge.errors import HubmergeError, HubUnavailableError, IncompatibleError, Problem
from hubmerge.hub.client import Hub
from hubmerge.plan.compatibility import agent_problems, base_problems, repeated
from hubmerge.plan.licenses import choose, strictest
from hubmerge.recipe.model_name import ModelName
from hubmerge.sources.base import Model
from hubmerge.sources.open import open_model
from hubmerge.sources.tying import untie
from hubmerge.sources.views import views_of
from workflows.watchers.facts import Facts

_LONGEST = 1000


class BaseUnfitError(Exception):
    """The base itself cannot be opened; no candidate is at fault."""

    def __init__(self, reason: HubmergeError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Fitting:
    """Fits agents to one pinned base, which is opened when the first one comes."""

    def __init__(self, hub: Hub, base: Facts, license_choice: str | None) -> None:
        self._hub = hub
        self._pin = base.pin
        self._license = license_choice

    @cached_property
    def _base(self) -> Model:
        try:
            return open_model(ModelName.parse(self._pin), self._hub, allow_local=False)
        except HubmergeError as error:
            raise BaseUnfitError(error) from error

    def fitted(self, facts: Facts) -> Facts:
        """The facts with the number of parameters, or with the reason why the agent does not fit.

        HubUnavailableError where that cannot be checked now, BaseUnfitError where the base cannot be opened.
        """
        base = self._base
        try:
            agent = open_model(ModelName.parse(facts.pin), self._hub, allow_local=False)
            parameters = _check(base, agent)
            choose(strictest([base.license, agent.license]), self._license)
        except HubUnavailableError:
            raise
        except HubmergeError as error:
            return facts.model_copy(update={"code": error.code, "text": _reason(error)})
        return facts.model_copy(update={"parameters": parameters})


def _check(base: Model, agent: Model) -> int:
    """The number of parameters that the agent has on the base; IncompatibleError with every problem."""
    seen = views_of(base, [agent])
    problems = list(seen.problems)
    if base.adapter is not None:  # everything else would follow from this
        raise _misfit(problems)
    views = untie(seen.base, seen.agents)
    problems += [*base_problems(seen.base, views.base), *repeated(base, [agent]), *views.problems]
    problems += agent_problems(seen.base, views.base, seen.agents[0], views.agents[0])
    if problems:
        raise _misfit(problems)
    return sum(tensor.entry.elements for tensor in views.agents[0].values())


def _misfit(problems: Sequence[Problem]) -> IncompatibleError:
    return IncompatibleError("it does not fit the base", problems=tuple(dict.fromkeys(problems)))


def _reason(error: HubmergeError) -> str:
    first: Mapping[str, str] = error.problems[0].as_dict()
    text = first["what"]
    found = [f"{name} {first[name]}" for name in ("expected", "got") if first[name]]
    more = len(error.problems) - 1
    text += f": {', '.join(found)}" if found else ""
    return (text + (f" (and {more} more)" if more else ""))[:_LONGEST]

"""Watches for agents of a base: reads everything that a rule of kind `agents` needs before engine.py decides.

    search by lineage and author ∪ hinted repos → facts of each at its head → does it fit the base? → decide

A poll costs one search per author; a model is read again only where the search states another commit or another
visibility than the last time. fit.py then checks whether a model fits its base: a stranger's misfit is left out by name
and cannot spoil the whole set.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

from hubmerge.errors import HubmergeError, HubUnavailableError
from hubmerge.hub.client import Candidate
from hubmerge.methods import registry as methods
from workflows.watchers.base import Decision, Scores, WatchContext, Watcher, digest
from workflows.watchers.engine import decide, is_of_base, refusal
from workflows.watchers.facts import Facts, read_facts
from workflows.watchers.fit import BaseUnfitError, Fitting
from workflows.watchers.rule import AgentRule

log = logging.getLogger(__name__)

MOST_LISTED = 1000  # per search
NEW_PER_LOOK = 100  # models read for the first time in one look; the next look goes on
_READ = 2  # counts what a reading takes in: models that an older program read are read again
PATIENCE = 3  # looks that one unreadable model may hold up


class AgentsWatcher(Watcher):
    """Merges every new agent of a base."""

    kind = "agents"
    rule = AgentRule

    def __init__(self) -> None:
        self._failures: Counter[tuple[str, str]] = Counter()

    def summary(self, rule: AgentRule) -> tuple[tuple[str, str], ...]:
        wanted = rule.agents
        who = {
            "authors": ", ".join(wanted.authors),
            "tags": ", ".join(wanted.tags),
            "lineage": "" if rule.join.fixed else wanted.lineage,
            "licenses": ", ".join(wanted.licenses),
            "excluded": ", ".join(wanted.exclude),
        }
        counts = "; ".join(f"{name}: {value}" for name, value in who.items() if value)
        return (
            ("Base", str(rule.base)),
            ("Agents", counts),
            ("Joining", f"{rule.join}, at least {rule.min_agents}"),
            ("Method", methods()[rule.recipe.method].title),
        )

    def about(self, rule: AgentRule) -> str:
        base, wanted = rule.base.id, rule.agents
        how = f"with {methods()[rule.recipe.method].title}"
        if rule.join.fixed:
            return f"Merges {_listed(rule.join.fixed)} {how}, again whenever the weights of one of them change."
        trained = {"finetune": "fine-tunes of", "adapter": "adapters of", "any": "models trained from"}[wanted.lineage]
        limits = [
            f"by {_listed(wanted.authors, 'or')}" if wanted.authors else "",
            f"tagged {_listed(wanted.tags)}" if wanted.tags else "",
            f"under {_listed(wanted.licenses, 'or')}" if wanted.licenses else "",
            f"of at least {_short(wanted.min_parameters)} parameters" if wanted.min_parameters else "",
            f"of at most {_short(wanted.max_parameters)} parameters" if wanted.max_parameters else "",
            f"but for {_listed(wanted.exclude)}" if wanted.exclude else "",
        ]
        which = " ".join([trained, base, *filter(None, limits)])
        if rule.join.best is not None:
            return f"Merges the best {rule.join.best} on the leaderboard among the {which}, {how}."
        return f"Merges all {which}, {how}, once there are {rule.min_agents} and again with each new one."

    def look(self, rule: AgentRule, context: WatchContext) -> Decision:
        base = read_facts(context.hub, rule.base.id, rule.base.revision)
        fitting = Fitting(context.hub, base, rule.license)
        listed = {c.id: c for c in _search(rule, context)}
        names = rule.join.fixed or tuple(dict.fromkeys([*listed, *_plausible(rule, context.hinted)]))
        candidates: list[Facts] = []
        budget = NEW_PER_LOOK
        for name in names:
            found = listed.get(name)
            facts = self._remembered(rule, context, name, found, base)
            if facts is None:
                if budget == 0:
                    new = f"{len(names)} models match, and one look reads {NEW_PER_LOOK} new ones"
                    return Decision(waiting=f"{new}; the next looks read on, and narrower authors or tags leave fewer")
                budget -= 1
                facts = self._read(rule, context, name, found, fitting, base)
            if name in context.own or any(merge.is_in(facts, base) for merge in context.own_merges):
                facts = facts.model_copy(update={"own": True})
            # a hint at a repo of another lineage is none at a candidate
            if found is not None or name in rule.join.fixed or is_of_base(rule, facts):
                candidates.append(facts)
        flags = context.flags([base, *candidates])
        base, *candidates = (f.model_copy(update={"flag": flags.get(f.id, "")}) for f in (base, *candidates))
        scores = Scores()
        if rule.join.best is not None and rule.suite is not None:
            scores = context.scores(rule.suite, [c for c in candidates if refusal(rule, base, c) is None])
        return decide(rule, base, candidates, context.history, context.budget_left, scores)

    def _remembered(
        self, rule: AgentRule, context: WatchContext, name: str, found: Candidate | None, base: Facts
    ) -> Facts | None:
        if found is None or not found.sha or name in context.hinted:
            return None
        return context.memory.get(name, _key(rule, base, found))

    def _read(
        self, rule: AgentRule, context: WatchContext, name: str, found: Candidate | None, fitting: Fitting, base: Facts
    ) -> Facts:
        """The facts at the head, with the result of the fit. A model that stays unreadable for some looks is left
        out."""
        place = (rule.name, name)
        sha = found.sha if found else ""
        try:
            facts = read_facts(context.hub, name, listed_tags=found.tags if found else ())
            if refusal(rule, base, facts) is None:
                facts = fitting.fitted(facts)
        except BaseUnfitError as error:
            raise error.reason from None
        except HubUnavailableError as error:
            self._failures[place] += 1
            if self._failures[place] <= PATIENCE:
                raise  # a set without it now would be another set once it is back
            return Facts(id=name, sha=sha, code=error.code, text=str(error))
        except HubmergeError as error:  # gone, or closed to the owner
            return Facts(id=name, sha=sha, code=error.code, text=str(error))
        self._failures.pop(place, None)
        context.memory.put(name, _key(rule, base, facts), facts)
        return facts


def _short(number: int) -> str:
    """1500000000 → "1.5B"."""
    size, unit = next((s, u) for s, u in ((10**9, "B"), (10**6, "M"), (10**3, "K"), (1, "")) if number >= s)
    return f"{number / size:.3g}{unit}"


def _listed(words: Sequence[str], last: str = "and") -> str:
    """["a", "b", "c"] → "a, b and c"."""
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end


def _search(rule: AgentRule, context: WatchContext) -> Iterator[Candidate]:
    if rule.join.fixed:
        return
    wanted = rule.agents
    lineage = f"base_model:{rule.base.id}" if wanted.lineage == "any" else f"base_model:{wanted.lineage}:{rule.base.id}"
    for author in wanted.authors or (None,):
        found = context.hub.find_models(tags=[lineage, *wanted.tags], author=author, limit=MOST_LISTED)
        if len(found) >= MOST_LISTED:
            log.warning("rule %s: a search gives %d models; older ones are not seen", rule.name, len(found))
        yield from found


def _plausible(rule: AgentRule, hinted: tuple[str, ...]) -> Iterator[str]:
    authors = {author.lower() for author in rule.agents.authors}
    for name in hinted:
        if name != rule.base.id and (not authors or name.partition("/")[0].lower() in authors):
            yield name


def _key(rule: AgentRule, base: Facts, found: Candidate | Facts) -> str:
    """The key of remembered facts: everything that they depend on."""
    return (
        f"{_READ} {found.sha} {int(found.private)}{int(found.gated)} {base.sha} {digest(rule.model_dump(mode='json'))}"
    )

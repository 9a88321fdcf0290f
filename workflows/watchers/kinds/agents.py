"""Watches for agents of a base, and decides which of them to merge.

    search by lineage and author ∪ hinted repos → facts of each at its head → does it fit the base?
        → those who count → those who join → a set → merged before? anything new? within the budget?

A poll costs one search per author; a model is read again only where the search states another commit or another
visibility than the last time. Every candidate that is left out gets a reason, so a stranger's misfit cannot spoil the
whole set. A set is base@sha, agents@sha and the recipe, so it is merged once, however many deliveries announce it.
"""

import logging
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import product

from hubmerge.errors import (
    CorruptError,
    GatedError,
    HubmergeError,
    HubUnavailableError,
    PermissionDeniedError,
    SourceNotFoundError,
)
from hubmerge.hub.client import Candidate, Hub
from hubmerge.hub.errors import RefusedError
from hubmerge.methods import registry as methods
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.recipe import MAX_AGENTS
from hubmerge.sources.base import Model
from hubmerge.sources.open import open_model
from hubmerge.text.markdown import short_count
from workflows.watchers.base import Decision, PastSet, PlannedMerge, Scores, Skip, WatchContext, Watcher, digest
from workflows.watchers.facts import OF_ACCESS, Facts, facts_of, fitted, is_own_merge
from workflows.watchers.rule import AgentRule

log = logging.getLogger(__name__)

MOST_LISTED = 1000  # per search
NEW_PER_LOOK = 100  # models read for the first time in one look; the next look goes on
_READ = 7  # counts what a reading takes in, and its form: models that an older program read are read again


class AgentsWatcher(Watcher):
    """Merges every new agent of a base."""

    kind = "agents"
    rule = AgentRule

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
            f"of at least {short_count(wanted.min_parameters)} parameters" if wanted.min_parameters else "",
            f"of at most {short_count(wanted.max_parameters)} parameters" if wanted.max_parameters else "",
            f"but for {_listed(wanted.exclude)}" if wanted.exclude else "",
        ]
        which = " ".join([trained, base, *filter(None, limits)])
        if rule.join.best is not None:
            return f"Merges the best {rule.join.best} on the leaderboard among the {which}, {how}."
        return f"Merges all {which}, {how}, once there are {rule.min_agents} and again with each new one."

    def look(self, rule: AgentRule, context: WatchContext) -> Decision:
        hub = context.hub
        base = facts_of(hub.repo_state(rule.base.id, rule.base.revision))
        opened = cache(lambda: open_model(ModelName.parse(base.pin), hub, allow_local=False))
        listed = {c.id: c for c in _search(rule, base, context)}
        excluded = cache(lambda: set(_renamed(rule.agents.exclude, hub, listed)))
        authors = {author.lower() for author in rule.agents.authors}
        hinted = (name for name in context.hinted if not authors or name.partition("/")[0].lower() in authors)
        names = rule.join.fixed or tuple(dict.fromkeys([*listed, *hinted]))
        candidates: list[Facts] = []
        budget, unread = NEW_PER_LOOK, False
        for name in names:
            found = listed.get(name)
            key, remembered = context.known.get(name, ("", {}))
            present = _key(rule, base, found, remembered.get("code"), context) if found and found.sha else None
            if key == present and name not in context.hinted:
                facts = Facts.model_validate(remembered)
            elif budget:
                budget -= 1
                facts = self._read(rule, context, name, found, base, opened, excluded)
            else:
                unread = True
                continue
            named = _as_named(rule, name, facts)
            if {name, facts.id} & context.own or is_own_merge(named, base, rule.owner, context.own_merges):
                facts = facts.model_copy(update={"own": True})
            # a hint at a repo of another lineage is none at a candidate
            if found is not None or name in rule.join.fixed or is_of_base(rule, base, facts):
                candidates.append(facts)
        if not rule.join.fixed:  # a delivery may have named a repo as it was called before
            candidates = list({facts.id: facts for facts in candidates}.values())
        flags = context.flags([base, *candidates])
        base, *candidates = (f.model_copy(update={"flag": flags.get(f.id, "")}) for f in (base, *candidates))
        if unread:
            new = f"{len(names)} models match, and one look reads {NEW_PER_LOOK} new ones"
            step = "a watcher reads on next time, and narrower authors or tags leave fewer"
            skips = (skip for facts in candidates if (skip := refusal(rule, base, facts)))
            return Decision(skips=tuple(skips), waiting=f"{new}; {step}")
        if rule.join.fixed:
            candidates = [_as_named(rule, name, facts) for name, facts in zip(names, candidates, strict=True)]
        scores = Scores()
        if rule.join.best is not None and rule.suite is not None:
            scores = context.scores(rule.suite, [c for c in candidates if refusal(rule, base, c) is None])
        return decide(rule, base, candidates, context.history, context.budget_left, scores)

    def _read(
        self,
        rule: AgentRule,
        context: WatchContext,
        name: str,
        found: Candidate | None,
        base: Facts,
        opened: Callable[[], Model],
        excluded: Callable[[], set[str]],
    ) -> Facts:
        """The facts at the head, with the result of the fit. A base that cannot be opened ends the look."""
        try:
            facts = facts_of(context.hub.repo_state(name), found.tags if found else ())
        except HubmergeError as error:
            return _unreadable(rule, context.hub, name, found, error)
        fits = refusal(rule, base, _as_named(rule, name, facts)) is None
        if fits and facts.id in excluded():
            facts = facts.model_copy(update={"code": "excluded", "text": "the rule excludes it by an earlier name"})
        elif fits:
            model, ignore = opened(), rule.recipe.ignored
            try:
                facts = fitted(facts, model, context.hub, rule.license, ignore)
            except HubmergeError as error:
                return _unreadable(rule, context.hub, name, found, error)
        if found is not None or name in context.known:  # whatever a delivery or the rule names is read again anyway
            context.remember(name, _key(rule, base, facts, facts.code, context), facts)
        return facts


def _renamed(names: Sequence[str], hub: Hub, listed: Container[str]) -> Iterator[str]:
    """The present ids of those repos that the search does not show; what is gone, or closed to the owner, has none."""
    for name in names:
        with suppress(SourceNotFoundError, GatedError, PermissionDeniedError, RefusedError):
            if name not in listed:
                yield hub.repo_state(name).id


def _unreadable(rule: AgentRule, hub: Hub, name: str, found: Candidate | None, error: HubmergeError) -> Facts:
    """What is known of a model that cannot be read: it is left out until it can. Where the Hub does not answer for the
    base either, it is away, and the look ends: a set of those that were read so far would be merged."""
    if isinstance(error, HubUnavailableError):
        hub.repo_state(rule.base.id, rule.base.revision)
    sha, private = (found.sha, found.private) if found else ("", False)
    return Facts(id=name, sha=sha, private=private, code=error.code, text=str(error).removeprefix(f"{error.code}: "))


def _as_named(rule: AgentRule, name: str, facts: Facts) -> Facts:
    """The facts under the name that the rule has for a fixed agent: an old one, or one in another case."""
    return facts.model_copy(update={"id": name}) if name in rule.join.fixed else facts


def _search(rule: AgentRule, base: Facts, context: WatchContext) -> Iterator[Candidate]:
    if rule.join.fixed:
        return
    wanted = rule.agents
    # where a card names no relation, the Hub guesses from its library alone, and that of TRL's adapters is transformers
    kind = "base_model:finetune" if wanted.lineage == "finetune" else "base_model"
    for name, author in product(_names(rule, base), wanted.authors or (None,)):
        found = context.hub.find_models(tags=[f"{kind}:{name}", *wanted.tags], author=author, limit=MOST_LISTED)
        if len(found) >= MOST_LISTED:
            log.warning("rule %s: a search gives %d models; older ones are not seen", rule.name, len(found))
        yield from found


def _key(rule: AgentRule, base: Facts, found: Candidate | Facts, code: str | None, context: WatchContext) -> str:
    """The key of remembered facts: everything that they depend on. What may pass without a commit counts for a day."""
    state = f"{found.sha} {int(found.private)}{int(found.gated)}"
    day = context.today if code in (*OF_ACCESS, CorruptError.code) else ""
    return f"{_READ} {state} {base.sha} {digest(rule.model_dump(mode='json'))}{day}"


def decide(
    rule: AgentRule,
    base: Facts,
    candidates: Sequence[Facts],
    history: Sequence[PastSet],
    budget_left: int,
    scores: Scores,
) -> Decision:
    """Which set to merge now, or why none: a pure function of what was read, what was merged, and the day's budget.

    The order of `candidates` does not matter; their ids are distinct.
    """
    skips: list[Skip] = []
    accepted: dict[str, Facts] = {}  # by their weights
    reason = _base_refused(rule, base)
    if reason:
        return Decision(skips=(Skip(base.id, base.sha, "base", reason, base.private),), waiting=reason)
    merged = {pin.partition("@")[0] for past in history if past.merged for pin in past.members["agents"]}
    # a score outlives copies, and no stranger takes the place of who was merged before
    for facts in sorted(candidates, key=lambda c: (c.pin not in scores.values, c.id not in merged, c.id)):
        skip = refusal(rule, base, facts)
        if skip is None and (other := accepted.setdefault(facts.weights, facts)) is not facts:
            private = facts.private or other.private
            skip = Skip(facts.id, facts.sha, "copy", f"the weights are those of {other.id}", private)
        if skip is not None:
            skips.append(skip)
    joining, left_out, waiting = _join(rule, sorted(accepted.values(), key=lambda c: c.id), scores)
    skips += left_out
    if waiting or len(joining) < rule.min_agents:
        missing = waiting or f"{len(joining)} of at least {rule.min_agents} agents so far"
        return Decision(skips=tuple(skips), waiting=missing)
    planned = plan_merge(rule, base, joining)
    before = next((past for past in history if past.set_id == planned.set_id), None)
    if before is not None and (before.merged or before.target == planned.target):  # else its owner corrected the rule
        refused = "" if before.merged else "this set was refused today; it is tried again tomorrow (UTC)"
        return Decision(skips=tuple(skips), waiting=refused)
    stop = _known(rule, planned, candidates, history)
    if stop is None and budget_left < 1:
        stop = ("budget", f"the day's budget of {rule.budget} is used up; it goes on tomorrow (UTC)")
    if stop is not None:
        skips.append(Skip(planned.subject, planned.set_id[:40], *stop))
        return Decision(skips=tuple(skips), waiting=stop[1])
    return Decision(planned, tuple(skips))


def _base_refused(rule: AgentRule, base: Facts) -> str:
    if base.own:
        return "the base is a merge of ours"
    if base.flag:
        return f"the base is flagged: {base.flag}"
    if not base.weights:
        return "the base has no weights in safetensors"
    return _closed(rule, base)


def _closed(rule: AgentRule, facts: Facts) -> str:
    """The reason why a parent must stay out of a public merge, or an empty text."""
    if not (facts.gated or facts.private) or rule.private or rule.agents.closed:
        return ""
    return f"a {'gated' if facts.gated else 'private'} model does not join a public merge"


def refusal(rule: AgentRule, base: Facts, facts: Facts) -> Skip | None:
    """The reason why a candidate does not count; None where it does."""
    wanted, named = rule.agents, facts.id in rule.join.fixed
    reason: tuple[str, str] | None = None
    if facts.id == base.id:
        reason = "base", "the base itself"
    elif facts.own:
        reason = "own_output", "a merge of ours"
    elif facts.flag:
        reason = "flagged", facts.flag
    elif facts.id.lower() in {name.lower() for name in wanted.exclude}:
        reason = "excluded", "the rule excludes it"
    elif facts.code and not facts.weights:  # it could not be read at all
        reason = facts.code, facts.text
    elif not named and wanted.authors and facts.author.lower() not in {a.lower() for a in wanted.authors}:
        reason = "author", f"{facts.author} is not among the rule's authors"
    elif not named and (missing := [tag for tag in wanted.tags if tag not in facts.tags]):
        reason = "tag", f"without the tag {missing[0]}"
    elif not named and not is_of_base(rule, base, facts):
        stated = not _names(rule, base).isdisjoint(facts.bases)
        other = f"counts as {facts.relation}, and the rule takes {wanted.lineage}"
        reason = "lineage", other if stated else f"does not state to be of {rule.base.id}"
    elif not facts.weights:
        reason = "no_weights", "no weights in safetensors yet"
    elif facts.weights == base.weights:
        reason = "copy", "the weights are the base's"
    elif wanted.licenses and (facts.license or "unknown").lower() not in {x.lower() for x in wanted.licenses}:
        reason = "license", f"its license is {facts.license or 'not stated'}"
    elif closed := _closed(rule, facts):
        reason = "closed", closed
    elif wanted.max_bytes is not None and facts.weight_bytes > wanted.max_bytes:
        reason = "size", f"{facts.weight_bytes} bytes are more than {wanted.max_bytes}"
    elif facts.code:
        reason = facts.code, facts.text
    elif facts.parameters is not None and not (
        (wanted.min_parameters or 0) <= facts.parameters <= (wanted.max_parameters or facts.parameters)
    ):
        reason = "size", f"{facts.parameters} parameters are outside the rule's range"
    return _skip(facts, *reason) if reason else None


def is_of_base(rule: AgentRule, base: Facts, facts: Facts) -> bool:
    """Whether a model states the rule's base as its own, in the way that the rule asks for."""
    return not _names(rule, base).isdisjoint(facts.bases) and rule.agents.lineage in ("any", facts.relation)


def _names(rule: AgentRule, base: Facts) -> set[str]:
    """The base as the rule writes it, which may be an earlier name or in another case, and as the Hub does."""
    return {rule.base.id, base.id}


def plan_merge(rule: AgentRule, base: Facts, joining: Sequence[Facts]) -> PlannedMerge:
    recipe = rule.recipe.recipe(base.pin, tuple(facts.pin for facts in joining))
    how = {key: value for key, value in recipe.items() if key not in ("base", "agents")}
    set_id = digest(recipe)
    weights = [facts.weights for facts in joining]
    # ordered by names, and a model that is renamed is no new one
    weights_id = digest([base.weights, weights if rule.join.fixed else sorted(weights), how])
    target = rule.target_for(set_id, len(joining))
    return PlannedMerge(set_id, weights_id, recipe, target, (base.weights, *weights), rule.agents.closed)


def _skip(facts: Facts, code: str, text: str) -> Skip:
    return Skip(facts.id, facts.sha, code, text, facts.private)


def _join(rule: AgentRule, accepted: Sequence[Facts], scores: Scores) -> tuple[list[Facts], list[Skip], str]:
    """The models that join, in the order of the recipe; those that do not, with reasons; and what is waited for."""
    if rule.join.fixed:
        by_id = {facts.id: facts for facts in accepted}
        absent = [name for name in rule.join.fixed if name not in by_id]
        if absent:
            return [], [], f"{absent[0]} cannot join"
        return [by_id[name] for name in rule.join.fixed], [], ""
    if rule.join.best is None:
        joining, rest = list(accepted[:MAX_AGENTS]), accepted[MAX_AGENTS:]
        text = f"a merge has at most {MAX_AGENTS} agents; let the best join instead"
        return joining, [_skip(f, "too_many", text) for f in rest], ""
    scored = [facts for facts in accepted if facts.pin in scores.values]
    unscored = [facts for facts in accepted if facts.pin not in scores.values]
    pending = {facts.pin for facts in unscored} & scores.pending
    none = f"it has no signed score of the suite {rule.suite}"
    skips = [_skip(f, "no_score", "its evaluation is on its way" if f.pin in pending else none) for f in unscored]
    ranked = sorted(scored, key=lambda f: (-scores.values[f.pin], f.id))
    best = {facts.id for facts in ranked[: rule.join.best]}
    skips += [_skip(f, "not_best", f"not among the best {rule.join.best}") for f in ranked[rule.join.best :]]
    waiting = f"evaluations on their way: {len(pending)}" if pending else ""
    # the set does not depend on who leads: order by name
    return [facts for facts in scored if facts.id in best], skips, waiting


def _known(
    rule: AgentRule, planned: PlannedMerge, candidates: Sequence[Facts], history: Sequence[PastSet]
) -> tuple[str, str] | None:
    """The reason why a set that was never merged brings nothing new, or None."""
    if any(past.merged and past.weights_id == planned.weights_id for past in history):
        return "same_weights", "only cards or names changed since these weights were merged"
    if rule.join.fixed:
        return None
    # one that could not be read is as good as gone: the search shows what was deleted or hidden for a while
    mine = planned.members
    present = {mark for f in candidates if f.weights or not f.code for mark in (f.id, f.weights)}  # or renamed
    for past in history:
        theirs = past.members
        alike = theirs["recipe"] == mine["recipe"] and "weights" in theirs  # which an older program did not write down
        if not past.merged or past.failed or not alike:
            continue
        (base, *now), (their_base, *then) = mine["weights"], theirs["weights"]
        lost = [
            (pin.partition("@")[0], held) for pin, held in zip(theirs["agents"], then, strict=True) if held not in now
        ]
        if base == their_base and set(now) <= set(then) and all(present.isdisjoint(agent) for agent in lost):
            return "nothing_new", "some agents are gone or not listed, and there is no new one"
    return None


def _listed(words: Sequence[str], last: str = "and") -> str:
    """["a", "b", "c"] → "a, b and c"."""
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end

"""The decision of a rule over agents: a pure function of what was read, what was merged before, and the day's budget.

    candidates → those who count → those who join → a set → merged before? anything new? within the budget?

Every candidate that is left out gets a reason. A set is base@sha, agents@sha and the recipe, so it is merged once,
however many deliveries announce it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hubmerge.recipe.recipe import MAX_AGENTS
from workflows.watchers.base import Decision, PastSet, PlannedMerge, Scores, Skip, digest
from workflows.watchers.facts import Facts
from workflows.watchers.rule import AgentRule


def decide(
    rule: AgentRule,
    base: Facts,
    candidates: Sequence[Facts],
    history: Sequence[PastSet],
    budget_left: int,
    scores: Scores,
) -> Decision:
    """Which set to merge now, or why none. The order of `candidates` does not matter; their ids are distinct."""
    skips: list[Skip] = []
    accepted: list[Facts] = []
    reason = _base_refused(rule, base)
    if reason:
        return Decision(skips=(Skip(base.id, base.sha, "base", reason, base.private),), waiting=reason)
    for facts in sorted(candidates, key=lambda c: c.id):
        skip = refusal(rule, base, facts) or _copy_of(facts, accepted)
        if skip is None:
            accepted.append(facts)
        else:
            skips.append(skip)
    joining, left_out, waiting = _join(rule, accepted, scores)
    skips += left_out
    if waiting or len(joining) < rule.min_agents:
        missing = waiting or f"{len(joining)} of at least {rule.min_agents} agents so far"
        return Decision(skips=tuple(skips), waiting=missing)
    planned = plan_merge(rule, base, joining)
    if any(past.set_id == planned.set_id for past in history):
        return Decision(skips=tuple(skips))
    stop = _known(rule, planned, candidates, history)
    if stop is None and budget_left < 1:
        stop = ("budget", f"the day's budget of {rule.budget} is used up; tomorrow (UTC) goes on")
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
    elif facts.id in wanted.exclude:
        reason = "excluded", "the rule excludes it"
    elif facts.code and not facts.weights:  # it could not be read at all
        reason = facts.code, facts.text
    elif not named and wanted.authors and facts.author.lower() not in {a.lower() for a in wanted.authors}:
        reason = "author", f"{facts.author} is not among the rule's authors"
    elif not named and (missing := [tag for tag in wanted.tags if tag not in facts.tags]):
        reason = "tag", f"without the tag {missing[0]}"
    elif not named and not is_of_base(rule, facts):
        reason = "lineage", f"does not state to be of {rule.base.id} ({wanted.lineage})"
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


def is_of_base(rule: AgentRule, facts: Facts) -> bool:
    """Whether a model states the rule's base as its own, in the way that the rule asks for."""
    return rule.base.id in facts.bases and rule.agents.lineage in ("any", facts.relation)


def plan_merge(rule: AgentRule, base: Facts, joining: Sequence[Facts]) -> PlannedMerge:
    recipe = rule.recipe.recipe(base.pin, tuple(facts.pin for facts in joining))
    how = {key: value for key, value in recipe.items() if key not in ("base", "agents")}
    set_id = digest(recipe)
    weights_id = digest([base.weights, [facts.weights for facts in joining], how])
    return PlannedMerge(set_id, weights_id, recipe, rule.target_for(set_id, len(joining)), rule.agents.closed)


def _copy_of(facts: Facts, accepted: Sequence[Facts]) -> Skip | None:
    other = next((a for a in accepted if a.weights == facts.weights), None)
    return _skip(facts, "copy", f"the weights are those of {other.id}") if other else None


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
    pending = [facts for facts in accepted if facts.pin in scores.pending and facts.pin not in scores.values]
    skips = [_skip(f, "no_score", "its evaluation is on its way") for f in pending]
    scored = [facts for facts in accepted if facts.pin in scores.values]
    skips += [
        _skip(f, "no_score", f"it has no score of the suite {rule.suite}")
        for f in accepted
        if f not in scored and f not in pending
    ]
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
        return "same_weights", "only cards changed since these weights were merged"
    if rule.join.fixed or rule.join.best is not None:
        return None
    mine, present = planned.members, {facts.id for facts in candidates}
    for past in history:
        theirs = past.members
        if not past.merged or (theirs["base"], theirs["recipe"]) != (mine["base"], mine["recipe"]):
            continue
        gone = set(theirs["agents"]) - set(mine["agents"])
        if set(mine["agents"]) <= set(theirs["agents"]) and all(p.partition("@")[0] not in present for p in gone):
            return "nothing_new", "some agents are gone or not listed, and there is no new one"
    return None

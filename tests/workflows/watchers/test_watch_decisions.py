"""Decisions as a pure function, who joins and why others do not, and their record: never the same set twice."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from job_helpers import OUTAGE, ended, new_job
from watch_helpers import BASE, facts, rule_of

from hubmerge.errors import IncompatibleError
from hubmerge.hub.names import FileInfo, RepoState
from hubmerge.recipe.recipe import recipe_from_dict
from workflows.jobs.jobs import JobError, NewJob, State
from workflows.jobs.store import Store
from workflows.jobs.tokens import SealedToken
from workflows.watchers import ledger as ledger_module
from workflows.watchers.base import Decision, PastSet, PlannedMerge, Scores, Skip
from workflows.watchers.facts import Facts, OwnMerge, _reason, facts_of, is_own_merge
from workflows.watchers.kinds.agents import decide, plan_merge, refusal
from workflows.watchers.ledger import Ledger

A, B, C = facts("a"), facts("b"), facts("c")


def past(planned: PlannedMerge, *, merged: bool = True) -> PastSet:
    return PastSet(planned.set_id, planned.weights_id, json.loads(json.dumps(planned.members)), planned.target, merged)


def agents_of(decision: Decision) -> list[str]:
    return [agent.partition("@")[0].removeprefix("zoo/") for agent in decision.merge.recipe["agents"]]


def reasons(decision: Decision) -> dict[str, str]:
    return {skip.subject.removeprefix("zoo/"): skip.code for skip in decision.skips}


def decided(
    candidates: Sequence[Facts],
    history: Sequence[PastSet] = (),
    *,
    base: Facts = BASE,
    scores: Scores = Scores(),  # noqa: B008 - it is frozen
    **rule: Any,
) -> Decision:
    return decide(rule_of(**rule), base, candidates, history, 3, scores)


def test_all_so_far_are_merged_by_name_and_pinned():
    decision = decided([C, A, B])
    recipe = recipe_from_dict(decision.merge.recipe)
    assert [str(agent.model) for agent in recipe.agents] == [A.pin, B.pin, C.pin]
    assert str(recipe.base) == BASE.pin
    # the identity of a set, by hand
    text = json.dumps(decision.merge.recipe, sort_keys=True, separators=(",", ":"))
    assert decision.merge.set_id == hashlib.sha256(text.encode()).hexdigest()
    assert decision.merge.target == f"ada/watch-{decision.merge.set_id[:10]}"


@pytest.mark.parametrize("state", ["private", "gated"])
def test_a_base_that_is_not_open_joins_no_public_merge_unless_the_rule_says_so(state):
    base = BASE.model_copy(update={state: True})
    left = decided([A, B], base=base)
    assert left.merge is None
    assert left.waiting == f"a {state} model does not join a public merge"
    assert [(skip.subject, skip.private) for skip in left.skips] == [(base.id, state == "private")]
    assert not decided([A, B], base=base, private=True).merge.expose
    assert decided([A, B], base=base, agents={"authors": ["zoo"], "closed": True}).merge.expose


@pytest.mark.parametrize(
    ("changes", "wanted", "code"),
    [
        ({"own": True}, {}, "own_output"),
        ({"flag": "withdrawn: by its author"}, {}, "flagged"),
        ({"id": "zoo/base"}, {}, "base"),
        ({}, {"exclude": ["Zoo/X"]}, "excluded"),
        ({"id": "eve/x"}, {}, "author"),
        ({}, {"tags": ["rl"]}, "tag"),
        ({"bases": ("zoo/other",)}, {}, "lineage"),
        ({"relation": "quantized"}, {}, "lineage"),
        ({"relation": "adapter"}, {}, "lineage"),
        ({"weights": ""}, {}, "no_weights"),
        ({"weights": BASE.weights}, {}, "copy"),
        ({"license": None}, {"licenses": ["mit", "apache-2.0"]}, "license"),
        ({"license": "cc-by-nc-4.0"}, {"licenses": ["mit", "apache-2.0"]}, "license"),
        ({"gated": True}, {}, "closed"),
        ({"private": True}, {}, "closed"),
        ({"weight_bytes": 1001}, {"max_bytes": 1000}, "size"),
        ({"parameters": 501}, {"max_parameters": 500}, "size"),
        ({"parameters": 499}, {"min_parameters": 500}, "size"),
        ({"code": "E_INCOMPATIBLE", "text": "another architecture"}, {}, "E_INCOMPATIBLE"),
        ({"code": "E_SOURCE", "text": "gone", "weights": "", "bases": ()}, {}, "E_SOURCE"),
    ],
)
def test_who_does_not_count_is_left_out_and_why(changes, wanted, code):
    tagged = {"tags": ("rl",)} if wanted.get("tags") else {}
    stranger = facts("x", **changes)
    others = [facts("a", **tagged), facts("b", **tagged)]
    decision = decided([stranger, *others], agents={"authors": ["zoo"], **wanted})
    assert reasons(decision) == {stranger.id.removeprefix("zoo/"): code}
    assert agents_of(decision) == ["a", "b"]


CLOSED = facts("a", gated=True)
FIXED = {"join": {"fixed": ["zoo/c", "zoo/a"]}, "agents": None}
BEST = {"join": {"best": 2}, "suite": "zoo"}
SCORED = {A.pin: 0.9, B.pin: 0.1}
MANY = [f"a{n:02}" for n in range(40)]


@pytest.mark.parametrize(
    ("candidates", "rule", "scores", "joined", "left_out"),
    [
        # authors are compared as the Hub does, licenses without case
        (
            [facts("Zoo/a", license="Apache-2.0"), B],
            {"agents": {"authors": ["zOO"], "licenses": ["apache-2.0"]}},
            {},
            ["Zoo/a", "b"],
            {},
        ),
        # closed models join private merges, and where the owner says so
        ([CLOSED, B], {"private": True}, {}, ["a", "b"], {}),
        ([CLOSED, B], {"agents": {"authors": ["zoo"], "closed": True}}, {}, ["a", "b"], {}),
        ([A], {"min_agents": 2}, {}, "1 of at least 2", {}),
        ([A, B, facts("z", weights=A.weights)], {}, {}, ["a", "b"], {"z": "copy"}),
        # as many as a recipe takes
        ([facts(name) for name in MANY], {}, {}, MANY[:32], dict.fromkeys(MANY[32:], "too_many")),
        # fixed ones keep their order, and all are needed
        ([A, B, C], FIXED, {}, ["c", "a"], {}),
        ([facts("a", weights=""), C], FIXED, {}, "zoo/a cannot join", {"a": "no_weights"}),
        # the set does not depend on who of the best leads; it waits for scores on their way alone
        ([A, B, C], BEST, {"values": {**SCORED, C.pin: 0.5}}, ["a", "c"], {"b": "not_best"}),
        ([A, B, C], BEST, {"values": {**SCORED, C.pin: 1.0}}, ["a", "c"], {"b": "not_best"}),
        ([A, B, C], BEST, {"values": SCORED, "pending": {C.pin}}, "on their way: 1", {"c": "no_score"}),
        ([A, B, C], BEST, {"values": SCORED}, ["a", "b"], {"c": "no_score"}),
    ],
)
def test_who_joins_in_which_order_or_what_is_waited_for(candidates, rule, scores, joined, left_out):
    decision = decided(candidates, scores=Scores(**scores), **rule)
    assert reasons(decision) == left_out
    if isinstance(joined, str):
        assert decision.merge is None
        assert joined in decision.waiting
    else:
        assert agents_of(decision) == joined


def test_of_the_best_one_is_told_that_only_signed_scores_count():
    decision = decided([A, B, C], scores=Scores(values=SCORED), **BEST)
    assert [skip.text for skip in decision.skips] == ["it has no signed score of the suite zoo"]


@pytest.mark.parametrize(("state", "told"), [({"own": True}, "base"), ({"flag": "contaminated: saw it"}, "saw it")])
def test_a_base_of_ours_or_one_that_is_flagged_is_never_merged_into(state, told):
    decision = decided([A, B], base=facts("base", bases=(), **state))
    assert decision.merge is None
    assert told in (decision.skips[0].code if "own" in state else decision.waiting)


def test_a_set_that_was_refused_today_is_not_tried_again_and_forbids_no_other_of_its_weights():
    refused = past(decided([A, B]).merge, merged=False)
    again = decided([A, B], [refused])
    told = "this set was refused today; it is tried again tomorrow (UTC)"  # and not "nothing new"
    assert (again.merge, again.skips, again.waiting) == (None, (), told)
    for other in ({"set_id": "0" * 64}, {"target": "ada/taken"}):  # its owner chose another target meanwhile
        assert decided([A, B], [replace(refused, **other)]).merge is not None


RENAMED, EDITED = facts("z", weights=A.weights), facts("a", 2, weights=A.weights)
MOVED = facts("base", 2, bases=(), weights=BASE.weights)
WITHOUT_C = {"agents": {"authors": ["zoo"], "exclude": ["zoo/c", "zoo/renamed"]}}
BEST_THREE = {"join": {"best": 3}, "suite": "zoo", "scores": Scores({agent.pin: 1.0 for agent in (A, B, C)})}


def lost(code: str) -> Facts:
    """An agent that the search still shows and that nobody can read, since it was deleted, hidden or cut off."""
    return facts("c", code=code, weights="", bases=())


@pytest.mark.parametrize(
    ("before", "now", "rule", "joined"),
    [
        # a new agent, new weights, another base or recipe make a new set
        ([A, B], [A, B, C], {}, ["a", "b", "c"]),
        ([A, B], [A, facts("b", 2)], {}, ["a", "b"]),
        ([A, B], [A, B], {"base": facts("base", 2, bases=())}, ["a", "b"]),
        ([A, B], [A, B], {"recipe": {"method": "ties"}}, ["a", "b"]),
        # an agent that is renamed is no new one
        ([A, B], [RENAMED, B], {}, "same_weights"),
        ([A, B], [A, B], {"join": {"fixed": ["zoo/b", "zoo/a"]}, "agents": None}, ["b", "a"]),  # an order of choice
        # agents that vanish cause no merge of the rest, but one that the owner excludes makes another set
        ([A, B, C], [A, B], {}, "nothing_new"),
        ([A, B, C], [A, B, lost("E_SOURCE")], {}, "nothing_new"),
        ([A, B, C], [A, B, lost("E_HUB")], {}, "nothing_new"),
        ([A, B, C], [A, B, C], WITHOUT_C, ["a", "b"]),
        ([A, B, C], [A, B, facts("renamed", weights=C.weights)], WITHOUT_C, ["a", "b"]),
        # nor does a card or a name that changes afterwards
        ([A, B, C], [EDITED, B], {}, "nothing_new"),
        ([A, B, C], [RENAMED, B], {}, "nothing_new"),
        ([A, B, C], [A, B], {"base": MOVED}, "nothing_new"),
        ([A, B, C], [facts("a", 2), B], {}, ["a", "b"]),
        # nor does one of the best that vanishes, where the owner does not want fewer
        ([A, B, C], [A, B], BEST_THREE, "nothing_new"),
        ([A, B, C], [A, B, C], BEST_THREE | BEST, ["a", "b"]),
    ],
)
def test_after_a_merge_another_set_is_merged_and_the_same_or_the_rest_of_it_is_not(before, now, rule, joined):
    decision = decided(now, [past(decided(before).merge)], **rule)
    if isinstance(joined, str):
        assert (decision.merge, joined in reasons(decision).values()) == (None, True)
    else:
        assert agents_of(decision) == joined


def test_once_the_agent_that_broke_a_merge_is_gone_the_others_are_merged():
    failed = replace(past(decided([A, B, C]).merge), failed=True)
    assert decided([A, B, C], [failed]).merge is None
    assert agents_of(decided([A, B], [failed])) == ["a", "b"]


def test_a_copy_without_a_score_takes_no_place_of_the_best():
    scores = Scores({A.pin: 1.0, B.pin: 2.0}, pending=frozenset({facts("0").pin}))
    chosen = decided([facts("0", weights=B.weights), A, B], scores=scores, **BEST)
    assert (agents_of(chosen), reasons(chosen)) == (["a", "b"], {"0": "copy"})


def test_the_best_of_thousands_are_chosen_within_seconds():
    many, began = [facts(f"m{n}") for n in range(5000)], time.process_time()
    decision = decided(many, scores=Scores({agent.pin: 0.5 for agent in many[1:]}), **BEST)
    assert Counter(reasons(decision).values()) == {"no_score": 1, "not_best": 4997}
    assert time.process_time() - began < 10


def test_a_stranger_s_copy_does_not_take_the_place_of_an_agent_that_was_merged():
    tagged = {"agents": {"tags": ["rl"]}}
    a, b, new = (facts(name, tags=("rl",)) for name in "ab0")
    copy = facts("eve/a", tags=("rl",), weights=a.weights, license="mit")
    decision = decided([copy, a, b, new], [past(decided([a, b], **tagged).merge)], **tagged)
    assert (agents_of(decision), reasons(decision)) == (["0", "a", "b"], {"eve/a": "copy"})  # by name


candidate = st.builds(
    facts,
    st.sampled_from(["zoo/a", "zoo/b", "zoo/c", "zoo/d", "eve/x", "zoo/base"]),
    st.integers(1, 3),
    own=st.booleans(),
    private=st.sampled_from([False, False, True]),
    license=st.sampled_from(["apache-2.0", None]),
    weights=st.sampled_from(["", "one", "two", "three", "four", "five"]),
    code=st.sampled_from(["", "", "E_INCOMPATIBLE"]),
)
candidates_ = st.lists(candidate, max_size=8, unique_by=lambda f: f.id)
rules = st.sampled_from(
    [
        rule_of(),
        rule_of(private=True, agents={"authors": ["zoo", "eve"], "licenses": ["apache-2.0"]}),
        rule_of(agents=None, join={"fixed": ["zoo/b", "zoo/a"]}),
        rule_of(join={"best": 2}, suite="zoo"),
        rule_of(min_agents=3),
    ]
)


def scores_of(found: Sequence[Facts]) -> Scores:
    return Scores({f.pin: len(f.weights) / 10 for f in found if f.sha.endswith(("1", "2"))})


@settings(max_examples=300, deadline=None)
@given(rules, candidates_, st.integers(0, 2), st.randoms())
def test_any_decision_keeps_the_promises(rule, found, budget, random):
    scores = scores_of(found)
    decision = decide(rule, BASE, found, (), budget, scores)
    shuffled = list(found)
    random.shuffle(shuffled)
    assert decide(rule, BASE, shuffled, (), budget, scores) == decision
    refused = {f.id for f in found if refusal(rule, BASE, f)}
    told = {skip.subject for skip in decision.skips}
    assert refused <= told
    if decision.merge is None:
        return
    assert budget > 0
    joined = [agent.partition("@")[0] for agent in decision.merge.recipe["agents"]]
    assert len(set(joined)) == len(joined) >= rule.min_agents
    assert not set(joined) & (refused | told)
    by_id = {f.id: f for f in found}
    assert all(not by_id[name].own and by_id[name].weights for name in joined)
    if rule.join.best is None and not rule.join.fixed:
        assert set(joined) | told == set(by_id)  # nobody is left out in silence
    # what was merged is history: the same look decides nothing, however full the budget
    assert decide(rule, BASE, shuffled, [past(decision.merge)], 100, scores).merge is None


@settings(max_examples=150, deadline=None)
@given(rules, st.lists(candidates_, min_size=1, max_size=6))
def test_no_set_is_merged_twice_whatever_the_hub_shows(rule, rounds):
    history: list[PastSet] = []
    for found in rounds:
        decision = decide(rule, BASE, found, history, 5, scores_of(found))
        if decision.merge is not None:
            assert decision.merge.set_id not in {p.set_id for p in history}
            assert decision.merge.weights_id not in {p.weights_id for p in history}
            history.append(past(decision.merge))


def test_a_merge_is_known_by_any_shard_that_is_not_the_base_s_and_its_parents_are_none():
    base = facts("base", bases=(), files=("shared",))
    merges = {file: [OwnMerge("ada", frozenset({"zoo/base", "zoo/a"}))] for file in ("shared", "merged")}
    assert is_own_merge(facts("copy", files=("merged", "shared")), base, "ada", merges)
    assert not is_own_merge(facts("b", files=("other", "shared")), base, "ada", merges)
    assert not is_own_merge(facts("a", files=("merged", "shared")), base, "ada", merges)  # λ = 1 of one agent is it
    copied = {"merged": [OwnMerge("eve", frozenset({"zoo/base", "eve/copy-of-a"}))]}
    assert not is_own_merge(facts("a", files=("merged",)), base, "ada", copied)  # no stranger keeps it from a rule
    assert is_own_merge(facts("eve/again", files=("merged",)), base, "ada", copied)


# --- the record of it ---------------------------------------------------------------------------------------------


TOKEN = SealedToken("sealed", None)


@pytest.fixture
def ledger(store: Store) -> Ledger:
    return Ledger(store)


def planned(*versions: int) -> PlannedMerge:
    return plan_merge(rule_of(), BASE, [facts(f"a{n}", n) for n in versions])


def job_of(merge: PlannedMerge, user: str = "ada") -> NewJob:
    return NewJob(id=merge.set_id, user=user, payload={"target": merge.target})


def test_the_budget_holds_against_many_sets_at_once(ledger):
    merges = [planned(n, n + 1) for n in range(1, 13)]
    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(lambda m: ledger.start("watch", m, job_of(m, m.set_id[:8]), TOKEN, 3), merges))
    assert sum(job is not None for job in started) == 3
    assert ledger.used("watch") == 3


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (JobError(code="E_HUB", message="away for days", retryable=True), True),
        (JobError(code="E_DISK", message="full", retryable=True), True),
        (JobError(code="E_SOURCE_CHANGED", message="an agent was hidden for an hour"), True),
        (JobError(code="E_LOGIN", message="a token that was revoked"), True),
        (JobError(code="E_NONFINITE", message="an agent holds NaN"), False),
    ],
)
def test_a_set_whose_job_was_given_up_without_its_fault_is_tried_another_day(
    ledger, store, clock, monkeypatch, error, again
):
    monkeypatch.setattr("workflows.jobs.transaction.OUTAGE_TRIES", 2)
    merge = planned(1, 2)
    assert ledger.start("watch", merge, job_of(merge), TOKEN, 5) is not None
    while ended(store, error).state is not State.FAILED:
        clock.pass_time(seconds=700.0)
    clock.pass_time(days=3)
    assert [past.set_id for past in ledger.history("watch")] == ([] if again else [merge.set_id])
    started = ledger.start("watch", merge, job_of(merge), TOKEN, 5)
    assert (started is not None) is again
    if started is not None:
        assert started.state is State.QUEUED
        assert ledger.used("watch") == 1  # of today's budget
        assert [past.set_id for past in ledger.history("watch")] == [merge.set_id]
        assert ledger.start("watch", merge, job_of(merge), TOKEN, 5) is None


def test_history_tells_a_merge_that_failed_from_one_that_is_done_or_on_its_way(ledger, store):
    merges = [planned(1, 2), planned(3, 4), planned(5, 6), planned(9, 10)]
    for merge in merges:
        ledger.start("watch", merge, job_of(merge), TOKEN, 5)
    ended(store, JobError(code="E_NONFINITE", message="an agent holds NaN"))
    ended(store, JobError(code="E_SOURCE_CHANGED", message="for an hour"))
    ended(store)
    ledger.refuse("watch", planned(7, 8), "E_X", "taken")
    told = {past.set_id: (past.merged, past.failed) for past in ledger.history("watch")}
    expected = [(True, True), (True, False), (True, False), (True, False), (False, False)]
    assert told == dict(zip([merge.set_id for merge in (*merges, planned(7, 8))], expected, strict=True))


def test_a_set_that_was_given_up_and_is_refused_waits_for_another_day(ledger, store, clock):
    merge = planned(1, 2)
    ledger.start("watch", merge, job_of(merge), TOKEN, 5)
    ended(store, JobError(code="E_PERMISSION", message="no namespace of the token's"))
    clock.pass_time(days=1)
    ledger.refuse("watch", merge, "E_TARGET_EXISTS", "taken meanwhile")
    assert [past.merged for past in ledger.history("watch")] == [False]
    clock.pass_time(days=1)
    assert ledger.history("watch") == ()
    assert ledger.start("watch", merge, job_of(merge), TOKEN, 5).state is State.QUEUED


def test_a_set_that_was_given_up_is_merged_once_to_another_target(ledger, store, clock):
    merge = planned(1, 2)
    ledger.start("watch", merge, job_of(merge), TOKEN, 5)
    ended(store, JobError(code="E_PERMISSION", message="no namespace of the token's"))
    clock.pass_time(days=1)
    elsewhere = NewJob(id="e" * 64, user="ada", payload={"target": "ada/elsewhere"})  # its owner corrected the rule
    assert ledger.start("watch", merge, elsewhere, TOKEN, 5).id == elsewhere.id
    assert ledger.used("watch") == 1
    ended(store)
    assert [past.set_id for past in ledger.history("watch")] == [merge.set_id]
    assert ledger.start("watch", merge, elsewhere, TOKEN, 5) is None


def test_budgets_and_histories_of_rules_are_their_own(ledger, clock):
    merge = planned(1, 2)
    assert ledger.start("one", merge, job_of(merge), TOKEN, 1) is not None
    assert (ledger.history("two"), ledger.used("two"), ledger.used("one")) == ((), 0, 1)
    assert ledger.start("two", merge, job_of(merge), TOKEN, 1).id == merge.set_id  # the same set is the same job
    ledger.refuse("one", merge, "E_X", "too late")  # what is merged stays merged
    assert [past.merged for past in ledger.history("one")] == [True]
    ledger.refuse("one", planned(3, 4), "E_X", "taken")
    clock.wall -= timedelta(days=1)  # which was ahead, and so uses up no budget and shuts no set out
    assert ledger.used("one") == 0
    assert [past.merged for past in ledger.history("one")] == [True]


def test_a_job_that_a_person_started_is_taken_over_not_doubled(ledger, store):
    merge = planned(1, 2)
    mine = store.submit(job_of(merge))
    started = ledger.start("watch", merge, job_of(merge), TOKEN, 5)
    assert (started.id, started.ticket) == (mine.id, mine.ticket)
    assert len(store.list_jobs()) == 1
    assert store.sealed_token(mine.id) is None  # whose token acts was decided when it was submitted


@pytest.mark.parametrize("code", ["E_LOGIN", "E_NONFINITE", None])
def test_another_user_s_job_that_was_given_up_goes_on_as_the_rule_s(ledger, store, code):
    merge = planned(1, 2)
    theirs = store.submit(job_of(merge, "bob"), SealedToken("of bob", None))
    if code is None:
        store.request_cancel(theirs.id, "bob")
    else:
        ended(store, JobError(code=code, message="the sign-in is over, or an agent holds NaN"))
    started = ledger.start("watch", merge, job_of(merge), TOKEN, 5)
    assert (started.id, started.state, started.user) == (merge.set_id, State.QUEUED, "ada")
    assert store.sealed_token(started.id) == TOKEN


def test_a_set_whose_job_is_tried_again_is_not_given_up(ledger, store, clock):
    merge = planned(1, 2)
    ledger.start("watch", merge, job_of(merge), TOKEN, 5)
    assert ended(store, OUTAGE).state is State.QUEUED
    clock.pass_time(hours=30)
    assert [past.set_id for past in ledger.history("watch")] == [merge.set_id]
    assert ledger.start("watch", merge, job_of(merge), TOKEN, 5) is None
    assert ledger.used("watch") == 0


def test_our_merges_are_read_anew_only_once_there_is_another(ledger, store):
    for name in ("one", "two"):
        store.submit(new_job(name))
        ended(store, weights=[name])
        assert name in ledger.own_merges()
    assert ledger.own_merges() is ledger.own_merges()


def test_the_reasons_of_the_last_look_are_noted_with_the_time_when_each_was_first_seen(ledger, clock, monkeypatch):
    ledger.skip("other", [Skip("zoo/a", "a" * 40, "license", "none")])
    skip, over = Skip("zoo/a", "a" * 40, "license", "not stated"), Skip("set 0123456789", "e" * 40, "budget", "")
    ledger.skip("watch", [skip, over])
    [first] = [note for note in ledger.skips("watch") if note.subject == "zoo/a"]
    clock.pass_time(hours=1)
    ledger.skip("watch", [skip, Skip("zoo/b", "b" * 40, "size", "too large")])
    assert [note.subject for note in ledger.skips("watch")] == ["zoo/b", "zoo/a"]
    assert ledger.skips("watch")[1] == first
    monkeypatch.setattr(ledger_module, "KEPT_SKIPS", 5)
    ledger.skip("watch", [Skip(f"zoo/a{n}", "a" * 40, "license", "none") for n in range(12)])
    assert [note.subject for note in ledger.skips("watch")] == [f"zoo/a{n}" for n in range(5)]
    assert len(ledger.skips("other")) == 1


def test_texts_of_strangers_are_cut_to_what_anybody_needs():
    card = {"tags": [f"{n:03}{'x' * 300}" for n in range(300)], "base_model": "b" * 300}
    found = facts_of(RepoState("zoo/a", "a" * 40, {}, False, False, "\ud800" + "l" * 300, card))
    assert len(found.tags) == 200
    assert {len(text) for text in (*found.tags, *found.bases, found.license or "")} == {200}
    assert (found.license or "").isascii()  # half a character could not be stored
    assert len(_reason(IncompatibleError("x" * 5000))) == 1000


def test_checkpoints_in_folders_of_a_repo_are_no_weights_of_its_model():
    def of(*paths: str) -> Facts:
        files = {path: FileInfo(path, 10, path * 3) for path in paths}
        return facts_of(RepoState("zoo/a", "a" * 40, files, False, False, None, {}))

    alone, beside = of("model.safetensors"), of("model.safetensors", "checkpoint-5/model.safetensors")
    assert (alone.weights, alone.weight_bytes) == (beside.weights, beside.weight_bytes)
    assert len(beside.files) == 2  # by any of which a merge is known
    assert of("checkpoint-5/model.safetensors").weights == ""

"""Deliveries of the embedded Hub, and what goes wrong in a turn: in the end there is exactly one job."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
from builders import random_base
from processes import until
from watch_helpers import SECRET, deliver, jobs, joined, one, payload, post, refuse, rule_for, serving, skipped

from hubmerge.errors import DiskError, GatedError, HubUnavailableError
from hubmerge.hub.client import Hub
from workflows.values import Visitor
from workflows.watchers import runner
from workflows.watchers.kinds import agents as kind
from workflows.watchers.webhook import Push


def test_a_push_is_announced_and_merged_and_a_replay_changes_nothing(agents, bot_for):
    """Real pushes, real deliveries over HTTP, a tick: one job per new agent."""
    base = agents.base()
    bot = bot_for(rule_for(base))
    agents.agent(base)
    with serving(bot.routes) as url:
        hook = agents.api.create_webhook(
            url=f"{url}/webhooks/hub", watched=[{"type": "user", "name": "ada"}], domains=["repo"], secret=SECRET
        )
        try:
            agent = agents.agent(base)
            until(lambda: agent in bot.inbox.pending().values())
            assert one(bot.watchers.handle_inbox()).job is not None
            assert bot.inbox.pending() == {}
            for sha in (agents.head(agent), "e" * 40) * 2:  # sent again, and out of order: the head counts
                assert post(url, payload(agent, sha))[0] == 202
            assert one(bot.watchers.handle_inbox()).job is None
            third = agents.agent(base)
            until(lambda: third in bot.inbox.pending().values())
            assert len(joined(one(bot.watchers.handle_inbox()))) == 3
        finally:
            agents.api.delete_webhook(hook.id)
    assert len(jobs(bot)) == 2


def test_a_pull_request_and_a_forged_delivery_make_no_job(agents, bot_for):
    base = agents.base()
    agents.agent(base)
    agent = agents.agent(base)
    bot = bot_for(rule_for(base))
    one(bot.watchers.poll())
    before = len(jobs(bot))
    sha = agents.push(agent, random_base(seed=9), {"base_model": base}, pull_request=True)
    with serving(bot.routes) as url:
        assert post(url, payload(agent, sha, "refs/pr/1")) == (202, {"stored": 0})
        assert post(url, payload(agent, sha), {"X-Webhook-Secret": "guess"})[0] == 403
        assert bot.watchers.handle_inbox() == []
        # even one with the right secret that lies: what counts is read from the Hub
        known = set(bot.ledger.known("watch"))
        post(url, payload(agent, sha))
        post(url, payload("ada/not-there", "d" * 40))
        post(url, payload(agents.base(), "d" * 40))
        assert one(bot.watchers.handle_inbox()).job is None
        assert set(bot.ledger.known("watch")) == known  # no delivery fills the disk
    assert one(bot.watchers.poll()).job is None
    assert len(jobs(bot)) == before


def test_a_hint_reaches_what_no_search_shows(agents, bot_for, monkeypatch):
    base = agents.base()
    shown = agents.agent(base)
    stale = Hub(agents.api.endpoint, agents.api.token).find_models(tags=[f"base_model:{base}"])
    monkeypatch.setattr(Hub, "find_models", lambda self, **_: stale)
    hinted = agents.agent(base)
    bot = bot_for(rule_for(base))
    assert one(bot.watchers.poll()).job is None
    deliver(bot, agents, hinted)
    assert joined(one(bot.watchers.handle_inbox())) == sorted([shown, hinted])
    agents.agent(base, name=shown)
    deliver(bot, agents, shown)
    bot.inbox.receive([Push(hinted, agents.head(shown))])  # each delivery is a hint at its own repo
    turn = one(bot.watchers.handle_inbox())
    assert f"{shown}@{agents.head(shown)}" in turn.decision.merge.recipe["agents"]


def test_a_delivery_that_names_a_repo_by_its_old_name_makes_no_second_agent(agents, bot_for):
    base, (first, second) = agents.family(2)
    bot = bot_for(rule_for(base))
    deliver(bot, agents, second)
    agents.api.move_repo(second, f"{second}-renamed")
    turn = one(bot.watchers.handle_inbox())
    assert joined(turn) == [first, f"{second}-renamed"]
    assert skipped(turn) == {}


def test_a_bot_that_dies_in_a_turn_starts_the_merge_when_it_is_started_again(agents, bot_for, monkeypatch):
    base, (agent, _) = agents.family(2)
    rule = rule_for(base)
    first = bot_for(rule)
    deliver(first, agents, agent)

    # the process dies in the transaction that starts the merge: neither the set nor the job is there
    def dies(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as broken:
        broken.setattr("workflows.jobs.store.Transaction.keep_token", dies)
        with pytest.raises(SystemExit):
            first.watchers.handle_inbox()
    first.store.close()
    assert jobs(first) == []
    second = bot_for(rule)
    assert second.inbox.pending() == {}  # it was being handled; the poll with which the bot starts makes up for it
    assert one(second.watchers.poll()).job is not None
    # and after another restart everything is known
    third = bot_for(rule)
    assert one(third.watchers.poll()).job is None
    assert len(jobs(third)) == 1


def test_two_schedulers_at_once_make_one_job(agents, bot_for):
    rule = rule_for(agents.base(agents=2))
    bots = [bot_for(rule) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        turns = [turn for turns in pool.map(lambda bot: bot.watchers.poll(), bots) for turn in turns]
    assert sum(turn.job is not None for turn in turns) == 1
    assert all(turn.error is None for turn in turns)
    assert len(jobs(bots[0])) == 1


def test_a_delivery_while_the_hub_is_away_is_made_up_for_by_the_next_poll(agents, bot_for, monkeypatch):
    base, (agent, _) = agents.family(2)
    bot = bot_for(rule_for(base))
    deliver(bot, agents, agent)
    with monkeypatch.context() as broken:
        broken.setattr(bot.inbox, "settle", Mock(side_effect=DiskError("full")))
        broken.setattr(Hub, "find_models", Mock(side_effect=AssertionError("the Hub is asked at every tick")))
        with pytest.raises(DiskError):
            bot.watchers.handle_inbox()
    with monkeypatch.context() as broken:
        broken.setattr(Hub, "find_models", Mock(side_effect=HubUnavailableError("away")))
        assert bot.watchers.handle_inbox()[0].error is not None
    assert bot.watchers.handle_inbox() == []
    assert one(bot.watchers.poll()).job is not None


@pytest.mark.parametrize(
    ("asked", "error", "errors"),
    [
        ("repo_state", HubUnavailableError, [False]),
        ("read_range", HubUnavailableError, [True, False]),
        ("read_range", GatedError, [True, False]),
    ],
)
def test_a_model_that_cannot_be_read_is_left_out_also_one_that_was_read_before(
    agents, bot_for, monkeypatch, asked, error, errors
):
    base = agents.base(agents=1)
    bad = agents.agent(base)
    bot = bot_for(rule_for(base, min_agents=3))
    assert one(bot.watchers.poll()).job is None
    for _ in range(2):
        agents.agent(base)
    if asked == "repo_state":
        agents.edit_card(bad, "\nNow with a story.\n")
    refuse(monkeypatch, asked, bad, error("the Hub answered with an error", where=bad))
    turns = [bot.watchers.poll()[0] for _ in errors]
    assert [turn.error is not None for turn in turns] == errors
    assert turns[-1].job is not None
    assert skipped(turns[-1]) == {bad: error.code}


@pytest.mark.parametrize(("asked", "error"), [("repo_state", HubUnavailableError), ("read_range", GatedError)])
def test_a_hub_that_goes_away_within_a_look_or_an_unreadable_base_ends_it(agents, bot_for, monkeypatch, asked, error):
    bot, plain, seen = bot_for(rule_for(agents.base(agents=3))), getattr(Hub, asked), []

    def breaks(self: Hub, repo: str, *more: Any) -> Any:
        seen.append(repo)
        if asked == "read_range" or len(seen) > 3:  # the base and two agents
            raise error("not now", where=repo)
        return plain(self, repo, *more)

    with monkeypatch.context() as broken:
        broken.setattr(Hub, asked, breaks)
        [turn] = bot.watchers.poll()
    assert (turn.error.code, jobs(bot), bot.ledger.skips("watch")) == (error.code, [], ())
    stranger, owner = ([view.problem for view in bot.source.watchers(who)] for who in (None, Visitor("ada", "token")))
    assert stranger == [
        {"code": error.code, "message": "only its owner may see the reason"}
    ]  # it may name a private repo
    assert "not now" in owner[0]["message"]
    assert len(one(bot.watchers.poll()).job.payload["recipe"]["agents"]) == 3


@pytest.mark.parametrize(("module", "name"), [(kind, "decide"), (runner, "prepare")])
def test_a_bug_in_one_rule_stops_no_other(agents, bot_for, monkeypatch, module, name):
    base = agents.base(agents=2)
    bot = bot_for(rule_for(base, name="one", recipe={"method": "ties"}), rule_for(base, name="two"))
    plain = getattr(module, name)

    def bug(asked: Any, *more: Any) -> Any:
        if getattr(asked, "recipe", asked).method == "ties":
            raise ZeroDivisionError
        return plain(asked, *more)

    monkeypatch.setattr(module, name, bug)
    first, second = bot.watchers.poll()
    assert first.error.code == "E_INTERNAL"
    assert second.job is not None

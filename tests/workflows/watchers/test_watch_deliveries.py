"""Deliveries of the embedded Hub: real pushes and hooks, replays, forgeries and restarts, and exactly one job."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from builders import random_base
from job_helpers import until
from test_watch_webhook import post
from watch_helpers import Agents, BotFor, jobs, one, payload, rule_for, serving

from hubmerge.hub.client import Hub


def test_a_push_is_announced_and_merged_and_a_replay_changes_nothing(
    agents: Agents, bot_for: BotFor, tmp_path: Path
) -> None:
    """Real pushes, real deliveries over HTTP, a tick: one job per new agent."""
    base = agents.base()
    bot = bot_for(rule_for(base))
    agents.agent(base)
    with serving(bot.routes) as url:
        hook = agents.api.create_webhook(
            url=f"{url}/webhooks/hub",
            watched=[{"type": "user", "name": "ada"}],
            domains=["repo"],
            secret="the webhook's secret",
        )
        try:
            agent = agents.agent(base)
            until(lambda: agent in [d.repo for d in bot.inbox.pending()])
            turn = one(bot.watchers.handle_inbox())
            assert turn.job is not None
            assert bot.inbox.pending() == ()
            body = payload(agent, agents.head(agent))
            assert post(url, body) == (202, {"stored": 0})
            assert bot.watchers.handle_inbox() == []
            third = agents.agent(base)
            until(lambda: third in [d.repo for d in bot.inbox.pending()])
            second = one(bot.watchers.handle_inbox())
            assert second.job is not None
            assert len(second.decision.merge.recipe["agents"]) == 3
        finally:
            agents.api.delete_webhook(hook.id)
    assert len(jobs(tmp_path)) == 2


def test_deliveries_out_of_order_and_a_hundred_replays_make_one_job_at_the_head(
    agents: Agents, bot_for: BotFor, tmp_path: Path
) -> None:
    base = agents.base()
    other, agent = agents.agent(base), agents.agent(base)
    shas = [agents.head(agent)]
    for _ in range(2):
        agents.agent(base, name=agent)
        shas.append(agents.head(agent))
    bot = bot_for(rule_for(base))
    replays = [payload(agent, sha) for sha in reversed(shas)] * 33 + [payload(agent, "e" * 40)]
    random.Random(1).shuffle(replays)
    with serving(bot.routes) as url:
        for body in replays:
            assert post(url, body)[0] == 202
        turn = one(bot.watchers.handle_inbox())
        for body in replays:
            assert post(url, body) == (202, {"stored": 0})
        assert bot.watchers.handle_inbox() == []
    [job] = jobs(tmp_path)
    assert turn.job is not None
    # the head counts, not what a delivery said
    assert set(job.payload["recipe"]["agents"]) == {f"{agent}@{shas[-1]}", f"{other}@{agents.head(other)}"}


def test_a_pull_request_and_a_forged_delivery_make_no_job(agents: Agents, bot_for: BotFor, tmp_path: Path) -> None:
    base = agents.base()
    agents.agent(base)
    agent = agents.agent(base)
    bot = bot_for(rule_for(base))
    one(bot.watchers.poll())
    before = len(jobs(tmp_path))
    sha = agents.push(agent, random_base(seed=9), {"base_model": base}, pull_request=True)
    with serving(bot.routes) as url:
        assert post(url, payload(agent, sha, "refs/pr/1")) == (202, {"stored": 0})
        assert post(url, payload(agent, sha), {"X-Webhook-Secret": "guess"})[0] == 403
        assert bot.watchers.handle_inbox() == []
        # even one with the right secret that lies: what counts is read from the Hub
        post(url, payload(agent, sha))
        post(url, payload("ada/not-there", "d" * 40))
        assert one(bot.watchers.handle_inbox()).job is None
    assert one(bot.watchers.poll()).job is None
    assert len(jobs(tmp_path)) == before


def test_a_hint_reaches_an_agent_and_new_weights_that_the_search_does_not_show_yet(
    agents: Agents, bot_for: BotFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = agents.base()
    shown = agents.agent(base)
    stale = Hub(agents.api.endpoint, agents.api.token).find_models(tags=[f"base_model:{base}"])
    monkeypatch.setattr(Hub, "find_models", lambda self, **_: stale)
    hinted = agents.agent(base)
    bot = bot_for(rule_for(base))
    assert one(bot.watchers.poll()).job is None
    with serving(bot.routes) as url:
        post(url, payload(hinted, agents.head(hinted)))
        turn = one(bot.watchers.handle_inbox())
        assert [a.partition("@")[0] for a in turn.decision.merge.recipe["agents"]] == sorted([shown, hinted])
        agents.agent(base, name=shown)
        for name in (shown, hinted):  # each delivery is a hint at its own repo
            post(url, payload(name, agents.head(shown)))
    turn = one(bot.watchers.handle_inbox())
    assert f"{shown}@{agents.head(shown)}" in turn.decision.merge.recipe["agents"]


def test_deliveries_survive_a_restart_in_the_middle(
    agents: Agents, bot_for: BotFor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = agents.base()
    agent, _ = agents.agent(base), agents.agent(base)
    rule = rule_for(base)
    first = bot_for(rule)
    with serving(first.routes) as url:
        post(url, payload(agent, agents.head(agent)))

    # the process dies in the transaction that starts the merge: neither the set nor the job is there
    def dies(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as broken:
        broken.setattr("workflows.jobs.store.Transaction.keep_token", dies)
        with pytest.raises(SystemExit):
            first.watchers.handle_inbox()
    first.close()
    assert jobs(tmp_path) == []
    second = bot_for(rule)
    assert [d.repo for d in second.inbox.pending()] == [agent]
    assert one(second.watchers.handle_inbox()).job is not None
    assert second.inbox.pending() == ()
    assert second.watchers.handle_inbox() == []
    # and after another restart everything is known
    third = bot_for(rule)
    assert one(third.watchers.poll()).job is None
    assert len(jobs(tmp_path)) == 1


def test_the_route_answers_before_anything_is_looked_at(bot_for: BotFor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery costs the Hub no wait: the request handler never talks to it."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the Hub was asked")

    bot = bot_for(rule_for("ada/base"))
    monkeypatch.setattr(Hub, "repo_state", never)
    monkeypatch.setattr(Hub, "find_models", never)
    with serving(bot.routes) as url:
        assert post(url, payload("ada/x", "a" * 40))[0] == 202

"""What goes wrong in a turn: two schedulers at once, a Hub that is away, models that cannot be read, a bug."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_watch_webhook import post
from watch_helpers import Agents, BotFor, jobs, make_bot, one, payload, rule_for, serving, skipped

from hubmerge.errors import DiskError, GatedError, HubUnavailableError, LoginError
from hubmerge.hub.client import Hub


def test_without_a_token_nothing_is_done(agents: Agents, tmp_path: Path) -> None:
    bot = make_bot(None, tmp_path / "data", [rule_for("ada/base")])
    [turn] = bot.watchers.poll()
    assert isinstance(turn.error, LoginError)
    bot.close()


def test_two_schedulers_at_once_make_one_job(agents: Agents, bot_for: BotFor, tmp_path: Path) -> None:
    base = agents.base(agents=2)
    bots = [bot_for(rule_for(base)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        turns = [turn for turns in pool.map(lambda bot: bot.watchers.poll(), bots) for turn in turns]
    assert sum(turn.job is not None for turn in turns) == 1
    assert all(turn.error is None for turn in turns)
    assert len(jobs(tmp_path)) == 1


def test_while_the_hub_is_away_or_nothing_can_be_written_deliveries_wait_for_a_later_tick(
    agents: Agents, bot_for: BotFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = agents.base()
    agent, _ = agents.agent(base), agents.agent(base)
    bot = bot_for(rule_for(base))
    with serving(bot.routes) as url:
        post(url, payload(agent, agents.head(agent)))
    troubles = ((Hub, "find_models", HubUnavailableError("away")), (bot.ledger, "turn_ended", DiskError("full")))
    for place, name, error in troubles:
        asked = []

        def fail(*_: object, error: Exception = error, asked: list[int] = asked, **__: object) -> None:
            asked.append(1)
            raise error

        monkeypatch.setattr(bot.watchers, "_inbox_from", 0.0)
        with monkeypatch.context() as broken:
            broken.setattr(place, name, fail)
            if isinstance(error, DiskError):
                with pytest.raises(DiskError):
                    bot.watchers.handle_inbox()
            else:
                assert bot.watchers.handle_inbox()[0].error is not None
            assert bot.watchers.handle_inbox() == []  # not at once again
        assert len(asked) == 1
        assert len(bot.inbox.pending()) == 1
    monkeypatch.setattr(bot.watchers, "_inbox_from", 0.0)
    assert one(bot.watchers.handle_inbox()).error is None
    assert bot.inbox.pending() == ()


def test_one_unreadable_model_holds_a_rule_up_for_a_while_only(
    agents: Agents, bot_for: BotFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = agents.base(agents=2)
    bad = agents.agent(base)
    state = Hub.repo_state

    def breaks(self: Hub, repo: str, *more: Any) -> Any:
        if repo == bad:
            raise HubUnavailableError("the Hub answered with an error", where=repo)
        return state(self, repo, *more)

    monkeypatch.setattr(Hub, "repo_state", breaks)
    bot = bot_for(rule_for(base))
    for _ in range(3):
        [turn] = bot.watchers.poll()
        assert turn.error is not None  # a set without it now would be another set once it is back
    turn = one(bot.watchers.poll())
    assert turn.job is not None
    assert skipped(turn) == {bad: "E_HUB"}


def test_a_base_that_cannot_be_opened_is_no_candidate_s_fault(
    agents: Agents, bot_for: BotFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = agents.base(agents=2)
    read = Hub.read_range

    def closed(self: Hub, repo: str, *more: Any) -> bytes:
        if repo == base:
            raise GatedError("a gated repo", where=repo)
        return read(self, repo, *more)

    bot = bot_for(rule_for(base))
    with monkeypatch.context() as broken:
        broken.setattr(Hub, "read_range", closed)
        [turn] = bot.watchers.poll()
    assert turn.error.code == "E_GATED"
    assert bot.ledger.skips("watch") == ()
    assert one(bot.watchers.poll()).job is not None


def test_a_bug_in_one_rule_does_not_stop_the_others(
    agents: Agents, bot_for: BotFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = agents.base(agents=2)
    bot = bot_for(rule_for(base, name="one", agents={"authors": ["carol"]}), rule_for(base, name="two"))
    find = Hub.find_models

    def bug(self: Hub, **how: Any) -> Any:
        if how["author"] == "carol":
            raise ZeroDivisionError
        return find(self, **how)

    monkeypatch.setattr(Hub, "find_models", bug)
    first, second = bot.watchers.poll()
    assert first.error.code == "E_INTERNAL"
    assert second.job is not None

"""What a rule's owner says to it, who that is, and what a trial of a rule shows to whom."""

from __future__ import annotations

import pytest
from job_helpers import visitor
from watch_helpers import Agents, BotFor, jobs, one, rule_for

from hubmerge.errors import HubmergeError, LoginError, PermissionDeniedError, RecipeError, RuleError
from localhub.process import LocalHubProcess
from workflows.watchers.rules import rule_data


def test_a_paused_rule_starts_nothing_until_resumed(
    agents: Agents, bot_for: BotFor, local_hub: LocalHubProcess
) -> None:
    ada = visitor(local_hub, "ada")
    rule = rule_for(agents.base(agents=2))
    assert bot_for(rule).source.pause_watcher("watch", ada).paused
    bot = bot_for(rule)
    turn = one(bot.watchers.poll())
    assert (turn.job, turn.decision.waiting) == (None, "its owner has paused it")
    assert bot.ledger.state("watch") is None  # it has not looked
    [view] = bot.source.watchers(None)
    assert (view.paused, view.next_look) == (True, None)
    assert not bot.source.resume_watcher("watch", ada).paused
    assert one(bot.watchers.poll()).job is not None
    [view] = bot.source.watchers(None)
    assert view.next_look is not None
    assert view.polled is not None
    assert len(jobs(bot)) == 1


def test_a_pause_during_a_look_is_in_time(agents: Agents, bot_for: BotFor) -> None:
    rule = rule_for(agents.base(agents=2))
    bot = bot_for(rule)
    planned = bot.watchers.turn(rule, dry_run=True).decision.merge
    assert planned is not None
    new = bot.watchers._job(rule, planned)
    bot.ledger.pause("watch")
    assert bot.ledger.start("watch", planned, new, bot.account.seal(new.id), rule.budget) is None
    assert jobs(bot) == []


def test_a_rule_looks_once_when_its_owner_asks(agents: Agents, bot_for: BotFor, local_hub: LocalHubProcess) -> None:
    ada = visitor(local_hub, "ada")
    bot = bot_for(rule_for(agents.base(agents=2)))
    assert bot.watchers.handle_asked() == []
    bot.source.run_watcher("watch", ada)
    bot.source.run_watcher("watch", ada)
    assert one(bot.watchers.handle_asked()).job is not None
    assert bot.watchers.handle_asked() == []
    assert len(jobs(bot)) == 1
    assert "asked" in {tick.name for tick in bot.ticks()}
    bot.source.pause_watcher("watch", ada)
    with pytest.raises(RuleError, match="paused"):
        bot.source.run_watcher("watch", ada)


def test_what_is_wrong_in_a_rule_is_told_to_the_bot_s_account_alone(
    bot_for: BotFor, local_hub: LocalHubProcess
) -> None:
    wrong = RuleError("'ada/secret agent' is no repo id", where="mine.yaml → agents → exclude")
    bot = bot_for(broken=(("mine.yaml", wrong),))
    ada, bob = visitor(local_hub, "ada"), visitor(local_hub, "bob")
    for stranger in (None, bob):
        [view] = bot.source.watchers(stranger)
        assert (view.name, view.problem["code"], "secret" in repr(view)) == ("mine.yaml", "E_RULE", False)
    [view] = bot.source.watchers(ada)
    assert view.problem == wrong.as_dict()


def test_only_the_owner_may(bot_for: BotFor, local_hub: LocalHubProcess) -> None:
    bob = visitor(local_hub, "bob")
    bot = bot_for(rule_for("ada/base"), rule_for("ada/base", name="hidden", private=True))
    for act in (bot.source.pause_watcher, bot.source.resume_watcher, bot.source.run_watcher):
        with pytest.raises(PermissionDeniedError):
            act("watch", bob)
        told = []
        for name in ("hidden", "nothing"):  # nobody learns that there is a private one
            with pytest.raises(RuleError) as caught:
                act(name, bob)
            told.append(str(caught.value).replace(name, ""))
        assert told[0] == told[1]
    assert not any(bot.ledger.is_paused(name) for name in ("watch", "hidden"))
    assert bot.watchers.handle_asked() == []
    assert [view.own for view in bot.source.watchers(bob)] == [False]


def test_without_an_account_rules_can_be_tried(agents: Agents, bot_for: BotFor, local_hub: LocalHubProcess) -> None:
    ada = visitor(local_hub, "ada")
    rule = rule_for(agents.base(agents=2))
    bot = bot_for(rule, token=None)
    [view] = bot.source.watchers(None)
    assert view.problem["code"] == "E_LOGIN"
    with pytest.raises(LoginError, match="no watcher runs here"):
        bot.source.run_watcher("watch", ada)
    assert len(bot.source.try_watcher(rule_data(rule), None).agents) == 2


def test_a_trial_tells_of_a_merge_of_what_its_visitor_sees_and_changes_nothing(
    agents: Agents, bot_for: BotFor, local_hub: LocalHubProcess
) -> None:
    ada, bob = visitor(local_hub, "ada"), visitor(local_hub, "bob")
    base, names = agents.family(2)
    other, secret = agents.agent(base, card={"tags": ["else"]}), agents.agent(base)
    agents.api.update_repo_settings(secret, private=True)
    rule = rule_for(base, name="known", agents={"authors": ["ada"], "tags": ["rl"]})
    bot, wanted = bot_for(rule), rule_data(rule)
    for stranger in (bob, None):
        trial = bot.source.try_watcher(wanted, stranger)
        assert [pin.partition("@")[0] for pin in trial.agents] == names
        assert (trial.target.startswith("ada/watched-"), trial.problem) == (True, None)
        assert other not in repr(trial)
        assert secret not in repr(trial)
    assert {event.subject for event in bot.source.try_watcher(wanted, ada).left_out} == {secret}
    assert jobs(bot) == []
    assert (bot.ledger.history("known"), bot.ledger.skips("known"), bot.ledger.state("known")) == ((), (), None)
    one(bot.watchers.poll())
    assert "merged already" in bot.source.try_watcher(wanted, ada).waiting
    assert len(bot.source.try_watcher(wanted, bob).agents) == 2  # what ada's rule has done is not his


FILE = {"method": "sar", "calibration": {"data": "/etc/passwd", "prompt": "q", "answer": "a"}}


@pytest.mark.parametrize(("changes", "kind"), [({"base": "/etc"}, RuleError), ({"recipe": FILE}, RecipeError)])
def test_a_trial_of_what_is_no_rule_or_names_a_file_is_refused(
    bot_for: BotFor, changes: dict[str, object], kind: type[HubmergeError]
) -> None:
    with pytest.raises(kind):
        bot_for().source.try_watcher({**rule_data(rule_for("zoo/base")), **changes}, None)

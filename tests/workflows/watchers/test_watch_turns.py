"""Rules against the embedded Hub: what a poll merges, leaves out and waits for, and what owners and visitors may do."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import T, random_base, sparse_agent, tokenizer_files
from huggingface_hub import CommitOperationAdd
from job_helpers import FakeScores, visitor
from line import upload
from source_helpers import ADAPTED, lora, pair, write_adapter
from watch_helpers import BASE_WEIGHTS, Agents, deliver, finish, jobs, joined, one, refuse, rule_for, skipped

from hubmerge.errors import (
    CorruptError,
    FormatError,
    GatedError,
    LoginError,
    PermissionDeniedError,
    RecipeError,
    RuleError,
)
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import RefusedError
from hubmerge.library import inspect
from workflows.jobs.jobs import State
from workflows.values import Visitor
from workflows.watchers.rules import rule_data


def test_a_poll_finds_the_agents_and_queues_one_merge_with_its_owner_s_token_sealed(
    agents, bot_for, tmp_path, local_hub, caplog
):
    base, (first, second) = agents.family(2)
    bot = bot_for(rule_for(base, suite="zoo", recipe={"method": "ties", "seed": 7}))
    turn = one(bot.watchers.poll())
    [job] = jobs(bot)
    assert (job.id, job.kind, job.user, job.state) == (turn.job.id, "merge", "ada", State.QUEUED)
    recipe = job.payload["recipe"]
    assert recipe["agents"] == sorted(f"{name}@{agents.head(name)}" for name in (first, second))
    assert (recipe["base"], recipe["method"], recipe["seed"]) == (f"{base}@{agents.head(base)}", "ties", 7)
    assert job.payload["target"] == turn.decision.merge.target
    assert (job.payload["private"], job.payload["suite"], job.payload["watcher"]) == (False, "zoo", "watch")
    token = bot.account._vault.open(job.id, bot.store.sealed_token(job.id), bot.store.clock.now())
    assert token.get_secret_value() == local_hub.tokens["ada"]
    for path in (tmp_path / "data").iterdir():
        assert local_hub.tokens["ada"].encode() not in path.read_bytes()
    for _ in range(3):
        assert one(bot.watchers.poll()).job is None
    assert len(jobs(bot)) == 1
    assert caplog.text.count("nothing is evaluated here") == 1
    assert "not evaluated" in bot.source.watchers(None)[0].about


def test_a_rule_of_another_user_does_not_run(bot_for):
    bot = bot_for(rule_for("ada/base", owner="bob", target="bob/x-{set}"))
    [turn] = bot.watchers.poll()
    assert isinstance(turn.error, LoginError)
    assert jobs(bot) == []
    assert bot.ledger.state("watch").code == "E_LOGIN"


def test_own_outputs_are_never_merged(agents, bot_for):
    base = agents.base(agents=2)
    bot = bot_for(rule_for(base))
    first = one(bot.watchers.poll())
    # the target of our job, though its card claims to be a fine-tune; and another merge by its tag
    target = agents.agent(base, name=first.decision.merge.target)
    tagged = agents.agent(base, card={"tags": ["hubmerge"]})
    made = agents.agent(base)
    agents.api.upload_file(path_or_fileobj=b"{}", path_in_repo="hubmerge.json", repo_id=made)
    deliver(bot, agents, target, tagged, made)
    turn = one(bot.watchers.handle_inbox())
    assert turn.job is None
    assert skipped(turn) == dict.fromkeys((target, tagged, made), "own_output")
    assert len(jobs(bot)) == 1


def push_adapter(agents: Agents, name: str, folder: Path, base: str, seed: int = 0, **card: Any) -> str:
    factors = lora(BASE_WEIGHTS[f"{ADAPTED}.weight"].shape, seed=seed)
    write_adapter(folder, pair(ADAPTED, *factors), base_model_name_or_path=card.pop("trained_on", base))
    front = {"license": "apache-2.0", "base_model": base, **card}
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump(front)}---\n")
    return upload(agents.api, folder, name)


def test_adapters_are_found_whatever_library_their_cards_name(agents, bot_for, tmp_path):
    base, [whole] = agents.family(1)
    agents.push(f"{base}-v2-bnb-4bit", {}, {"base_model": base, "base_model_relation": "quantized"})
    # TRL's, PEFT's own, and Unsloth's, which trains on a copy in 4 bits
    cards = ({"library_name": "transformers"}, {"library_name": "peft"}, {"trained_on": f"{base}-v2-bnb-4bit"})
    adapters = [push_adapter(agents, f"{base}-{n}", tmp_path / str(n), base, n, **c) for n, c in enumerate(cards)]
    turn = one(bot_for(rule_for(base, agents={"authors": ["ada"], "lineage": "adapter"})).watchers.poll())
    assert (joined(turn), skipped(turn)) == (adapters, dict.fromkeys((whole, f"{base}-v2-bnb-4bit"), "lineage"))
    assert "counts as finetune, and the rule takes adapter" in [skip.text for skip in turn.decision.skips]


def test_agents_of_other_rows_join_where_their_tokens_tell_what_these_are(agents, bot_for):
    """Cut to the rows that have a token, with added ones, and with ones that spoil a set where another adds some."""
    base, [plain] = agents.family(1)
    words = {f"<{n}>": n for n in range(36, 42)}
    tokenizers = {
        "cut": (36, 36, {}),
        "grown": (42, 36, {"added": words}),
        "own": (42, 42, {}),
        "unnamed": (44, 36, {}),
    }
    tokenizers["twin"] = tokenizers["grown"]

    def tell(name: str, words: int, **more: Any) -> None:
        content = tokenizer_files(words, **more)["tokenizer.json"]
        agents.api.upload_file(path_or_fileobj=content, path_in_repo="tokenizer.json", repo_id=name)

    tell(base, 36)
    tell(plain, 36)
    for seed, (kind, (rows, known, more)) in enumerate(tokenizers.items()):
        sizes = {n: (rows if t.shape[0] == 40 else t.shape[0], *t.shape[1:]) for n, t in BASE_WEIGHTS.items()}
        agents.push(f"{base}-{kind}", random_base(seed=seed, sizes=sizes), {"base_model": base, "license": "mit"})
        tell(f"{base}-{kind}", known, **more)
    turn = one(bot_for(rule_for(base)).watchers.poll())
    assert joined(turn) == sorted([plain, f"{base}-cut", f"{base}-grown", f"{base}-twin", f"{base}-unnamed"])
    assert skipped(turn) == {f"{base}-own": "E_INCOMPATIBLE"}
    inspect(dict(turn.decision.merge.recipe), hub=Hub(agents.api.endpoint, agents.api.token))


def test_an_edited_card_is_no_new_agent_and_new_weights_are(agents, bot_for, tmp_path):
    base, (agent, _) = agents.family(2)
    bot = bot_for(rule_for(base))
    adapter = push_adapter(agents, f"{base}-adapter", tmp_path / "adapter", base, base_model_relation="finetune")
    assert len(joined(one(bot.watchers.poll()))) == 3
    for name in (agent, adapter):
        agents.edit_card(name, "\nNow with a story.\n")
        edited = one(bot.watchers.poll())
        assert edited.job is None
        assert "same_weights" in skipped(edited).values()
    agents.agent(base, name=agent)
    assert one(bot.watchers.poll()).job is not None
    assert len(jobs(bot)) == 2


def test_a_base_is_taken_at_the_revision_that_the_rule_names_however_it_writes_the_name(agents, bot_for):
    base = agents.base()
    first, before = agents.agent(base), agents.head(base)
    agents.api.create_tag(base, tag="old")
    agents.api.upload_file(path_or_fileobj=b"newer", path_in_repo="notes.txt", repo_id=base)
    bot = bot_for(rule_for(f"{base.upper()}@old"))
    one(bot.watchers.poll())
    second = agents.agent(base)
    deliver(bot, agents, second)
    turn = one(bot.watchers.handle_inbox())
    assert joined(turn) == sorted([first, second])
    assert turn.decision.merge.recipe["base"] == f"{base}@{before}"


def wide() -> dict[str, T]:
    """Weights twice as wide as the base's."""
    return random_base(seed=5, sizes={n: tuple(2 * d for d in t.shape) for n, t in BASE_WEIGHTS.items()})


def test_a_stranger_s_misfit_is_left_out_by_name_and_spoils_nothing(agents, bot_for):
    base, good = agents.family(2)
    agents.push("ada/zz-wide", wide(), {"base_model": base, "license": "apache-2.0"})
    unlicensed = agents.agent(base, card={"license": "unknown"})
    forbidding = agents.agent(base, card={"license": "cc-by-nd-4.0"})
    quantized = agents.agent(base, card={"base_model_relation": "quantized"})
    pickled = "ada/zz-pickled"
    agents.api.create_repo(pickled)
    for path, data in (("README.md", f"---\nbase_model: {base}\n---\n".encode()), ("pytorch_model.bin", b"\x80\x04.")):
        agents.api.upload_file(path_or_fileobj=data, path_in_repo=path, repo_id=pickled)
    copy = "ada/zz-copy-of-base"
    agents.push(copy, BASE_WEIGHTS, {"base_model": base, "license": "apache-2.0"})
    bomb, elsewhere = agents.agent(base), agents.agent(base)  # by files beside their weights
    files = [CommitOperationAdd(f"LICENSE-{n}", b"%d" % n * 450_000) for n in range(1, 70)]
    agents.api.create_commit(bomb, files, commit_message="licenses")
    config = json.loads(Path(agents.api.hf_hub_download(elsewhere, "config.json")).read_text())
    config["transformers_weights"] = "other.safetensors"
    agents.api.upload_file(path_or_fileobj=json.dumps(config).encode(), path_in_repo="config.json", repo_id=elsewhere)
    bot = bot_for(rule_for(base))
    turn = one(bot.watchers.poll())
    assert joined(turn) == good
    assert turn.job is not None
    told, licensed = skipped(turn), dict.fromkeys((unlicensed, forbidding), "E_RECIPE")
    unfit = {"ada/zz-wide": "E_INCOMPATIBLE", elsewhere: "E_INCOMPATIBLE", bomb: "E_TOO_BIG"}
    assert told == {**unfit, **licensed, pickled: "no_weights", copy: "copy"}
    assert quantized not in told  # the search did not show it
    notes = {note.subject: note for note in bot.ledger.skips("watch")}
    assert set(notes) == set(told)
    assert notes["ada/zz-wide"].sha == agents.head("ada/zz-wide")
    assert "hidden_size" in notes["ada/zz-wide"].text
    # noted once, however often it is seen
    one(bot.watchers.poll())
    assert {note.subject: note for note in bot.ledger.skips("watch")} == notes


def test_an_edited_rule_looks_at_remembered_models_anew_and_ignored_tensors_leave_no_agent_out(agents, bot_for):
    base, names = agents.family(2)
    weights = sparse_agent(BASE_WEIGHTS, density=0.05, seed=91)
    weights["v_head.summary.weight"] = next(iter(BASE_WEIGHTS.values()))
    agents.push(f"{base}-ppo", weights, {"base_model": base, "license": "apache-2.0"})
    turn = one(bot_for(rule_for(base)).watchers.poll())
    assert (joined(turn), skipped(turn)) == (names, {f"{base}-ppo": "E_INCOMPATIBLE"})
    turn = one(bot_for(rule_for(base, recipe={"method": "ram", "ignore": ["v_head.*"]})).watchers.poll())
    assert (joined(turn), skipped(turn)) == (sorted([*names, f"{base}-ppo"]), {})
    assert turn.job is not None


def test_an_agent_s_size_is_what_its_headers_hold(agents, bot_for):
    base, names = agents.family(2)
    elements = sum(math.prod(tensor.shape) for tensor in BASE_WEIGHTS.values())
    for most, left_out in ((elements, {}), (elements - 1, dict.fromkeys(names, "size"))):
        bot = bot_for(rule_for(base, agents={"authors": ["ada"], "max_parameters": most}))
        turn = one(bot.watchers.poll())
        assert (turn.decision.merge is None, skipped(turn)) == (bool(left_out), left_out)


def test_many_new_models_are_read_over_several_looks(agents, bot_for, monkeypatch, caplog):
    monkeypatch.setattr("workflows.watchers.kinds.agents.NEW_PER_LOOK", 2)
    monkeypatch.setattr("workflows.watchers.kinds.agents.MOST_LISTED", 4)
    base = agents.base()
    names = [agents.agent(base) for _ in range(3)]
    endless = [agents.agent(base, card={"base_model_relation": "finetune"}) for _ in range(2)]
    for name in endless:
        agents.api.upload_file(path_or_fileobj=b"{}", path_in_repo="adapter_config.json", repo_id=name)
        refuse(monkeypatch, "read_file", name, FormatError("a file is larger than 64 MiB", where=name))
    bot = bot_for(rule_for(base))
    turn = one(bot.watchers.poll())
    assert turn.decision.waiting.startswith("4 models match, and one look reads 2 new ones")
    assert skipped(turn) == dict.fromkeys(endless, "E_FORMAT")  # of those that were read
    turn = one(bot.watchers.poll())
    assert (joined(turn), skipped(turn)) == (sorted(names[1:]), dict.fromkeys(endless, "E_FORMAT"))  # each read once
    assert "a search gives 4 models; older ones are not seen" in caplog.text


def test_a_poll_reads_only_what_has_changed(agents, bot_for, monkeypatch):
    base, (first, second) = agents.family(2)
    bot = bot_for(rule_for(base))
    one(bot.watchers.poll())
    read: list[str] = []
    state = Hub.repo_state
    monkeypatch.setattr(Hub, "repo_state", lambda self, repo, *a: read.append(repo) or state(self, repo, *a))
    one(bot.watchers.poll())
    assert read == [base]
    agents.agent(base, name=second)
    read.clear()
    turn = one(bot.watchers.poll())
    assert turn.job is not None
    assert first in read  # when the merge is prepared
    assert read[:2] == [base, second]


def test_a_renamed_agent_joins_under_the_name_that_the_rule_knows(agents, bot_for):
    base, (first, second) = agents.family(2)
    rule = rule_for(base, agents=None, join={"fixed": [first.upper(), second]})
    bot, scores = bot_for(rule), FakeScores()
    assert joined(one(bot.watchers.poll())) == [first.upper(), second]
    scores.flags = {(first, agents.head(first)): "withdrawn"}
    assert skipped(one(bot_for(rule, scores=scores).watchers.poll())) == {first.upper(): "flagged"}
    agents.api.move_repo(second, f"{second}-renamed")
    assert one(bot.watchers.poll()).job is None
    agents.agent(base, name=first)
    assert joined(one(bot.watchers.poll())) == [first.upper(), second]


@pytest.mark.parametrize("error", [GatedError, PermissionDeniedError, RefusedError])
def test_an_agent_that_the_rule_excludes_stays_out_when_it_is_renamed(agents, bot_for, monkeypatch, error):
    base = agents.base(agents=2)
    out, gone = agents.agent(base), f"{base}-deleted"
    refuse(monkeypatch, "repo_state", gone, error("not here", where=gone))
    bot = bot_for(rule_for(base, agents={"authors": ["ada"], "exclude": [gone, f"{gone}-too", out]}))
    assert skipped(one(bot.watchers.poll())) == {out: "excluded"}
    agents.api.move_repo(out, f"{out}-renamed")
    assert skipped(one(bot.watchers.poll())) == {f"{out}-renamed": "excluded"}


def test_whether_a_named_agent_fits_is_checked_however_its_name_is_written(agents, bot_for):
    base = agents.base()
    fits, wider = agents.agent(base), f"{base}-wide"
    agents.push(wider, wide(), {"license": "apache-2.0"})
    bot = bot_for(rule_for(base, agents=None, join={"fixed": [fits, wider.upper()]}))
    assert skipped(one(bot.watchers.poll())) == {wider.upper(): "E_INCOMPATIBLE"}


@pytest.mark.parametrize("error", [GatedError, CorruptError])
def test_an_agent_that_cannot_be_read_is_tried_again_the_next_day(agents, bot_for, clock, monkeypatch, error):
    base = agents.base(agents=2)
    closed = agents.agent(base)
    read, asked = Hub.read_range, []

    def refused(self: Hub, repo: str, *more: Any) -> bytes:
        asked.append(repo)
        if repo == closed:
            raise error("not now", where=repo)
        return read(self, repo, *more)

    bot = bot_for(rule_for(base))
    with monkeypatch.context() as gated:
        gated.setattr(Hub, "read_range", refused)
        assert closed not in joined(one(bot.watchers.poll()))
        asked.clear()
        assert skipped(one(bot.watchers.poll())) == {closed: error.code}
        assert closed not in asked
    clock.pass_time(days=1)
    assert closed in joined(one(bot.watchers.poll()))


def test_a_used_up_budget_is_told_and_the_next_day_goes_on(agents, bot_for, clock):
    base = agents.base(agents=2)
    bot = bot_for(rule_for(base, budget=1))
    assert one(bot.watchers.poll()).job is not None
    agents.agent(base)
    spent = one(bot.watchers.poll())
    assert spent.job is None
    assert list(skipped(spent).values()) == ["budget"]
    clock.pass_time(hours=11, minutes=59)  # still the same day, UTC
    assert one(bot.watchers.poll()).job is None
    clock.pass_time(minutes=2)
    assert one(bot.watchers.poll()).job is not None
    assert len(jobs(bot)) == 2
    assert bot.ledger.used("watch") == 1
    assert [note.code for note in bot.ledger.skips("watch")] == []  # what it waited for has come


def test_a_full_queue_delays_a_merge_and_no_delivery(agents, bot_for):
    bases = [agents.base(agents=2) for _ in range(2)]
    bot = bot_for(
        *(rule_for(base, name=name) for base, name in zip(bases, ("one", "two"), strict=True)), jobs_per_user=1
    )
    deliver(bot, agents, bases[0])
    first, second = bot.watchers.handle_inbox()
    assert bot.inbox.pending() == {}  # else every rule would look every 30 s, until somebody's job has ended
    assert first.job is not None
    assert second.error.code == "E_QUOTA"
    assert [note.code for note in bot.ledger.skips("two")] == ["E_QUOTA"]
    finish(bot)
    assert [turn.job is not None for turn in bot.watchers.poll()] == [False, True]


def test_a_target_that_is_taken_is_not_tried_again_that_day(agents, bot_for, clock):
    rule = rule_for(agents.base(agents=2))
    bot = bot_for(rule)
    planned = bot.watchers.turn(rule, dry_run=True).decision.merge
    agents.api.create_repo(planned.target)
    agents.api.upload_file(path_or_fileobj=b"mine", path_in_repo="notes.txt", repo_id=planned.target)
    [turn] = bot.watchers.poll()
    assert turn.error.code == "E_TARGET_EXISTS"
    assert one(bot.watchers.poll()).decision.merge is None
    [row] = bot.ledger.sets("watch")
    assert (row.code, row.job_id) == ("E_TARGET_EXISTS", None)
    assert jobs(bot) == []
    agents.api.delete_repo(planned.target)
    clock.pass_time(days=1)
    assert one(bot.watchers.poll()).job is not None
    [row] = bot.ledger.sets("watch")
    assert (row.code, row.job_id) == (None, jobs(bot)[0].id)


def test_a_token_that_may_not_write_holds_up_no_set_once_another_is_given(agents, bot_for, local_hub):
    rule = rule_for(agents.base(agents=2))
    [turn] = bot_for(rule, token=local_hub.tokens["ada_read"]).watchers.poll()
    assert (turn.error.code, turn.job) == ("E_PERMISSION", None)
    assert one(bot_for(rule).watchers.poll()).job is not None


def test_a_private_candidate_and_what_a_rule_did_while_it_was_private_are_told_to_their_owner_only(
    agents, bot_for, monkeypatch
):
    base = agents.base()
    secret, shown, copy, unread = (
        agents.agent(base, name=f"{base}-{number}", seed=seed) for number, seed in enumerate((5, 6, 5, 7))
    )
    for name in (secret, unread):
        agents.api.update_repo_settings(name, private=True)
    refuse(monkeypatch, "repo_state", unread, FormatError("too many files in a repo", where=unread))
    bot = bot_for(rule_for(base), rule_for(base, name="hidden", private=True))
    openly, hidden = bot.watchers.poll()
    assert (joined(openly), skipped(openly)) == ([shown, copy], {secret: "closed", unread: "E_FORMAT"})
    assert (joined(hidden), skipped(hidden)) == ([secret, shown], {copy: "copy", unread: "E_FORMAT"})
    assert [view.name for view in bot.source.watchers(None)] == ["watch"]
    bot.ledger.refuse("watch", replace(hidden.decision.merge, target="ada/taken"), "E_TARGET_EXISTS", secret)
    bot = bot_for(rule_for(base), rule_for(base, name="hidden"))
    stranger, own = (repr(bot.source.watchers(who)) for who in (None, Visitor("ada", "token")))
    for name in (secret, unread, hidden.decision.merge.target):
        assert name not in stranger
        assert name in own


def test_a_merge_uploaded_again_without_its_manifest_is_known_by_its_weights(agents, bot_for):
    base = agents.base(agents=2)
    bot = bot_for(rule_for(base))
    one(bot.watchers.poll())
    again = agents.agent(base)
    finish(bot, weights=[bot.account.hub.repo_state(again).files["model.safetensors"].sha256])
    new = agents.agent(base)
    turn = one(bot.watchers.poll())
    assert (new in joined(turn), skipped(turn)) == (True, {again: "own_output"})
    # and after a restart, from memory
    assert skipped(one(bot_for(rule_for(base)).watchers.poll())) == {again: "own_output"}


# --- owners and their trials --------------------------------------------------------------------------------------


def test_a_paused_rule_starts_nothing_until_resumed(agents, bot_for, local_hub):
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


def test_a_pause_during_a_look_is_in_time(agents, bot_for):
    rule = rule_for(agents.base(agents=2))
    bot = bot_for(rule)
    planned = bot.watchers.turn(rule, dry_run=True).decision.merge
    assert planned is not None
    new = bot.watchers._job(rule, planned)
    bot.ledger.pause("watch")
    assert bot.ledger.start("watch", planned, new, bot.account.seal(new.id), rule.budget) is None
    assert jobs(bot) == []


def test_a_rule_looks_once_when_its_owner_asks(agents, bot_for, local_hub):
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


def test_what_is_wrong_in_a_rule_is_told_to_the_bot_s_account_alone(bot_for, local_hub):
    wrong = RuleError("'ada/secret agent' is no repo id", where="mine.yaml → agents → exclude")
    bot = bot_for(broken=(("mine.yaml", wrong),))
    ada, bob = visitor(local_hub, "ada"), visitor(local_hub, "bob")
    for stranger in (None, bob):
        [view] = bot.source.watchers(stranger)
        assert (view.name, view.problem["code"], "secret" in repr(view)) == ("mine.yaml", "E_RULE", False)
    [view] = bot.source.watchers(ada)
    assert view.problem == wrong.as_dict()


def test_only_the_owner_may(bot_for, local_hub):
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


def test_without_an_account_rules_can_be_tried(agents, bot_for, local_hub):
    ada = visitor(local_hub, "ada")
    rule = rule_for(agents.base(agents=2))
    bot = bot_for(rule, token=None)
    [view] = bot.source.watchers(None)
    assert view.problem["code"] == "E_LOGIN"
    with pytest.raises(LoginError, match="no watcher runs here"):
        bot.source.run_watcher("watch", ada)
    assert len(bot.source.try_watcher(rule_data(rule), None).agents) == 2


def test_a_trial_tells_of_a_merge_of_what_its_visitor_sees_and_changes_nothing(agents, bot_for, local_hub):
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


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"base": "/etc"}, RuleError),
        ({"colour": 1}, RuleError),
        ({"agents": {}}, RuleError),
        ({"recipe": FILE}, RecipeError),
    ],
)
def test_a_trial_of_what_is_no_rule_or_names_a_file_is_refused(bot_for, changes, kind):
    with pytest.raises(kind):
        bot_for().source.try_watcher({**rule_data(rule_for("zoo/base")), **changes}, None)

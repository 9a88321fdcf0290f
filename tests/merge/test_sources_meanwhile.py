"""Sources that change, or are closed, while they are merged, and between a kill and the same command.

The disk has room for some of the inputs or for none, so that whole shards and ranges are read.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from builders import llama_shapes, random_base, sparse_agent, write_model, write_sweep
from huggingface_hub import HfApi
from line import OUT_SHARD_BYTES, SHARDS, Line, threads_left, upload_family, weights
from processes import act_as_ada

from hubmerge import line as line_module
from hubmerge.cli.main import main
from hubmerge.engine.journal import Journal
from hubmerge.engine.pins import commits_for
from hubmerge.engine.sink import sole_owner
from hubmerge.errors import GatedError, HubmergeError, HubUnavailableError, SourceChangedError, SourceNotFoundError
from hubmerge.hub.client import Hub
from hubmerge.plan.plan import make_plan
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sources.shard_cache import ShardCache
from localhub.fault_rules import Observe, WholeFile

SOME_FITS, NOTHING_FITS = 2 * OUT_SHARD_BYTES + 900_000, 2 * OUT_SHARD_BYTES
room = pytest.mark.parametrize("budget", [SOME_FITS, NOTHING_FITS], ids=["some fits", "ranges only"])


@pytest.fixture(params=["gated", "private"])
def guarded(request: pytest.FixtureRequest, line: Line, tmp_path: Path) -> str:
    """The line is over the family in repos that Ada guards."""
    own = upload_family(line.api, tmp_path / "family", line.target + "-", private=request.param == "private")
    if request.param == "gated":
        for repo in (own["base"], *own["agents"]):
            line.api.update_repo_settings(repo, gated="manual")
    line.recipe = own
    return str(request.param)


def bob_let_in(line: Line) -> Line:
    """Bob's line, after Ada has let him in."""
    for repo in (line.recipe["base"], *line.recipe["agents"]):
        line.api.grant_access(repo, "bob")
    return replace(line, target=line.target.replace("ada/", "bob/"), user="bob")


def assert_nothing_came(line: Line) -> None:
    assert threads_left() == []
    assert not line.api.repo_exists(line.target) or line.commits() == 0


def test_guarded_models_are_merged_with_the_token_of_who_may_read_them(line, guarded):
    if guarded == "gated":
        line = bob_let_in(line)
    line.disk_budget = SOME_FITS
    line.to_hub()
    assert weights(line.published()) == weights(line.undisturbed)
    assert line.commits() == 1
    fetch = line.report()["environment"]["fetch"]
    assert fetch["ranged_shards"]
    assert fetch["shards"]


REFUSALS: dict[str, type[HubmergeError]] = {"gated": GatedError, "private": SourceNotFoundError}


@pytest.mark.parametrize("user", ["bob", "nobody"])
def test_guarded_models_are_refused_to_others_before_anything_is_fetched(line, guarded, user):
    other = Line(line.process, line.folder, line.recipe, line.target.replace("ada/", f"{user}/"), user=user)
    with pytest.raises(REFUSALS[guarded]) as caught:
        other.to_folder()
    assert all(repo in str(caught.value) for repo in (line.recipe["base"], *line.recipe["agents"]))
    assert not caught.value.retryable
    assert not [*line.folder.iterdir()]


CLOSED: dict[str, Callable[[HfApi, str], object]] = {
    "the reader is put out": lambda ada, repo: ada.cancel_access_request(repo, "bob"),
    "the repo is made private": lambda ada, repo: ada.update_repo_settings(repo, private=True),
}


@pytest.mark.parametrize("guarded", ["gated"], indirect=True)
@pytest.mark.parametrize("closing", CLOSED)
@room
def test_a_model_that_is_closed_meanwhile_ends_the_merge_and_nothing_is_published(line, guarded, closing, budget):
    ada, line = line.api, bob_let_in(line)
    line.disk_budget = budget
    line.watcher.at["fetch"] = lambda: CLOSED[closing](ada, line.recipe["agents"][0])
    with pytest.raises((GatedError, SourceChangedError)) as caught:
        line.to_hub()
    assert isinstance(caught.value, GatedError if closing == "the reader is put out" else SourceChangedError)
    assert line.recipe["agents"][0] in str(caught.value)
    assert_nothing_came(line)


# --- changes -----------------------------------------------------------------------------------------------------


@room
@pytest.mark.parametrize("stage", ["fetch", "merge"])
def test_a_model_that_moves_on_meanwhile_is_merged_as_it_was_pinned(line, own, stage, budget):
    agent = line.recipe["agents"][0]

    def move() -> None:
        line.api.upload_folder(repo_id=agent, folder_path=own / "two", commit_message="other")
        line.api.super_squash_history(agent)

    line.disk_budget = budget
    line.watcher.at[stage] = move
    line.to_hub()
    assert weights(line.published()) == weights(line.undisturbed)
    assert line.commits() == 1


def replaced(ada: HfApi, repo: str, folder: Path) -> None:
    ada.delete_repo(repo)
    ada.create_repo(repo)
    ada.upload_folder(repo_id=repo, folder_path=folder)


GONE: dict[str, Callable[[HfApi, str, Path], object]] = {
    "deleted": lambda ada, repo, folder: ada.delete_repo(repo),
    "its history rewritten": lambda ada, repo, folder: replaced(ada, repo, folder / "two"),
    "renamed, and another in its place": lambda ada, repo, folder: (
        ada.move_repo(repo, repo + "-old"),
        ada.create_repo(repo),
        ada.upload_folder(repo_id=repo, folder_path=folder / "two"),
    ),
}


@pytest.mark.parametrize("stage", ["fetch", "merge"])
@pytest.mark.parametrize("way", GONE)
def test_a_model_that_is_gone_meanwhile_ends_the_merge_and_nothing_is_published(line, own, way, stage):
    agent = line.recipe["agents"][0]
    line.disk_budget = SOME_FITS if stage == "fetch" else NOTHING_FITS
    line.watcher.at[stage] = lambda: GONE[way](line.api, agent, own)
    with pytest.raises(SourceChangedError) as caught:
        line.to_hub()
    assert agent in str(caught.value)
    assert_nothing_came(line)


@pytest.mark.usefixtures("own")
def test_a_base_that_is_gone_when_only_its_small_files_are_missing_is_noticed(line):
    line.watcher.at["card"] = lambda: line.api.delete_repo(line.recipe["base"])
    with pytest.raises(SourceChangedError) as caught:
        line.to_hub()
    assert line.recipe["base"] in str(caught.value)
    assert_nothing_came(line)


BLOCK = 51_200


@pytest.mark.parametrize("moment", ["verifying the first", "verifying the last", "merging"])
def test_a_whole_file_in_place_of_a_block_is_refused_and_the_next_run_is_whole(line, switch, moment):
    """A shard of several blocks, read once for its checksum and then again."""
    size = line.hub.repo_state("ada/one").files["model-00003-of-00005.safetensors"].size
    blocks = [f"bytes={begin}-{min(begin + BLOCK, size) - 1}" for begin in range(0, size, BLOCK)]
    assert len(blocks) > 2
    line.disk_budget = 2 * OUT_SHARD_BYTES
    before = {"verifying the first": 0, "verifying the last": len(blocks) - 1, "merging": len(blocks)}[moment]
    asked = switch.add(SHARD, Observe(), times=None)
    rule = switch.add(SHARD, WholeFile(), skip=HEADERS + before)
    with patch.object(line_module, "ShardCache", partial(ShardCache, block_bytes=BLOCK)):
        with pytest.raises(HubUnavailableError, match=r"206 bytes .* got 200") as caught:
            line.to_hub()
        assert caught.value.retryable
        assert_nothing_came(line)
        assert switch.state(rule).fired == 1
        ranges = [request.range for request in switch.state(asked).requests[HEADERS:]]
        assert ranges[: before + 1] == [*blocks, ranges[-1]][: before + 1]
        line.arrives()


# --- the same command after a kill --------------------------------------------------------------------------------

OPTIONS = ("--license", "mit", "--device", "cpu")


class Command:
    """`hubmerge` on a family of this test's own, in this process."""

    def __init__(self, line: Line, patch: pytest.MonkeyPatch) -> None:
        self.line, self.ada, self.agents = line, line.api, line.recipe["agents"]
        self.undisturbed = weights(line.undisturbed)
        self._patch = patch
        self.runs, self.out = line.folder / "data" / "runs", line.folder / "merged"
        self.recipe = line.folder / "recipe.yaml"
        self.recipe.write_text(json.dumps(line.recipe))
        act_as_ada(patch, line.process, line.folder)
        patch.setattr(line_module, "make_plan", partial(make_plan, max_shard_bytes=OUT_SHARD_BYTES))
        patch.setattr(line_module, "render_figures", lambda report: {})

    def run(self, *more: str) -> int:
        return main(["run", str(self.recipe), "--to", self.line.target, *OPTIONS, *more])

    def merge(self, *more: str) -> int:
        return main(["merge", str(self.recipe), "--out", str(self.out), *OPTIONS, *more])

    def begun(self) -> Path:
        """The folder of a run that was killed."""
        self.killed(self.run)
        [folder] = [path for path in self.runs.iterdir() if path.is_dir()]
        return folder

    def killed(self, command: Any) -> None:
        """Run it until its second shard is finished."""
        left, add_shard = [2], Journal.add_shard

        def die(journal: Journal, shard: Any) -> None:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            add_shard(journal, shard)

        with self._patch.context() as patch:
            patch.setattr(Journal, "add_shard", die)
            assert command() == 1

    def move(self) -> str:
        """The first agent's branch gets other weights; its commit before."""
        before = self.newest()
        self.ada.upload_folder(repo_id=self.agents[0], folder_path=self.other(), commit_message="moved")
        assert self.newest() != before
        return before

    def newest(self) -> str:
        return str(self.ada.model_info(self.agents[0]).sha)

    def other(self) -> Path:
        base = random_base(0, sizes=llama_shapes(layers=6, hidden=96, intermediate=256, vocab=40))
        return write_model(self.line.folder / "models" / "other", sparse_agent(base, 0.2, 9), shards=len(SHARDS))

    def published(self) -> dict[str, str]:
        return weights(self.line.published())

    def merged(self) -> dict[str, str]:
        return {path.name: sha256(path.read_bytes()).hexdigest() for path in self.out.glob("*.safetensors")}


@pytest.fixture
def command(line: Line, own: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(line, monkeypatch)


def test_a_run_goes_on_with_the_commits_that_it_began_with_and_says_so(command, capsys):
    folder, before = command.begun(), command.move()
    capsys.readouterr()
    assert command.begun() == folder, "once more, and in the same folder"
    told = capsys.readouterr().err
    assert f"stays with the versions that it began with: {command.agents[0]}@{before[:12]}" in told
    assert "To begin with the newest, add --newest." in told
    assert command.run() == 0
    assert command.published() == command.undisturbed
    parents = {p["id"]: (p["sha"], p["requested"]) for p in command.line.report()["parents"]}
    assert parents[command.agents[0]] == (before, "main")
    assert not list(command.runs.iterdir())


def test_a_run_that_was_published_and_then_killed_is_found_although_a_branch_has_moved_on(command, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("hubmerge.engine.pins.RunPins.end", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        assert command.run() == 1
    command.move()
    commits = command.line.commits()
    assert command.run() == 0
    assert command.line.commits() == commits
    assert not list(command.runs.iterdir())


def test_a_run_begins_with_the_newest_where_that_is_asked_for_and_removes_what_it_gives_up(command, capsys):
    given_up = command.begun()
    command.move()
    assert command.run("--newest") == 0
    assert "given up, and removed" in capsys.readouterr().err
    assert command.published().keys() == command.undisturbed.keys()
    assert command.published() != command.undisturbed
    assert not given_up.exists()
    assert not list(command.runs.iterdir())


def test_a_run_that_is_still_at_work_is_not_given_up(command, capsys):
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in command.runs.rglob("*") if path.is_file()}

    working = command.begun()
    before = files()
    command.move()
    with sole_owner(working / "out"):  # as the other process has it
        assert command.run("--newest") == 1
    assert "E_IN_USE: another process is merging into this folder" in capsys.readouterr().err
    assert files() == before
    assert command.run() == 0
    assert command.published() == command.undisturbed


def test_a_run_that_waits_for_the_answer_to_its_commit_keeps_what_it_made_from_another_one(
    command, monkeypatch, capsys
):
    commit, codes = Hub.commit, []

    def answered_late(hub: Hub, *arguments: Any, **more: Any) -> str:
        done = commit(hub, *arguments, **more)
        if not codes:  # the same command, in another terminal
            codes.append(command.run())
        return done

    monkeypatch.setattr(Hub, "commit", answered_late)
    assert (command.run(), codes) == (0, [0])
    assert "memory at most" in capsys.readouterr().out, "what it took"
    assert command.line.commits() == 1
    assert not list(command.runs.iterdir())


def test_a_run_that_nothing_has_moved_under_says_nothing(command, capsys):
    command.killed(command.run)
    capsys.readouterr()
    assert command.run() == 0
    assert capsys.readouterr().err == ""
    assert command.published() == command.undisturbed


def test_a_run_whose_commits_are_gone_says_how_to_begin_anew(command, capsys):
    command.killed(command.run)
    repo = command.agents[0]
    replaced(command.ada, repo, command.other())
    capsys.readouterr()
    assert command.run() == 1
    told = capsys.readouterr().err
    assert "E_SOURCE_CHANGED" in told
    assert repo in told
    assert "--newest" in told
    assert command.run("--newest") == 0


def test_a_merge_to_a_folder_goes_on_with_its_commits_too(command, capsys):
    command.killed(command.merge)
    before = command.move()
    assert command.merge("--resume") == 0
    told = capsys.readouterr().err
    assert f"stays with the versions that it began with: {command.agents[0]}@{before[:12]}" in told
    assert "To begin with the newest, merge into another folder." in told
    assert command.merged() == command.undisturbed
    assert command.merge("--resume") == 0, "finished, it is found as well"


def test_a_model_that_the_recipe_names_by_an_earlier_id_keeps_no_merge_from_going_on(command, capsys):
    renamed = command.agents[1]
    command.ada.move_repo(renamed, renamed + "-since")
    command.killed(command.merge)
    command.killed(command.run)
    command.move()
    capsys.readouterr()
    assert command.merge("--resume") == 0
    assert command.run() == 0
    told = capsys.readouterr().err
    assert told.count("stays with the versions that it began with") == 2
    assert f"{renamed}@" not in told, "it is where it was"
    assert command.merged() == command.undisturbed
    assert command.published() == command.undisturbed


def test_pins_are_taken_for_the_very_branches_that_they_were_made_of():
    def pin(id: str, sha: str, requested: str = "main", kind: str = "hub") -> dict[str, str]:
        return {"kind": kind, "id": id, "sha": sha, "requested": requested}

    one, two, own = "1" * 40, "2" * 40, "3" * 40
    recipe = recipe_from_dict({"base": "a/base", "agents": [f"a/one@{own}", "a/two@dev", "./four"], "method": "ram"})
    four = pin("./four", "4" * 40, "", "local")
    pins = [pin("a/base", one), pin("a/one", own, own), pin("a/two", two, "dev"), four]
    present = {"a/base": "a/renamed", "a/two": "a/two"}.__getitem__
    assert commits_for(recipe, pins, present) == [one, None, two, None]
    assert commits_for(recipe, [pin("a/renamed", one), *pins[1:]], present) == [one, None, two, None]
    assert commits_for(recipe, [pin("a/other", one), *pins[1:]], present) == ()
    assert commits_for(recipe, [*pins[:2], pin("a/two", two), four], present) == ()
    assert commits_for(recipe, pins[:3], present) == ()
    assert commits_for(recipe, None, present) == ()


def test_a_sweep_goes_on_with_its_commits_too(command, tmp_path, capsys):
    sweep = write_sweep(command.recipe, {"method": ["linear", "ram"]})

    def run(out: str, *more: str) -> int:
        return main(["sweep", str(sweep), "--out", str(tmp_path / out), *OPTIONS, *more])

    assert run("undisturbed") == 0
    command.killed(partial(run, "swept"))
    command.move()
    assert run("swept", "--resume") == 0
    assert "stays with the versions that it began with" in capsys.readouterr().err
    shards = [path.relative_to(tmp_path / "undisturbed") for path in (tmp_path / "undisturbed").rglob("*.safetensors")]
    assert len(shards) >= 4
    for name in shards:
        assert (tmp_path / "swept" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


def test_a_run_of_variants_goes_on_with_its_commits_when_one_is_published(command, monkeypatch):
    sweep, target, commit = write_sweep(command.recipe, {"method": ["linear", "ram"]}), command.line.target, Hub.commit
    run = ["run", "--sweep", str(sweep), "--to", target, *OPTIONS]
    committed: list[str] = []

    def killed_after_one(hub: Hub, *arguments: Any, **more: Any) -> str:
        if committed:
            raise KeyboardInterrupt
        committed.append(commit(hub, *arguments, **more))
        return committed[0]

    with monkeypatch.context() as patch:
        patch.setattr(Hub, "commit", killed_after_one)
        assert main(run) == 1
    before = command.move()
    assert main(run) == 0
    for command.line.target in (f"{target}-linear", f"{target}-ram"):
        assert command.line.report()["parents"][1]["sha"] == before
        assert command.line.commits() == 1
    assert not list(command.runs.iterdir())


def test_another_sweep_into_the_folder_of_one_that_is_at_work_is_refused_and_takes_nothing_away(
    command, tmp_path, monkeypatch, capsys
):
    sweep, other = write_sweep(command.recipe, {"method": "linear"}), tmp_path / "other.yaml"
    other.write_text(sweep.read_text().replace("linear", "ram"))
    add_shard, codes = Journal.add_shard, []

    def swept(sweep: Path) -> int:
        return main(["sweep", str(sweep), "--out", str(tmp_path / "swept"), *OPTIONS, "--disk-budget", "0.005"])

    def meanwhile(journal: Journal, shard: Any) -> None:
        add_shard(journal, shard)
        if not codes:
            codes.append(swept(other))

    monkeypatch.setattr(Journal, "add_shard", meanwhile)
    assert (swept(sweep), codes) == (0, [1])
    assert "E_IN_USE: another process is merging into this folder" in capsys.readouterr().err


HEADERS = 1  # the first read of a shard is that of its header


SHARD = r"/ada/one/resolve/[0-9a-f]{40}/model-00003-of-00005\.safetensors$"

"""A branch that moves on between a kill and the same command: it goes on with the commits that it began with."""

from __future__ import annotations

import json
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from builders import llama_shapes, random_base, sparse_agent, write_model
from line import OUT_SHARD_BYTES, SHARDS, Line, weights
from processes import as_ada

from hubmerge import line as line_module
from hubmerge.cli.main import main
from hubmerge.engine.journal import Journal
from hubmerge.engine.pins import commits_for
from hubmerge.engine.sink import sole_owner
from hubmerge.plan.plan import make_plan
from hubmerge.recipe.recipe import recipe_from_dict


class Command:
    """`hubmerge` on a family of this test's own, in this process."""

    def __init__(self, line: Line, patch: pytest.MonkeyPatch) -> None:
        self.line, self.ada, self.agents = line, line.api, line.recipe["agents"]
        self.undisturbed = weights(line.undisturbed)
        self._patch = patch
        self.runs, self.out = line.folder / "data" / "runs", line.folder / "merged"
        self.recipe = line.folder / "recipe.yaml"
        self.recipe.write_text(json.dumps(line.recipe))
        for name, value in as_ada(line.process, line.folder).items():
            patch.setenv(name, value)
        patch.setattr(line_module, "make_plan", partial(make_plan, max_shard_bytes=OUT_SHARD_BYTES))
        patch.setattr(line_module, "render_figures", lambda report: {})

    def run(self, *more: str) -> int:
        return main(["run", str(self.recipe), "--to", self.line.target, *self._options(), *more])

    def merge(self, *more: str) -> int:
        return main(["merge", str(self.recipe), "--out", str(self.out), *self._options(), *more])

    @staticmethod
    def _options() -> list[str]:
        return ["--license", "mit", "--device", "cpu"]

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
        repo = self.agents[0]
        before = str(self.ada.model_info(repo).sha)
        self.ada.upload_folder(repo_id=repo, folder_path=self.other(), commit_message="moved")
        assert self.ada.model_info(repo).sha != before
        return before

    def other(self) -> Path:
        base = random_base(0, sizes=llama_shapes(layers=6, hidden=96, intermediate=256, vocab=40))
        return write_model(self.line.folder / "models" / "other", sparse_agent(base, 0.2, 9), shards=len(SHARDS))

    def published(self) -> dict[str, str]:
        return weights(self.line.published())

    def merged(self) -> dict[str, str]:
        return {path.name: sha256(path.read_bytes()).hexdigest() for path in self.out.glob("*.safetensors")}

    def parents(self) -> list[dict[str, Any]]:
        return list(self.line.report()["parents"])


@pytest.fixture
def command(line: Line, own: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(line, monkeypatch)


def test_a_run_goes_on_with_the_commits_that_it_began_with_and_says_so(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    command.killed(command.run)
    [folder] = [path for path in command.runs.iterdir() if path.is_dir()]
    before = command.move()
    capsys.readouterr()
    command.killed(command.run)  # once more, and in the same folder
    assert [path for path in command.runs.iterdir() if path.is_dir()] == [folder]
    told = capsys.readouterr().err
    assert f"goes on with the versions that it began with: {command.agents[0]}@{before[:12]}" in told
    assert "To begin with the newest, add --newest." in told
    assert command.run() == 0
    assert command.published() == command.undisturbed
    assert [(p["sha"], p["requested"]) for p in command.parents() if p["id"] == command.agents[0]] == [(before, "main")]
    assert not list(command.runs.iterdir())


def test_a_run_that_was_published_and_then_killed_is_found_although_a_branch_has_moved_on(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("hubmerge.engine.pins.RunPins.end", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        assert command.run() == 1
    command.move()
    commits = command.line.commits()
    assert command.run() == 0
    assert command.line.commits() == commits
    assert not list(command.runs.iterdir())


def test_a_run_begins_with_the_newest_where_that_is_asked_for_and_removes_what_it_gives_up(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    command.killed(command.run)
    [given_up] = [path for path in command.runs.iterdir() if path.is_dir()]
    command.move()
    assert command.run("--newest") == 0
    assert "given up, and removed" in capsys.readouterr().err
    assert command.published().keys() == command.undisturbed.keys()
    assert command.published() != command.undisturbed
    assert not given_up.exists()
    assert not list(command.runs.iterdir())


def test_a_run_that_is_still_at_work_is_not_given_up(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    command.killed(command.run)
    [working] = [path for path in command.runs.iterdir() if path.is_dir()]
    files = {path: path.read_bytes() for path in command.runs.rglob("*") if path.is_file()}
    command.move()
    with sole_owner(working / "out"):  # as the other process has it
        assert command.run("--newest") == 1
    assert "E_IN_USE: another process is merging into this folder" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in command.runs.rglob("*") if path.is_file()} == files
    assert command.run() == 0
    assert command.published() == command.undisturbed


def test_a_run_that_nothing_has_moved_under_says_nothing(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    command.killed(command.run)
    capsys.readouterr()
    assert command.run() == 0
    assert capsys.readouterr().err == ""
    assert command.published() == command.undisturbed


def test_a_run_whose_commits_are_gone_says_how_to_begin_anew(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    command.killed(command.run)
    repo = command.agents[0]
    command.ada.delete_repo(repo)
    command.ada.create_repo(repo)
    command.ada.upload_folder(repo_id=repo, folder_path=command.other())
    capsys.readouterr()
    assert command.run() == 1
    told = capsys.readouterr().err
    assert "E_SOURCE_CHANGED" in told
    assert repo in told
    assert "--newest" in told
    assert command.run("--newest") == 0


def test_a_merge_to_a_folder_goes_on_with_its_commits_too(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    command.killed(command.merge)
    before = command.move()
    assert command.merge("--resume") == 0
    told = capsys.readouterr().err
    assert f"goes on with the versions that it began with: {command.agents[0]}@{before[:12]}" in told
    assert "To begin with the newest, merge into another folder." in told
    assert command.merged() == command.undisturbed
    assert command.merge("--resume") == 0, "finished, it is found as well"


def test_a_model_that_the_recipe_names_by_an_earlier_id_keeps_no_merge_from_going_on(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    renamed = command.agents[1]
    command.ada.move_repo(renamed, renamed + "-since")
    command.killed(command.merge)
    command.killed(command.run)
    command.move()
    capsys.readouterr()
    assert command.merge("--resume") == 0
    assert command.run() == 0
    told = capsys.readouterr().err
    assert told.count("goes on with the versions that it began with") == 2
    assert f"{renamed}@" not in told, "it is where it was"
    assert command.merged() == command.undisturbed
    assert command.published() == command.undisturbed


def test_a_recipe_that_names_another_version_is_another_merge(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    command.killed(command.merge)
    command.move()
    newest = str(command.ada.model_info(command.agents[0]).sha)
    agents = [f"{command.agents[0]}@{newest}", command.agents[1]]
    command.recipe.write_text(json.dumps({**command.line.recipe, "agents": agents}))
    assert command.merge("--resume") == 1
    assert "E_TARGET_EXISTS: an unfinished merge of other versions of the models is here" in capsys.readouterr().err


def test_pins_are_taken_for_the_very_branches_that_they_were_made_of() -> None:
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


def test_a_sweep_goes_on_with_its_commits_too(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = command.line.folder / "sweep.yaml"
    recipe = {name: command.line.recipe[name] for name in ("base", "agents")}
    sweep.write_text(json.dumps({**recipe, "sweep": [{"method": "linear"}, {"method": "ram"}]}))

    def run(out: str, *more: str) -> int:
        where = ["--out", str(tmp_path / out)]
        return main(["sweep", str(sweep), *where, "--license", "mit", "--device", "cpu", *more])

    assert run("undisturbed") == 0
    command.killed(partial(run, "swept"))
    command.move()
    assert run("swept", "--resume") == 0
    assert "goes on with the versions that it began with" in capsys.readouterr().err
    shards = [path.relative_to(tmp_path / "undisturbed") for path in (tmp_path / "undisturbed").rglob("*.safetensors")]
    assert len(shards) >= 4
    for name in shards:
        assert (tmp_path / "swept" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()

"""`hubmerge run` with evaluations: what is measured, recorded and shown, and that a choice uses development rows."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from board_helpers import result, task
from processes import act_as_ada

from hubmerge.board.results_dataset import ResultsDataset
from hubmerge.cli.main import main
from hubmerge.evaluation import runner
from hubmerge.evaluation.result import EvaluationResult
from hubmerge.hub.client import Hub
from hubmerge.sources.open import open_model
from localhub.process import LocalHubProcess

RECIPE = "base: zoo/base\nagents: [zoo/math-agent, zoo/tool-agent]\nmethod: ram\n"
SWEEP = "base: zoo/base\nagents: [zoo/math-agent, zoo/tool-agent]\nsweep:\n  - {method: [linear, ram, ram_plus]}\n"
RIGHT = {"linear": 40, "ram": 70, "ram_plus": 60}  # of 100, on the development split


@pytest.fixture
def asked(zoo_hub: LocalHubProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Evaluations without lighteval, by the variant's name; every (model, split) that was asked for."""
    calls: list[tuple[str, str]] = []

    def evaluate(name: Any, suite: Any, *, hub: Hub, workdir: Path, **_: Any) -> EvaluationResult:
        calls.append((name.id, suite.split))
        opened = open_model(name, hub, allow_local=True)
        right = RIGHT.get(Path(name.id).name, 50)
        (workdir / "details").mkdir(parents=True, exist_ok=True)
        for each in suite.tasks:
            scores = [1.0] * right + [0.0] * (100 - right)
            pq.write_table(pa.table({"score": scores}), workdir / "details" / f"{each.name}.parquet")
        model = opened.ref.id if opened.ref.kind == "hub" else "local"
        tasks = [task(each.name, each.task.domain, right / 100, stderr=0.05) for each in suite.tasks]
        measured = {"suite": suite.suite.name, "suite_version": suite.version, "split": suite.split}
        made = result(model, scores=tasks, sha=opened.ref.sha, **measured)
        return made.model_copy(update={"facts": runner.model_facts(hub, opened)})

    monkeypatch.setattr(runner, "evaluate", evaluate)
    act_as_ada(monkeypatch, zoo_hub, tmp_path)
    return calls


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "in.yaml"
    path.write_text(text)
    return str(path)


def test_the_merge_and_every_parent_are_measured_recorded_and_shown_on_the_card(api, asked, tmp_path, monkeypatch):
    monkeypatch.setenv("HUBMERGE_RESULTS", "ada/results")
    command = ["run", write(tmp_path, RECIPE), "--to", "ada/scored", "--evaluate", "zoo"]
    assert main(command) == 0
    names = ["ada/scored", "zoo/base", "zoo/math-agent", "zoo/tool-agent"]
    assert asked == [(name, "test") for name in names]
    results = ResultsDataset(Hub(api.endpoint, str(api.token)), "ada/results").load().results
    assert sorted(r.model for r in results) == names
    card = Path(api.hf_hub_download("ada/scored", "README.md", local_dir=tmp_path / "card")).read_text()
    assert "## Scores" in card
    assert "| Zoo: two-digit addition with carries |" in card
    assert "as plain text, without a chat template:\n\n```text\nmath {digit} {digit} + {digit} {digit} =\n```" in card
    # again: the merge is found, every score is known, and nothing is written
    commits = len(api.list_repo_commits("ada/scored"))
    assert main(command) == 0
    assert len(asked) == 4
    assert len(api.list_repo_commits("ada/scored")) == commits


def test_parents_that_are_folders_are_not_measured_and_that_is_told(asked, capsys):
    assert main(["run", "examples/recipes/ram_plus.yaml", "--to", "ada/of-folders", "--evaluate", "zoo"]) == 0
    assert asked == [("ada/of-folders", "test")]
    assert "no folders: ../zoo/base, ../zoo/math, ../zoo/tool, ../zoo/mem" in capsys.readouterr().err


def test_nothing_is_merged_for_a_dataset_that_the_token_cannot_write_to(
    api, asked, tmp_path, monkeypatch, refused, name
):
    monkeypatch.setenv("HUBMERGE_RESULTS", "bob/results")
    command = ["run", write(tmp_path, RECIPE), "--to", f"{name}-merge", "--evaluate", "zoo"]
    assert "E_PERMISSION: you cannot write to this namespace in bob/results" in refused(*command)
    assert (asked, api.repo_exists(f"{name}-merge")) == ([], False)


def test_what_is_private_is_measured_only_where_the_scores_are_private_too(
    api, asked, tmp_path, monkeypatch, refused, name
):
    monkeypatch.setenv("HUBMERGE_RESULTS", f"{name}-results")
    to = ["--to", f"{name}-merge", "--evaluate", "zoo", "--private"]
    api.create_repo(f"{name}-results", repo_type="dataset")
    command = ["run", "--sweep", write(tmp_path, SWEEP), "--pick", *to]
    assert "E_EVALUATION: a private model's answers would become public" in refused(*command)
    command = ["run", write(tmp_path, RECIPE), *to]
    assert "E_EVALUATION: a private model's answers would become public" in refused(*command)
    assert (asked, api.repo_exists(f"{name}-merge")) == ([], False)
    api.delete_repo(f"{name}-results", repo_type="dataset")
    assert main(command) == 0  # which makes a private one
    assert api.dataset_info(f"{name}-results").private


def test_a_private_parent_of_a_public_merge_is_not_measured_in_public(api, asked, tmp_path, monkeypatch, refused, name):
    monkeypatch.setenv("HUBMERGE_RESULTS", f"{name}-results")
    api.create_repo(f"{name}-agent", private=True)
    api.upload_folder(repo_id=f"{name}-agent", folder_path="examples/zoo/math")
    recipe = write(tmp_path, RECIPE.replace("zoo/math-agent", f"{name}-agent"))
    told = refused("run", recipe, "--to", f"{name}-merge", "--evaluate", "zoo", "--public")
    assert f"would become public in {name}-agent" in told
    assert (asked, api.repo_exists(f"{name}-results", repo_type="dataset")) == ([], False)


def test_a_sweep_s_best_variant_is_chosen_on_dev_rows_published_and_measured_on_test_rows(
    api, asked, tmp_path, capsys, monkeypatch
):
    arguments = ["run", "--sweep", write(tmp_path, SWEEP), "--pick", "--evaluate", "zoo", "--to", "ada/picked"]
    assert main(arguments) == 0
    assert [split for _, split in asked] == ["dev"] * 3 + ["test"] * 4
    assert asked[3] == ("ada/picked", "test")
    assert "`ram`" in capsys.readouterr().out.splitlines()[0]
    folder = Path(api.snapshot_download("ada/picked", local_dir=tmp_path / "picked"))
    assert json.loads((folder / "pick.json").read_text())["chosen"] == "ram"
    assert "method: ram\n" in (folder / "recipe.yaml").read_text()
    assert "`linear`" in (folder / "pick.md").read_text()
    assert not [*(tmp_path / "data" / "runs").iterdir()], "the variants' weights do not stay"
    monkeypatch.setattr("hubmerge.cli.run.merge_to_folders", None)  # again: the choice is found
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pick"] == json.loads((folder / "pick.json").read_text())
    assert asked[7:] == asked[3:7]


@pytest.mark.parametrize("more", [[], ["--pick", "--evaluate", "zoo"]], ids=["each", "the best"])
@pytest.mark.parametrize("owner", ["ada", "bob"])
def test_variants_that_cannot_be_published_are_refused_before_the_first_is_merged(
    api, asked, name, tmp_path, refused, more, owner
):
    to = name.replace("ada", owner)
    taken = to if more else f"{to}-ram_plus"
    if owner == "ada":
        api.create_repo(taken)
        api.upload_file(path_or_fileobj=b"mine", path_in_repo="thesis.tex", repo_id=taken)
    told = refused("run", "--sweep", write(tmp_path, SWEEP), "--to", to, *more)
    assert ("E_TARGET_EXISTS" if owner == "ada" else "E_PERMISSION") in told
    assert asked == []
    assert not api.repo_exists(f"{to}-linear")
    assert not [*tmp_path.rglob("*.safetensors")]


@pytest.mark.parametrize(
    ("arguments", "results", "said"),
    [
        ([], "", "E_RECIPE: name a recipe, or a sweep"),
        (["r.yaml", "--sweep", "s.yaml"], "", "E_RECIPE: name a recipe, or a sweep"),
        (["r.yaml", "--pick"], "", "E_RECIPE: --pick chooses"),
        (["r.yaml", "--evaluate", "mth"], "", "Did you mean math?"),
        (["r.yaml", "--evaluate", "zoo"], "./results", "E_SETTINGS: scores are recorded in a dataset on the Hub"),
    ],
)
def test_what_cannot_be_done_in_the_end_is_refused_before_the_recipe_is_read(
    arguments, results, said, monkeypatch, refused
):
    monkeypatch.setenv("HUBMERGE_RESULTS", results)
    assert said in refused("run", *arguments, "--to", "ada/x")

"""Scores in a merge's own repo: the card, the Hub's two formats, and what is never touched."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from board_helpers import SEED, TRUSTED, family, result, sha, strange, task
from board_helpers import rows as board_rows
from builders import random_base, sparse_agent, write_model
from huggingface_hub import CommitOperationAdd, HfApi, ModelCard
from plan_helpers import plan_of
from report_helpers import report
from stream_helpers import report_of, run

from hubmerge.board.eval_results import differ_in_scores_alone, evaluation_rows, publish_scores
from hubmerge.board.leaderboard import build_board
from hubmerge.board.results_dataset import ResultsDataset
from hubmerge.errors import PermissionDeniedError
from hubmerge.evaluation.result import EvaluationResult
from hubmerge.evaluation.signing import signed
from hubmerge.evaluation.tasks import registry
from hubmerge.hub.client import Hub
from hubmerge.hub.names import FileInfo, RepoState
from hubmerge.output.card import render_card
from hubmerge.output.report import Report
from localhub.process import LocalHubProcess

MINE = b"---\nlicense: mit\n---\n# Mine\n"
GSM8K = {"dataset": "openai/gsm8k", "few_shot": 5}


@pytest.fixture
def hub(local_hub: LocalHubProcess) -> Hub:
    return Hub(local_hub.endpoint, local_hub.tokens["ada"])


def merge_report(repo: str) -> Report:
    return report(target=repo, evaluations=[])


@pytest.fixture
def repo(ada: HfApi, hub: Hub, name: str) -> str:
    """A repo as a merge leaves it."""
    ada.create_repo(name)
    own = merge_report(name)
    card = render_card(own, endpoint=hub.endpoint).encode()
    push(ada, name, {"hubmerge.json": json.dumps(own.to_json()).encode(), "README.md": card, "config.json": b"{}"})
    return name


def push(ada: HfApi, repo: str, files: dict[str, bytes]) -> None:
    ada.create_commit(repo, [CommitOperationAdd(p, d) for p, d in files.items()], commit_message="files")


def text(ada: HfApi, repo: str, path: str) -> str:
    return Path(ada.hf_hub_download(repo, path)).read_text(encoding="utf-8")


def results_of(repo: str) -> Sequence[EvaluationResult]:
    """The merge of tests/data/report.json, and its parents."""

    def run(model: str, letter: str, gsm8k: float, math500: float | None, **changes: Any) -> EvaluationResult:
        tasks = [task("gsm8k", "math", gsm8k, **GSM8K)]
        tasks += [task("math_500", "math", math500, 500)] if math500 is not None else []
        return result(model, letter, tasks, suite="math", **changes)

    return [
        run(repo, "9", 0.80, 0.50),
        run("org/base", "a", 0.20, 0.10),
        run("org/math", "b", 0.70, 0.60),
        result("other.org/tool_use", "c", None, suite="math"),
    ]


def test_the_card_gets_every_parent_beside_the_merge(hub, ada, repo):
    assert publish_scores(hub, repo, results_of(repo)) == ada.model_info(repo).sha
    card = text(ada, repo, "README.md")
    assert "| Task | Metric | this merge | base | math | `tool_use` |" in card
    [line] = [x for x in card.splitlines() if x.startswith("| GSM8K |")]
    assert line.endswith("| 80.0 (71.1 to 86.7, n = 100) | 20.0 (13.3 to 28.9, n = 100) | "
                         "70.0 (60.4 to 78.1, n = 100) | failed |")  # fmt: skip
    [domain] = [x for x in card.splitlines() if x.startswith("| math |")]
    assert "Kept of its gain" not in card  # tool_use failed, so that the best parent may be missing
    assert domain.endswith("| no difference beyond chance |")  # (0.80 + 0.50) / 2 against (0.70 + 0.60) / 2
    assert "No evaluation has been run yet" not in card


def test_registered_benchmarks_and_others_stand_where_the_hub_looks(hub, ada, repo):
    dataset = ResultsDataset(hub, f"{repo}-results")
    ada.create_repo(dataset.repo, repo_type="dataset", private=True)
    publish_scores(hub, repo, results_of(repo), dataset=dataset)
    assert "source" not in yaml.safe_load(text(ada, repo, ".eval_results/hubmerge-math.yaml"))[0]
    ada.update_repo_settings(dataset.repo, repo_type="dataset", private=False)
    publish_scores(hub, repo, results_of(repo), dataset=dataset)
    [entry] = yaml.safe_load(text(ada, repo, ".eval_results/hubmerge-math.yaml"))
    assert entry["dataset"] == {"id": "openai/gsm8k", "task_id": "gsm8k", "revision": sha("d")}
    assert entry["value"] == 80.0
    assert entry["notes"] == "5-shot, exact_match, n = 100"
    assert entry["source"]["url"] == f"{hub.endpoint}/datasets/{repo}-results"
    [index] = ModelCard(text(ada, repo, "README.md")).data.eval_results or []
    assert (index.dataset_type, index.metric_value) == ("data/math_500", 0.5)


def test_the_same_scores_again_make_no_commit_and_new_ones_one(hub, ada, repo):
    publish_scores(hub, repo, results_of(repo)[:1])
    before = len(ada.list_repo_commits(repo))
    assert publish_scores(hub, repo, results_of(repo)[:1]) is None
    assert publish_scores(hub, repo, results_of(repo)) is not None
    assert len(ada.list_repo_commits(repo)) == before + 1
    assert json.loads(text(ada, repo, "hubmerge.json"))["identity"] == merge_report(repo).identity


def test_scores_of_another_suite_stay_beside_new_ones(hub, ada, repo):
    """As after two runs of `hubmerge run --evaluate`, of which each knows its own suite alone."""
    code = [result(repo, "9", [task("humaneval", "code", 0.4)], suite="code")]
    for results in (results_of(repo), code):
        assert publish_scores(hub, repo, results) is not None
    assert publish_scores(hub, repo, results_of(repo)) is None
    told = json.loads(text(ada, repo, "hubmerge.json"))["evaluations"]
    assert [row["suite"] for row in told if "model" not in row] == ["code", "math", "math"]
    index = ModelCard(text(ada, repo, "README.md")).data.eval_results
    assert [score.dataset_name for score in index] == ["humaneval", "math_500"]


def test_a_card_that_somebody_edited_stays(hub, ada, repo):
    push(ada, repo, {"README.md": MINE})
    told: list[str] = []
    assert publish_scores(hub, repo, results_of(repo), tell=told.append) is not None
    assert f"README.md of {repo} was edited" in told[0]
    assert text(ada, repo, "README.md") == MINE.decode()
    assert json.loads(text(ada, repo, "hubmerge.json"))["evaluations"] == []
    assert ".eval_results/hubmerge-math.yaml" in ada.list_repo_files(repo)


@pytest.mark.parametrize(
    "manifest",
    [
        None,
        b"{}",
        b'{"identity": "x"}',
        b"[" * 100_000,
        json.dumps(report(target="bob/other").to_json()).encode(),
    ],
)
def test_a_repo_that_is_no_merge_of_ours_is_not_touched(hub, ada, name, manifest):
    ada.create_repo(name)
    push(ada, name, {"README.md": MINE, **({"hubmerge.json": manifest} if manifest else {})})
    before = ada.model_info(name).sha
    with pytest.raises(PermissionDeniedError, match="our own merges only"):
        publish_scores(hub, name, results_of(name))
    assert ada.model_info(name).sha == before


@pytest.mark.parametrize("recorded", ["before", "after"])
def test_a_merge_that_was_renamed_gets_the_scores_that_were_recorded_under_either_name(hub, ada, repo, recorded):
    renamed = f"{repo}-renamed"
    ada.move_repo(repo, renamed)
    results = results_of(repo if recorded == "before" else renamed)
    for name in (repo, renamed):
        publish_scores(hub, name, results)
    assert len(ada.list_repo_commits(renamed)) == 3  # both calls made one commit
    assert "| GSM8K |" in text(ada, renamed, "README.md")
    ada.create_repo(repo)  # a stranger's, by the old name
    with pytest.raises(PermissionDeniedError, match="is of another repo"):
        publish_scores(hub, renamed, [])


def test_a_manifest_that_lost_a_figure_or_has_one_that_is_no_number_is_not_rendered_by_guesswork(hub, ada, repo):
    lost, infinite = merge_report(repo).to_json(), merge_report(repo).to_json() | {"parameters": math.inf}
    del lost["statistics"]["total"]["shares"]
    for broken in (lost, infinite):
        push(ada, repo, {"hubmerge.json": json.dumps(broken).encode()})
        with pytest.raises(PermissionDeniedError, match="not a report"):
            publish_scores(hub, repo, results_of(repo))


def test_results_of_others_of_other_commits_and_other_versions_are_left_out():
    own, base, *_ = results_of("ada/merged")
    foreign = [
        base.model_copy(update={"sha": sha("f")}),
        base.model_copy(update={"suite_version": "9"}),
        base.model_copy(update={"split": "dev"}),
        own.model_copy(update={"model": "bob/merged"}),
    ]
    rows = evaluation_rows(merge_report("ada/merged"), {"ada/merged"}, [own, *foreign])
    assert {row.get("model") for row in rows} == {None}
    assert len(rows) == 2


@pytest.mark.parametrize("older", [0, 1])
def test_a_score_has_the_prompt_of_its_own_version_alone(older):
    now = task("gsm8k", "math", 0.8, **GSM8K, task_version=registry()["gsm8k"].version - older)
    [row] = evaluation_rows(merge_report("ada/merged"), {"ada/merged"}, [result("ada/merged", "9", [now])])
    assert (row["title"], "prompt" in row) == ("GSM8K", not older)


def test_a_merge_gets_no_score_of_another_one_that_had_its_name_before():
    """Its repo was deleted, and another recipe was merged into one of the same name."""
    own, *parents = results_of("ada/merged")
    made = merge_report("ada/merged")

    def rows(recipe: str) -> list[dict[str, Any]]:
        facts = own.facts.model_copy(update={"recipe": recipe})
        return evaluation_rows(made, {"ada/merged"}, [own.model_copy(update={"facts": facts}), *parents])

    assert rows(made.recipe_yaml) == evaluation_rows(made, {"ada/merged"}, [own, *parents]) != []
    assert rows(f"{made.recipe_yaml}seed: 1\n") == []


def test_a_parent_that_was_renamed_has_its_scores_on_card_and_board():
    """It is measured under the name that it has now, at the commit that was merged."""
    merge, base, agent, *_ = results_of("ada/merged")
    duplicate = agent.model_copy(update={"model": "a/copy"})  # of the same commit, whose own score is preferred
    renamed = base.model_copy(update={"model": "org/base-renamed"})
    failed = result("a/base", "a", suite="math")
    rows = evaluation_rows(merge_report("ada/merged"), {"ada/merged"}, [merge, failed, duplicate, renamed, agent])
    assert [row["value"] for row in rows if row["task"] == "gsm8k"] == [0.80, 0.20, 0.70]
    *parents, made = family()
    results = [r.model_copy(update={"model": f"{r.model}-renamed"}) for r in parents]
    theirs = strange("z/copy", "b", 1.0)  # a stranger's of the base's commit, which counts for no merge
    for trusted, own, copy in (
        (frozenset(), made, result("z/copy", "b")),
        (TRUSTED, made, theirs),
        (TRUSTED, signed(made, SEED, "bot"), theirs),
    ):
        told = [*(signed(r, SEED, "bot") if trusted else r for r in results), own, copy]
        row = board_rows(build_board(told, trusted=trusted))["org/merge"]
        assert row.skills == board_rows(build_board(family()))["org/merge"].skills
    told = [*results, signed(made, SEED, "bot")]
    assert board_rows(build_board(told, trusted=TRUSTED))["org/merge"].skills is None, "they may be strangers'"


def test_a_base_and_an_agent_of_one_name_have_scores_of_their_own(tmp_path):
    base = random_base(0)
    tensors = (base, sparse_agent(base, 0.2, 1), sparse_agent(base, 0.2, 2))
    made = plan_of(*(write_model(tmp_path / name, t) for name, t in zip(("x/m", "y/m", "z/n"), tensors, strict=True)))
    told = report_of(made, run(made, tmp_path / "out"))
    ids = ("org/m", "me/m", "org/n")
    parents = [replace(p, kind="hub", id=id, sha=sha(k)) for p, id, k in zip(told.parents, ids, "abc", strict=True)]
    scores = [result(id, k, {"math": v}) for id, k, v in zip((*ids, "me/x"), "abcd", (0.2, 0.9, 0.3, 0.8), strict=True)]
    rows = evaluation_rows(replace(told, parents=tuple(parents), target="me/x"), {"me/x"}, scores)
    assert [row["value"] for row in rows] == [0.8, 0.2, 0.9, 0.3]


def test_commits_whose_files_are_not_known_are_not_called_the_same_but_for_scores():
    def of(blob: str | None) -> RepoState:
        files = {"model.safetensors": FileInfo("model.safetensors", 1, blob=blob)}
        return RepoState("ada/x", "a" * 40, files, False, False, None, {})

    assert differ_in_scores_alone(of("1"), of("1"))
    assert not differ_in_scores_alone(of("1"), of("2"))
    assert not differ_in_scores_alone(of(None), of(None))

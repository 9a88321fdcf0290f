"""The evaluation job: known runs are not repeated, failures are recorded as such, private answers stay private."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from board_helpers import family, result
from huggingface_hub import HfApi
from job_helpers import job_spec
from pydantic import SecretStr

from hubmerge.board.results_dataset import ResultsDataset
from hubmerge.errors import EvaluationError
from hubmerge.evaluation.result import EvaluationResult, parse_result
from hubmerge.evaluation.signing import public_key
from hubmerge.hub.client import Hub
from hubmerge.settings import Settings
from localhub.process import LocalHubProcess
from workflows.jobs import evaluation_pipeline
from workflows.jobs.evaluations import ScoreKey
from workflows.jobs.protocol import Event, JobSpec, Result
from workflows.jobs.results_keys import ResultsKeys, results_keys
from workflows.schedule.scoring import RecordedScores


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs without lighteval; a model called …broken… fails. The models that were run."""
    runs: list[str] = []

    def evaluate(name: Any, suite: Any, **_: Any) -> EvaluationResult:
        runs.append(name.id)
        scores = None if "broken" in name.id else {"math": 0.75}
        same = {"suite": suite.suite.name, "suite_version": suite.version, "split": suite.split}
        made = result(name.id, "a", scores, **same)
        return parse_result(made.model_copy(update={"sha": name.revision}).to_json().encode(), where="made")

    monkeypatch.setattr(evaluation_pipeline, "evaluate", evaluate)
    return runs


@pytest.fixture
def hub(zoo_hub: LocalHubProcess) -> Hub:
    return Hub(zoo_hub.endpoint, zoo_hub.tokens["ada"])


def spec(zoo_hub: LocalHubProcess, tmp_path: Path, model: str, results: str | None = "ada/job-results") -> JobSpec:
    api = HfApi(zoo_hub.endpoint, token=zoo_hub.tokens["ada"])
    payload = {"model": model, "sha": api.model_info(model).sha, "suite": "zoo", "split": "test"}
    given = {"token": SecretStr(zoo_hub.tokens["ada"]), "endpoint": zoo_hub.endpoint, "results": results}
    return job_spec(tmp_path, kind="evaluate", payload=payload, **given)


def test_a_score_is_recorded_once_and_the_second_job_finds_it(
    zoo_hub: LocalHubProcess, hub: Hub, made: list[str], tmp_path: Path
) -> None:
    events: list[Event] = []
    job = spec(zoo_hub, tmp_path, "zoo/base")
    for _ in range(2):
        evaluation_pipeline.run(job, events.append)
    assert made == ["zoo/base"]
    answers = [e.values for e in events if isinstance(e, Result)]
    assert len(answers) == 2
    assert answers[0]["scores"] == {"math": 0.75}
    scores = RecordedScores(hub, ResultsDataset(hub, "ada/job-results"))
    key = ScoreKey("zoo/base", job.payload["sha"], "zoo", scores.suite_version("zoo"), "test")
    assert key in scores.known_scores()
    assert scores.ranking("zoo", [(key.model, key.sha), ("zoo/other", "b" * 40)]) == {(key.model, key.sha): 0.75}


def test_a_model_that_fails_is_recorded_as_failed_without_a_score_and_the_job_fails(
    zoo_hub: LocalHubProcess, hub: Hub, made: list[str], tmp_path: Path
) -> None:
    HfApi(zoo_hub.endpoint, token=zoo_hub.tokens["ada"]).create_repo("ada/broken-model")
    job = spec(zoo_hub, tmp_path, "ada/broken-model", "ada/failed-results")
    with pytest.raises(EvaluationError, match="it generates nothing"):
        evaluation_pipeline.run(job, lambda event: None)
    [recorded] = ResultsDataset(hub, "ada/failed-results").load().results
    assert (recorded.status, recorded.tasks) == ("failed", ())


def test_a_private_model_s_answers_do_not_go_to_a_public_dataset(
    zoo_hub: LocalHubProcess, made: list[str], tmp_path: Path
) -> None:
    HfApi(zoo_hub.endpoint, token=zoo_hub.tokens["ada"]).create_repo("ada/secret-model", private=True)
    with pytest.raises(EvaluationError, match="would become public"):
        evaluation_pipeline.run(spec(zoo_hub, tmp_path, "ada/secret-model"), lambda event: None)
    assert made == []


def test_without_a_results_dataset_nothing_is_evaluated(
    zoo_hub: LocalHubProcess, made: list[str], tmp_path: Path
) -> None:
    with pytest.raises(EvaluationError, match="no results dataset"):
        evaluation_pipeline.run(spec(zoo_hub, tmp_path, "zoo/base", None), lambda event: None)
    assert made == []


def test_on_other_data_than_it_was_asked_for_a_job_waits_for_four_attempts_and_then_measures_what_there_is(
    zoo_hub: LocalHubProcess, made: list[str], tmp_path: Path
) -> None:
    """A Hub that lags behind shows the dataset's earlier commit as its head; or it lagged when the job was queued."""
    job = spec(zoo_hub, tmp_path, "zoo/base", "ada/late-results")
    other = job.model_copy(update={"payload": {**job.payload, "suite_version": "of-another-commit"}})
    said: list[Event] = []
    with pytest.raises(EvaluationError, match="of-another-commit") as error:
        evaluation_pipeline.run(other.model_copy(update={"attempt": 4}), said.append)
    assert error.value.retryable
    assert made == []
    evaluation_pipeline.run(other.model_copy(update={"attempt": 5}), said.append)
    assert made == ["zoo/base"]
    assert any("other data than when this was asked for" in getattr(event, "message", "") for event in said)
    [result] = [event for event in said if isinstance(event, Result)]
    assert "of-another-commit" not in result.values["path"]


def test_nothing_recorded_yet_is_no_error(hub: Hub) -> None:
    scores = RecordedScores(hub, ResultsDataset(hub, "ada/not-there"))
    assert scores.known_scores() == frozenset()


def test_flags_are_known_of_models_with_and_without_results_and_of_what_was_merged_from_them(
    zoo_hub: LocalHubProcess, hub: Hub
) -> None:
    api = HfApi(zoo_hub.endpoint, token=zoo_hub.tokens["ada"])
    dataset = ResultsDataset(hub, "ada/flagged-results")
    dataset.publish(family())
    flags = [
        {"kind": "contaminated", "model": "org/math", "reason": "saw the test set"},
        {"kind": "withdrawn", "model": "org/new", "sha": "f" * 40, "reason": ""},
    ]
    api.upload_file(
        path_or_fileobj=json.dumps({"flags": flags}).encode(),
        path_in_repo="flags.json",
        repo_id=dataset.repo,
        repo_type="dataset",
    )
    scores = RecordedScores(hub, dataset)
    nodes = {name: (f"org/{name}", letter * 40) for name, letter in (("math", "c"), ("code", "d"), ("merge", "e"))}
    new, newer = ("org/new", "f" * 40), ("org/new", "0" * 40)
    assert scores.flagged([*nodes.values(), new, newer]) == {
        nodes["math"]: "contaminated: saw the test set",
        nodes["merge"]: "contaminated (inherited from org/math): saw the test set",
        new: "withdrawn",
    }


def test_a_run_is_signed_for_its_user_and_a_forged_score_does_not_stand_in_for_it(
    zoo_hub: LocalHubProcess, hub: Hub, made: list[str], tmp_path: Path
) -> None:
    repo = "ada/signed-results"
    keys = results_keys(Settings(data_dir=tmp_path, secret=SecretStr("a long random string")))
    job = spec(zoo_hub, tmp_path, "zoo/base", repo).model_copy(
        update={"signing_key": SecretStr(keys.seed.hex()), "trusted_keys": tuple(keys.trust.keys)}
    )
    version = RecordedScores(hub, ResultsDataset(hub, repo)).suite_version("zoo")
    forged = result("zoo/base", "a", {"math": 1.0}, suite="zoo", suite_version=version)
    ResultsDataset(hub, repo).publish([forged.model_copy(update={"sha": job.payload["sha"]})])
    dataset = ResultsDataset(hub, repo, trust=keys.trust)
    scores = RecordedScores(hub, dataset)
    assert scores.known_scores() == frozenset()
    assert scores.ranking("zoo", [("zoo/base", job.payload["sha"])]) == {}
    evaluation_pipeline.run(job, lambda event: None)
    assert made == ["zoo/base"]
    [recorded] = dataset.load().believed
    assert (recorded.run_by, recorded.domains) == ("ada", {"math": 0.75})
    assert dataset.load().published == tuple(keys.trust.keys)
    assert scores.ranking("zoo", [("zoo/base", job.payload["sha"])]) == {("zoo/base", job.payload["sha"]): 0.75}


def test_the_signing_key_travels_to_the_job_alone_and_is_shown_nowhere_else(
    zoo_hub: LocalHubProcess, tmp_path: Path
) -> None:
    secret = "5" * 64
    job = spec(zoo_hub, tmp_path, "zoo/base").model_copy(update={"signing_key": SecretStr(secret)})
    assert secret not in repr(job) + job.model_dump_json()
    told = JobSpec.model_validate_json(job.to_line())
    assert told.signing_key.get_secret_value() == secret


def test_keys_follow_the_secret_and_the_older_lines_stay_believed(tmp_path: Path) -> None:
    def keys(**given: Any) -> ResultsKeys:
        return results_keys(Settings(data_dir=tmp_path, **given))

    old, new = keys(secret=SecretStr("old")), keys(secret=SecretStr("new\nold\n"))
    assert old.seed != new.seed
    assert old.trust.keys == {public_key(old.seed)}
    assert new.trust.keys == {public_key(old.seed), public_key(new.seed)}
    assert keys(secret=SecretStr("new"), signing_key=SecretStr("old")).seed == old.seed
    named = keys(secret=SecretStr("new"), trusted_keys=public_key(old.seed))
    assert named.trust.keys == new.trust.keys
    made = keys()
    assert made == keys(jobs_per_user=7)  # read from the data folder again
    assert (tmp_path / "signing.key").stat().st_mode & 0o777 == 0o600
    assert made.seed.hex() not in repr(made)

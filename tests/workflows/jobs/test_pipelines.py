"""The pipelines of jobs: what a merge tells, how evaluations are recorded, and comparisons that everybody finds."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from board_helpers import family, result
from builders import f32, random_base, read_model, sparse_agent, write_model
from huggingface_hub import HfApi
from job_helpers import QUICK, job_spec, running, service_of, visitor
from line import upload
from processes import until
from pydantic import SecretStr
from source_helpers import ZOO

from hubmerge import line
from hubmerge.board.results_dataset import ResultsDataset
from hubmerge.errors import (
    EvaluationError,
    HubmergeError,
    HubUnavailableError,
    SettingsError,
    SourceNotFoundError,
    TargetExistsError,
)
from hubmerge.evaluation.result import EvaluationResult, parse_result
from hubmerge.evaluation.signing import public_key
from hubmerge.hub.client import Hub
from hubmerge.output.diff import Diff
from hubmerge.settings import Settings, load_settings
from localhub.process import LocalHubProcess
from workflows.jobs import comparisons, evaluation_pipeline, pipeline
from workflows.jobs.account import ResultsKeys, results_keys
from workflows.jobs.comparisons import MAX_RESULT_CHARACTERS, TOP_TENSORS
from workflows.jobs.evaluations import RecordedScores, ScoreKey
from workflows.jobs.jobs import JobNotFoundError
from workflows.jobs.pipeline import StageEmitter
from workflows.jobs.protocol import Event, JobSpec, Notice, Progress, Result, StageStarted
from workflows.jobs.tokens import TokenVault
from workflows.jobs.worker import Worker

# --- merges ------------------------------------------------------------------------------------------------------


def test_throughput_is_measured_within_a_stage():
    events: list[Event] = []
    emitter = StageEmitter(events.append)
    emitter.progress("fetch", 5, 10, "B")
    emitter.progress("fetch", 10, 10, "B")
    emitter.progress("merge", 0, 7, "elements")
    fetched, again, merged = (e for e in events if isinstance(e, Progress))
    assert (fetched.done, again.done, merged.done) == (5, 10, 0)
    assert again.per_second is not None
    assert again.per_second > 0


def merged(hub: Hub, folder: Path, target: str, **recipe: Any) -> tuple[dict[str, Any], list[str]]:
    """What a merge of the zoo tells, and the sha256 of its shards on the Hub."""
    payload = {"target": target, "private": False, "recipe": {"base": "zoo/base", **recipe}}
    spec = job_spec(folder, payload=payload, token=SecretStr(str(hub.token)), endpoint=hub.endpoint)
    events: list[Event] = []
    with patch.object(line, "render_figures", lambda report: {}):
        pipeline.run(spec, events.append)
    assert isinstance(events[-1], Result)
    values = events[-1].values
    assert (values["repo"], values["commit"]) == (target, hub.head(target))
    files = hub.repo_state(target).files
    return values, [str(file.sha256) for path, file in files.items() if path.endswith(".safetensors")]


def test_the_result_says_where_it_is_and_what_it_took(hub, tmp_path):
    agents = ["zoo/math-agent", "zoo/tool-agent"]
    values, shards = merged(hub, tmp_path, "ada/pipeline-merged", agents=agents, method="linear")
    assert values["weights"] == shards != []
    names = ("base", "math", "tool")
    fetched = sum((ZOO / name / "model.safetensors").stat().st_size for name in names)
    assert values["run"]["fetch"]["bytes"] == fetched
    assert values["run"]["disk_high_water_bytes"] > fetched
    assert values["run"]["seconds"] > 0


def test_what_the_target_holds_already_is_told_and_not_merged_anew(hub, tmp_path):
    """A data folder that was lost with a restart, or restored from a backup, knows nothing of it."""
    recipe = {"agents": ["zoo/math-agent", "zoo/tool-agent"], "method": "linear"}
    first, _ = merged(hub, tmp_path / "lost", "ada/merged-before", **recipe)
    with patch.object(pipeline, "merge_to_hub", side_effect=AssertionError("it is merged anew")):
        again, _ = merged(hub, tmp_path / "new", "ada/merged-before", **recipe)
    assert again == first


def test_a_job_whose_agent_is_renamed_between_two_attempts_begins_anew(hub, api, tmp_path):
    """Nobody but the app can remove its folder, nor choose another one, as is told elsewhere."""
    upload(api, ZOO / "math", "ada/agent-before")
    recipe = {"agents": ["ada/agent-before", "zoo/tool-agent"], "method": "linear"}
    with (
        patch.object(line, "publish_folder", side_effect=HubUnavailableError("away")),
        pytest.raises(HubUnavailableError),
    ):
        merged(hub, tmp_path, "ada/of-renamed", **recipe)
    api.move_repo("ada/agent-before", "ada/agent-after")
    values, shards = merged(hub, tmp_path, "ada/of-renamed", **recipe)
    assert values["weights"] == shards != []
    api.create_repo("ada/foreign")
    api.upload_file(path_or_fileobj=b"mine", path_in_repo="mine.txt", repo_id="ada/foreign")
    with pytest.raises(TargetExistsError, match=r"mine\.txt"):
        merged(hub, tmp_path, "ada/foreign", **recipe)


def test_a_merge_that_equals_an_agent_is_not_known_by_that_agent_s_weights(hub, tmp_path):
    """Else who merges a copy of an agent would keep the agent from every rule, as a merge of the bot's."""
    recipe = {"method": "task_arithmetic", "parameters": {"lambda": 1.0}, "rounding": "nearest"}
    agents = ["zoo/math-agent", {"model": "zoo/tool-agent", "weight": 0.0}]
    values, [shard] = merged(hub, tmp_path, "ada/as-one-agent", agents=agents, **recipe)
    assert shard == hub.repo_state("zoo/math-agent").files["model.safetensors"].sha256
    assert values["weights"] == []


def test_a_job_takes_the_machines_gpu_unless_one_is_lent_per_call():
    own = pipeline.stream_options(load_settings({"HUBMERGE_DEVICE_MEMORY": "8.5"}))
    assert (own.device, own.device_memory_bytes) == ("auto", 8_500_000_000)
    lent = pipeline.stream_options(load_settings({"SPACES_ZERO_GPU": "true"}))
    assert (lent.device, lent.device_memory_bytes, lent.bursts) == ("cpu", 0, True)
    for wrong in ("0", "nan", "many"):
        with pytest.raises(SettingsError, match="HUBMERGE_DEVICE_MEMORY"):
            load_settings({"HUBMERGE_DEVICE_MEMORY": wrong})


# --- evaluations -------------------------------------------------------------------------------------------------


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


@pytest.fixture
def spec(hub: Hub, api: HfApi, tmp_path: Path) -> Callable[..., JobSpec]:
    """spec(model, results): the job of its evaluation."""

    def make(model: str, results: str | None = "ada/job-results") -> JobSpec:
        payload = {"model": model, "sha": api.model_info(model).sha, "suite": "zoo", "split": "test"}
        given = {"token": SecretStr(str(hub.token)), "endpoint": hub.endpoint, "results": results}
        return job_spec(tmp_path, payload=payload, **given)

    return make


def test_a_score_is_recorded_once_found_again_and_put_on_cards(spec, hub, made, monkeypatch):
    dataset = ResultsDataset(hub, "ada/job-results")
    events: list[Event] = []
    job, scores = spec("zoo/base", dataset.repo), RecordedScores(hub, dataset)
    pin, version = ("zoo/base", job.payload["sha"]), scores.suite_version("zoo")
    key = ScoreKey(*pin, "zoo", version, "test")
    assert scores.known_scores() == frozenset()  # there is no dataset yet
    evaluation_pipeline.run(job, events.append)
    assert scores.known_scores() == {key}
    assert scores.ranking("zoo", [pin, ("zoo/other", "b" * 40)]) == {pin: 0.75}
    base = {"role": "base", "id": "zoo/name-before", "sha": pin[1]}  # it was renamed
    dataset.publish(result("org/merge", "e", {"math": 0.5}, parents=[base]))
    monkeypatch.setattr(evaluation_pipeline, "publish_scores", lambda hub, *_, **__: "a commit")
    evaluation_pipeline.run(job, events.append)
    assert made == ["zoo/base"]
    told = [(e.values["scores"], e.values["cards"]) for e in events if isinstance(e, Result)]
    assert told == [({"math": 0.75}, []), ({"math": 0.75}, ["org/merge"])]
    monkeypatch.setattr(evaluation_pipeline, "publish_scores", lambda *_, tell, **__: tell("made by another version"))
    evaluation_pipeline.run(job, events.append)
    assert [e.message for e in events if isinstance(e, Notice)] == ["made by another version"]


def test_a_model_that_fails_is_recorded_so(spec, api, hub, made):
    api.create_repo("ada/broken-model")
    with pytest.raises(EvaluationError, match="it generates nothing"):
        evaluation_pipeline.run(spec("ada/broken-model", "ada/failed-results"), lambda event: None)
    [recorded] = ResultsDataset(hub, "ada/failed-results").load().results
    assert (recorded.status, recorded.tasks) == ("failed", ())


def test_nothing_is_evaluated_without_a_dataset_nor_for_a_public_one_what_is_private_or_of_a_pull_request(
    spec, api, zoo_hub, made
):
    api.create_repo("ada/secret-model", private=True)
    bob, parent = HfApi(zoo_hub.endpoint, token=zoo_hub.tokens["bob"]), spec("zoo/base")
    sha = bob.upload_file(path_or_fileobj=b"hi", path_in_repo="hi.txt", repo_id="zoo/base", create_pr=True).oid
    for job, why in (
        (spec("zoo/base", None), "no results dataset"),
        (spec("zoo/base", "bob/results"), "cannot write to this namespace"),
        (spec("ada/secret-model"), "would become public"),
        (parent.model_copy(update={"payload": {**parent.payload, "sha": sha}}), "may be of a pull request"),
    ):
        with pytest.raises(HubmergeError, match=why):
            evaluation_pipeline.run(job, lambda event: None)
    assert made == []


def test_a_job_waits_for_the_data_asked_for(spec, made):
    """A Hub that lags behind shows the dataset's earlier commit as its head."""
    job = spec("zoo/base", "ada/late-results")
    other = job.model_copy(update={"payload": {**job.payload, "suite_version": "of-another-commit"}})
    with pytest.raises(EvaluationError, match="of-another-commit") as error:
        evaluation_pipeline.run(other, lambda event: None)
    assert error.value.retryable
    assert made == []


def test_flags_are_known_of_models_with_and_without_results_and_of_merges_of_them(api, hub):
    dataset = ResultsDataset(hub, "ada/flagged-results")
    for each in family():
        dataset.publish(each)
    flags = [
        {"kind": "contaminated", "model": "org/math", "reason": "saw the test set"},
        {"kind": "withdrawn", "model": "org/new", "sha": "f" * 40, "reason": ""},
    ]
    content = json.dumps({"flags": flags}).encode()
    api.upload_file(path_or_fileobj=content, path_in_repo="flags.json", repo_id=dataset.repo, repo_type="dataset")
    scores = RecordedScores(hub, dataset)
    nodes = {name: (f"org/{name}", letter * 40) for name, letter in (("math", "c"), ("code", "d"), ("merge", "e"))}
    new, newer = ("org/new", "f" * 40), ("org/new", "0" * 40)
    assert scores.flagged([*nodes.values(), new, newer]) == {
        nodes["math"]: "contaminated: saw the test set",
        nodes["merge"]: "contaminated (inherited from org/math): saw the test set",
        new: "withdrawn",
    }


def test_a_run_is_signed_for_its_user_and_a_forged_score_does_not_stand_in_for_it(spec, hub, made, tmp_path):
    repo = "ada/signed-results"
    keys = results_keys(Settings(data_dir=tmp_path, secret=SecretStr("a long random string")))
    signing = {"signing_key": SecretStr(keys.seed.hex()), "trusted_keys": tuple(keys.trust.keys)}
    job = spec("zoo/base", repo).model_copy(update=signing)
    pin = ("zoo/base", job.payload["sha"])
    version = RecordedScores(hub, ResultsDataset(hub, repo)).suite_version("zoo")
    forged = result("zoo/base", "a", {"math": 1.0}, suite="zoo", suite_version=version)
    ResultsDataset(hub, repo).publish(forged.model_copy(update={"sha": job.payload["sha"]}))
    dataset = ResultsDataset(hub, repo, trust=keys.trust)
    scores = RecordedScores(hub, dataset)
    assert scores.known_scores() == frozenset()
    assert scores.ranking("zoo", [pin]) == {}
    evaluation_pipeline.run(job, lambda event: None)
    assert made == ["zoo/base"]
    [recorded] = dataset.load().believed
    assert (recorded.run_by, recorded.domains) == ("ada", {"math": 0.75})
    assert dataset.load().published == tuple(keys.trust.keys)
    assert scores.ranking("zoo", [pin]) == {pin: 0.75}


def test_keys_follow_the_secret_and_the_older_lines_stay_believed(tmp_path):
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


# --- comparisons -------------------------------------------------------------------------------------------------


def test_a_worker_compares_and_everybody_finds_the_result(zoo_hub, tmp_path, live):
    service = service_of(zoo_hub.endpoint, live)
    settings = Settings(endpoint=zoo_hub.endpoint, data_dir=tmp_path, secret=SecretStr("test secret"))
    assert service.comparison("zoo/base", "zoo/math-agent", None).job is None
    queued = service.compare("zoo/base", "zoo/math-agent", visitor(zoo_hub, "ada")).job
    assert (queued.kind, queued.state, queued.private) == ("diff", "queued", False)
    worker = Worker(settings, live, TokenVault.from_settings(settings), timing=QUICK)
    with running(worker):
        until(lambda: live.get(queued.id).state.is_terminal)
    found = service.comparison("zoo/base@main", "zoo/math-agent", None).job
    assert found.id == queued.id
    assert found.state == "done", found.error
    assert found.result is not None
    diff = Diff.from_json(found.result)
    before, after = (read_model(ZOO / name) for name in ("base", "math"))
    assert diff.total.changed == sum(int((np.abs(f32(after[n]) - f32(t)) > 1e-5).sum()) for n, t in before.items())
    assert len(diff.tensors) < diff.tensor_count
    again = service.compare("zoo/base", "zoo/math-agent", visitor(zoo_hub, "bob")).job
    assert (again.id, again.state, again.user) == (queued.id, "done", "ada")
    assert not worker.workdir(queued.id).exists()


def test_one_that_was_given_up_starts_again_as_whoever_asks(zoo_hub, store):
    service = service_of(zoo_hub.endpoint, store)
    ada, bob = visitor(zoo_hub, "ada"), visitor(zoo_hub, "bob")
    first = service.compare("zoo/base", "zoo/tool-agent", ada).job
    sealed = store.sealed_token(first.id)
    waiting = service.compare("zoo/base", "zoo/tool-agent", bob).job
    assert (waiting.id, waiting.user) == (first.id, "ada")
    assert store.sealed_token(first.id) == sealed  # ada's, still
    with pytest.raises(HubmergeError, match="only its owner"):
        service.cancel(first.id, bob)
    assert service.cancel(first.id, ada).state == "cancelled"
    again = service.compare("zoo/base", "zoo/tool-agent", bob).job
    assert (again.id, again.user, again.state) == (first.id, "bob", "queued")
    assert store.sealed_token(first.id) not in (None, sealed)
    assert service.cancel(first.id, bob).state == "cancelled"


def test_of_private_models_nobody_learns(zoo_hub, api, store, tmp_path):
    models = ("ada/secret-base", "ada/secret-agent")
    base = random_base(0)
    for name, tensors in zip(models, (base, sparse_agent(base, 0.1, 1)), strict=True):
        upload(api, write_model(tmp_path / name, tensors), name, private=True)
    service = service_of(zoo_hub.endpoint, store)
    ada, bob = visitor(zoo_hub, "ada"), visitor(zoo_hub, "bob")
    job = service.compare(*models, ada).job
    assert job.private
    for who in (None, bob):
        with pytest.raises(SourceNotFoundError):
            service.comparison(*models, who)
        with pytest.raises(JobNotFoundError):
            service.job(job.id, who)
    assert service.job(job.id, ada).id == job.id
    for name in models:
        api.update_repo_settings(name, private=False)
    assert service.comparison(*models, bob).job is None  # another identity: what was private stays so


@pytest.mark.parametrize("names", [("./zoo", "zoo/base"), ("zoo/base", "/etc"), ("zoo/base", "synthetic:llama-70b")])
def test_folders_of_the_server_are_no_models(zoo_hub, store, names):
    service = service_of(zoo_hub.endpoint, store)
    with pytest.raises(HubmergeError, match="local folders cannot be used here"):
        service.compare(*names, visitor(zoo_hub, "ada"))


def test_the_pipeline_tells_its_stages_and_a_result_that_its_record_takes(zoo_hub, tmp_path, monkeypatch):
    asked = {"base": "zoo/base", "agent": "zoo/mem-agent@main", "private": False, "target": "base → mem"}
    spec = job_spec(tmp_path, payload=asked, endpoint=zoo_hub.endpoint)
    events: list[Any] = []
    comparisons.run(spec, events.append)
    assert [e.stage for e in events if isinstance(e, StageStarted)] == ["resolve", "fetch", "probe"]
    assert {e.unit for e in events if isinstance(e, Progress)} == {"B", "elements"}
    diff = Diff.from_json(events[-1].values)
    assert len(diff.tensors) <= 2 * TOP_TENSORS
    assert len(json.dumps(events[-1].values)) < MAX_RESULT_CHARACTERS

    many = replace(diff, layers=dict.fromkeys(range(2000), diff.layers[0]), grid={})
    monkeypatch.setattr(comparisons, "measure", lambda *_, **__: many)
    comparisons.run(spec, events.append)
    assert len(json.dumps(events[-1].values)) < MAX_RESULT_CHARACTERS
    assert Diff.from_json(events[-1].values).layers == {}
    assert "2000 layers" in events[-1].values["warnings"][-1]

    monkeypatch.setattr(comparisons, "is_closed", lambda plan: True)
    with pytest.raises(HubmergeError, match="open to everybody no longer is"):
        comparisons.run(spec, events.append)

"""Comparisons as jobs: one for everybody where models are public, one's own where they are not, run by a worker."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import f32, random_base, read_model, sparse_agent, write_model
from huggingface_hub import HfApi
from job_helpers import QUICK, job_spec, running, service_of, until, visitor
from pydantic import SecretStr

from hubmerge.errors import HubmergeError, QuotaError
from hubmerge.output.diff import Diff
from hubmerge.settings import Settings
from localhub.process import LocalHubProcess
from workflows.jobs import comparisons
from workflows.jobs.comparisons import MAX_RESULT_CHARACTERS, TOP_TENSORS
from workflows.jobs.jobs import JobNotFoundError
from workflows.jobs.protocol import Progress, Result, StageStarted
from workflows.jobs.store import Store
from workflows.jobs.tokens import TokenVault
from workflows.jobs.worker import Worker


def upload(hub: LocalHubProcess, folder: Path, repo: str, *, private: bool) -> None:
    api = HfApi(hub.endpoint, token=hub.tokens["ada"])
    api.create_repo(repo, private=private)
    api.upload_folder(repo_id=repo, folder_path=folder)


def test_a_worker_compares_two_models_and_everybody_finds_the_result(
    zoo_hub: LocalHubProcess, tmp_path: Path, live: Store
) -> None:
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
    root = Path(__file__).resolve().parents[3] / "examples" / "zoo"
    before, after = read_model(root / "base"), read_model(root / "math")
    assert diff.total.changed == sum(int((np.abs(f32(after[n]) - f32(t)) > 1e-5).sum()) for n, t in before.items())
    assert len(diff.tensors) < diff.tensor_count
    again = service.compare("zoo/base", "zoo/math-agent", visitor(zoo_hub, "bob")).job
    assert (again.id, again.state, again.user) == (queued.id, "done", "ada")
    assert not worker.workdir(queued.id).exists()


def test_one_that_was_given_up_is_started_again_by_whoever_asks_and_acts_as_they(
    zoo_hub: LocalHubProcess, store: Store, tmp_path: Path
) -> None:
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


def test_of_private_models_nobody_else_learns(zoo_hub: LocalHubProcess, store: Store, tmp_path: Path) -> None:
    base = random_base(0)
    upload(zoo_hub, write_model(tmp_path / "one", base), "ada/secret-base", private=True)
    upload(zoo_hub, write_model(tmp_path / "two", sparse_agent(base, 0.1, 1)), "ada/secret-agent", private=True)
    service = service_of(zoo_hub.endpoint, store)
    ada, bob = visitor(zoo_hub, "ada"), visitor(zoo_hub, "bob")
    job = service.compare("ada/secret-base", "ada/secret-agent", ada).job
    assert job.private
    for who in (None, bob):
        with pytest.raises(HubmergeError) as caught:
            service.comparison("ada/secret-base", "ada/secret-agent", who)
        assert caught.value.code == "E_SOURCE"
        with pytest.raises(JobNotFoundError):
            service.job(job.id, who)
    assert service.job(job.id, ada).id == job.id
    HfApi(zoo_hub.endpoint, token=zoo_hub.tokens["ada"]).update_repo_settings("ada/secret-base", private=False)
    HfApi(zoo_hub.endpoint, token=zoo_hub.tokens["ada"]).update_repo_settings("ada/secret-agent", private=False)
    public = service.comparison("ada/secret-base", "ada/secret-agent", bob)
    assert public.job is None  # another identity: what was private stays so


def test_comparisons_count_among_a_users_jobs(zoo_hub: LocalHubProcess, tmp_path: Path) -> None:
    store = Store(tmp_path / "jobs", jobs_per_user=2)
    service = service_of(zoo_hub.endpoint, store)
    ada = visitor(zoo_hub, "ada")
    for agent in ("math", "tool"):
        service.compare("zoo/base", f"zoo/{agent}-agent", ada)
    with pytest.raises(QuotaError):
        service.compare("zoo/base", "zoo/mem-agent", ada)
    store.close()


@pytest.mark.parametrize("names", [("./zoo", "zoo/base"), ("zoo/base", "/etc"), ("zoo/base", "synthetic:llama-70b")])
def test_folders_of_the_server_are_no_models(
    zoo_hub: LocalHubProcess, store: Store, tmp_path: Path, names: tuple[str, str]
) -> None:
    service = service_of(zoo_hub.endpoint, store)
    with pytest.raises(HubmergeError, match="local folders cannot be used here"):
        service.compare(*names, visitor(zoo_hub, "ada"))


def test_the_pipeline_tells_its_stages_and_a_result_that_its_record_takes(
    zoo_hub: LocalHubProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"base": "zoo/base", "agent": "zoo/mem-agent@main", "private": False, "target": "base → mem"}
    spec = job_spec(tmp_path, kind="diff", payload=asked, endpoint=zoo_hub.endpoint)
    events: list[object] = []
    comparisons.run(spec, events.append)
    assert [e.stage for e in events if isinstance(e, StageStarted)] == ["resolve", "fetch", "probe"]
    assert {e.unit for e in events if isinstance(e, Progress)} == {"B", "elements"}
    result = events[-1]
    assert isinstance(result, Result)
    diff = Diff.from_json(result.values)
    assert len(diff.tensors) <= 2 * TOP_TENSORS
    assert len(json.dumps(result.values)) < MAX_RESULT_CHARACTERS

    many = replace(diff, layers=dict.fromkeys(range(2000), diff.layers[0]), grid={})
    monkeypatch.setattr(comparisons, "measure", lambda *_, **__: many)
    comparisons.run(spec, events.append)
    result = events[-1]
    assert isinstance(result, Result)
    assert len(json.dumps(result.values)) < MAX_RESULT_CHARACTERS
    assert Diff.from_json(result.values).layers == {}
    assert "2000 layers" in result.values["warnings"][-1]

    monkeypatch.setattr(comparisons, "is_closed", lambda plan: True)
    with pytest.raises(HubmergeError, match="open to everybody no longer is"):
        comparisons.run(spec, events.append)

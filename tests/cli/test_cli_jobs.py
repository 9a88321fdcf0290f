"""The app's jobs from the command line: one's own, and another try for those that failed."""

import json
from pathlib import Path

import pytest
from processes import act_as_ada

from hubmerge.cli.main import main
from localhub.process import LocalHubProcess
from workflows.jobs.jobs import JobError, NewJob, State
from workflows.jobs.store import Store
from workflows.jobs.tokens import TokenVault

MINE, OTHER, THEIRS = "ab" + "1" * 62, "ac" + "1" * 62, "ad" + "1" * 62


@pytest.fixture
def store(tmp_path: Path, local_hub: LocalHubProcess, monkeypatch: pytest.MonkeyPatch) -> Store:
    act_as_ada(monkeypatch, local_hub, tmp_path)
    monkeypatch.setenv("HUBMERGE_SECRET", "a secret of the app")
    store = Store(tmp_path / "data")
    for id, user in ((MINE, "ada"), (OTHER, "ada"), (THEIRS, "bob")):
        store.submit(NewJob(id=id, user=user, payload={"target": f"{user}/merged"}))
    while (job := store.claim("w")) is not None:
        store.fail(job.id, job.fence, JobError(code="E_FORMAT", message="E_FORMAT: no safetensors"))
    return store


def test_failed_jobs_are_listed_and_tried_again_with_the_token_of_the_environment(store, tmp_path, local_hub, done):
    told = done("jobs").out.splitlines()
    assert [line.split()[:4] for line in told] == [[id[:12], "failed", "merge", "ada/merged"] for id in (OTHER, MINE)]
    assert all(line.endswith("E_FORMAT: no safetensors") for line in told)

    jobs = {job["id"]: job for job in json.loads(done("jobs", "--retry", "ab", "--json").out)["jobs"]}
    assert (jobs[MINE]["state"], jobs[OTHER]["state"]) == ("queued", "failed")
    sealed = store.sealed_token(MINE)
    assert sealed is not None
    vault = TokenVault([b"a secret of the app"], local_hub.endpoint)
    assert vault.open(MINE, sealed, store.clock.now()).get_secret_value() == local_hub.tokens["ada"]


def test_a_job_is_found_however_many_the_bot_has_had_since(store, monkeypatch, capsys):
    monkeypatch.setattr("workflows.jobs_command._LISTED", 1)
    assert main(["jobs", "--retry", "ab"]) == 0
    assert store.get(MINE).state is State.QUEUED
    assert MINE[:12] in capsys.readouterr().out  # it is the newest again


@pytest.mark.parametrize("named", ["ad", "a", "ff", THEIRS, ""], ids=["bob", "two", "none", "whole", "all"])
def test_a_job_that_is_not_one_of_one_s_own_is_not_found_and_nothing_is_tried_again(store, named, refused):
    assert "E_JOB: no single job of yours begins so" in refused("jobs", "--retry", "ab", named)
    assert {store.get(id).state for id in (MINE, OTHER, THEIRS)} == {State.FAILED}


def test_without_the_app_s_secret_no_job_is_tried_again_with_a_token_that_the_app_could_not_open(
    store, tmp_path, monkeypatch, refused
):
    monkeypatch.delenv("HUBMERGE_SECRET")
    assert "E_SETTINGS: the app's secret is not known" in refused("jobs", "--retry", "ab")
    assert main(["jobs"]) == 0  # a list needs none
    assert store.get(MINE).state is State.FAILED
    assert not (tmp_path / "data" / "secret.key").exists()


def test_a_folder_without_an_app_and_a_missing_token_are_named(store, tmp_path, monkeypatch, refused):
    monkeypatch.delenv("HF_TOKEN")
    assert "E_LOGIN: whose jobs is not known in HF_TOKEN" in refused("jobs")
    monkeypatch.setenv("HUBMERGE_DATA", str(tmp_path / "empty"))
    assert "E_SETTINGS: there are no jobs of an app" in refused("jobs")
    assert not (tmp_path / "empty").exists()


def test_no_digits_name_no_job_even_where_there_is_one_alone(store, refused, monkeypatch):
    monkeypatch.setattr(Store, "list_jobs", lambda self, **_: [self.get(MINE)])
    assert "E_JOB: no single job of yours begins so" in refused("jobs", "--retry", "")
    assert store.get(MINE).state is State.FAILED

"""What the form's submissions promise: the same merge is one job, and one that is gone from the Hub is made again."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from job_helpers import FINAL, NOWHERE, claim, ended, job_id, make_worker, new_job, running, service_of, visitor
from processes import until
from pydantic import SecretStr
from sqlalchemy import insert

from hubmerge.engine.preview import PREVIEW_BYTES
from hubmerge.errors import (
    PermissionDeniedError,
    RecipeError,
    SourceNotFoundError,
    TargetExistsError,
    TimeLimitError,
)
from hubmerge.methods import registry
from hubmerge.output.plan_words import plan_summary
from localhub.process import LocalHubProcess
from workflows.app.submission import newest_ticket
from workflows.jobs.jobs import JobNotFoundError, State, iso
from workflows.jobs.schema import JOBS
from workflows.jobs.store import Store
from workflows.jobs.tokens import TokenVault
from workflows.jobs.transaction import MAX_WAITING
from workflows.values import MergeRequest, Visitor

VAULT = TokenVault([b"test secret"])
RECIPE = {"base": "zoo/base", "agents": ["zoo/math-agent", "zoo/tool-agent"], "method": "linear"}


def test_a_merge_whose_repo_was_deleted_is_made_again_and_no_other(zoo_hub: LocalHubProcess, store: Store) -> None:
    service = service_of(zoo_hub.endpoint, store)
    ada = visitor(zoo_hub, "ada")
    request = MergeRequest(RECIPE, "ada/made-again", private=False)
    first = service.submit(request, ada)
    ended(store, repo="ada/made-again")

    api = HfApi(zoo_hub.endpoint, zoo_hub.tokens["ada"])
    api.create_repo("ada/made-again")
    manifest = json.dumps({"identity": first.id}).encode()
    api.upload_file(path_or_fileobj=manifest, path_in_repo="hubmerge.json", repo_id="ada/made-again")
    assert service.submit(request, ada).state == State.DONE

    api.delete_repo("ada/made-again")
    again = service.submit(request, ada)
    assert (again.id, again.state) == (first.id, State.QUEUED)
    assert store.claim("worker") is not None


def test_a_start_that_finds_a_job_is_told_from_one_that_starts_it(zoo_hub: LocalHubProcess, store: Store) -> None:
    service, ada = service_of(zoo_hub.endpoint, store), visitor(zoo_hub, "ada")

    def starts(target: str) -> bool:
        newest = newest_ticket(service, ada)
        return service.submit(MergeRequest(RECIPE, target, private=False), ada).ticket > newest

    assert [starts(target) for target in ("ada/one", "ada/one", "ada/two", "ada/one")] == [True, False, True, False]
    service.cancel(service.jobs(ada)[0].id, ada)
    assert starts("ada/two")  # once more


def test_a_public_merge_under_way_does_not_stand_for_a_private_one(zoo_hub: LocalHubProcess, store: Store) -> None:
    service, ada = service_of(zoo_hub.endpoint, store), visitor(zoo_hub, "ada")
    openly = MergeRequest(RECIPE, "ada/under-way", private=False)
    job = service.submit(openly, ada)
    with pytest.raises(TargetExistsError, match=r"expected a private result.*, got a public result"):
        service.submit(replace(openly, private=True), ada)
    service.cancel(job.id, ada)
    again = service.submit(replace(openly, private=True), ada)
    assert (again.id, again.private, store.get(job.id).payload["private"]) == (job.id, True, True)


def test_a_merge_that_has_a_license_does_not_stand_for_one_with_another(zoo_hub: LocalHubProcess, store: Store) -> None:
    service, ada = service_of(zoo_hub.endpoint, store), visitor(zoo_hub, "ada")
    usual = MergeRequest(RECIPE, "ada/licensed", private=False)
    job = service.submit(usual, ada)
    assert service.submit(replace(usual, license="apache-2.0"), ada).id == job.id  # what the parents' come to
    for done in (False, True):
        if done:
            store.finish(job.id, store.claim("worker").fence, {"repo": "ada/licensed"})
            api = HfApi(zoo_hub.endpoint, zoo_hub.tokens["ada"])
            api.create_repo("ada/licensed")
            manifest = json.dumps({"identity": job.id}).encode()
            api.upload_file(path_or_fileobj=manifest, path_in_repo="hubmerge.json", repo_id="ada/licensed")
        with pytest.raises(TargetExistsError, match=r"expected .* license gpl-3.0, got .* license apache-2.0"):
            service.submit(replace(usual, license="gpl-3.0"), ada)


def test_a_job_needs_login_once_its_sign_in_has_ended(zoo_hub: LocalHubProcess, tmp_path: Path, live: Store) -> None:
    service = service_of(zoo_hub.endpoint, live)
    request = MergeRequest(RECIPE, "ada/later", private=False)
    end = datetime.now(UTC) + timedelta(seconds=2)
    ada = visitor(zoo_hub, "ada", expires_at=end)

    queued = service.submit(request, ada)
    assert queued.signed_in_until == service.jobs(ada)[0].signed_in_until == iso(end)
    assert service.job(queued.id, ada).signed_in_until == iso(end)
    assert service.job(queued.id, None).signed_in_until is None  # told to its owner alone

    time.sleep(max(0.0, (end - datetime.now(UTC)).total_seconds()))
    worker = make_worker(tmp_path, live, "steps")
    with running(worker):
        until(lambda: live.get(queued.id).state.is_terminal)
    failed = service.job(queued.id, ada)
    assert (failed.state, failed.error["code"], failed.signed_in_until) == ("failed", "E_LOGIN", None)
    assert "needs login: the sign-in of this job has expired" in failed.error["message"]
    assert not (tmp_path / "jobs").exists()  # no child was started for it

    later = replace(ada, expires_at=datetime.now(UTC) + timedelta(days=3))
    again = service.submit(request, later)
    assert (again.id, again.state) == (queued.id, "queued")
    assert again.signed_in_until == iso(later.expires_at or end)


def test_models_without_a_license_start_once_the_form_states_one(zoo_hub: LocalHubProcess, store: Store) -> None:
    api = HfApi(zoo_hub.endpoint, zoo_hub.tokens["ada"])
    agents = ["zoo/math-agent", "zoo/open-agent"]
    api.create_repo("zoo/open-agent")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        content = Path(api.hf_hub_download("zoo/tool-agent", name)).read_bytes()
        api.upload_file(path_or_fileobj=content, path_in_repo=name, repo_id="zoo/open-agent")
    service = service_of(zoo_hub.endpoint, store)
    ada = visitor(zoo_hub, "ada")
    recipe = {**RECIPE, "agents": agents}
    for license in (None, "", "apache-2.0", "other"):  # as the form does, before and after something was chosen
        assert service.inspect(recipe, ada, license).agents[1].license is None
    with pytest.raises(RecipeError, match="do not allow"):
        service.inspect(recipe, ada, "mit")
    with pytest.raises(RecipeError, match="must be chosen"):
        service.submit(MergeRequest(recipe, "ada/of-open", private=False), ada)
    job = service.submit(MergeRequest(recipe, "ada/of-open", private=False, license="apache-2.0"), ada)
    assert job.state == State.QUEUED


def test_a_merge_that_would_take_days_is_refused_at_once(zoo_hub: LocalHubProcess, store: Store) -> None:
    ada = visitor(zoo_hub, "ada")
    long = {**RECIPE, "method": "wudi", "parameters": {"steps": 100_000}}
    allowed = service_of(zoo_hub.endpoint, store, merge_hours=1000.0)
    hours = plan_summary(allowed.inspect(long, ada))["predicted_seconds"] / 3600
    service = service_of(zoo_hub.endpoint, store, merge_hours=hours / 10)
    service.inspect(RECIPE, ada)
    for ask in (
        lambda: service.inspect(long, ada),
        lambda: service.submit(MergeRequest(long, "ada/of-days", private=False), ada),
    ):
        with pytest.raises(TimeLimitError, match=r"too long here in wudi: expected .* h at most, got about"):
            ask()
    assert not store.list_jobs()


def test_a_failed_job_is_tried_again_with_its_owner_s_present_sign_in(zoo_hub: LocalHubProcess, store: Store) -> None:
    service = service_of(zoo_hub.endpoint, store)
    ada, bob = visitor(zoo_hub, "ada"), visitor(zoo_hub, "bob")
    job = service.submit(MergeRequest(RECIPE, "ada/tried", private=False), ada)
    ended(store, FINAL)
    with pytest.raises(PermissionDeniedError, match="only its owner"):
        service.retry(job.id, bob)
    assert store.get(job.id).state is State.FAILED
    again = service.retry(job.id, replace(ada, token="a newer token"))
    assert (again.state, again.error) == ("queued", None)
    sealed = store.sealed_token(job.id)
    assert sealed is not None
    assert VAULT.open(job.id, sealed, datetime.now(UTC)).get_secret_value() == "a newer token"
    assert service.retry(job.id, ada).state == "queued"  # one that waits already stays as it is
    assert VAULT.open(job.id, sealed, datetime.now(UTC)).get_secret_value() == "a newer token"


def test_everybody_may_know_how_many_public_jobs_are_under_way_however_many_wait(store: Store) -> None:
    service = service_of(NOWHERE, store)
    assert service.under_way() == (0, 0, 0)
    store.submit(new_job("one", "ada"))
    store.submit(new_job("two", "ada", kind="evaluate"))
    claim(store)
    claim(store)
    store.submit(new_job("four", "bob", payload={"private": True}))
    waiting = store.submit(new_job("three", "bob"))
    full = ({"id": job_id(str(n)), "ticket": waiting.ticket + n} for n in range(1, MAX_WAITING))
    with store.writing() as change:
        change.connection.execute(insert(JOBS), [waiting.model_dump() | more for more in full])
    assert service.under_way() == (1, 1, MAX_WAITING)


@pytest.mark.parametrize(
    ("kind", "more"), [("evaluate", {}), ("merge", {"watcher": "a-rule"})], ids=["evaluation", "watcher's merge"]
)
def test_a_job_of_the_bot_s_own_is_retried_with_the_bot_s_token(store: Store, kind: str, more: dict[str, str]) -> None:
    """A sign-in writes to no repo that it has not made, such as the results dataset."""
    service = service_of(NOWHERE, store, token=SecretStr("the bot's"))
    ada = Visitor("ada", "a sign-in's", ("ada",))

    def token_after_a_retry(name: str, **payload: str) -> str:
        store.submit(new_job(name, "ada", kind=kind, payload=payload))
        job = ended(store, FINAL)
        service.retry(job.id, ada)
        sealed = store.sealed_token(job.id)
        assert sealed
        store.request_cancel(job.id, "ada")
        return VAULT.open(job.id, sealed, store.clock.now()).get_secret_value()

    assert token_after_a_retry("its own", **more) == "the bot's"
    if kind == "merge":
        assert token_after_a_retry("a person's") == "a sign-in's"


def test_a_private_job_is_as_missing_to_others_whatever_they_ask_of_it(zoo_hub: LocalHubProcess, store: Store) -> None:
    service = service_of(zoo_hub.endpoint, store)
    ada, bob = visitor(zoo_hub, "ada"), visitor(zoo_hub, "bob")
    job = service.submit(MergeRequest(RECIPE, "ada/hidden-job", private=True), ada)
    for ask in (service.job, service.cancel, service.retry):
        answers = []
        for identity in (job.id, "0" * 64):
            with pytest.raises(JobNotFoundError) as refusal:
                ask(identity, bob)
            answers.append(str(refusal.value).replace(identity[:12], "ID"))
        assert answers[0] == answers[1]
    assert store.get(job.id).state is State.QUEUED


def test_a_look_into_a_few_layers_needs_the_right_to_read_the_models(zoo_hub: LocalHubProcess, store: Store) -> None:
    service = service_of(zoo_hub.endpoint, store)
    found = service.preview(RECIPE, None)
    assert found.method in registry()
    assert sum(found.statistics["overlap_share"]) == pytest.approx(1)
    assert [agent["agent"] for agent in found.statistics["agents"]] == ["math-agent", "tool-agent"]
    assert 0 < found.bytes_read <= PREVIEW_BYTES
    with pytest.raises(SourceNotFoundError):
        service.preview({**RECIPE, "agents": ["zoo/math-agent", "zoo/none"]}, None)

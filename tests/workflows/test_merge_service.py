"""What the form's submissions promise: the same merge is one job, and one that is gone from the Hub is made again."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from huggingface_hub import HfApi
from job_helpers import FINAL, NOWHERE, claim, ended, make_worker, new_job, service_of, visitor
from line import upload
from pydantic import SecretStr
from source_helpers import ZOO

from hubmerge.engine.preview import PREVIEW_BYTES
from hubmerge.errors import PermissionDeniedError, RecipeError, SourceNotFoundError, TargetExistsError, TimeLimitError
from hubmerge.output.plan_words import plan_summary
from workflows.app.submission import newest_ticket
from workflows.jobs.jobs import JobNotFoundError, NewJob, State, iso
from workflows.jobs.tokens import TokenVault
from workflows.values import MergeRequest, Visitor

VAULT = TokenVault([b"test secret"], "http://127.0.0.1")
RECIPE = {"base": "zoo/base", "agents": ["zoo/math-agent", "zoo/tool-agent"], "method": "linear"}


def test_a_merge_whose_repo_was_deleted_is_made_again_and_no_other(zoo_hub, store):
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


def test_a_start_that_finds_a_job_is_told_from_one_that_starts_it(zoo_hub, store):
    service, ada = service_of(zoo_hub.endpoint, store), visitor(zoo_hub, "ada")

    def starts(target: str) -> bool:
        newest = newest_ticket(service, ada)
        return service.submit(MergeRequest(RECIPE, target, private=False), ada).ticket > newest

    assert [starts(target) for target in ("ada/one", "ada/one", "ada/two", "ada/one")] == [True, False, True, False]
    service.cancel(service.jobs(ada)[0].id, ada)
    assert starts("ada/two")  # once more


def test_a_public_merge_under_way_does_not_stand_for_a_private_one(zoo_hub, store):
    service, ada = service_of(zoo_hub.endpoint, store), visitor(zoo_hub, "ada")
    openly = MergeRequest(RECIPE, "ada/under-way", private=False)
    job = service.submit(openly, ada)
    with pytest.raises(TargetExistsError, match=r"expected a private result.*, got a public result"):
        service.submit(replace(openly, private=True), ada)
    service.cancel(job.id, ada)
    again = service.submit(replace(openly, private=True), ada)
    assert (again.id, again.private, store.get(job.id).payload["private"]) == (job.id, True, True)


def test_a_merge_that_has_a_license_does_not_stand_for_one_with_another(zoo_hub, store):
    service, ada = service_of(zoo_hub.endpoint, store), visitor(zoo_hub, "ada")
    usual = MergeRequest(RECIPE, "ada/licensed", private=False)
    job = service.submit(usual, ada)
    assert service.submit(replace(usual, license="apache-2.0"), ada).id == job.id  # what the parents' come to
    with pytest.raises(TargetExistsError, match=r"expected .* license gpl-3.0, got .* license apache-2.0"):
        service.submit(replace(usual, license="gpl-3.0"), ada)
    done = ended(store)
    with pytest.raises(TargetExistsError, match=r"license apache-2.0\. Choose another target\.$"):
        store.submit(NewJob(id=done.id, user="ada", payload={"licensed": "gpl-3.0"}))
    older = store.submit(new_job("older", "ada"))  # of a version that wrote no license down
    assert store.submit(new_job("older", "ada", payload={"licensed": "mit"})) == older


def test_the_license_that_was_stated_for_a_merge_is_told_to_its_owner_alone(zoo_hub, store):
    service, ada = service_of(zoo_hub.endpoint, store), visitor(zoo_hub, "ada")
    job = service.submit(MergeRequest(RECIPE, "ada/stated", private=False, license="apache-2.0"), ada)
    others = [service.job(job.id, who).license for who in (None, visitor(zoo_hub, "bob"))]
    assert (service.job(job.id, ada).license, others) == ("apache-2.0", [None, None])


def test_a_job_needs_login_once_its_sign_in_has_ended(zoo_hub, tmp_path, store, clock):
    service = service_of(zoo_hub.endpoint, store)
    request = MergeRequest(RECIPE, "ada/later", private=False)
    ada = visitor(zoo_hub, "ada", expires_at=clock.now() + timedelta(hours=1))
    end = iso(ada.expires_at)
    queued = service.submit(request, ada)
    assert queued.signed_in_until == service.jobs(ada)[0].signed_in_until == end
    assert service.job(queued.id, ada).signed_in_until == end
    assert service.job(queued.id, None).signed_in_until is None  # told to its owner alone

    clock.pass_time(hours=1)
    make_worker(tmp_path, store, "steps").run_once()
    failed = service.job(queued.id, ada)
    assert (failed.state, failed.error["code"], failed.signed_in_until) == ("failed", "E_LOGIN", None)
    assert "needs login: the sign-in of this job has expired" in failed.error["message"]
    assert not (tmp_path / "jobs").exists()  # no child was started for it

    later = replace(ada, expires_at=clock.now() + timedelta(days=3))
    again = service.submit(request, later)
    assert (again.id, again.state, again.signed_in_until) == (queued.id, "queued", iso(later.expires_at))


def test_models_without_a_license_start_once_the_form_states_one(zoo_hub, store, tmp_path):
    api, folder = HfApi(zoo_hub.endpoint, zoo_hub.tokens["ada"]), tmp_path / "open"
    shutil.copytree(ZOO / "tool", folder)
    (folder / "README.md").unlink()
    upload(api, folder, "zoo/open-agent")
    service = service_of(zoo_hub.endpoint, store)
    ada = visitor(zoo_hub, "ada")
    recipe = {**RECIPE, "agents": ["zoo/math-agent", "zoo/open-agent"]}
    for license in (None, "", "apache-2.0", "other"):  # as the form does, before and after something was chosen
        assert service.inspect(recipe, ada, license).agents[1].license is None
    with pytest.raises(RecipeError, match="do not allow"):
        service.inspect(recipe, ada, "mit")
    with pytest.raises(RecipeError, match="must be chosen"):
        service.submit(MergeRequest(recipe, "ada/of-open", private=False), ada)
    job = service.submit(MergeRequest(recipe, "ada/of-open", private=False, license="apache-2.0"), ada)
    assert job.state == State.QUEUED


def test_a_merge_that_would_take_days_is_refused_at_once(zoo_hub, store):
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


def test_a_failed_job_is_tried_again_with_its_owner_s_present_sign_in(zoo_hub, store):
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
    service.retry(job.id, ada)
    assert store.sealed_token(job.id) == sealed  # one that waits already stays as it is
    service.cancel(job.id, ada)
    assert service.retry(job.id, ada).state == "queued"


def test_everybody_may_know_how_many_public_jobs_are_under_way_however_many_wait(store):
    service = service_of(NOWHERE, store)
    for number, kind in enumerate(("merge", "evaluate", *["merge"] * 60)):
        store.submit(new_job(str(number), f"user-{number}", kind=kind))
    for _ in range(2):
        claim(store)
    store.submit(new_job("hidden", "bob", payload={"private": True}))
    assert service.under_way() == (1, 1, 60)


@pytest.mark.parametrize(
    ("kind", "payload", "whose"),
    [
        ("evaluate", {}, "the bot's"),
        ("merge", {"watcher": "a-rule"}, "the bot's"),
        ("merge", {}, "a sign-in's"),
    ],
)
def test_a_job_of_the_bot_s_own_is_retried_with_the_bot_s_token(store, kind, payload, whose):
    """A sign-in writes to no repo that it has not made, such as the results dataset."""
    store.submit(new_job("a", "ada", kind=kind, payload=payload))
    job = ended(store, FINAL)
    service_of(NOWHERE, store, token=SecretStr("the bot's")).retry(job.id, Visitor("ada", "a sign-in's", ("ada",)))
    assert VAULT.open(job.id, store.sealed_token(job.id), store.clock.now()).get_secret_value() == whose


def test_a_private_job_is_as_missing_to_others_whatever_they_ask_of_it(zoo_hub, store):
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


def test_a_look_into_a_few_layers_needs_the_right_to_read_the_models(zoo_hub, store):
    api = HfApi(zoo_hub.endpoint, zoo_hub.tokens["ada"])
    upload(api, ZOO / "tool", "ada/hidden-agent", private=True)
    service = service_of(zoo_hub.endpoint, store, token=SecretStr(zoo_hub.tokens["ada"]))  # which is not the visitor's
    recipe = {**RECIPE, "agents": ["zoo/math-agent", "ada/hidden-agent"]}
    found = service.preview(recipe, visitor(zoo_hub, "ada"))
    assert sum(found.statistics["overlap_share"]) == pytest.approx(1)
    assert 0 < found.bytes_read <= PREVIEW_BYTES
    assert [agent["agent"] for agent in found.statistics["agents"]] == ["math-agent", "hidden-agent"]
    for stranger in (None, visitor(zoo_hub, "bob")):
        with pytest.raises(SourceNotFoundError):
            service.preview(recipe, stranger)

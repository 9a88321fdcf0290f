"""Evaluations that visitors ask for: what is refused, who pays, and what the public queue shows."""

from dataclasses import replace

import pytest
from huggingface_hub import HfApi
from job_helpers import FINAL, FakeScores, claim, ended, visitor
from line import upload
from pydantic import SecretStr
from source_helpers import ZOO, zoo_adapter

from hubmerge.errors import (
    EvaluationError,
    GatedError,
    HubmergeError,
    MemoryLimitError,
    PermissionDeniedError,
    QuotaError,
    RecipeError,
    SourceNotFoundError,
)
from hubmerge.settings import Settings
from localhub.process import LocalHubProcess
from workflows.jobs.account import Account
from workflows.jobs.evaluations import (
    ASKED_EACH,
    OF_MERGE,
    OF_PARENT,
    EvaluationRequests,
    ScoreKey,
    evaluation_id,
    evaluation_job,
    schedule_evaluations,
)
from workflows.jobs.jobs import Job, JobNotFoundError, NewJob, State
from workflows.jobs.store import Store
from workflows.jobs.tokens import TokenVault
from workflows.serve import recorded_scores
from workflows.service import Service
from workflows.values import EvaluationAnswer, MergeRequest, Visitor

SHA = "a" * 40
VAULT = TokenVault([b"s" * 40])


def score(model: str, sha: str = SHA) -> ScoreKey:
    return ScoreKey(model, sha, "zoo", "v1", "test")


class Site:
    """A service with the bot's account (ada), whose leaderboard the test writes."""

    def __init__(self, store: Store, hub: LocalHubProcess) -> None:
        token = SecretStr(hub.tokens["ada"])
        self.settings = Settings(endpoint=hub.endpoint, token=token, suite="zoo")
        self.hub = hub
        self.store = store
        scores = FakeScores("zoo", version="v1")
        self.known = scores.known
        self.requests = EvaluationRequests(store, Account(self.settings, VAULT), scores)
        self.service = Service(self.settings, store, VAULT, self.requests)

    def tick(self) -> None:
        """Every evaluation that is due is asked for, however many jobs there are."""
        self.store.jobs_per_user = 100
        schedule_evaluations(self.store, self.requests)

    def visitor(self, name: str) -> Visitor:
        return visitor(self.hub, name)

    def ask(self, model: str, who: str = "bob", suite: str = "zoo") -> EvaluationAnswer:
        return self.service.request_evaluation(model, suite, self.visitor(who))

    def evaluations(self) -> dict[str, Job]:
        """By their models."""
        return {str(job.payload["model"]): job for job in self.store.list_jobs(kinds=["evaluate"])}


@pytest.fixture
def site(store: Store, zoo_hub: LocalHubProcess) -> Site:
    return Site(store, zoo_hub)


def test_an_asked_evaluation_is_a_job_of_the_bot_s_and_asking_again_finds_its_place(site):
    first = site.ask("zoo/math-agent", suite="")
    assert (first.outcome, first.suite, first.place) == ("queued", "zoo", 1)
    job = site.store.get(first.job)
    assert (job.user, job.payload["sha"]) == ("ada", first.sha)
    token = VAULT.open(job.id, site.store.sealed_token(job.id), site.store.clock.now())
    assert token.get_secret_value() == site.hub.tokens["ada"]
    site.ask("zoo/tool-agent")
    again = site.ask("zoo/tool-agent@main", "ada")
    assert (again.outcome, again.place) == ("under way", 2)
    queue = site.service.evaluation_queue()
    assert [(e.model, e.place) for e in queue.waiting] == [("zoo/math-agent", 1), ("zoo/tool-agent", 2)]
    claim(site.store)
    queue = site.service.evaluation_queue()
    assert [e.model for e in queue.running] == ["zoo/math-agent"]
    assert ([e.place for e in queue.waiting], queue.waiting_in_all) == ([1], 1)


def test_who_asked_for_an_evaluation_finds_it_among_the_own_jobs_and_may_not_stop_it(site):
    bob, ada = site.visitor("bob"), site.visitor("ada")
    asked = site.ask("zoo/math-agent")
    site.ask("zoo/tool-agent", "ada")
    secret = site.requests.request(score("org/m"), OF_MERGE, private=True, asked_by="bob")
    [view] = site.service.jobs(bob)
    assert (view.id, view.target, view.user, view.signed_in_until) == (asked.job, "zoo/math-agent", "ada", None)
    assert site.service.jobs(bob, before=view.ticket) == []
    assert len(site.service.jobs(ada)) == 3
    with pytest.raises(HubmergeError):
        site.service.cancel(view.id, bob)
    with pytest.raises(HubmergeError):
        site.service.job(secret.id, bob)
    base = score("zoo/base", str(HfApi(site.hub.endpoint).model_info("zoo/base").sha))
    site.requests.request(base, OF_MERGE, private=True)
    assert site.ask("zoo/base").job == ""


def test_what_is_scored_at_this_commit_or_but_for_its_scores_is_not_measured_again(site):
    api, repo = HfApi(site.hub.endpoint, site.hub.tokens["ada"]), "ada/measured-before"
    api.create_repo(repo)
    before = str(api.upload_folder(repo_id=repo, folder_path=ZOO / "math").oid)
    site.known |= {score(repo, before), score("zoo/tool-agent", before)}
    assert site.ask("zoo/tool-agent").outcome == "queued"  # another commit
    answer = site.ask(repo)
    assert (answer.outcome, answer.sha, answer.job) == ("scored", before, "")
    scores = {"README.md": b"---\nlicense: apache-2.0\n---\nscored\n", ".eval_results/hubmerge-zoo.yaml": b"[]\n"}
    for path, content in scores.items():
        api.upload_file(repo_id=repo, path_in_repo=path, path_or_fileobj=content)
    answer = site.ask(repo)
    assert (answer.outcome, answer.sha) == ("scored", before)
    as_long = (ZOO / "math" / "config.json").read_bytes().replace(b"1e-06", b"1e-05")
    api.upload_file(repo_id=repo, path_in_repo="config.json", path_or_fileobj=as_long)
    assert site.ask(repo).outcome == "queued"


def test_a_visitor_has_a_quota_of_evaluations_beside_the_bot_s_own(site):
    for number in range(ASKED_EACH):
        site.requests.request(score(f"org/m{number}"), OF_MERGE, asked_by="bob")
    with pytest.raises(QuotaError, match="bob has asked for 3 evaluations"):
        site.ask("zoo/base")
    # neither another visitor nor the bot pays for them
    assert site.ask("zoo/base", "ada").outcome == "queued"
    assert site.requests.request(score("org/own"), OF_MERGE).state is State.QUEUED
    site.store.request_cancel(claim(site.store).id, "ada")
    with pytest.raises(QuotaError):  # until it has ended
        site.ask("zoo/tool-agent")


def test_a_cancelled_evaluation_starts_again_for_who_asks_and_one_that_just_failed_does_not(site):
    site.store.request_cancel(site.ask("zoo/base").job, "ada")
    assert site.ask("zoo/base").outcome == "queued"
    ended(site.store, FINAL)
    assert site.ask("zoo/base").outcome == "failed"


@pytest.mark.parametrize(
    ("model", "suite", "visitor", "error", "told"),
    [
        ("zoo/none", "zoo", "bob", SourceNotFoundError, "zoo/none"),
        ("zoo/base", "nonsense", "bob", EvaluationError, "there is no such suite"),
        ("./folder", "zoo", "bob", RecipeError, "a folder"),
        ("ada/gated", "zoo", "bob", GatedError, "a gated model"),
        ("ada/secret", "zoo", "ada", PermissionDeniedError, "would become public"),
        # the bot, which is ada, could read it
        ("ada/secret", "zoo", "bob", SourceNotFoundError, "no such repo"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_words(site, model, suite, visitor, error, told):
    api = HfApi(site.hub.endpoint, site.hub.tokens["ada"])
    api.create_repo("ada/secret", private=True, exist_ok=True)
    api.create_repo("ada/gated", exist_ok=True)
    api.update_repo_settings("ada/gated", gated="auto")
    with pytest.raises(error, match=told):
        site.ask(model, visitor, suite)
    assert site.store.list_jobs() == ()


def test_a_commit_of_a_pull_request_is_not_measured_as_the_model(site):
    """Anybody may open one; on the board it would stand as the model's newest commit."""
    bob, repo = HfApi(site.hub.endpoint, site.hub.tokens["bob"]), "ada/asked-for"
    ada = HfApi(site.hub.endpoint, site.hub.tokens["ada"])
    ada.create_repo(repo)
    first = ada.upload_folder(repo_id=repo, folder_path=ZOO / "math").oid
    weights = ZOO / "tool" / "model.safetensors"
    more = {"path_or_fileobj": weights, "path_in_repo": weights.name, "repo_id": repo}
    request = bob.upload_file(create_pr=True, **more)
    for revision in ("refs/pr/1", request.oid):
        with pytest.raises(EvaluationError, match="may be of a pull request"):
            site.ask(f"{repo}@{revision}")
    assert site.store.list_jobs() == ()
    ada.create_branch(repo, branch="other")
    other = ada.upload_file(revision="other", **more)
    ada.upload_file(**more)
    assert [site.ask(f"{repo}@{of}").sha for of in ("other", first)] == [other.oid, first]  # the owner's, all


def test_an_adapter_is_measured_where_its_base_could_be(site, tmp_path):
    api = HfApi(site.hub.endpoint, site.hub.tokens["ada"])
    for name, base in (("open", "zoo/base"), ("on-gated", "ada/gated-base"), ("on-private", "ada/private-base")):
        if base != "zoo/base":
            upload(api, ZOO / "base", base, private="private" in base)
        upload(api, zoo_adapter(tmp_path / name, base), f"ada/{name}")
    api.update_repo_settings("ada/gated-base", gated="auto")
    for name, error in (("on-gated", GatedError), ("on-private", EvaluationError)):
        with pytest.raises(error):
            site.ask(f"ada/{name}", "ada")
    assert site.ask("ada/open").outcome == "queued"


def test_a_model_that_the_memory_does_not_hold_is_refused(site, monkeypatch):
    """Where a GPU evaluates, its memory counts and not the host's."""
    monkeypatch.setattr("hubmerge.machine.resources.memory_bytes", lambda: 1000)
    with pytest.raises(MemoryLimitError, match="too big to be evaluated here"):
        site.ask("zoo/base")
    monkeypatch.setattr("hubmerge.evaluation.runner._device", lambda asked: "cuda")
    monkeypatch.setattr("hubmerge.machine.resources.gpu_memory_bytes", lambda: 10**12)
    assert site.ask("zoo/base").outcome == "queued"
    monkeypatch.setattr("hubmerge.machine.resources.gpu_memory_bytes", lambda: 1000)
    with pytest.raises(MemoryLimitError, match="too big to be evaluated here"):
        site.ask("zoo/tool-agent")


def test_a_site_that_evaluates_nothing_says_so(site):
    without_account = Service(Settings(endpoint=site.settings.endpoint), site.store, VAULT, site.requests)
    for nothing in (without_account, Service(site.settings, site.store, VAULT)):
        assert nothing.suites == {}
        with pytest.raises(EvaluationError, match="no models are evaluated here"):
            nothing.request_evaluation("zoo/base", "zoo", site.visitor("bob"))


def test_a_site_whose_own_suite_does_not_exist_says_so(site):
    misspelt = Service(site.settings.model_copy(update={"suite": "zo"}), site.store, VAULT, site.requests)
    with pytest.raises(EvaluationError, match="there is no such suite"):
        misspelt.request_evaluation("zoo/base", "", site.visitor("bob"))
    with pytest.raises(EvaluationError, match="there is no such suite"):  # nor does an app begin with one
        recorded_scores(Settings(results_repo="ada/results", suite="zo"))


def test_suites_are_offered_the_site_s_own_first(site):
    assert list(site.service.suites) == ["zoo"]
    public = Settings(token=SecretStr("hf_x" * 10), suite="code")
    offered = [*Service(public, site.store, VAULT, site.requests).suites]
    assert (offered[0], "zoo" in offered, "math" in offered) == ("code", False, True)


def test_the_queue_shows_what_a_page_holds_and_no_private_one(site, monkeypatch):
    monkeypatch.setattr("workflows.service.MOST_LISTED", 1)
    site.store.submit(evaluation_job(score("ada/hidden"), "ada", private=True))
    site.store.submit(evaluation_job(score("org/parent"), "ada", OF_PARENT))
    site.store.submit(evaluation_job(score("org/merge"), "ada"))
    queue = site.service.evaluation_queue()
    assert [(e.model, e.place) for e in queue.waiting] == [("org/merge", 2)]
    assert queue.waiting_in_all == 2
    assert "hidden" not in repr(queue)


def test_a_merge_is_evaluated_with_the_suite_chosen_for_it(site, monkeypatch):
    monkeypatch.setattr(Service, "suites", {"zoo": "", "tool": ""})
    recipe = {"base": "zoo/base", "agents": ["zoo/math-agent", "zoo/tool-agent"], "method": "linear"}
    ada = site.visitor("ada")
    chosen = MergeRequest(recipe, "ada/chosen", private=False, suite="tool")
    job = site.service.submit(chosen, ada)
    assert site.store.get(job.id).payload["suite"] == "tool"
    claimed = site.store.claim("worker", ["merge"])
    site.store.finish(claimed.id, claimed.fence, {"repo": "ada/chosen", "commit": SHA, "use": "text-generation"})
    site.tick()
    assert {j.payload["suite"] for j in site.evaluations().values()} == {"tool"}
    usual = site.service.submit(replace(chosen, target="ada/usual", suite=None), ada)
    assert "suite" not in site.store.get(usual.id).payload
    for wrong, told in (
        ({"private": True}, "would become public"),
        ({"suite": "math"}, "expected zoo, tool, got math"),
    ):
        with pytest.raises(EvaluationError, match=told):
            site.service.submit(replace(chosen, target="ada/wrong", **wrong), ada)
    nothing = Service(site.settings, site.store, VAULT)
    with pytest.raises(EvaluationError, match="no merges are evaluated here"):
        nothing.submit(replace(chosen, target="ada/wrong"), ada)


def _merged(site: Site, name: str, agent: str, private: bool) -> None:
    recipe = {"base": f"zoo/base@{SHA}", "agents": [f"{agent}@{SHA}"], "method": "ram"}
    payload = {"recipe": recipe, "target": f"ada/{name}", "private": private, "suite": "zoo"}
    site.store.submit(NewJob(id=name.encode().hex().ljust(64, "0"), user="ada", payload=payload))
    job = site.store.claim("worker", ["merge"])
    site.store.finish(job.id, job.fence, {"repo": f"ada/{name}", "commit": SHA, "use": "text-generation"})


def test_the_evaluations_of_a_private_merge_are_its_owner_s_alone_but_for_parents_of_a_public_one(site):
    _merged(site, "hidden", "ada/own-agent", private=True)
    _merged(site, "open", "ada/other-agent", private=False)
    site.tick()
    private = {model: job for model, job in site.evaluations().items() if job.payload.get("private")}
    assert set(private) == {"ada/hidden", "ada/own-agent"}
    for job in private.values():
        with pytest.raises(JobNotFoundError):
            site.service.job(job.id, site.visitor("bob"))
        assert site.service.job(job.id, site.visitor("ada")).private
    public = {"ada/open", "ada/other-agent", "zoo/base"}
    assert {waiting.model for waiting in site.service.evaluation_queue().waiting} == public
    assert site.service.job(evaluation_id(score("zoo/base")), None).target == "zoo/base"

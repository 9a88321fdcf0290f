"""What the pages are told: of jobs, of the time that steps take, of a merge's evaluations, and of a model's files."""

from dataclasses import replace
from typing import Any

import pytest
from job_helpers import NOWHERE, claim, ended, job_id, service_of, visitor

from hubmerge.errors import SourceNotFoundError
from localhub.process import LocalHubProcess
from workflows.jobs.evaluations import ScoreKey, evaluation_job
from workflows.jobs.jobs import NewJob
from workflows.jobs.store import Store
from workflows.service import MAX_READ_VALUES, Service, _report
from workflows.trail import LOG_EVENTS, Trail, stage_times
from workflows.values import JobView, Visitor

SHA = "a" * 40
RECIPE = {"base": f"zoo/base@{'b' * 40}", "agents": [{"model": f"zoo/math@{'c' * 40}"}, "local/folder"]}


def merge(name: str, user: str = "ann", **payload: Any) -> NewJob:
    given = {"recipe": RECIPE, "target": f"{user}/{name}", "private": False, **payload}
    return NewJob(id=job_id(name), user=user, payload=given)


def evaluation(model: str, sha: str = SHA, suite: str = "zoo") -> NewJob:
    return evaluation_job(ScoreKey(model, sha, suite, "", "test"), "bot")


def view_of(store: Store, name: str, visitor: Visitor | None = None) -> JobView:
    return service_of(NOWHERE, store, "what evaluates", token="of the bot", suite="zoo").job(job_id(name), visitor)


def publish(store: Store, name: str, use: str = "text-generation", **payload: Any) -> None:
    store.submit(merge(name, **payload))
    ended(store, repo=f"ann/{name}", commit=SHA, use=use)


def test_everybody_sees_public_merges_and_never_a_private_one(store):
    for name, user, private in (("one", "ann", False), ("two", "bob", True), ("three", "bob", False)):
        store.submit(merge(name, user, private=private))
    store.submit(merge("four", "cleo"))
    store.submit(evaluation("ann/secret"))
    service = service_of(NOWHERE, store)
    first = service.public_jobs(limit=2)
    assert [view.target for view in first] == ["cleo/four", "bob/three"]
    assert [view.target for view in service.public_jobs(first[-1].ticket)] == ["ann/one"]
    bob = Visitor("bob", "t", ("bob",))
    assert {view.target for view in service.jobs(bob)} == {"bob/two", "bob/three"}


def test_the_user_of_a_merge_sees_the_evaluations_that_the_bot_runs_for_it(store):
    publish(store, "made")
    waits = [("merge", "ann/made", "waiting"), ("base", "zoo/base", "waiting"), ("agent", "zoo/math", "waiting")]
    assert [(s.role, s.model, s.state) for s in view_of(store, "made").evaluations] == waits
    new = evaluation("ann/made")
    store.submit(new)
    for other in (("ann/made", "d" * 40), ("zoo/base", "b" * 40, "math")):  # of another commit, by another suite
        store.submit(evaluation(*other))
    scorings = view_of(store, "made").evaluations
    assert (scorings[0].job, scorings[0].place) == (new.id, 1)
    assert [s.state for s in scorings] == ["queued", "waiting", "waiting"]


def test_a_merge_that_nobody_evaluates_promises_no_scores(store):
    ann = Visitor("ann", "t", ("ann",))
    publish(store, "hidden", private=True)
    publish(store, "plain")
    publish(store, "classifier", use="text-classification")
    assert view_of(store, "hidden", ann).evaluations == view_of(store, "classifier").evaluations == ()
    assert Trail(store, suite=None, measures=True).view(store.get(job_id("plain")), own=False).evaluations == ()
    assert len(view_of(store, "plain").evaluations) == 3
    assert service_of(NOWHERE, store, suite="zoo").job(job_id("plain"), None).evaluations == ()
    store.submit(evaluation("ann/hidden", SHA, "math"))  # its owner has it measured
    assert [s.state for s in view_of(store, "hidden", ann).evaluations] == ["queued", "waiting", "waiting"]


def test_the_evaluations_of_a_merge_are_those_of_its_suite(store):
    publish(store, "made")
    for suite in ("zoo", "math"):
        store.submit(evaluation("zoo/base", "b" * 40, suite))
    ended(store)
    store.submit(evaluation("zoo/math", "c" * 40, "math"))
    assert [s.state for s in view_of(store, "made").evaluations] == ["waiting", "done", "waiting"]
    publish(store, "hidden", private=True)  # which its owner has measured
    store.submit(evaluation("ann/hidden", SHA, "math"))
    own = view_of(store, "hidden", Visitor("ann", "t", ("ann",))).evaluations
    assert [s.state for s in own] == ["queued", "queued", "queued"]


def test_a_list_of_merges_looks_for_all_their_evaluations_at_once(store, monkeypatch):
    for name in ("one", "two", "three"):
        publish(store, name)
    store.submit(evaluation("ann/two"))
    looks, look = list[int](), store.evaluations_of
    monkeypatch.setattr(store, "evaluations_of", lambda pins: looks.append(len(pins)) or look(pins))
    views = service_of(NOWHERE, store, "what evaluates", token="of the bot", suite="zoo").public_jobs()
    assert [v.evaluations[0].state for v in views] == ["waiting", "queued", "waiting"]
    assert looks == [5]  # three merges, a base and an agent


def test_evaluations_of_a_merge_are_sought_among_the_newest(store, monkeypatch):
    for name in "ab":
        store.submit(evaluation(f"ann/{name}"))
    pins = {(f"ann/{name}", SHA) for name in "ab"}
    assert len(store.evaluations_of(pins)) == 2
    monkeypatch.setattr("workflows.jobs.store.MAX_SEARCHED", 1)
    assert [job.payload["model"] for job in store.evaluations_of(pins)] == ["ann/b"]


def test_the_place_in_the_queue_counts_jobs_of_the_same_worker_alone(store):
    store.submit(evaluation("ann/x"))
    store.submit(merge("one"))
    store.submit(merge("two"))
    assert [view_of(store, name).queue_position for name in ("one", "two")] == [1, 2]


def test_what_a_step_usually_takes_is_the_median_of_earlier_jobs(store, clock):
    for number, seconds in enumerate((10, 20, 90)):
        store.submit(merge(f"m{number}"))
        job = claim(store)
        store.append_events(job.id, job.fence, [("stage", {"stage": "merge"})])
        clock.pass_time(seconds)
        store.append_events(job.id, job.fence, [("stage", {"stage": "publish"})])
        clock.pass_time(5)
        store.finish(job.id, job.fence, {"repo": "a/b", "commit": SHA})
    times = stage_times(store.stage_times("merge", 20))
    assert times == ({"": 25.0, "merge": 20.0, "publish": 5.0}, {"merge": 5.0, "publish": 0.0})
    store.submit(merge("next"))
    assert view_of(store, "next").typical_s == 0.0  # nobody is before it
    store.submit(merge("after"))
    assert view_of(store, "after").typical_s == 25.0
    running = claim(store)
    store.set_progress(running.id, running.fence, "merge", {"stage": "merge"})
    assert view_of(store, "next").after_s == 5.0


def test_statistics_keep_no_step_out_of_the_log(store):
    store.submit(merge("long"))
    job = claim(store)
    store.append_events(job.id, job.fence, [("stage", {"stage": "merge"})])
    store.append_events(job.id, job.fence, [("statistics", {"values": {"elements": n}}) for n in range(LOG_EVENTS)])
    view = view_of(store, "long")
    assert [line.kind for line in view.log] == ["submitted", "claimed", "stage"]
    assert view.statistics == {"elements": LOG_EVENTS - 1}


@pytest.fixture
def service(local_hub: LocalHubProcess, store: Store) -> Service:
    return service_of(local_hub.endpoint, store)


def test_card_and_report_come_with_the_commit_and_the_license_and_a_file_without_measure_is_left_out(
    service, ada, name, monkeypatch
):
    ada.create_repo(name)
    for path, data in (("README.md", b"---\nlicense: [mit]\n---\n# It\n"), ("hubmerge.json", b'{"hubmerge": "1"}')):
        ada.upload_file(path_or_fileobj=data, path_in_repo=path, repo_id=name)
    model = service.published(name, None, None)
    assert (model.id, len(model.sha), model.license, model.is_open) == (name, 40, "mit", True)
    assert model.card.endswith("# It\n")
    assert model.report == {"hubmerge": "1"}
    first = service.published(name, ada.list_repo_commits(name)[-1].commit_id, None)
    assert "# It" not in first.card
    assert first.report == {}
    monkeypatch.setattr("workflows.service.MAX_READ_BYTES", 20)
    assert service.published(name, None, None) == replace(model, card="")
    ada.upload_file(path_or_fileobj=b"\xff", path_in_repo="hubmerge.json", repo_id=name)
    assert service.published(name, None, None).report == {}


@pytest.mark.parametrize(
    "text",
    [
        *("[" * 100_000, "[1]", "{", "", '{"x": "\\ud800"}', '{"x": NaN}', '{"x": %s}' % ("[" * 900 + "]" * 900)),
        '{"x": [%s[]]}' % ("[]," * (MAX_READ_VALUES // 2)),
    ],
    ids=lambda text: text[:9],
)
def test_a_report_that_is_none_or_that_an_answer_could_tell_nobody_is_empty(text):
    assert _report(text) == {}


def test_a_private_model_is_read_by_its_owner_alone(service, ada, local_hub):
    ada.create_repo("ada/private-one", private=True)
    assert not service.published("ada/private-one", None, visitor(local_hub, "ada")).is_open
    for stranger in (None, visitor(local_hub, "bob")):
        with pytest.raises(SourceNotFoundError):
            service.published("ada/private-one", None, stranger)

"""Webhooks: what is delivered, to whom, with which secret, and what happens when nobody answers."""

import json
import socket
import sqlite3
import time
from queue import Empty
from threading import Event
from typing import Any
from unittest.mock import Mock

import pytest
from huggingface_hub import HfApi, WebhookPayload
from processes import until
from raw_requests import ask, status_of

from localhub import webhooks
from localhub.process import LocalHubProcess


def deliveries(api: HfApi, webhook: str) -> list[dict[str, Any]]:
    answer = ask(api, "GET", f"/api/settings/webhooks/{webhook}/deliveries")
    answer.raise_for_status()
    return answer.json()


def test_a_commit_is_announced_with_secret_ref_and_shas(ada, repo, receiver):
    hook = ada.create_webhook(
        url=receiver.url, watched=[{"type": "model", "name": repo}], domains=["repo"], secret="s3cret"
    )
    old = ada.model_info(repo).sha
    new = ada.upload_file(path_or_fileobj=b"x", path_in_repo="x.txt", repo_id=repo).oid
    received = receiver.next()
    assert received.headers["x-webhook-secret"] == "s3cret"
    assert received.headers["content-type"] == "application/json"
    body = json.loads(received.body)
    payload = WebhookPayload.model_validate(body)
    assert (payload.event.action, payload.event.scope) == ("update", "repo.content")
    assert (payload.repo.name, payload.repo.type, payload.webhook.id) == (repo, "model", hook.id)
    assert body["repo"]["headSha"] == new
    assert body["updatedRefs"] == [{"ref": "refs/heads/main", "oldSha": old, "newSha": new}]
    until(lambda: [d["state"] for d in deliveries(ada, hook.id)] == ["delivered"])
    (logged,) = deliveries(ada, hook.id)
    assert (logged["statusCode"], logged["attempts"], logged["payload"]) == (200, 1, body)


def test_each_kind_of_change_has_its_event(ada, fresh, receiver):
    ada.create_webhook(url=receiver.url, watched=[{"type": "user", "name": "ada"}])
    repo, moved = f"ada/{fresh()}", f"ada/{fresh()}"

    def event(action: str, scope: str) -> dict[str, Any]:
        body = dict(json.loads(receiver.next().body))
        assert body["event"] == {"action": action, "scope": scope}
        return body

    ada.create_repo(repo)
    event("create", "repo")
    ada.update_repo_settings(repo, private=True)
    assert event("update", "repo.config")["updatedConfig"] == {"private": True}
    ada.create_tag(repo, tag="v1")
    assert event("update", "repo.content")["updatedRefs"][0]["ref"] == "refs/tags/v1"
    ada.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=repo, create_pr=True)
    [ref] = event("update", "repo.content")["updatedRefs"]
    assert (ref["ref"], ref["oldSha"]) == ("refs/pr/1", None)
    ada.move_repo(repo, moved)
    body = event("move", "repo")
    assert (body["repo"]["name"], body["movedTo"]["name"]) == (repo, moved)
    ada.delete_repo(moved)
    event("delete", "repo")
    for hook in ada.list_webhooks():
        ada.delete_webhook(hook.id)


def test_a_refused_commit_announces_nothing(ada, repo, receiver):
    ada.create_webhook(url=receiver.url, watched=[{"type": "model", "name": repo}], domains=["repo"])
    late = {"path_or_fileobj": b"x", "path_in_repo": "x", "repo_id": repo, "parent_commit": "0" * 40}
    assert status_of(ada.upload_file, **late) == 412
    new = ada.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=repo).oid
    assert json.loads(receiver.next().body)["updatedRefs"][0]["newSha"] == new
    with pytest.raises(Empty):
        receiver.received.get_nowait()


def test_a_private_repo_is_announced_only_to_members(ada, bob, fresh, receiver):
    watched = [{"type": "org", "name": "zoo"}]
    theirs = bob.create_webhook(url=receiver.url, watched=watched, domains=["repo"])
    own = ada.create_webhook(url=receiver.url, watched=watched, domains=["repo"])
    private = ada.create_repo(f"zoo/{fresh()}", private=True).repo_id
    body = json.loads(receiver.next().body)
    assert (body["repo"]["name"], body["webhook"]["id"]) == (private, own.id)
    assert deliveries(bob, theirs.id) == []
    ada.delete_webhook(own.id)
    bob.delete_webhook(theirs.id)


def test_a_failing_receiver_is_tried_again_in_order(ada, repo, receiver):
    receiver.statuses = [500, 200]
    hook = ada.create_webhook(url=receiver.url, watched=[{"type": "model", "name": repo}], domains=["repo"])
    first = ada.upload_file(path_or_fileobj=b"1", path_in_repo="a", repo_id=repo).oid
    second = ada.upload_file(path_or_fileobj=b"2", path_in_repo="a", repo_id=repo).oid
    shas = [json.loads(receiver.next().body)["updatedRefs"][0]["newSha"] for _ in range(3)]
    assert shas == [first, first, second]
    until(lambda: [d["state"] for d in deliveries(ada, hook.id)] == ["delivered", "delivered"])
    assert [d["attempts"] for d in deliveries(ada, hook.id)] == [1, 2]


def test_an_outcome_that_a_full_disk_does_not_take_is_written_when_there_is_room(monkeypatch):
    monkeypatch.setattr(webhooks, "send", lambda *_: (200, None))
    monkeypatch.setattr(webhooks, "RETRY_AFTER_S", (0.0,))
    store = Mock(change=Mock(side_effect=[sqlite3.OperationalError, None]))
    row: Any = {"id": 1, "url": "", "secret": None, "payload": "", "attempts": 0}
    assert webhooks.DeliveryWorker(store)._deliver(row) == 0.0
    assert store.change.call_count == 2


def test_a_disabled_webhook_is_silent_until_it_is_enabled(ada, repo, receiver):
    hook = ada.create_webhook(url=receiver.url, watched=[{"type": "model", "name": repo}])
    ada.disable_webhook(hook.id)
    ada.upload_file(path_or_fileobj=b"1", path_in_repo="a", repo_id=repo)
    assert deliveries(ada, hook.id) == []
    ada.enable_webhook(hook.id)
    sha = ada.upload_file(path_or_fileobj=b"2", path_in_repo="a", repo_id=repo).oid
    assert json.loads(receiver.next().body)["updatedRefs"][0]["newSha"] == sha


def test_webhooks_belong_to_their_owner_and_keep_what_an_update_leaves_out(ada, bob, reader, receiver):
    watched = [{"type": "user", "name": "somebody"}]
    hook = ada.create_webhook(url=receiver.url, watched=watched, secret="one")
    assert hook.id in [known.id for known in ada.list_webhooks()]
    assert hook.id not in [known.id for known in bob.list_webhooks()]
    assert (status_of(bob.delete_webhook, hook.id), status_of(reader.delete_webhook, hook.id)) == (404, 403)
    changed = ada.update_webhook(hook.id, secret="two")
    assert (changed.secret, changed.url, changed.watched[0].name) == ("two", receiver.url, "somebody")
    ada.delete_webhook(hook.id)
    assert status_of(ada.get_webhook, hook.id) == 404


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/", "http://", "http://[", "nonsense"]
)
def test_a_webhook_goes_to_http_urls_only(ada, url):
    assert status_of(ada.create_webhook, url=url, watched=[{"type": "user", "name": "ada"}]) == 400


def test_a_pause_begins_when_an_attempt_has_ended(monkeypatch):
    clock = [0.0]

    def slowly(*_: object) -> tuple[int, None]:
        clock[0] += webhooks.TIMEOUT_S
        return 500, None

    row: Any = {"id": 1, "webhook": "a", "url": "a", "secret": None, "payload": "", "attempts": 0}
    worker = webhooks.DeliveryWorker(Mock())
    monkeypatch.setattr(webhooks, "send", slowly)
    monkeypatch.setattr(webhooks, "time", Mock(monotonic=lambda: clock[0]))
    worker._try(row)
    assert worker._due == {"a": webhooks.TIMEOUT_S + webhooks.RETRY_AFTER_S[0]}


def test_a_stop_waits_for_the_try_under_way_and_begins_none(monkeypatch):
    begun, ready = Event(), Event()

    def slowly(*_: object) -> tuple[int, None]:
        begun.set()
        time.sleep(0.3)
        return 200, None

    row = {"id": 1, "webhook": "a", "url": "a", "secret": None, "payload": "", "attempts": 0}
    store = Mock(rows=Mock(return_value=[row]), deliveries_ready=ready)
    monkeypatch.setattr(webhooks, "send", slowly)
    worker = webhooks.DeliveryWorker(store)
    worker.start()
    assert begun.wait(10)
    worker.stop()
    assert (store.change.call_count, worker._thread.is_alive()) == (1, False)


def test_a_receiver_that_never_answers_delays_no_other(ada, repo, receiver):
    watched = [{"type": "model", "name": repo}]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        hooks = [ada.create_webhook(url=each, watched=watched, domains=["repo"]).id for each in (url, receiver.url)]
        sha = ada.upload_file(path_or_fileobj=b"1", path_in_repo="a", repo_id=repo).oid
        told = receiver.received.get(timeout=webhooks.TIMEOUT_S / 2)
        assert json.loads(told.body)["updatedRefs"][0]["newSha"] == sha
        assert deliveries(ada, hooks[0])[0]["attempts"] == 0
        for hook in hooks:
            ada.delete_webhook(hook)


@pytest.mark.slow
def test_what_a_killed_hub_still_owed_is_delivered_after_its_restart(tmp_path, receiver):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody_listens = f"http://127.0.0.1:{unused.getsockname()[1]}/"
    with LocalHubProcess(tmp_path / "data") as hub:
        api = HfApi(hub.endpoint, token=hub.tokens["bob"])
        repo = api.create_repo("bob/owed").repo_id
        hook = api.create_webhook(url=nobody_listens, watched=[{"type": "model", "name": repo}], domains=["repo"])
        sha = api.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=repo).oid
        until(lambda: deliveries(api, hook.id)[0]["attempts"] >= 1)
        assert deliveries(api, hook.id)[0]["state"] == "pending"
        hub.kill()
        hub.start()
        api = HfApi(hub.endpoint, token=hub.tokens["bob"])
        api.update_webhook(hook.id, url=receiver.url)
        assert json.loads(receiver.next().body)["updatedRefs"][0]["newSha"] == sha

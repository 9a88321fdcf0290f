"""The server: other routes beside the pages, a taken port, no sign-in without a provider, and a Space as it is."""

import asyncio
import gc
import json
import os
import threading
import tracemalloc
import urllib.request
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import gradio as gr
import httpx
import pytest
from pages_fake import FakeService, job_view
from pages_session import answer_of, session_of
from processes import ROOT, printed_by
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from hubmerge.errors import LoginError, SettingsError
from hubmerge.settings import Settings
from workflows import serve
from workflows.app.app import QUEUE_MAX, build_app, launch_app
from workflows.app.lanes import ANONYMOUS_EACH
from workflows.app.session import MOST_UNREAD, Sessions

SETTINGS = Settings(endpoint="http://127.0.0.1:9")
ON_A_SPACE = """
from pages_fake import FakeService
from starlette.testclient import TestClient
from hubmerge.settings import load_settings
from workflows.app.app import build_web_app
app = build_web_app(FakeService(), load_settings())
client = TestClient(app, follow_redirects=False)
answer = client.get("/login/huggingface?_target_url=/job?id=abc")
print("https://ada-merge.hf.space/social.png" in client.get("/merge").text, app.user_middleware[0].kwargs["hosts"])
print(answer.headers["location"])
"""


def test_other_routes_are_served_beside_the_pages_and_guarded_like_them():
    def hook(request: object) -> PlainTextResponse:
        return PlainTextResponse("hooked")

    routes = [Route("/webhook", hook, methods=["POST"])]
    with launch_app(FakeService(), SETTINGS, host="::1", port=0, routes=routes) as running:  # an address of version 6
        answer = httpx.post(f"{running.url}/webhook")
        assert answer.text == "hooked"
        assert answer.headers["content-security-policy"].startswith("frame-ancestors 'self'")
        page = httpx.get(running.url)
        assert page.status_code == 200
        assert "Sign-in is not set up here." in page.text  # no provider was given


def test_no_event_has_two_handlers_that_wait_for_their_last_turn(pages):
    """gradio repeats the whole event for each that waited, so that two of them make each other wait for ever."""
    waiting = Counter(
        tuple(target)
        for handler in httpx.get(f"{pages.url}/config").json()["dependencies"]
        if handler["backend_fn"] and handler["trigger_mode"] == "always_last"
        for target in handler["targets"]
    )
    assert waiting
    assert max(waiting.values()) == 1


def test_a_taken_port_is_an_error_and_not_another_port(pages):
    port = urlsplit(pages.url).port
    assert port is not None
    taken = rf"cannot listen there in 127\.0\.0\.1:{port}: got .*Address already in use"
    with pytest.raises(SettingsError, match=taken), launch_app(FakeService(), SETTINGS, port=port):
        pass


@pytest.mark.slow
def test_an_open_page_does_not_keep_the_app_from_ending():
    with launch_app(FakeService(), SETTINGS, port=0) as running:
        page = urllib.request.urlopen(f"{running.url}/gradio_api/heartbeat/a-visitor", timeout=10)
        ending = threading.Thread(target=running.stop, daemon=True)
        ending.start()
        ending.join(30)
        assert not ending.is_alive()
        page.close()


def test_an_app_without_a_secret_says_who_can_read_the_tokens(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(serve, "Bot", Mock(side_effect=InterruptedError))  # and nothing after it
    monkeypatch.setattr(serve, "set_up_logging", Mock())
    client = {"oauth_client_id": "id", "oauth_client_secret": "a long secret"}
    settings = Settings(space_id="ada/merge", data_dir=tmp_path / "data", **client)
    with pytest.raises(InterruptedError):
        serve.serve(settings, host="127.0.0.1", port=0)
    assert "HUBMERGE_SECRET is not set" in caplog.text
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("space", "how"), [(None, "registered on the Hub"), ("ada/merge", "`hf_oauth: true`")])
def test_without_an_oauth_client_nothing_starts(space, how, tmp_path):
    with pytest.raises(LoginError, match=how):
        serve.serve(Settings(space_id=space, data_dir=tmp_path / "data"), host="127.0.0.1", port=0)
    assert not (tmp_path / "data").exists()


def test_a_call_of_a_program_leaves_little_in_memory():
    with launch_app(FakeService(), SETTINGS, port=0) as running:
        assert "complete" in answer_of(running.url, "jobs_under_way")  # what is loaded once
        tracemalloc.start()
        try:
            for _ in range(10):
                answer_of(running.url, "jobs_under_way")
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 10 * 100_000
        finally:
            tracemalloc.stop()


def test_a_page_s_session_keeps_no_settings_of_what_it_was_shown():
    sessions, demo = Sessions(), build_app(FakeService(), settings=SETTINGS, sign_in=False)
    sessions.set_blocks(demo)
    state = sessions["a-page"]
    [number, *_] = [number for number, block in demo.blocks.items() if isinstance(block, gr.HTML)]
    state[number] = gr.HTML("long" * 1000, render=False)
    state._update_value_in_config(number, "long" * 1000)
    assert len(state.config_values) == 0


def test_a_session_has_a_short_id_and_few_sessions_keep_an_answer_that_nobody_fetches(pages):
    for session in ("s" * 65, "a<gradio-sep>b", "ä"):  # gradio keeps it, and reads its tasks' names by that mark
        body = {"data": [], "fn_index": 0, "session_hash": session}
        for way in ("queue/join", "run/predict"):
            assert httpx.post(f"{pages.url}/gradio_api/{way}", json=body).status_code == 422
    messages = build_app(FakeService(), settings=SETTINGS, sign_in=False)._queue.pending_messages_per_session
    messages["reading"] = asyncio.Queue()
    for number in range(MOST_UNREAD + 2):
        messages[str(number)] = asyncio.Queue()
        messages[str(number)].put_nowait("an answer")
    assert list(messages)[:2] == ["reading", "1"]
    messages["0"].put_nowait("the next one")  # of what went on meanwhile
    assert "0" not in messages


def test_a_forged_value_writes_nothing_into_the_log(pages, capfd):
    forged = ["no choice\nINFO a line of my own", "\ud800", [[] for _ in range(3)]]
    for _ in range(450):
        forged[-1] = [forged[-1]]
    config = httpx.get(f"{pages.url}/config").json()
    kinds = {part["id"]: part["type"] for part in config["components"]}
    events = [
        event
        for event in config["dependencies"]
        if event["backend_fn"] and {"dropdown", "radio", "textbox"} & {kinds[part] for part in event["inputs"]}
    ]
    assert len(events) > 15
    with warnings.catch_warnings(record=True) as warned, ThreadPoolExecutor(ANONYMOUS_EACH) as several:
        warnings.simplefilter("always")
        tried = [(event, value) for event in events for value in forged]
        answers = several.map(lambda one: _call(pages.url, one[0]["id"], [one[1]] * len(one[0]["inputs"]), {}), tried)
        assert all(answers)
    told = capfd.readouterr().err
    assert not [line for line in told.splitlines() if "of my own" in line or "Recursion" in line or "surrog" in line]
    assert not [each for each in warned if "of my own" in str(each.message)]


def test_the_queue_is_bounded_and_skipping_it_is_not_allowed():
    demo = build_app(FakeService(), settings=SETTINGS, sign_in=False)
    assert demo._queue.max_size == QUEUE_MAX
    assert demo.api_open is False
    public = [fn for fn in demo.fns.values() if fn.api_visibility == "public"]
    assert all(fn.queue for fn in public)
    assert len(public) == 18  # without a board and watchers


@pytest.mark.slow
@pytest.mark.parametrize("system", ["spaces", ""], ids=["gradio", "docker"])  # set for the Gradio SDK alone
def test_on_a_space_gradio_signs_in_with_the_platform_s_client(local_hub, system):
    environment = {
        "SYSTEM": system,
        "HF_TOKEN": local_hub.tokens["ada"],  # the bot's, whom no visitor is
        "SPACE_ID": "ada/merge",
        "SPACE_HOST": "ada-merge.hf.space,merge.example",  # with a domain of its owner's
        "OAUTH_CLIENT_ID": local_hub.oauth["client_id"],
        "OAUTH_CLIENT_SECRET": local_hub.oauth["client_secret"],
        "OAUTH_SCOPES": "openid profile contribute-repos",
        "OPENID_PROVIDER_URL": local_hub.endpoint,
        "HF_ENDPOINT": local_hub.endpoint,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *Path(__file__).parents[:3]))),
    }
    *_, told, last = printed_by(ON_A_SPACE, **environment).splitlines()
    assert told == "True ['ada-merge.hf.space', 'merge.example']"
    location = urlsplit(last)
    asked = parse_qs(location.query)
    assert f"{location.scheme}://{location.netloc}{location.path}" == f"{local_hub.endpoint}/oauth/authorize"
    assert asked["client_id"] == [local_hub.oauth["client_id"]]
    assert asked["redirect_uri"] == ["https://ada-merge.hf.space/login/callback?_target_url=%2Fjob%3Fid%3Dabc"]


@pytest.mark.slow
def test_the_hidden_handlers_of_the_pages_are_authorised_too(pages):
    """Every event of the app is called by its number, as bob and as nobody; ada's private job stays as it is."""
    job = "1" * 64
    pages.service.put([job_view(job, private=True, target="ada/secret")])
    config = httpx.get(f"{pages.url}/config").json()
    assert len(config["dependencies"]) > 15
    for headers in ({}, session_of("bob")):
        events = [event for event in config["dependencies"] if event["backend_fn"]]
        with ThreadPoolExecutor(ANONYMOUS_EACH) as several:  # more would be refused without a look
            asked = [
                several.submit(_call, pages.url, event["id"], [job] * len(event["inputs"]), headers) for event in events
            ]
        for event, answer in zip(events, asked, strict=True):
            assert "ada/secret" not in answer.result(), event
            assert "E_QUOTA" not in answer.result(), event
    assert pages.service.store[job].state == "queued"
    assert pages.service.requests == []


def _call(url: str, number: int, data: list[Any], headers: dict[str, str]) -> str:
    body = {"data": data, "fn_index": number, "session_hash": uuid4().hex}
    with httpx.Client(base_url=url, headers=headers, timeout=30) as http:
        as_json = {"content": json.dumps(body), "headers": {"content-type": "application/json"}}
        joined = http.post("/gradio_api/queue/join", **as_json)
        if joined.status_code != 200:
            return joined.text
        lines = []
        with http.stream("GET", "/gradio_api/queue/data", params={"session_hash": body["session_hash"]}) as stream:
            for line in stream.iter_lines():
                lines.append(line)
                if '"process_completed"' in line:
                    break
        return "\n".join(lines)

"""The named endpoints over HTTP: who may do what, and that identity comes from the session alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from gradio.utils import get_upload_folder
from gradio_client import Client
from gradio_client.exceptions import AppError
from pages_fake import CATALOGUE, HOSTILE, job_view
from pages_session import CLIENT, Site, session_cookie
from scripted_hub import ScriptedHub

from hubmerge.errors import HubUnavailableError, IncompatibleError
from hubmerge.output.plan_words import plan_summary

RECIPE = {"base": CATALOGUE[0], "agents": list(CATALOGUE[1:3]), "method": "ram"}
JOB = "1" * 64


def refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(AppError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def start(client: Client, **changes: Any) -> Any:
    return client.predict(**{"recipe": RECIPE, "target": "ada/merged", **changes}, api_name="/start_merge")


def test_anyone_may_search_and_inspect(client: Callable[..., Client], pages: Site) -> None:
    found = client().predict("zoo", api_name="/search_models")
    assert [m["id"] for m in found] == list(CATALOGUE)
    summary = client().predict(RECIPE, api_name="/inspect_merge")
    assert summary == json.loads(json.dumps(plan_summary(pages.service.inspect(RECIPE, None))))


def test_an_incompatible_merge_is_refused_with_every_problem(client: Callable[..., Client], pages: Site) -> None:
    recipe = {**RECIPE, "agents": [CATALOGUE[1], "other/wide-agent"]}
    with pytest.raises(IncompatibleError) as expected:
        pages.service.inspect(recipe, None)
    assert len(expected.value.problems) > 1
    assert refusal(client().predict, recipe, api_name="/inspect_merge") == str(expected.value)


@pytest.mark.parametrize(
    "recipe",
    [
        *({"base": folder} for folder in ("/etc", "./data", "~root")),
        *({"agents": [{"model": folder}]} for folder in ("/etc", "./data", "~root")),
        {"base": {"id": "/etc", "local": True}},
        {"base": {"id": "/etc", "local": False}},
        {"agents": [{"model": {"id": "../x"}}]},
        {"base": 5},
        {"agents": 5},
        {"agents": [[["x"]]]},
        {"base": "a/b", "seed": "x" * 1000},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_folder_or_a_malformed_recipe_is_refused_before_the_service_sees_it(
    client: Callable[..., Client], pages: Site, recipe: dict[str, Any]
) -> None:
    pages.service.failure = HubUnavailableError("the service was asked")
    assert "E_RECIPE" in refusal(client().predict, {**RECIPE, **recipe}, api_name="/inspect_merge")


@pytest.mark.parametrize(
    "who",
    [
        {"cookie": session_cookie("ada", expires_in_s=-1)},
        {"cookie": session_cookie("ada", secret="another secret")},
        {"user": "ada", "Origin": "https://evil.example"},
    ],
    ids=["expired", "forged", "from a page of another site"],
)
def test_nobody_starts_cancels_or_lists_without_a_valid_session(
    client: Callable[..., Client], pages: Site, who: dict[str, Any]
) -> None:
    pages.service.put([job_view(JOB)])
    anonymous = client(**who)
    assert "E_LOGIN" in refusal(start, anonymous)
    assert "E_LOGIN" in refusal(anonymous.predict, JOB, api_name="/cancel_job")
    assert "E_LOGIN" in refusal(anonymous.predict, api_name="/my_jobs")
    assert pages.service.requests == []
    assert pages.service.store[JOB].state == "queued"


def test_a_signed_in_user_starts_a_merge_of_their_own(client: Callable[..., Client], pages: Site) -> None:
    job = start(client("ada"))
    [(request, visitor)] = pages.service.requests
    assert (visitor.name, request.target, request.private, request.license) == ("ada", "ada/merged", True, None)
    assert job == json.loads(json.dumps(asdict(pages.service.store[job["id"]])))
    assert [j["id"] for j in client("ada").predict(api_name="/my_jobs")] == [job["id"]]
    assert client("bob").predict(api_name="/my_jobs") == []


@pytest.mark.parametrize(("action", "old", "new"), [("cancel", "queued", "cancelled"), ("retry", "failed", "queued")])
def test_only_the_owner_cancels_a_job_or_tries_it_again(
    client: Callable[..., Client], pages: Site, action: str, old: str, new: str
) -> None:
    pages.service.put([job_view(JOB, state=old)])
    assert "E_PERMISSION" in refusal(client("bob").predict, JOB, api_name=f"/{action}_job")
    assert pages.service.store[JOB].state == old
    assert client("ada").predict(JOB, api_name=f"/{action}_job")["state"] == new


def test_a_job_with_a_private_target_is_shown_to_its_owner_only(client: Callable[..., Client], pages: Site) -> None:
    pages.service.put([job_view(JOB, private=True, target="ada/secret")])
    for stranger in (client(), client("bob")):
        assert "ada/secret" not in refusal(stranger.predict, JOB, api_name="/job_status")
    assert client("ada").predict(JOB, api_name="/job_status")["target"] == "ada/secret"


@pytest.mark.slow
def test_the_hidden_handlers_of_the_pages_are_authorised_too(pages: Site) -> None:
    """Every event of the app is called by its number, as bob and as nobody; ada's private job stays as it is."""
    pages.service.put([job_view(JOB, private=True, target="ada/secret")])
    config = httpx.get(f"{pages.url}/config").json()
    assert len(config["dependencies"]) > 15
    for headers in ({}, {"Cookie": f"session={session_cookie('bob')}"}):
        for event in config["dependencies"]:
            if not event["backend_fn"]:
                continue
            data = [JOB] * len(event["inputs"])
            answer = _call(pages.url, event["id"], data, headers)
            assert "ada/secret" not in answer, event
    assert pages.service.store[JOB].state == "queued"
    assert pages.service.requests == []


def _call(url: str, number: int, data: list[Any], headers: dict[str, str]) -> str:
    body = {"data": data, "fn_index": number, "session_hash": f"s{number}"}
    with httpx.Client(base_url=url, headers=headers, timeout=30) as http:
        joined = http.post("/gradio_api/queue/join", json=body)
        if joined.status_code != 200:
            return joined.text
        lines = []
        with http.stream("GET", "/gradio_api/queue/data", params={"session_hash": f"s{number}"}) as stream:
            for line in stream.iter_lines():
                lines.append(line)
                if '"process_completed"' in line:
                    break
        return "\n".join(lines)


def test_a_failure_of_the_hub_is_told_as_it_is(client: Callable[..., Client], pages: Site) -> None:
    pages.service.failure = HubUnavailableError(HOSTILE, next_step="Try again later.")
    text = refusal(client().predict, RECIPE, api_name="/inspect_merge")
    assert text.startswith("E_HUB: ")
    assert HOSTILE in text  # as text: gradio's client, like any other, gets it as JSON


def test_nothing_can_be_uploaded_and_no_file_is_served(pages: Site) -> None:
    assert httpx.post(f"{pages.url}/gradio_api/upload", files={"files": b"x"}).status_code == 404
    for path in ("/etc/passwd", "pyproject.toml"):
        assert httpx.get(f"{pages.url}/gradio_api/file={path}").status_code == 403


@pytest.mark.parametrize("endpoint", ["model_facts", "preview_merge"])
@pytest.mark.parametrize("around", [lambda file: file, lambda file: [{"a": file}], lambda file: {**file, "in": file}])
def test_a_file_that_a_request_names_is_not_put_where_anybody_may_fetch_it(
    pages: Site, tmp_path: Path, endpoint: str, around: Callable[[Any], Any]
) -> None:
    secret = tmp_path / f"{uuid4()}.svg"
    secret.write_text(f"a secret of {secret}")
    with ScriptedHub({}) as elsewhere:
        for path in (str(secret), f"file://{secret}", f"{elsewhere.endpoint}/{secret.name}"):
            named = around({"path": path, "meta": {"_type": "gradio.FileData"}})
            asked = httpx.post(f"{pages.url}/gradio_api/call/{endpoint}", json={"data": [named]})
            answer = httpx.get(f"{pages.url}/gradio_api/call/{endpoint}/{asked.json()['event_id']}", timeout=60).text
            assert "E_RECIPE" in answer
            assert get_upload_folder() not in answer
        assert elsewhere.requests == []
    assert [*Path(get_upload_folder()).rglob(secret.name)] == []
    assert httpx.get(f"{pages.url}/gradio_api/file={secret}").status_code == 403


def test_no_token_and_no_secret_reaches_a_page(pages: Site) -> None:
    for path in ("/", "/merge", "/activity", "/job", "/config", "/gradio_api/info"):
        text = httpx.get(f"{pages.url}{path}", headers={"Cookie": f"session={session_cookie('ada')}"}).text
        assert "token-of-ada" not in text
        assert CLIENT.client_secret not in text

"""The named endpoints over HTTP and as tools: who may do what, by a session or a token, and what is refused."""

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import jsonschema
import pytest
from board_helpers import family
from gradio.utils import get_upload_folder
from gradio_client import Client
from gradio_client.exceptions import AppError
from pages_fake import CATALOGUE, job_view
from pages_session import CLIENT, Site, answer_of, session_of
from scripted_hub import ScriptedHub

from hubmerge.board.leaderboard import build_board
from hubmerge.board.source import DatasetBoard
from hubmerge.board.values import Board
from hubmerge.errors import HubUnavailableError, IncompatibleError
from hubmerge.hub.client import RepoSummary
from hubmerge.output.plan_words import plan_summary
from workflows.app import lanes
from workflows.app.watchers_source import WatcherSource
from workflows.service import Service
from workflows.values import Published, WatcherView

RECIPE = {"base": CATALOGUE[0], "agents": list(CATALOGUE[1:3]), "method": "ram"}
VARIED = {"sweep": [{"method": "ties", "parameters": {"density": [0.2, 0.5]}}]}
SWEEP = {"base": RECIPE["base"], "agents": RECIPE["agents"], **VARIED}
# what it does of Service, DatasetBoard and WatcherSource, and a call
ENDPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "search_models": ("search", {"text": "zoo"}),
    "model_facts": ("about", {"name": CATALOGUE[0]}),
    "model_files": ("published", {"id": CATALOGUE[0]}),
    "inspect_merge": ("inspect", {"recipe": RECIPE}),
    "preview_merge": ("preview", {"recipe": RECIPE}),
    "inspect_sweep": ("inspect", {"sweep": SWEEP}),
    "inspect_diff": ("comparison", {"base": CATALOGUE[0], "agent": CATALOGUE[1]}),
    "start_merge": ("submit", {"recipe": RECIPE, "target": "ada/merged"}),
    "start_sweep": ("submit", {"sweep": SWEEP, "target": "ada/swept"}),
    "start_diff": ("compare", {"base": CATALOGUE[0], "agent": CATALOGUE[1]}),
    "retry_job": ("retry", {"job_id": "f" * 64}),
    "cancel_job": ("cancel", {"job_id": "e" * 64}),
    "job_status": ("job", {"job_id": "e" * 64}),
    "my_jobs": ("jobs", {}),
    "recent_jobs": ("public_jobs", {}),
    "jobs_under_way": ("under_way", {}),
    "request_evaluation": ("request_evaluation", {"model": CATALOGUE[1]}),
    "evaluation_queue": ("evaluation_queue", {}),
    "leaderboard": ("board", {}),
    "model": ("board", {"id": "org/merge"}),
    "evaluation": ("board", {"id": "org/merge", "suite": "trio"}),
    "watchers": ("watchers", {}),
    "try_watcher": ("try_watcher", {"rule": {"name": "own", "owner": "ada"}}),
    "pause_watcher": ("pause_watcher", {"name": "own"}),
    "resume_watcher": ("resume_watcher", {"name": "own"}),
    "run_watcher": ("run_watcher", {"name": "own"}),
}
API_PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text("utf-8")
NEEDS_SOMEBODY = {
    *("start_merge", "start_sweep", "start_diff", "retry_job", "cancel_job", "my_jobs", "request_evaluation"),
    *("pause_watcher", "resume_watcher", "run_watcher"),
}


OPEN, OWN = WatcherView("open"), WatcherView("own", "ada", private=True)


@pytest.fixture(scope="module")
def clients(served: Site) -> Iterator[Callable[..., Client]]:
    """clients(…): gradio's own client of the app, that sends a token, headers or nothing."""
    known: dict[str, Client] = {}

    def client(**how: Any) -> Client:
        if repr(how) not in known:
            usual = {"verbose": False, "analytics_enabled": False, "httpx_kwargs": {"timeout": 60}}
            known[repr(how)] = Client(served.url, **usual, **how)
        return known[repr(how)]

    yield client
    for each in known.values():
        each.close()


@pytest.fixture
def app(pages: Site, clients: Callable[..., Client]) -> SimpleNamespace:
    pages.board.content = build_board(family())
    pages.watchers.views = [OPEN, OWN]
    pages.service.put([job_view("e" * 64), job_view("f" * 64, state="failed")])
    return SimpleNamespace(service=pages.service, board=pages.board, url=pages.url, client=clients)


@pytest.fixture(scope="module")
def answers(served: Site) -> dict[str, Any]:
    """What the app says that each endpoint returns."""
    told = httpx.get(f"{served.url}/gradio_api/info").json()["named_endpoints"]
    return {name.strip("/"): told[name]["returns"][0]["type"] for name in told}


def tool(app: SimpleNamespace, method: str, headers: dict[str, str] | None = None, **parameters: Any) -> dict[str, Any]:
    """The result of a request to the MCP server of the app."""
    sent = {"accept": "application/json, text/event-stream", **(headers or {})}
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}
    answer = httpx.post(f"{app.url}/gradio_api/mcp/", headers=sent, json=request, timeout=120)
    assert answer.status_code == 200
    told = next(line for line in answer.text.splitlines() if line.startswith("data: {") and '"result"' in line)
    return dict(json.loads(told.removeprefix("data: "))["result"])


def test_every_action_of_the_pages_has_an_endpoint_and_a_tool_with_all_words_about_it(app):
    actions = {
        name
        for kind in (Service, DatasetBoard, WatcherSource)
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert actions == {*(action for action, _ in ENDPOINTS.values()), "visitor"}  # `visitor` is who calls
    endpoints = app.client().view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert {name.strip("/") for name in endpoints} == set(ENDPOINTS)
    for name, told in endpoints.items():
        assert told["description"], name
        names = {p["parameter_name"] for p in told["parameters"]}
        assert names.isdisjoint({"visitor", "user", "token", "profile", "request"}), name
        assert all(p["type"]["type"] in ("string", "object", "boolean", "integer") for p in told["parameters"]), name
    tools = {t["name"]: t for t in tool(app, "tools/list")["tools"]}
    assert set(tools) == set(ENDPOINTS)
    for name, told in tools.items():
        properties = told["inputSchema"].get("properties", {})
        assert told["description"], name
        assert all(p["description"].endswith(".") and p.get("type") for p in properties.values()), name


@pytest.mark.parametrize("name", ENDPOINTS)
def test_an_action_works_with_a_token_answers_as_its_schema_says_and_is_authorised_by_the_server(app, answers, name):
    """The schema names every key of an answer, except where docs/api.md says what it holds."""
    answer = app.client(oauth_token="token-of-ada").predict(**ENDPOINTS[name][1], api_name=f"/{name}")
    for how in ({}, {"oauth_token": "stolen"}, {"token": "token-of-ada"}):  # the last one is no leave to act
        other = app.client(**how)
        if name in NEEDS_SOMEBODY or "oauth_token" in how:
            with pytest.raises(AppError, match="E_LOGIN"):
                other.predict(**ENDPOINTS[name][1], api_name=f"/{name}")
        else:
            other.predict(**ENDPOINTS[name][1], api_name=f"/{name}")
    held = answers[name]
    jsonschema.validate(answer, held)
    found = answer
    if held.get("type") == "array":
        held, found = held["items"], answer[0] if answer else None
    if name in ("inspect_merge", "model", "evaluation"):
        assert "properties" not in held
        page = API_PAGE.partition("## What an answer holds")[2]
        assert f"`{name}`" in page
        assert name != "inspect_merge" or all(f"`{key}`" in page for key in answer)
    else:
        assert set(held["properties"]) == set(found or held["properties"])


@pytest.mark.parametrize("name", ENDPOINTS)
def test_an_action_works_as_a_tool_also_where_progress_is_asked_for(app, name):
    """An error begins with its code."""
    own = tool(app, "tools/call", {"authorization": "Bearer token-of-ada"}, name=name, arguments=ENDPOINTS[name][1])
    assert not own["isError"], own
    watched = {"_meta": {"progressToken": 1}}
    anonymous = tool(app, "tools/call", name=name, arguments=ENDPOINTS[name][1], **watched)
    assert anonymous["isError"] == (name in NEEDS_SOMEBODY)
    assert not anonymous["isError"] or anonymous["content"][0]["text"].startswith("E_LOGIN")


def test_a_token_acts_for_whom_the_hub_says_it_is(app):
    bob = app.client(oauth_token="token-of-bob")
    with pytest.raises(AppError, match="E_PERMISSION"):
        bob.predict(RECIPE, "ada/merged", api_name="/start_merge")
    job = bob.predict(RECIPE, "bob/merged", False, suite="tool", api_name="/start_merge")
    assert job["user"] == "bob"
    [(request, visitor)] = app.service.requests
    assert (request.private, request.suite) == (False, "tool")
    assert (visitor.name, visitor.token) == ("bob", "token-of-bob")
    ada = app.client(headers={"Authorization": "Bearer token-of-ada"})
    assert [view["name"] for view in ada.predict(api_name="/watchers")] == ["open", "own"]
    for nobody in (app.client(), app.client(headers={"Authorization": "Basic token-of-ada"})):
        assert [view["name"] for view in nobody.predict(api_name="/watchers")] == ["open"]


def test_a_tool_s_call_goes_to_this_server_whatever_host_is_named_and_without_its_own_token(app, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "token-of-ada")  # of the machine
    headers = {"host": "127.0.0.1:1", "x-forwarded-host": "127.0.0.1:1", "x-hf-authorization": "Bearer token-of-ada"}
    answer = tool(app, "tools/call", headers, name="my_jobs", arguments={})
    assert "E_LOGIN" in answer["content"][0]["text"]
    assert not tool(app, "tools/call", headers, name="leaderboard", arguments={})["isError"]


def test_a_tool_s_caller_has_the_address_that_the_call_comes_from(app, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(lanes, "address_of", lambda request, **_: asked.append(request.client.host) or "")
    headers = {"accept": "application/json, text/event-stream"}
    call = {"name": "search_models", "arguments": {"text": "zoo"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2"), headers=headers, timeout=120) as http:
        for forged in ({}, {"x-forwarded-for": "9.9.9.9"}):
            assert '"isError":false' in http.post(f"{app.url}/gradio_api/mcp/", json=body, headers=forged).text
    assert asked == ["127.0.0.2", "127.0.0.2"]


def test_a_stranger_s_report_is_never_taken_for_a_file_of_the_server_s(app):
    """gradio hands out, and its client fetches, what an object with a path names."""
    trap = {"path": "README.md", "meta": {"_type": "gradio.FileData"}}
    report = {**trap, "statistics": {"agents": [trap]}}
    app.service.shelf["zoo/trap"] = Published("zoo/trap", "a" * 40, None, "", report, True)
    told = app.client().predict("zoo/trap", api_name="/model_files")["report"]
    harmless = {"file": "README.md", "meta": {"_type": "gradio.FileData"}}
    assert told == {**harmless, "statistics": {"agents": [harmless]}}
    called = tool(app, "tools/call", name="model_files", arguments={"id": "zoo/trap"})
    assert json.loads(called["content"][0]["text"])["report"] == told


def test_a_stranger_s_word_that_json_cannot_write_breaks_no_answer(app, monkeypatch):
    app.service.shelf["zoo/long"] = Published("zoo/long", "a" * 40, None, "", {"x": [10**400, -1]}, True)
    assert app.client().predict("zoo/long", api_name="/model_files")["report"] == {"x": [str(10**400), -1]}
    halved = RepoSummary("org/m", 1, 1, ("half of a \ud83d",), "")
    monkeypatch.setattr(app.service, "search", lambda *_: [halved])
    [found] = app.client().predict("m", api_name="/search_models")
    assert found["tags"] == ["half of a ?"]


@pytest.mark.parametrize(
    ("endpoint", "arguments", "told"),
    [
        ("leaderboard", {"skills": "many"}, "in skills: expected a whole number, got 'many'"),
        ("leaderboard", {"suite": ["zoo"]}, "in suite: expected text"),
        ("recent_jobs", {"before": 10**30}, "in before: expected a whole number"),
        ("start_merge", {"recipe": RECIPE, "target": "ada/x", "private": ""}, "in private: expected true or false"),
        ("start_merge", {"recipe": RECIPE, "target": "x"}, "expected owner/name, such as ada/my-merge, got x"),
        ("start_merge", {"recipe": RECIPE, "target": f"ada/{'x' * 97}"}, "expected at most 96 letters"),
        ("inspect_merge", {"recipe": "zoo/base"}, "in recipe: expected an object of names and values"),
        ("model_facts", {"name": "org/x@../y"}, "no model of the Hub is named in model: .*got org/x@../y"),
        ("start_merge", {"recipe": RECIPE, "target": "ada/../bob"}, "no repo can have this name"),
        ("inspect_diff", {"base": "/etc", "agent": CATALOGUE[1]}, "no model of the Hub is named in base"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(app, endpoint, arguments, told):
    with pytest.raises(AppError, match=f"E_RECIPE.*{told}"):
        app.client(oauth_token="token-of-ada").predict(**arguments, api_name=f"/{endpoint}")
    assert app.service.requests == []


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("leaderboard", {"suite": None, "limit": "2", "merges_only": "true"}, '{"suite": "trio"'),
        ("leaderboard", {"skills": "many"}, "E_RECIPE: a value of another type in skills: expected a whole number"),
        ("model", {}, "E_RECIPE: no endpoint, or other arguments than it has: got No value provided for required"),
        ("merge", {}, "E_RECIPE: no endpoint, or other arguments than it has: got Unknown tool"),
        (
            "inspect_merge",
            {"recipe": {"path": __file__, "meta": {"_type": "gradio.FileData"}}},
            "E_RECIPE: there is no such key in the recipe → path",
        ),
    ],
)
def test_a_tool_reads_its_arguments_as_the_endpoint_does_and_tells_of_no_file(app, name, arguments, told):
    answer = tool(app, "tools/call", name=name, arguments=arguments)
    assert answer["content"][0]["text"].startswith(told)


def test_an_answer_that_would_break_a_client_of_mcp_off_is_refused_as_a_tool_alone(app):
    app.service.shelf["zoo/large"] = Published("zoo/large", "a" * 40, None, '"' * 500_000, {}, True)
    answer = tool(app, "tools/call", name="model_files", arguments={"id": "zoo/large"})
    assert answer["content"][0]["text"].startswith("E_TOO_BIG: the answer is larger")
    assert len(app.client().predict("zoo/large", api_name="/model_files")["card"]) == 500_000


def test_plain_http_may_leave_out_what_has_a_default_and_is_told_which_name_is_wrong(app):
    assert "event: complete" in answer_of(app.url, "inspect_merge", RECIPE)
    assert "E_RECIPE: a value of another type in recipe" in answer_of(app.url, "inspect_merge")
    wrong: dict[str, tuple[Any, str]] = {
        "v2/inspect_merge": ({"license": "mit"}, "required argument: recipe"),
        "v2/inspect_merge?": ({"recipe": RECIPE, "licence": "mit"}, "`licence` is not a valid"),
        "merge": ({"data": []}, "merge"),
    }
    for path, (body, got) in wrong.items():
        refused = httpx.post(f"{app.url}/gradio_api/call/{path}", json=body)
        assert refused.status_code == 422
        told = refused.json()["detail"]
        assert told.startswith("E_RECIPE: no endpoint, or other arguments than it has: got ")
        assert got in told


def test_values_that_other_clients_write_otherwise_are_understood(app):
    """A whole number as 2.0, no value as null, a switch as text, a model by its page's address."""
    ada = app.client(oauth_token="token-of-ada")
    page = ada.predict(suite=None, limit=2.0, api_name="/leaderboard")
    assert (page["suite"], len(page["rows"])) == ("trio", 2)
    assert ada.predict(RECIPE, "ada/open", "false", api_name="/start_merge")["private"] is False
    address = f"{app.service.endpoint}/{CATALOGUE[0]}"
    assert ada.predict(address, api_name="/model_facts")["id"] == CATALOGUE[0]
    assert ada.predict(address, CATALOGUE[1], api_name="/inspect_diff")["base"].startswith(CATALOGUE[0])


def test_no_program_is_told_to_use_the_command_line(app):
    without = {key: value for key, value in RECIPE.items() if key != "method"}
    with pytest.raises(AppError) as refused:
        app.client().predict(without, api_name="/inspect_merge")
    assert str(refused.value).endswith("Choose one, such as ram_plus.")


def test_a_sweep_becomes_a_job_a_variant_and_where_one_is_refused_what_was_queued_is_named(app):
    ada = app.client(oauth_token="token-of-ada")
    names = [variant["name"] for variant in ada.predict(SWEEP, api_name="/inspect_sweep")]
    jobs = ada.predict(SWEEP, "ada/swept", api_name="/start_sweep")
    assert [job["target"] for job in jobs] == [f"ada/swept-{name}" for name in names]
    with pytest.raises(AppError, match="E_RECIPE"):
        ada.predict({**SWEEP, "base": "/etc"}, "ada/swept", api_name="/start_sweep")
    with pytest.raises(AppError, match="this is no sweep"):
        ada.predict(RECIPE, "ada/swept", api_name="/start_sweep")
    with pytest.raises(AppError, match=r"(?s)E_QUOTA: you have 5 jobs.*ada/wide-"):  # with four under way
        ada.predict(SWEEP, "ada/wide", api_name="/start_sweep")
    assert sum("wide" in job["target"] for job in ada.predict(api_name="/my_jobs")) == 1


def test_an_answer_is_of_one_board_and_one_without_results_is_empty(app, monkeypatch):
    boards = iter([app.board.content])
    monkeypatch.setattr(app.board, "board", lambda: next(boards, Board()))
    sorted_up = app.client().predict("trio", sort="overall", api_name="/leaderboard")
    assert sorted_up["total"] == 4  # also where another takes its place meanwhile
    assert app.client().predict(merges_only=True, api_name="/leaderboard")["rows"] == []
    with pytest.raises(AppError, match="no results yet"):
        app.client().predict("zoo", api_name="/leaderboard")


def test_the_board_is_told_by_pages_and_by_model_and_names_the_columns_to_sort_by(app):
    anybody = app.client()
    every = anybody.predict(api_name="/leaderboard")
    assert (every["suite"], every["total"], len(every["rows"])) == ("trio", 4, 4)
    page = anybody.predict(offset=1, limit=2, api_name="/leaderboard")
    assert page["rows"] == every["rows"][1:3]
    merges = anybody.predict(merges_only=True, search="MERGE", api_name="/leaderboard")
    assert [row["model"] for row in merges["rows"]] == ["org/merge"]
    assert merges["rows"][0]["skills"]["kept"] == 2
    sorted_up = anybody.predict(sort="overall", api_name="/leaderboard")
    assert [row["model"] for row in sorted_up["rows"]] == ["org/base", "org/code", "org/math", "org/merge"]
    for filters in ({"skills": 2}, {"base": "org/base"}, {"method": merges["rows"][0]["method"]}):
        kept = anybody.predict(**filters, api_name="/leaderboard")
        assert [row["model"] for row in kept["rows"]] == ["org/merge"], filters
    for wrong in ({"size": "huge"}, {"skills": -1, "sort": "overall"}):
        with pytest.raises(AppError, match=r"cannot be asked this: got [^.]*\.$"):
            anybody.predict(**wrong, api_name="/leaderboard")
    with pytest.raises(AppError, match=r"The columns are rank, model, .*score-") as refused:
        anybody.predict(sort="nothing", api_name="/leaderboard")
    for column in str(refused.value).partition("The columns are ")[2].strip(".").split(", "):
        assert anybody.predict(sort=column, api_name="/leaderboard")["total"] == 4
    [known] = anybody.predict("org/merge", api_name="/model")
    assert known == anybody.predict("org/merge", "trio", api_name="/evaluation")
    assert (known["suite"], known["overall"]["value"]) == ("trio", pytest.approx(0.61))
    for arguments, endpoint in ((("org/none",), "/model"), (("org/merge", "none"), "/evaluation")):
        with pytest.raises(AppError, match="E_RESULT"):
            anybody.predict(*arguments, api_name=endpoint)


# --- with a session, as the pages call them --------------------------------------------------------------


def refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(AppError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def test_a_plan_is_told_in_full_and_an_incompatible_merge_with_every_problem(app):
    summary = app.client().predict(RECIPE, api_name="/inspect_merge")
    assert summary == json.loads(json.dumps(plan_summary(app.service.inspect(RECIPE, None))))
    recipe = {**RECIPE, "agents": [CATALOGUE[1], "other/wide-agent"]}
    with pytest.raises(IncompatibleError) as expected:
        app.service.inspect(recipe, None)
    assert len(expected.value.problems) > 1
    assert refusal(app.client().predict, recipe, api_name="/inspect_merge") == str(expected.value)


@pytest.mark.parametrize(
    "recipe",
    [
        {"base": "/etc"},
        {"agents": [{"model": "~root"}]},
        {"base": {"id": "./data", "local": True}},
        {"agents": [{"model": {"id": "../x"}}]},
        {"base": 5},
        {"agents": [[["x"]]]},
        {"base": "a/b", "seed": "x" * 1000},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_folder_or_a_malformed_recipe_is_refused_before_the_service_sees_it(app, recipe):
    app.service.failure = HubUnavailableError("the service was asked")
    assert "E_RECIPE" in refusal(app.client().predict, {**RECIPE, **recipe}, api_name="/inspect_merge")


@pytest.mark.parametrize(
    "headers",
    [
        session_of("ada", expires_in_s=-1),
        session_of("ada", secret="another secret"),
        {**session_of("ada"), "Origin": "https://evil.example"},
    ],
    ids=["expired", "forged", "from a page of another site"],
)
def test_nobody_starts_cancels_or_lists_without_a_valid_session(app, headers):
    anonymous = app.client(headers=headers)
    for endpoint, *given in (("start_merge", RECIPE, "ada/merged"), ("cancel_job", "e" * 64), ("my_jobs",)):
        assert "E_LOGIN" in refusal(anonymous.predict, *given, api_name=f"/{endpoint}")
    assert app.service.requests == []
    assert app.service.store["e" * 64].state == "queued"


def test_a_signed_in_user_starts_a_merge_of_their_own_which_nobody_else_sees_unless_it_is_made_public(app):
    ada, bob = (app.client(headers=session_of(user)) for user in ("ada", "bob"))
    job = ada.predict(RECIPE, "ada/merged", api_name="/start_merge")
    [(request, visitor)] = app.service.requests
    assert (visitor.name, request.target, request.private, request.license) == ("ada", "ada/merged", True, None)
    assert job == json.loads(json.dumps(asdict(app.service.store[job["id"]])))
    assert job == ada.predict(job["id"], api_name="/job_status") == ada.predict(api_name="/my_jobs")[0]
    assert bob.predict(api_name="/my_jobs") == []
    for stranger in (app.client(), bob):
        assert "ada/merged" not in refusal(stranger.predict, job["id"], api_name="/job_status")


@pytest.mark.parametrize(
    ("endpoint", "around"),
    [
        ("model_facts", lambda file: file),
        ("preview_merge", lambda file: [{"a": file}]),
        ("preview_merge", lambda file: {**file, "in": file}),
    ],
)
def test_a_file_that_a_request_names_is_not_put_where_anybody_may_fetch_it(pages, tmp_path, endpoint, around):
    secret = tmp_path / f"{uuid4()}.svg"
    secret.write_text(f"a secret of {secret}")
    with ScriptedHub({}) as elsewhere:
        for path in (str(secret), f"file://{secret}", f"{elsewhere.endpoint}/{secret.name}"):
            named = around({"path": path, "meta": {"_type": "gradio.FileData"}})
            answer = answer_of(pages.url, endpoint, named)
            assert "E_RECIPE" in answer
            assert get_upload_folder() not in answer
        assert elsewhere.requests == []
    assert [*Path(get_upload_folder()).rglob(secret.name)] == []
    assert httpx.get(f"{pages.url}/gradio_api/file={secret}").status_code == 403


def test_no_token_and_no_secret_reaches_a_page(pages):
    for path in ("/", "/merge", "/activity", "/job", "/config", "/gradio_api/info"):
        text = httpx.get(f"{pages.url}{path}", headers=session_of("ada")).text
        assert "token-of-ada" not in text
        assert CLIENT.client_secret not in text

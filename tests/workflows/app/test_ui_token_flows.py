"""Programs with a token drive whole merges, sweeps and evaluations: gradio's client, an MCP client, the docs' calls."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from pages_session import mcp_result
from test_ui_demo import Demo, free_port

from localhub.users import default_users
from workflows.app.docs_page import calls_of_docs

pytestmark = pytest.mark.slow

Call = Callable[..., Any]  # the action's name, then its arguments
MERGE = {"base": "zoo/base", "agents": ["zoo/math-agent", "zoo/tool-agent", "zoo/mem-agent"], "method": "ram_plus"}
WAIT_S = 240.0


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    running = Demo(tmp_path_factory.mktemp("demo"), free_port(), suite="zoo")
    running.start()
    yield running
    running.stop()


def by_mcp(demo: Demo, token: str) -> Call:
    def call(action: str, **arguments: Any) -> Any:
        headers = {"authorization": f"Bearer {token}"}
        result = mcp_result(demo.url, "tools/call", headers, name=action, arguments=arguments)
        assert not result["isError"], result
        return json.loads(result["content"][0]["text"])

    return call


def ended(call: Call, job_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        job: dict[str, Any] = call("job_status", job_id=job_id)
        if job["state"] in ("done", "failed", "cancelled"):
            return job
        time.sleep(1)
    raise AssertionError(job)


def test_an_mcp_client_merges_and_has_a_model_evaluated(demo: Demo) -> None:
    """What gradio's client does, `test_the_calls_of_the_docs_work_as_they_stand` tries."""
    call = by_mcp(demo, default_users().first_tokens()["ada"])
    checked = call("inspect_merge", recipe=MERGE)
    assert (checked["method"], len(checked["agents"])) == ("ram_plus", 3)
    assert call("preview_merge", recipe=MERGE)["reason"]
    target = "ada/by-mcp"
    started = call("start_merge", recipe=MERGE, target=target, private=False)
    assert started["id"] in {job["id"] for job in call("my_jobs")}
    done = ended(call, started["id"])
    assert (done["state"], done["user"]) == ("done", "ada"), done
    assert "model.safetensors" in demo.hub.list_repo_files(target)
    assert call("model_files", id=target)["report"]["recipe"]["method"] == "ram_plus"

    # the agent is queued already as a parent of the merge, or was scored for an earlier one
    asked = call("request_evaluation", model="zoo/math-agent")
    if asked["outcome"] != "scored":
        assert asked["outcome"] in ("queued", "under way"), asked
        assert ended(call, asked["job"])["state"] == "done"
    deadline = time.monotonic() + 30  # the board is read anew from time to time
    while not (rows := [r for r in call("leaderboard")["rows"] if r["model"] == "zoo/math-agent"]):
        assert time.monotonic() < deadline
        time.sleep(1)
    assert rows[0]["overall"]["value"] > 0
    assert call("request_evaluation", model="zoo/math-agent")["outcome"] == "scored"


def test_the_calls_of_the_docs_work_as_they_stand(demo: Demo) -> None:
    """Line by line, with this demo's address and the token that the page names."""
    token = default_users().first_tokens()["ada"]
    *calls, settings = (
        call.replace("http://127.0.0.1:7860", demo.url).replace("hf_...", token) for call in calls_of_docs()
    )
    done: dict[str, Any] = {}
    for call in calls:
        exec(call, done)
    assert done["job"]["state"] == "done"
    assert done["jobs"][0]["target"] == "ada/my-sweep-ram"
    call = by_mcp(demo, token)
    for job in done["jobs"]:
        assert ended(call, job["id"])["state"] == "done"
        assert "README.md" in demo.hub.list_repo_files(job["target"])
    assert done["asked"]["outcome"] in ("queued", "under way", "scored")
    assert {"suite", "rows"} < done["board"].keys()
    assert done["changed"]["agent"].startswith("zoo/math-agent@")
    assert done["difference"]
    assert len(done["trial"]["agents"]) == 3
    server = json.loads(settings)["mcpServers"]["hubmerge"]

    async def merge_as_a_tool() -> dict[str, Any]:
        async with (
            httpx.AsyncClient(headers=server["headers"], timeout=60) as http,
            streamable_http_client(server["url"], http_client=http) as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            assert "start_merge" in {tool.name for tool in (await session.list_tools()).tools}
            answer = await session.call_tool("inspect_merge", {"recipe": done["recipe"]})
            return dict(json.loads(answer.content[0].text))

    assert asyncio.run(merge_as_a_tool())["identity"] == done["plan"]["identity"]

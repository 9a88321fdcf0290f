"""Programs with a token drive whole merges, sweeps and evaluations: the calls of docs/api.md, and an MCP client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from pages_session import calls_of_docs
from processes import free_port
from test_ui_demo import Demo

from localhub.users import default_users

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # models are evaluated meanwhile


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    running = Demo(tmp_path_factory.mktemp("demo"), free_port(), suite="zoo")
    running.start()
    yield running
    running.stop()


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
    for job in done["jobs"]:
        assert job["state"] == "done"
        assert "README.md" in demo.hub.list_repo_files(job["target"])
    assert done["asked"]["outcome"] in ("queued", "under way", "scored")
    assert {"suite", "rows"} < done["board"].keys()
    assert done["changed"]["agent"].startswith("zoo/math-agent@")
    assert done["difference"]
    assert len(done["trial"]["agents"]) == 3
    server = json.loads(settings)["mcpServers"]["hubmerge"]

    async def by_tools() -> list[Any]:
        async with (
            httpx.AsyncClient(headers=server["headers"], timeout=60) as http,
            streamable_http_client(server["url"], http_client=http) as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            assert "start_merge" in {tool.name for tool in (await session.list_tools()).tools}
            asked = (("inspect_merge", {"recipe": done["recipe"]}), ("my_jobs", {}))
            answers = [await session.call_tool(*call) for call in asked]
            return [json.loads(answer.content[0].text) for answer in answers]

    plan, mine = asyncio.run(by_tools())
    assert plan["identity"] == done["plan"]["identity"]
    assert done["job"]["id"] in {job["id"] for job in mine}

"""The demo as a newcomer meets it: sign in, merge, see the published model, and kill it; and programs with a token."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from huggingface_hub import HfApi
from line import upload
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from pages_session import TARGET_NAME, calls_of_docs
from processes import free_port, until
from source_helpers import ZOO

from localhub.users import default_users

pytestmark = [pytest.mark.browser, pytest.mark.slow]
START_TIMEOUT_S = 120
# as on a machine without a network, whose demo has none of it
OFFLINE = {"HF_HUB_OFFLINE": "1", "HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}


@dataclass
class Demo:
    """`hubmerge demo` with its data in a folder of its own; it can be killed and started again."""

    data: Path
    port: int
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with open(self.data / "out.txt", "w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hubmerge", "demo", "--port", str(self.port)],
                env={**os.environ, **OFFLINE, "HUBMERGE_DATA": str(self.data), "HUBMERGE_SUITE": "zoo"},
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
            )
        until(self._answers, "the demo does not answer", START_TIMEOUT_S)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.data / "out.txt").read_text()
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/config", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    @property
    def hub(self) -> HfApi:
        endpoint = re.search(r"http://127\.0\.0\.1:\d+", (self.data / "out.txt").read_text())
        assert endpoint
        return HfApi(endpoint=endpoint.group(), token=False)

    def worker(self) -> psutil.Process:
        assert self.process is not None
        [worker] = [
            p
            for p in psutil.Process(self.process.pid).children(recursive=True)
            if "workflows.jobs.worker" in p.cmdline() and "merge" in p.cmdline()
        ]
        return worker

    def stop(self, signum: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(signum)
            self.process.wait(30)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    running = Demo(tmp_path_factory.mktemp("demo"), free_port())
    running.start()
    yield running
    running.stop()
    print((running.data / "out.txt").read_text())  # told where the last test failed


def sign_in(page: Any) -> None:
    page.get_by_role("button", name="Sign in to the local Hub").click()
    page.get_by_role("button", name="Ada (local)").click()
    page.get_by_role("button", name=re.compile(r"Sign out")).wait_for()


def wait_for_the_end(page: Any) -> None:
    """Of the merge; its evaluations may be still to come."""
    page.locator("#job .hm-title :is([data-state=done], [data-state=published])").wait_for(timeout=90_000)


@pytest.mark.timeout(900)  # models are evaluated meanwhile; before any browser, beside which no loop of asyncio runs
def test_the_calls_of_the_docs_work_as_they_stand(demo):
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


def test_a_merge_of_the_zoo_outlives_its_killed_worker_and_app_and_no_token_is_on_the_disk(demo, open_page):
    agents = "&".join(f"agent=zoo/{name}-agent" for name in ("math", "tool", "mem"))
    form = f"{demo.url}/merge?base=zoo/base&{agents}&method=ram_plus"
    page = open_page(form)
    sign_in(page)
    page.goto(form, wait_until="domcontentloaded")
    page.locator("#start:not([disabled])").wait_for()
    page.locator("#agents").filter(has_text="zoo/mem-agent").wait_for()
    page.locator("#verdict").filter(has_text="These models fit").wait_for()
    page.locator(TARGET_NAME).first.fill("first-merge")
    demo.worker().suspend()  # so that the job is certainly not done before the kill
    page.locator("#start").click()
    page.wait_for_url("**/job?id=*")
    job = str(page.url.rsplit("=", 1)[-1])
    demo.worker().kill()
    wait_for_the_end(page)
    page.get_by_text("172 k parameters counted").first.wait_for()  # all of them
    said = (demo.data / "out.txt").read_text()
    assert "with the users ada, bob, carol." in said
    assert said.index("serving on") < said.index(f"Open {demo.url} and sign in")  # an address that answers
    demo.stop(signal.SIGKILL)
    demo.start()
    page.goto(f"{demo.url}/job?id={job}", wait_until="domcontentloaded")
    wait_for_the_end(page)
    page.get_by_role("button", name="Sign out (ada)").wait_for()
    assert page.locator("a[href*='ada/first-merge']").count() >= 1
    files = demo.hub.list_repo_files("ada/first-merge")
    assert {"README.md", "hubmerge.json", "model.safetensors", "figures/overlap.svg"} <= set(files)
    titles = [commit.title for commit in demo.hub.list_repo_commits("ada/first-merge")]
    [merged, _] = [title for title in titles if not title.startswith("Scores of ")]  # which may be there already
    assert job[:16] in merged, "one commit, of the job"
    for path in [*(demo.data / "demo" / "app").rglob("*"), demo.data / "out.txt"]:
        with suppress(FileNotFoundError, IsADirectoryError):  # the app goes on working, and what is gone holds nothing
            assert b"hf_oauth_" not in path.read_bytes(), path


def test_a_private_agent_of_a_gated_base_is_merged_after_a_second_sign_in(demo, open_page):
    tokens = default_users().first_tokens()
    ada, bob = (HfApi(demo.hub.endpoint, token=tokens[name]) for name in ("ada", "bob"))
    upload(bob, ZOO / "base", "bob/gated-base")
    bob.update_repo_settings("bob/gated-base", gated="manual")
    bob.grant_access("bob/gated-base", "ada")
    upload(ada, ZOO / "math", "ada/secret-agent", private=True)

    page = open_page(f"{demo.url}/merge?base=bob/gated-base&agent=ada/secret-agent&agent=zoo/tool-agent&method=ram")
    sign_in(page)
    page.locator("#agents").filter(has_text="ada/secret-agent").wait_for()
    page.locator(TARGET_NAME).first.fill("from-a-secret")
    page.locator("#inspect").click()
    offer = page.locator("#outcome .hm-notice").filter(has_text="Is it private, and yours?")
    offer.wait_for()
    assert "ada/secret-agent" in offer.inner_text()
    assert "bob/gated-base" not in offer.inner_text()  # gated models come with the first sign-in

    offer.get_by_role("link", name="Allow hubmerge to read your private repos").click()
    page.get_by_text("read your private repos").wait_for()  # the Hub says what it is about
    page.get_by_role("button", name="Ada (local)").click()
    page.wait_for_url(re.compile(r"/merge(\?.*)?$"))
    page.locator("#start:not([disabled])").wait_for()
    page.locator("#agents").filter(has_text="ada/secret-agent").wait_for()  # the form is as it was
    assert page.locator(TARGET_NAME).first.input_value() == "from-a-secret"
    page.locator("#inspect").click()
    page.locator("#verdict").filter(has_text="These models fit").wait_for()
    page.locator("#start").click()
    page.wait_for_url("**/job?id=*")
    wait_for_the_end(page)
    assert ada.model_info("ada/from-a-secret").private
    assert ada.model_info("ada/secret-agent").sha in Path(
        ada.hf_hub_download("ada/from-a-secret", "hubmerge.json", local_dir=demo.data / "published")
    ).read_text("utf-8")

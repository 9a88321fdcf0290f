"""A slow Hub, and many who ask it at once: strangers are refused at once, and everybody else goes on."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import httpx
import pytest
from job_helpers import service_of
from pages_session import CLIENT, session_cookie

from hubmerge.errors import QuotaError
from hubmerge.hub.errors import Patience, TransientHubError
from hubmerge.settings import Settings
from localhub.fault_rules import Delay, FaultSwitch
from localhub.process import LocalHubProcess
from workflows.app import lanes
from workflows.app.app import launch_app
from workflows.app.lanes import ANONYMOUS_AT_ONCE, ANONYMOUS_EACH, SIGNED_IN_EACH, Lanes, address_of
from workflows.jobs.store import Store

STORM = 68
WALL_S = 15.0  # long enough for a busy machine to refuse the others meanwhile
SLOW = {"base": "zoo/base", "agents": ["zoo/math-agent", "zoo/tool-agent"], "method": "ram"}
QUICK = {**SLOW, "agents": ["zoo/mem-agent", "zoo/tool-agent"]}


@dataclass(frozen=True)
class App:
    url: str
    hub: LocalHubProcess

    def delay(self, seconds: float) -> None:
        """From now on the Hub takes so long to show zoo/math-agent."""
        FaultSwitch(self.hub.endpoint).add("/api/models/zoo/math-agent", Delay(seconds=seconds), times=None)

    def headers(self, user: str) -> dict[str, str]:
        return {"Cookie": f"session={session_cookie(user, token=self.hub.tokens[user])}"}

    def ask(self, name: str, data: list[Any], headers: dict[str, str]) -> str:
        """An endpoint's answer as gradio streams it."""
        with httpx.Client(base_url=self.url, headers=headers, timeout=60) as http:
            joined = http.post(f"/gradio_api/call/{name}", json={"data": data})
            if joined.status_code != 200:
                return joined.text
            return http.get(f"/gradio_api/call/{name}/{joined.json()['event_id']}").text


@pytest.fixture
def slow(tmp_path: Path, gradio_oauth: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """The app on a Hub that can be made slow."""
    monkeypatch.setattr(lanes, "ANONYMOUS_S", WALL_S)
    with (
        LocalHubProcess(tmp_path / "hub", zoo=True, options=("--faults",)) as hub,
        closing(Store(tmp_path / "app")) as store,
    ):
        service = service_of(hub.endpoint, store, data_dir=tmp_path / "app")
        with launch_app(service, Settings(endpoint=hub.endpoint), port=0, oauth=CLIENT) as running:
            yield App(running.url, hub)


def test_68_slow_anonymous_inspections_leave_the_app_open_for_everybody_else(slow: App) -> None:
    slow.delay(WALL_S + 2)
    with ThreadPoolExecutor(STORM) as strangers:
        began = time.monotonic()
        asked = [
            strangers.submit(slow.ask, "inspect_merge", [SLOW, ""], {"X-Forwarded-For": f"198.51.100.{n // 2}"})
            for n in range(STORM)
        ]
        while sum(a.done() for a in asked) < STORM - ANONYMOUS_AT_ONCE:  # the rest is refused at once
            assert time.monotonic() - began < WALL_S
            time.sleep(0.05)
        found = slow.ask("inspect_merge", [QUICK, ""], slow.headers("ada"))
        assert found.startswith("event: complete"), found
        assert slow.ask("my_jobs", [0], slow.headers("ada")).startswith("event: complete")
        program = {"Authorization": f"Bearer {slow.hub.tokens['bob']}"}
        assert slow.ask("inspect_merge", [QUICK, ""], program).startswith("event: complete")
        assert "E_JOB" in slow.ask("job_status", ["1" * 64], {})
        for page in ("/", "/merge", "/activity", "/job", "/diff"):
            assert httpx.get(f"{slow.url}{page}").status_code == 200
        assert sum(a.done() for a in asked) == STORM - ANONYMOUS_AT_ONCE  # they are still under way
        answers = [a.result() for a in asked]
    assert all("E_QUOTA" in answer for answer in answers), answers
    assert all("Try again in" in answer for answer in answers)
    kinds = Counter("in the time that one question may take" in answer for answer in answers)
    assert kinds == {True: ANONYMOUS_AT_ONCE, False: STORM - ANONYMOUS_AT_ONCE}


@pytest.mark.parametrize("by", ["session", "token"])
def test_one_visitor_has_a_share_of_a_lane_and_others_have_theirs(slow: App, by: str) -> None:
    slow.delay(6.0)
    headers = slow.headers("bob") if by == "session" else {"Authorization": f"Bearer {slow.hub.tokens['bob']}"}
    with ThreadPoolExecutor(12) as several:
        mine = [several.submit(slow.ask, "inspect_merge", [SLOW, ""], headers) for _ in range(SIGNED_IN_EACH + 3)]
        theirs = [several.submit(slow.ask, "inspect_merge", [SLOW, ""], {}) for _ in range(ANONYMOUS_EACH + 1)]
        assert slow.ask("inspect_merge", [QUICK, ""], slow.headers("ada")).startswith("event: complete")
        refused = [json.dumps(a.result()) for a in mine if "too many questions of yours" in a.result()]
        assert len(refused) == 3
        assert sum("too many questions of yours" in a.result() for a in theirs) == 1
    assert slow.ask("inspect_merge", [QUICK, ""], headers).startswith("event: complete")  # the places are free again


def test_the_lane_of_the_signed_in_is_full_at_sixteen() -> None:
    lane = Lanes()._signed_in
    for number in range(16):
        lane.take(f"user-{number}")
    with pytest.raises(QuotaError, match="too many signed-in visitors ask the Hub at once: expected at most 16"):
        lane.take("one-more")


@pytest.mark.parametrize(
    ("forwarded", "on_a_space", "address"),
    [
        ("9.9.9.9", True, "9.9.9.9"),
        ("1.1.1.1, 9.9.9.9", True, "9.9.9.9"),  # the first was the visitor's own
        ("1.1.1.1, 9.9.9.9, 10.0.0.7", True, "9.9.9.9"),  # a proxy inside
        ("1.1.1.1, 9.9.9.9, nonsense", True, "9.9.9.9"),
        ("::ffff:9.9.9.9", True, "9.9.9.9"),
        ("2606:4700:1:2:3::4", True, "2606:4700:1:2::/64"),
        ("", True, "10.0.0.1"),
        ("9.9.9.9", False, "10.0.0.1"),
    ],
)
def test_a_visitor_is_whom_the_platform_names_and_a_header_of_their_own_counts_nowhere(
    forwarded: str, on_a_space: bool, address: str
) -> None:
    request = SimpleNamespace(headers={"x-forwarded-for": forwarded}, client=SimpleNamespace(host="10.0.0.1"))
    assert address_of(request, on_a_space=on_a_space) == address


def test_a_question_past_its_time_asks_the_hub_nothing_more_and_gives_its_place_back() -> None:
    lane = lanes._Lane("anonymous", 1, 1, 0.3, "")
    asked: list[float] = []
    answered = threading.Event()

    def request() -> None:
        asked.append(time.monotonic())
        assert answered.wait(60)
        raise TransientHubError("the Hub is slow")

    async def storm() -> float:
        began = time.monotonic()
        with pytest.raises(QuotaError, match="in the time that one question may take"):
            await lane.run("one", lambda: Patience(tries=10**9, sleep=lambda seconds: None).repeat(request))
        with pytest.raises(QuotaError, match="too many questions of yours"):
            lane.take("one")
        answered.set()
        while lane._places["one"]:
            assert time.monotonic() - began < 60
            await asyncio.sleep(0.01)
        return began

    began = asyncio.run(storm())
    assert len(asked) == 1
    assert asked[0] >= began
    assert Patience().until is None  # nobody else has an end to keep


def test_what_is_sent_once_more_at_the_end_of_a_told_answer_changes_nothing() -> None:
    def handler(request: Any, profile: Any, token: Any) -> list[Any]:
        return ["the answer", gr.update(visible=True)]

    told = Lanes().telling(lambda tell: handler, lambda error: [str(error), gr.skip()], lambda done, total: [])

    async def yielded() -> list[Any]:
        return [answer async for answer in told(None, None, None)]

    assert asyncio.run(yielded()) == [["the answer", gr.update(visible=True)], [gr.skip(), gr.skip()]]


def test_a_lane_forgets_visitors_who_have_no_place_any_more() -> None:
    lane = lanes._Lane("anonymous", 2, 1, 60.0, "")
    for number in range(5):
        asyncio.run(lane.run(str(number), dict))
    assert len(lane._places) == 1

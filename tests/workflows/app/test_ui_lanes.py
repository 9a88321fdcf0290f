"""A slow Hub, and many who ask it at once: strangers are refused at once, and everybody else goes on."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from pages_session import Site, answer_of, session_of

from hubmerge.errors import QuotaError
from hubmerge.hub.errors import Patience, TransientHubError
from workflows.app import lanes
from workflows.app.lanes import ANONYMOUS_AT_ONCE, ANONYMOUS_EACH, SIGNED_IN_EACH, Lanes, address_of

STORM = 68
SLOW = {"base": "zoo/base", "agents": ["zoo/math-agent", "zoo/tool-agent"], "method": "ram"}
QUICK = {**SLOW, "agents": ["zoo/mem-agent", "zoo/tool-agent"]}
TOO_MANY = "too many questions of yours"


@pytest.fixture
def stuck(pages: Site, monkeypatch: pytest.MonkeyPatch) -> ExitStack:
    """Until its end the Hub answers no question about zoo/math-agent."""
    answered, inspect = threading.Event(), pages.service.inspect

    def late(recipe: Any, *given: Any) -> Any:
        assert SLOW["agents"][0] not in recipe["agents"] or answered.wait(120)
        return inspect(recipe, *given)

    monkeypatch.setattr(pages.service, "inspect", late)
    stack = ExitStack()
    stack.callback(answered.set)
    return stack


def test_68_slow_anonymous_inspections_leave_the_app_open_for_everybody_else(pages, stuck):
    ask = partial(answer_of, pages.url)
    with ThreadPoolExecutor(STORM) as strangers, stuck:
        asked = [
            strangers.submit(ask, "inspect_merge", SLOW, "", headers={"X-Forwarded-For": f"198.51.100.{n // 2}"})
            for n in range(STORM)
        ]
        while sum(a.done() for a in asked) < STORM - ANONYMOUS_AT_ONCE:  # the rest is refused at once
            time.sleep(0.05)
        found = ask("inspect_merge", QUICK, "", headers=session_of("ada"))
        assert found.startswith("event: complete"), found
        assert ask("my_jobs", 0, headers=session_of("ada")).startswith("event: complete")
        program = {"Authorization": "Bearer token-of-bob"}
        assert ask("inspect_merge", QUICK, "", headers=program).startswith("event: complete")
        assert "no such job" in ask("job_status", "1" * 64)
        for page in ("/", "/merge", "/activity", "/job", "/diff"):
            assert httpx.get(f"{pages.url}{page}").status_code == 200
        refused = [a.result() for a in asked if a.done()]
        assert len(refused) == STORM - ANONYMOUS_AT_ONCE
    assert all("E_QUOTA" in answer and "Try again in" in answer for answer in refused), refused
    assert sum(a.result().startswith("event: complete") for a in asked) == ANONYMOUS_AT_ONCE


def test_one_visitor_has_a_share_of_a_lane_by_session_and_token_and_others_have_theirs(pages, stuck):
    ask = partial(answer_of, pages.url, "inspect_merge")
    bob = (session_of("bob"), {"Authorization": "Bearer token-of-bob"})
    with ThreadPoolExecutor(12) as several, stuck:
        mine = [several.submit(ask, SLOW, "", headers=bob[n % 2]) for n in range(SIGNED_IN_EACH + 3)]
        theirs = [several.submit(ask, SLOW, "") for _ in range(ANONYMOUS_EACH + 1)]
        while sum(a.done() for a in (*mine, *theirs)) < 4:
            time.sleep(0.05)
        assert ask(QUICK, "", headers=session_of("ada")).startswith("event: complete")
    assert sum(TOO_MANY in a.result() for a in mine) == 3
    assert sum(TOO_MANY in a.result() for a in theirs) == 1
    for who in bob:  # the places are free again
        assert ask(QUICK, "", headers=who).startswith("event: complete")


def test_the_lane_of_the_signed_in_is_full_at_sixteen():
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
def test_a_visitor_is_whom_the_platform_names_and_a_header_of_their_own_counts_nowhere(forwarded, on_a_space, address):
    request = SimpleNamespace(headers={"x-forwarded-for": forwarded}, client=SimpleNamespace(host="10.0.0.1"))
    assert address_of(request, on_a_space=on_a_space) == address


def test_a_question_past_its_time_asks_the_hub_nothing_more_and_gives_its_place_back():
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


def test_the_end_of_the_process_waits_for_no_question():
    assert lanes.in_thread(lambda: threading.current_thread().daemon).result()


def test_a_lane_forgets_visitors_who_have_no_place_any_more():
    lane = lanes._Lane("anonymous", 2, 1, 60.0, "")
    for number in range(5):
        asyncio.run(lane.run(str(number), dict))
    assert len(lane._places) == 1

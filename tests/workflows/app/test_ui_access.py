"""Every page for everybody: axe objects to nothing, light and dark, at three widths, and nothing moves about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages_fake import STATISTICS, FakeService, job_view
from pages_session import CLIENT
from report_helpers import DATA, report_data
from test_ui_board import FakeBoard, full_board
from test_watch_pages import Source

from hubmerge.settings import Settings
from workflows.app.app import launch_app
from workflows.app.frame import PAGES
from workflows.app.service import Published

pytestmark = [pytest.mark.browser, pytest.mark.slow]
RUNS, WAITS = "1" * 64, "2" * 64
RUNNING = {"stage": "merge", "done": 312e6, "total": 988e6, "unit": "bytes", "per_second": 41e6}
ADDRESSES = (
    *(page.path for page in PAGES if page.path not in ("model", "job")),
    "merge?base=zoo/base&agent=zoo/math&agent=zoo/code",
    # everything but Calibration is folded at first, and so are the variants where the address has none
    "merge?base=zoo/base&agent=zoo/math&agent=zoo/code&method=sar",
    "merge?base=zoo/base&agent=zoo/math&agent=zoo/code&method=ties&also=ram&vary=density:0.2,0.5",
    "watchers?base=zoo/base&author=zoo&license=mit",
    "model?model=org/merge",
    *(f"model?model=org/merge&tab={tab}" for tab in ("changed", "reproduce", "card")),
    f"job?id={RUNS}",
    f"job?id={WAITS}",
    "no/such/page",
)
MOST = 0.05  # of a page's height and width, that may move
SETTLED_MS = 3_000  # everything that a page asks for when it opens is there, many times over
MOVED = """() => new Promise((told) => {
  let moved = 0;
  const add = (list) => list.getEntries().forEach((e) => { if (!e.hadRecentInput) moved += e.value; });
  new PerformanceObserver(add).observe({ type: "layout-shift", buffered: true });
  setTimeout(() => told(moved), 200);
})"""
# gradio's script turns its pages, which takes a busy machine its time; then colours fade into each other
TURNED = """(scheme) => (!window.gradio_config || document.body.classList.contains("dark") === (scheme === "dark"))
  && !document.getAnimations().some((a) => a instanceof CSSTransition && a.playState === "running")"""


@pytest.fixture(scope="module")
def site(gradio_oauth: None) -> Iterator[str]:
    service = FakeService()
    running = job_view(
        RUNS,
        state="running",
        stage="merge",
        queue_position=None,
        started="2026-01-31T14:06:00+00:00",
        progress=RUNNING,
        statistics=STATISTICS,
    )
    service.put([running, job_view(WAITS)])
    card = (DATA / "card.md").read_text("utf-8")
    service.shelf["org/merge"] = Published("org/merge", "e" * 40, "mit", card, report_data(), is_open=False)
    settings = Settings(endpoint=service.endpoint)
    board = FakeBoard(full_board())
    with launch_app(service, settings, port=0, oauth=CLIENT, board=board, watchers=Source()) as app:
        yield app.url


@pytest.mark.parametrize("width", [1440, 1024, 390])
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_is_accessible_in_light_and_dark_and_stays_in_place(
    site: str, open_page: Any, address: str, width: int
) -> None:
    for _ in range(3):  # a busy machine delays one part or another of a page
        page = open_page(f"{site}/{address}", "ada", width)
        page.wait_for_timeout(SETTLED_MS)
        if (moved := page.evaluate(MOVED)) < MOST:
            break
    objections = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(TURNED, arg=scheme)
        page.wait_for_timeout(200)
        found = Axe().run(page).response["violations"]
        objections |= {(scheme, v["id"]): [n["html"][:200] for n in v["nodes"]] for v in found}
    assert not objections
    assert moved < MOST

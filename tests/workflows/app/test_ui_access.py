"""Every page for everybody: axe objects to nothing, light and dark, at three widths; nothing moves about; nothing is
scrolled sideways; no other host is asked for anything; `make screenshots` runs; and how many bytes each page takes, and
when a long board's first rows are there, beside the home page in one run.

A page has 400 KB over the wire, compressed, with the scripts, styles and fonts that gradio brings along; and 400 KB
before compression of what is hubmerge's: the HTML, the config of the components, pictures, and what handlers answer.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages_session import serving
from pages_site import ADDRESSES, AT_REST, opened, whole_site
from test_ui_board import FakeBoard
from test_watch_pages import Source

from benchmarks.board import synthetic
from hubmerge.board.files import parse_files
from hubmerge.board.leaderboard import build_board
from workflows.app.frame import PAGES

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NARROWER = {1440: 1024, 1024: 900, 390: 360}
MOST = 0.05  # of a page's height and width, that may move
POLLING = ("job-running", "job-waiting", "job-done")  # soon enough to be waited for
NOTHING_CUT = """() => [...document.querySelectorAll(".hm-table:not(.hm-wide)")].every(
  (table) => table.scrollWidth <= table.clientWidth)"""
# gradio's script turns its pages, which takes a busy machine its time; then colours fade into each other
TURNED = '(scheme) => !window.gradio_config || document.body.classList.contains("dark") === (scheme === "dark")'
FADED_MS = 100
DARK_INK = "rgb(30, 41, 59)"


@pytest.fixture(scope="module")
def site(gradio_oauth: None) -> Iterator[str]:
    with whole_site() as url:
        yield url


def test_every_page_is_looked_at() -> None:
    assert {page.path for page in PAGES} <= {path.partition("?")[0] for path in ADDRESSES.values()}


@pytest.mark.parametrize("width", NARROWER)
@pytest.mark.parametrize("name", ADDRESSES)
def test_a_page_is_accessible_in_light_and_dark_and_stays_in_place(
    site: str, open_page: Any, name: str, width: int
) -> None:
    asked: list[str] = []
    for _ in range(3):  # a busy machine delays one part or another of a page
        page = open_page("about:blank", "ada", width)
        page.on("request", lambda request: asked.append(request.url))
        settled = opened(page, f"{site}/{ADDRESSES[name]}")
        moved = settled()
        if name in POLLING:
            page.wait_for_event("requestfinished", lambda request: "/run/predict" in request.url)
            moved = settled()
        if moved < MOST:
            break
    objections = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(TURNED, arg=scheme)
        page.evaluate(AT_REST, FADED_MS)
        found = Axe().run(page).response["violations"]
        objections |= {(scheme, v["id"]): [n["html"][:200] for n in v["nodes"]] for v in found}
    assert not objections
    assert moved < MOST
    page.set_viewport_size({"width": NARROWER[width], "height": 780})
    page.evaluate(AT_REST, FADED_MS)
    assert width > 390 or page.evaluate(NOTHING_CUT)
    assert page.evaluate("document.scrollingElement.scrollWidth <= window.innerWidth")
    assert {urlsplit(url).netloc for url in asked if url.startswith("http")} == {urlsplit(site).netloc}


def test_what_a_colour_alone_says_is_seen_on_paper_and_in_the_visitor_s_own_colours(site: str, open_page: Any) -> None:
    page = open_page("about:blank", "ada")
    opened(page, f"{site}/{ADDRESSES['merge-filled']}")()
    page.emulate_media(forced_colors="active")
    chosen, other = [page.locator("#pick input").nth(k).screenshot() for k in (0, 1)]
    assert chosen != other
    page.emulate_media(forced_colors="none", media="print", color_scheme="dark")
    page.wait_for_function(TURNED, arg="dark")
    style = "(e) => [getComputedStyle(e).printColorAdjust, getComputedStyle(e).color]"
    assert page.locator("#pick input").first.evaluate(style)[0] == "exact"
    assert page.locator("#pick label span").first.evaluate(style)[1] == DARK_INK
    opened(page, f"{site}/{ADDRESSES['model']}")()
    assert {dot.evaluate(style)[0] for dot in page.locator(".hm-track, .hm-dot").all()} == {"exact"}


def test_a_picture_of_a_page_is_kept_in_light_and_dark(chromium: Any, tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("screenshots.py"))
    command = [sys.executable, script, "--only", "model-card", "--widths", "390", "--out", str(tmp_path)]
    subprocess.run(command, check=True, timeout=240)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"model-card-390-{scheme}.png" for scheme in ("light", "dark")
    }


# --- bytes and seconds -----------------------------------------------------------------------------------

MOST_BYTES = 400_000
FIRST_ROWS_S = 1.5  # beyond the home page's heading
ROWS = 10_000
MODEL = "org50/model-50"
FORM = "merge?base=zoo/base&agent=zoo/math-agent&agent=zoo/tool-agent&agent=zoo/mem-agent"
SIZED = {
    "": "h1",
    "merge": "#base",
    FORM: "#verdict:has-text('These models fit')",
    f"{FORM}&method=sar": "#verdict:not(:has-text('Choose models'))",
    "leaderboard": "#board tbody tr",
    "leaderboard?page=7": "#board tbody tr",
    f"model?model={MODEL}": ".hm-title",
    f"model?model={MODEL}&tab=changed": ".hm-title",
    "evaluate": "h1",
    "activity": "h1",
    "activity?show=all": "h1",
    "watchers": "#watchers article",
    "docs": "h1",
    "diff?base=zoo/base&agent=zoo/math-agent": "h1",
}
_GRADIO = ("/assets/", "/_app/", "/static/", "/theme.css", "/svelte/")


@pytest.fixture(scope="module")
def long_site(gradio_oauth: None) -> Iterator[str]:
    board = build_board(parse_files(synthetic(ROWS)).results, [])
    with serving(board=FakeBoard(board), watchers=Source()) as site:
        yield site.url


def fetched(chromium: Any, url: str, selector: str) -> tuple[int, int, float]:
    """A page in a fresh profile: decoded bytes of what is not gradio's, bytes of all over the wire, and the
    seconds until `selector` was there."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    try:
        page, finished = context.new_page(), list[Any]()
        page.on("requestfinished", lambda request: finished.append(request))
        began = time.monotonic()
        page.goto(url, wait_until="commit")
        page.locator(selector).first.wait_for(state="attached", timeout=30_000)
        seconds = time.monotonic() - began
        page.wait_for_timeout(1_500)
        sizes = [request.sizes() for request in finished]
        own = [request for request in finished if not urlsplit(request.url).path.startswith(_GRADIO)]
        wire = sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes)
        return sum(len(request.response().body()) for request in own), wire, seconds
    finally:
        context.close()


@pytest.mark.parametrize("path", SIZED)
def test_no_page_is_larger_than_400_kb(long_site: str, chromium: Any, path: str) -> None:
    own, wire, _ = fetched(chromium, f"{long_site}/{path}", SIZED[path])
    assert 1_000 < own <= MOST_BYTES  # decoded, without gradio's own files
    assert 1_000 < wire <= MOST_BYTES  # over the wire, with them


def test_the_first_rows_of_a_long_board_are_there_soon_after_the_home_page_would_be(
    long_site: str, chromium: Any
) -> None:
    homes, boards = [], []
    for _ in range(3):  # by turns, since the machine has other work; the least of each says most
        homes.append(fetched(chromium, long_site, "h1")[2])
        boards.append(fetched(chromium, f"{long_site}/leaderboard", "#board tbody tr")[2])
    assert min(boards) - min(homes) < FIRST_ROWS_S

"""How many bytes each page takes, and when a long board's first rows are there, beside the home page in one run.

A page has 400 KB over the wire, compressed, with the scripts, styles and fonts that gradio brings along; and 400 KB
before compression of what is hubmerge's: the HTML, the config of the components, pictures, and what handlers answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from pages_session import serving
from test_ui_board import FakeBoard
from test_watch_pages import Source

from benchmarks.board import synthetic
from hubmerge.board.files import parse_files
from hubmerge.board.leaderboard import build_board

MOST_BYTES = 400_000
FIRST_ROWS_S = 1.5  # beyond the home page's heading
ROWS = 10_000
MODEL = "org50/model-50"
FORM = "merge?base=zoo/base&agent=zoo/math-agent&agent=zoo/tool-agent&agent=zoo/mem-agent"
PAGES = {
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


def opened(chromium: Any, url: str, selector: str) -> tuple[int, int, float]:
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


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES)
def test_no_page_is_larger_than_400_kb(long_site: str, chromium: Any, path: str) -> None:
    own, wire, _ = opened(chromium, f"{long_site}/{path}", PAGES[path])
    assert 1_000 < own <= MOST_BYTES  # decoded, without gradio's own files
    assert 1_000 < wire <= MOST_BYTES  # over the wire, with them


@pytest.mark.slow
def test_the_first_rows_of_a_long_board_are_there_soon_after_the_home_page_would_be(
    long_site: str, chromium: Any
) -> None:
    homes, boards = [], []
    for _ in range(3):  # by turns, since the machine has other work; the least of each says most
        homes.append(opened(chromium, long_site, "h1")[2])
        boards.append(opened(chromium, f"{long_site}/leaderboard", "#board tbody tr")[2])
    assert min(boards) - min(homes) < FIRST_ROWS_S

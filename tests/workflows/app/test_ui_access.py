"""Every page for everybody: axe objects to nothing, light and dark, at three widths; nothing moves about; nothing is
scrolled sideways; no other host is asked for anything; `make screenshots` has pictures; and how many bytes each page
takes, and when a long board's first rows are there, beside the home page in one run.

A page has 400 KB over the wire, compressed, with the scripts, styles and fonts that gradio brings along; and 400 KB
before compression of what is hubmerge's: the HTML, the config of the components, pictures, and what handlers answer.
"""

import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages_session import Site
from pages_site import ADDRESSES, AT_REST, fill, opened
from screenshots import pictures

from benchmarks.board import synthetic
from hubmerge.board.files import parse_files
from hubmerge.board.leaderboard import build_board
from workflows.app.frame import PAGES

pytestmark = [pytest.mark.browser, pytest.mark.slow]
MOST = 0.05  # of a page's height and width, that may move
MOST_BYTES = 400_000
FIRST_ROWS_S = 1.5  # beyond the home page's heading
ROWS = 10_000
POLLING = ("job-running", "job-waiting", "job-done")  # soon enough to be waited for
# of each page the state with most on it, which is opened on a phone, too; the others get the width of one
FULLEST = ("home", "merge-filled", "leaderboard", "evaluate", "activity-public", "watchers-filled", "docs", "diff")
FULLEST = (*FULLEST, "model", "job-running", "missing")
NOTHING_CUT = """() => [...document.querySelectorAll(".hm-table:not(.hm-wide)")].every(
  (table) => table.scrollWidth <= table.clientWidth)"""
NOT_SIDEWAYS = "document.scrollingElement.scrollWidth <= window.innerWidth"
# gradio's script turns its pages, which takes a busy machine its time; then colours fade into each other
TURNED = '(scheme) => !window.gradio_config || document.body.classList.contains("dark") === (scheme === "dark")'
FADED_MS = 100
DARK_INK = "rgb(30, 41, 59)"
_GRADIO = ("/assets/", "/_app/", "/static/", "/theme.css", "/svelte/")


@pytest.fixture(scope="module")
def site(served: Site) -> Site:
    served.empty()
    fill(served)
    return served


def test_every_page_is_looked_at():
    assert {page.path for page in PAGES} <= {ADDRESSES[name].partition("?")[0] for name in FULLEST}


def sizes(finished: list[Any]) -> tuple[int, int]:
    """Of a page's requests: the decoded bytes of what is not gradio's, and all bytes over the wire."""
    told = [request.sizes() for request in finished]
    own = [request for request in finished if not urlsplit(request.url).path.startswith(_GRADIO)]
    wire = sum(size["responseBodySize"] + size["responseHeadersSize"] for size in told)
    return sum(len(request.response().body()) for request in own), wire


def at_rest(open_page: Any, url: str, width: int, *, polls: bool = False) -> tuple[Any, list[Any], list[Any], float]:
    """The page in a profile of its own, the requests that it made until it came to rest, those of them that were
    answered, and how far it has moved."""
    for _ in range(3):  # a busy machine delays one part or another of a page
        asked: list[Any] = []
        finished: list[Any] = []
        page = open_page("about:blank", "ada", width)
        page.on("request", lambda request, into=asked: into.append(request))
        page.on("requestfinished", lambda request, into=finished: into.append(request))
        settled = opened(page, url)
        moved = settled()
        if polls:
            page.wait_for_event("requestfinished", lambda request: "/run/predict" in request.url)
            moved = settled()
        if moved < MOST:
            break
    return page, asked, finished, moved


def objections(page: Any) -> dict[str, Any]:
    """What axe says of the page, light and dark."""
    found = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(TURNED, arg=scheme)
        page.evaluate(AT_REST, FADED_MS)
        told = Axe().run(page).response["violations"]
        found |= {f"{scheme}: {v['id']}": [n["html"][:200] for n in v["nodes"]] for v in told}
    return found


def narrowed(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 780})
    page.evaluate(AT_REST, FADED_MS)
    assert page.evaluate(NOT_SIDEWAYS), width


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_page_is_accessible_in_light_and_dark_at_three_widths_stays_in_place_and_is_small(site, open_page, name):
    url = f"{site.url}/{ADDRESSES[name]}"
    page, asked, finished, moved = at_rest(open_page, url, 1440, polls=name in POLLING)
    assert moved < MOST
    assert {urlsplit(r.url).netloc for r in asked if r.url.startswith("http")} == {urlsplit(site.url).netloc}
    own, wire = sizes(finished)
    assert 1_000 < own <= MOST_BYTES, "decoded, without gradio's own files"
    assert 1_000 < wire <= MOST_BYTES, "over the wire, with them"
    assert page.evaluate(NOT_SIDEWAYS), "1440"
    assert not objections(page)
    for width in (1024, 900):
        narrowed(page, width)
        assert width == 900 or not objections(page)
    if name in FULLEST:
        page, _, _, moved = at_rest(open_page, url, 390)
        assert moved < MOST, "on a phone"
    for width in (390, 360):
        narrowed(page, width)
        assert page.evaluate(NOTHING_CUT), width
        assert width == 360 or not objections(page)


def test_what_a_colour_alone_says_is_seen_on_paper_and_in_the_visitor_s_own_colours(site, open_page):
    page = open_page("about:blank", "ada")
    opened(page, f"{site.url}/{ADDRESSES['merge-filled']}")()
    page.emulate_media(forced_colors="active")
    chosen, other = [page.locator("#pick input").nth(k).screenshot() for k in (0, 1)]
    assert chosen != other
    page.emulate_media(forced_colors="none", media="print", color_scheme="dark")
    page.wait_for_function(TURNED, arg="dark")
    style = "(e) => [getComputedStyle(e).printColorAdjust, getComputedStyle(e).color]"
    assert page.locator("#pick input").first.evaluate(style)[0] == "exact"
    assert page.locator("#pick label span").first.evaluate(style)[1] == DARK_INK
    opened(page, f"{site.url}/{ADDRESSES['model']}")()
    assert {dot.evaluate(style)[0] for dot in page.locator(".hm-track, .hm-dot").all()} == {"exact"}


def test_a_picture_of_a_page_is_kept_in_light_and_dark(site, chromium, tmp_path):
    pictures(chromium, {"home": site.url}, [390], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"home-390-light.png", "home-390-dark.png"}


def test_a_long_board_is_as_small_and_its_first_rows_are_there_soon_after_the_home_page_would_be(site, open_page):
    def seconds_until(path: str, selector: str) -> float:
        page = open_page("about:blank")
        began = time.monotonic()
        page.goto(f"{site.url}/{path}", wait_until="commit")
        page.locator(selector).first.wait_for(state="attached")
        return time.monotonic() - began

    site.board.content = build_board(parse_files(synthetic(ROWS)).results, [])
    homes, boards = [], []
    for _ in range(3):  # by turns, since the machine has other work; the least of each says most
        homes.append(seconds_until("", "h1"))
        boards.append(seconds_until("leaderboard", "#board tbody tr"))
    assert min(boards) - min(homes) < FIRST_ROWS_S
    for path in ("leaderboard", "leaderboard?page=7", "model?model=org50/model-50"):
        own, wire = sizes(at_rest(open_page, f"{site.url}/{path}", 1280)[2])
        assert 1_000 < own <= MOST_BYTES, path
        assert 1_000 < wire <= MOST_BYTES, path

"""Every page for everybody: axe objects to nothing, light and dark, at three widths; nothing moves about; nothing is
scrolled sideways; no other host is asked for anything; `make screenshots` has pictures; and how many bytes each page
takes, and when a long board's first rows are there, beside the home page in one run.

A page has 400 KB over the wire, compressed, with the scripts, styles and fonts that gradio brings along; and 400 KB
before compression of what is hubmerge's: the HTML, the config of the components, pictures, and what handlers answer.
"""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages_fake import RUNNING, STATISTICS, job_view
from pages_session import Site
from report_helpers import DATA, report_data
from test_ui_board import full_board

from benchmarks.board import synthetic
from hubmerge.board.files import parse_files
from hubmerge.board.leaderboard import build_board
from workflows.app.frame import PAGES
from workflows.values import JobView, LogLine, Published, Scoring

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PICTURES = os.environ.get("HUBMERGE_SCREENSHOTS")  # a folder
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


# --- one site in memory where every state of a page is there at once, and its addresses by name ---------------

RUNS, WAITS, DONE, FAILED, SCORED = ("1" * 64, "2" * 64, "3" * 64, "4" * 64, "5" * 64)
TWO = "merge?base=zoo/base&agent=zoo/math-agent"
FORM = f"{TWO}&agent=zoo/tool-agent"
ADDRESSES = {
    "home": "",
    "merge": "merge",
    "merge-filled": FORM,
    # everything but Calibration is folded at first, and so are the variants where the address has none
    "merge-sar": f"{FORM}&method=sar",
    "merge-variants": f"{FORM}&method=ties&also=ram_plus&vary=density:0.2,0.5,0.8",
    "merge-refused": f"{TWO}&agent=other/wide-agent",
    "leaderboard": "leaderboard",
    "evaluate": "evaluate?model=zoo/math-agent",
    "activity": "activity",
    "activity-public": "activity?show=all",
    "watchers": "watchers",
    "watchers-filled": "watchers?rule={base: zoo/base, agents: {authors: [zoo], licenses: [mit]}}",
    "docs": "docs",
    "diff": "diff?base=zoo/base&agent=zoo/math-agent",
    "model": "model?model=org/merge",
    **{f"model-{tab}": f"model?model=org/merge&tab={tab}" for tab in ("changed", "reproduce", "card")},
    "model-of-merges": "model?model=bob/grandchild",
    "model-unscored": "model?model=ada/pair-ram-plus",
    "model-unknown": "model?model=nobody/nothing",
    "model-unnamed": "model",
    "job-unnamed": "job",
    "job-running": f"job?id={RUNS}",
    "job-waiting": f"job?id={WAITS}",
    "job-done": f"job?id={DONE}",
    "job-failed": f"job?id={FAILED}",
    "job-evaluation": f"job?id={SCORED}",
    "missing": "no/such/page",
}
READY = """() => document.querySelector("h1") && !document.querySelector("#inspect[disabled]")
  && !/(Loading|Checking) …|Loading\\.\\.\\./.test(document.body.innerText)"""

QUIET_MS = 1_000  # longer than any pause that a page makes itself: a form is seen after 0.9 s, and checked after 0.7 s
# once nothing has changed, moved or faded for so long: how far what was in sight has moved since the page was opened
AT_REST = """(quiet) => new Promise((told) => {
  let moved = 0, last = performance.now();
  const latest = last + 30_000;  // a page that comes to no rest is looked at as it is
  const changed = () => { last = performance.now(); };
  const ends = (a) => a.playState === "running" && Number.isFinite(a.effect.getComputedTiming().endTime);
  const every = {subtree: true, childList: true, attributes: true, characterData: true};
  const changes = new MutationObserver(changed);
  changes.observe(document, every);
  const shifts = new PerformanceObserver((list) => {
    changed();
    list.getEntries().forEach((e) => { if (!e.hadRecentInput) moved += e.value; });
  });
  shifts.observe({ type: "layout-shift", buffered: true });
  const look = () => {
    if (document.getAnimations().some(ends)) changed();
    if (performance.now() < Math.min(last + quiet, latest)) { setTimeout(look, 20); return; }
    changes.disconnect();
    shifts.disconnect();
    told(moved);
  };
  look();
})"""


def opened(page: Any, address: str) -> tuple[Callable[[], float], list[Any], list[Any]]:
    """Open an address. What comes first waits until the page is ready, waits for no answer and has come to rest, and
    tells how far it has moved since it was opened, as a share of its height and width. Then come the requests that the
    page makes, and those of them that were answered."""
    asked: list[Any] = []
    finished: list[Any] = []
    failed: list[Any] = []
    for event, requests in (("request", asked), ("requestfinished", finished), ("requestfailed", failed)):
        page.on(event, lambda request, into=requests: into.append(request))
    page.goto(address, wait_until="domcontentloaded")

    def settled() -> float:
        latest = time.monotonic() + 30
        while True:
            page.wait_for_function(READY)
            moved = page.evaluate(AT_REST, QUIET_MS)
            waits = (request for request in asked if request not in finished and request not in failed)
            answered = all("/heartbeat/" in request.url for request in waits)  # which lasts as long as the page
            if answered or time.monotonic() > latest:
                return float(moved)

    return settled, asked, finished


def jobs() -> list[JobView]:
    """A job in every state."""
    now = datetime.now(UTC)

    def at(seconds: float) -> str:
        return (now - timedelta(seconds=seconds)).isoformat()

    ended: dict[str, Any] = {"queue_position": None, "started": at(4000), "finished": at(3900), "created": at(4100)}
    what = "a tensor has another shape than the base has there"
    error = {"code": "E_SHAPE", "what": what, "where": "model.norm.weight", "got": "[128]"}
    log = (LogLine(at(80), "submitted"), LogLine(at(75), "claimed"), LogLine(at(20), "stage", "merge"))
    progress = {**RUNNING["progress"], "per_second": 4e6, "at": at(1)}
    runs = {**RUNNING, "started": at(75), "progress": progress, "warnings": ("zoo/mem-agent: " + "x" * 80,)}
    scored = tuple(
        Scoring(name, "0" * 40, role, SCORED, "done" if role != "agent" else "running")
        for name, role in (("org/merge", "merge"), ("zoo/base", "base"), ("zoo/math-agent", "agent"))
    )
    published = {"repo": "org/merge", "commit": "e" * 40, "run": {"seconds": 41.2, "peak_rss_bytes": 412e6}}
    done = {"result": published, "evaluations": scored, "statistics": STATISTICS}
    return [
        job_view(RUNS, log=log, after_s=12.0, ticket=5, created=at(80), **runs),
        job_view(WAITS, created=at(30), queue_position=2, typical_s=95.0, target="ada/next-in-line", ticket=6),
        job_view(DONE, state="done", stage="publish", target="org/merge", ticket=3, **done, **ended),
        job_view(FAILED, state="failed", stage="plan", error={"problems": [error]}, ticket=2, **ended),
        job_view(SCORED, kind="evaluate", suite="math", recipe={}, state="done", target="org/merge", ticket=4,
                 result={"scores": {"math": 0.858, "tool": 0.982}}, **ended),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def site(served: Site) -> Site:
    served.empty()
    card = (DATA / "card.md").read_text("utf-8")
    served.board.content = full_board()
    served.service.put(jobs())
    for name in ("org/merge", "ada/pair-ram-plus"):  # scored, and not
        is_open = name != "org/merge"
        served.service.shelf[name] = Published(name, "e" * 40, "mit", card, report_data(), is_open=is_open)
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
        page = open_page("about:blank", "ada", width)
        settled, asked, finished = opened(page, url)
        moved = settled()
        if polls:
            page.wait_for_event("requestfinished", lambda request: "/run/predict" in request.url)
            moved = settled()
        if moved < MOST:
            break
    return page, asked, finished, moved


def objections(page: Any, name: str, pictures: Any = PICTURES) -> dict[str, Any]:
    """What axe says of the page, light and dark; pictures of both where there is a folder for them."""
    found = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(TURNED, arg=scheme)
        page.evaluate(AT_REST, FADED_MS)
        if pictures:
            path = f"{pictures}/{name}-{page.viewport_size['width']}-{scheme}.png"
            page.screenshot(path=path, full_page=True, animations="disabled")
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
    assert not objections(page, name)
    for width in (1024, 900):
        narrowed(page, width)
        assert width == 900 or not objections(page, name)
    if name in FULLEST:
        page, _, _, moved = at_rest(open_page, url, 390)
        assert moved < MOST, "on a phone"
    for width in (390, 360):
        narrowed(page, width)
        assert page.evaluate(NOTHING_CUT), width
        assert width == 360 or not objections(page, name)


def test_what_a_colour_alone_says_is_seen_on_paper_and_in_the_visitor_s_own_colours(site, open_page):
    page = open_page("about:blank", "ada")
    opened(page, f"{site.url}/{ADDRESSES['merge-filled']}")[0]()
    page.emulate_media(forced_colors="active")
    chosen, other = [page.locator("#pick input").nth(k).screenshot() for k in (0, 1)]
    assert chosen != other
    page.emulate_media(forced_colors="none", media="print", color_scheme="dark")
    page.wait_for_function(TURNED, arg="dark")
    style = "(e) => [getComputedStyle(e).printColorAdjust, getComputedStyle(e).color]"
    assert page.locator("#pick input").first.evaluate(style)[0] == "exact"
    assert page.locator("#pick label span").first.evaluate(style)[1] == DARK_INK
    opened(page, f"{site.url}/{ADDRESSES['model']}")[0]()
    assert {dot.evaluate(style)[0] for dot in page.locator(".hm-track, .hm-dot").all()} == {"exact"}


def test_a_picture_of_a_page_is_kept_in_light_and_dark(site, open_page, tmp_path):
    objections(open_page(site.url, width=390), "home", tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"home-390-light.png", "home-390-dark.png"}


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

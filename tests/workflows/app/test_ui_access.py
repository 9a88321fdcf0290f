"""Every page for everybody: axe objects to nothing, light and dark, at three widths; nothing moves about; nothing is
scrolled sideways; no other host is asked for anything; and `make screenshots` runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages_site import ADDRESSES, AT_REST, opened, whole_site

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


def test_a_picture_of_a_page_is_kept_in_light_and_dark_with_an_index(chromium: Any, tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("screenshots.py"))
    command = [sys.executable, script, "--only", "model-card", "--widths", "390", "--out", str(tmp_path)]
    subprocess.run(command, check=True, timeout=240)
    names = {f"model-card-390-{scheme}.png" for scheme in ("light", "dark")}
    assert {path.name for path in tmp_path.iterdir()} == {*names, "index.html"}
    index = (tmp_path / "index.html").read_text("utf-8")
    assert all(f'src="{name}"' in index for name in names)

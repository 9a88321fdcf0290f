"""No merge page goes on asking the server once its inspection has ended, however its form was filled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pages_fake import CATALOGUE
from pages_session import Pages

pytestmark = [pytest.mark.browser, pytest.mark.slow]
BASE, MATH, TOOL, MEM = CATALOGUE
FILLED = f"?base={BASE}&agent={MATH}&agent={TOOL}"
QUIET_MS = 3_000


def by_search(page: Any) -> None:
    for box, name in (("#base", BASE), ("#agents", MATH), ("#agents", TOOL)):
        page.locator(f"{box} input").first.click()
        page.keyboard.type(name, delay=20)
        page.get_by_role("option").filter(has_text=name).first.click()
    page.keyboard.press("Escape")


def pasted(page: Any) -> None:
    for box, text in (
        ("#base", f"https://huggingface.co/{BASE}"),
        ("#agents", f"{MATH}, https://hf.co/{TOOL} {MEM}"),
    ):
        page.locator(f"{box} input").first.focus()
        page.keyboard.insert_text(text)
        page.keyboard.press("Enter")
    page.keyboard.press("Escape")


def as_it_is(page: Any) -> None:
    """The address has filled the form."""


def with_a_text_that_is_no_name(page: Any) -> None:
    page.locator("#base input").first.focus()
    page.keyboard.insert_text("no such thing!")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")


@pytest.mark.parametrize(
    ("query", "fill", "told"),
    [
        ("", by_search, "These models fit"),
        ("", pasted, "These models fit"),
        (FILLED, as_it_is, "These models fit"),
        (f"{FILLED}&method=ties&also=ram&vary=density:0.2,0.5", as_it_is, "These models fit"),
        (f"{FILLED}&method=sar", as_it_is, ""),
        (FILLED, with_a_text_that_is_no_name, "cannot be merged"),
    ],
    ids=["search", "pasted", "address", "variants", "calibration", "no name"],
)
def test_a_merge_page_at_rest_asks_the_server_for_nothing(
    pages: Pages, open_page: Any, query: str, fill: Callable[[Any], None], told: str
) -> None:
    page = open_page(f"{pages.url}/merge{query}", "ada")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/gradio_api/" in request.url else None)
    page.wait_for_function("window.hm?.opened")
    page.locator("#base input").wait_for()  # what is not seen yet takes no focus
    fill(page)
    page.locator(".hm-verdict-good, .hm-verdict-bad, .hm-verdict-warn").filter(has_text=told).first.wait_for()
    if "vary=" in query:
        page.locator("#sweep-told").filter(has_text="3 variants").wait_for()
    for _ in range(10):  # a busy machine takes its time for what the last answer set off
        asked.clear()
        page.wait_for_timeout(QUIET_MS)
        if not asked:
            break
    assert asked == []

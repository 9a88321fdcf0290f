"""Docs in the app: every method, the words and the calls, from the pages that docs/ has."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages_session import Site, calls_of_docs

from hubmerge.methods import registry
from workflows.app.docs_page import _methods, _page, _words, rendered

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_every_method_is_there_with_one_sentence_and_the_rest_folded() -> None:
    shown = str(_methods())
    for name, method in registry().items():
        assert f'<details id="{name}">' in shown or f'id="{name}"' in shown
        assert method.title in shown
    assert shown.count("<details") == len(registry()) + 1
    assert "arXiv" in shown


def test_the_words_are_those_of_the_glossary() -> None:
    shown = str(_words())
    assert _page("glossary.md") == (DOCS / "glossary.md").read_text("utf-8")
    assert shown.count("<details") == (DOCS / "glossary.md").read_text("utf-8").count("\n## ")
    assert "<strong>signal dilution</strong>" in shown
    assert '.md"' not in shown  # no link leads to a page that the app does not have
    assert 'href="docs#ram"' in shown


def test_html_in_a_page_of_docs_stays_text() -> None:
    assert "<script>" not in rendered("a <script>alert(1)</script> [x](javascript:alert(1))")


@pytest.mark.browser
def test_every_call_names_the_address_that_the_page_was_opened_with(site: Site) -> None:
    assert sum("http://127.0.0.1:7860" in call for call in calls_of_docs()) == 2
    page = site.open("/docs#programs")
    boxes = page.locator("#programs textarea")
    boxes.first.wait_for()
    page.wait_for_function("!document.querySelector('#programs textarea').value.includes(':7860')")
    shown = [box.input_value() for box in boxes.all()]
    assert shown == [call.replace("http://127.0.0.1:7860", site.url) for call in calls_of_docs()]
    assert sum(site.url in call for call in shown) == 2

"""The page of comparisons in a real browser: addresses, who may start and cancel, progress, result, foreign text."""

import re
from dataclasses import replace
from typing import Any

import pytest
from markupsafe import escape
from pages_fake import CATALOGUE, HOSTILE, RUNNING
from pages_session import Site, shown, untouched
from source_helpers import ZOO

from hubmerge.engine.progress import Unobserved
from hubmerge.engine.stream import StreamOptions
from hubmerge.errors import RecipeError
from hubmerge.hub.client import Hub
from hubmerge.output.diff import Diff, comparison_recipe, measure, open_comparison
from workflows.app.diff_page import diff_panel, names_of
from workflows.app.submission import checked_comparison

BASE, AGENT = CATALOGUE[:2]
ADDRESS = f"/diff?base={BASE}&agent={AGENT}"
PROGRESS = {"stage": "probe", "done": 3e9, "total": 12e9, "unit": "elements", "per_second": 4e7}


@pytest.fixture(scope="module")
def zoo_diff(tmp_path_factory: pytest.TempPathFactory) -> Diff:
    nowhere = Hub("http://127.0.0.1:9")
    plan = open_comparison(comparison_recipe(str(ZOO / "base"), str(ZOO / "math")), nowhere, allow_local=True)
    return measure(plan, nowhere, StreamOptions(), Unobserved(), cache=tmp_path_factory.mktemp("cache"))


def job_of(site: Site, **changes: Any) -> str:
    """Put the job of the comparison into the store, of ada unless it is said otherwise."""
    service = site.service
    found = service.compare(BASE, AGENT, service.visitor("ada", "token-of-ada")).job
    assert found is not None
    service.put([replace(found, **changes)])
    return found.id


@pytest.mark.browser
def test_from_an_address_to_the_result_which_only_who_is_signed_in_starts_and_its_owner_cancels(site, zoo_diff):
    anybody = site.open(ADDRESS)
    shown(anybody, "#diff", "Sign in to have them compared")
    anybody.locator("#compare").click()
    anybody.wait_for_timeout(700)
    shown(anybody, "#diff", "Sign in to have them compared")
    assert site.service.store == {}
    page = site.open(ADDRESS, "ada", width=1440)
    shown(page, "#diff-models", BASE)
    shown(page, "#diff", "were not compared yet")
    assert page.locator("#diff-base input").input_value() == BASE
    page.locator("#compare").click()
    shown(page, "#diff", "Queued")
    job = job_of(site, **RUNNING | {"stage": "probe", "progress": PROGRESS, "statistics": None})
    shown(page, "#diff .hm-amount", "25.0%")
    shown(page, "#diff .hm-current", "Measure")
    other = site.open(ADDRESS, "bob")
    shown(other, "#diff .hm-amount", "25.0%")
    assert not other.locator("#cancel").is_visible()
    page.locator("#cancel").click()
    shown(page, "#diff", "It was cancelled")
    assert site.service.store[job].state == "cancelled"
    job_of(site, state="done", queue_position=None, warnings=("x" * 90,), result=zoo_diff.to_json())
    page.locator("#compare").click()
    most = "among the layers, most of all attention in layer 0, with 41.9%"
    shown(page, "#diff strong", f"9.97% of the parameters changed; {most}.")
    assert page.locator("#diff figure img").evaluate("image => image.naturalWidth") == 800
    shown(page, "#diff", "model.layers.0.self_attn.o_proj.bias")
    assert page.url.endswith(ADDRESS)
    assert not page.locator("#cancel").is_visible()
    anybody.reload(wait_until="domcontentloaded")  # what is public was compared for everybody
    shown(anybody, "#diff strong", "9.97% of the parameters changed")
    for fold in anybody.locator("#diff summary").all():
        fold.click()
    shown(anybody, "#diff details th", "layer")
    shown(anybody, "#diff details dd", "9.97% (17,124 parameters)")
    anybody.set_viewport_size({"width": 360, "height": 800})
    assert anybody.evaluate("document.scrollingElement.scrollWidth") <= 360
    value = anybody.locator("#diff dd").last.bounding_box()
    assert value["x"] + value["width"] <= 360, "on a phone no figure waits to be scrolled to"
    page.goto(f"{site.url}/activity", wait_until="domcontentloaded")
    shown(page, "#jobs tbody tr", "Comparison").get_by_role("link").first.click()
    shown(page, "#job a", "What the training changed").click()
    page.wait_for_url(re.compile(r"/diff\?base=zoo/base@a{40}&agent="))
    shown(page, "#diff-models", BASE)


@pytest.mark.browser
def test_an_address_that_names_nothing_to_compare_is_said(site):
    page = site.open("/diff")
    shown(page, "#diff", "Choose a model")
    for agent, words in (
        ("zoo/nothing", "no such repo"),
        (HOSTILE.replace("#", "%23"), "no model of the Hub is named"),
        ("other/wide-agent", "another vocabulary size"),
    ):
        page.goto(f"{site.url}/diff?base={BASE}&agent={agent}", wait_until="domcontentloaded")
        shown(page, "#diff", words)
        untouched(page)


def test_text_of_strangers_stays_text(zoo_diff):
    tensors = {HOSTILE: next(iter(zoo_diff.tensors.values()))}
    told = {"architecture": HOSTILE, "warnings": (HOSTILE,), "tensors": tensors, "shapes": {HOSTILE: (1,)}}
    panel = diff_panel(replace(zoo_diff, **told))
    assert (f'<th scope="row">{escape(HOSTILE)}' in panel, "<img src=x" in panel) == (True, False)


def test_a_model_with_itself_says_that_nothing_changed_and_shows_no_figure(zoo_diff):
    same = replace(zoo_diff, total=replace(zoo_diff.total, identical=zoo_diff.total.elements))
    panel = diff_panel(same)
    assert "Nothing changed" in panel
    assert "<img" not in panel


def test_names_in_an_address_are_cut():
    assert [len(name) for name in names_of({"base": "b" * 500, "agent": "a"})] == [400, 1]
    with pytest.raises(RecipeError):
        checked_comparison("org/" + "b" * 500, "org/a", "https://huggingface.co")

"""The merge page in a real browser: it checks by itself, understands what is pasted, and comes to rest."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from pages_fake import BASE, MATH, MEM, TOOL, FakeService, job_view
from pages_session import FILLED, TARGET_NAME, Site, errors_of, holds, shown

from hubmerge.errors import QuotaError
from workflows.app import merge_page

pytestmark = pytest.mark.browser
JOB = "1" * 64

_OPENED_START = """window.opened = false; new MutationObserver(() => {
  window.opened ||= !document.querySelector("#start").disabled;
}).observe(document.body, {subtree: true, childList: true, attributes: true})"""


def tokens(page: Any) -> list[str]:
    return [text.strip() for text in page.locator("#agents .token").all_inner_texts()]


def test_a_filled_form_is_checked_by_itself_and_its_address_follows(site: Site) -> None:
    page = site.open(f"{FILLED}&method=ties&density=0.4&name=mine", "ada")
    shown(page, "#verdict", "These models fit")
    page.wait_for_function("location.search.includes('density=0.4')")
    page.get_by_label("RAM+ (recommended)").check()
    page.wait_for_function("location.search.includes('method=ram_plus')")
    page.wait_for_function("!location.search.includes('density')")
    assert page.locator(TARGET_NAME).first.input_value() == "mine"
    page.reload(wait_until="domcontentloaded")
    shown(page, "#verdict", "These models fit")
    assert page.get_by_label("RAM+ (recommended)").is_checked()


def test_nothing_is_asked_of_the_hub_while_a_form_is_empty_and_once_for_a_change(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspected: list[Any] = []
    before = site.service.inspect
    monkeypatch.setattr(site.service, "inspect", lambda *given: inspected.append(given) or before(*given))
    page = site.open("/merge")
    page.wait_for_function("window.hm?.opened")
    page.wait_for_timeout(1500)
    assert inspected == []
    page.goto(f"{site.url}{FILLED}", wait_until="domcontentloaded")
    shown(page, "#verdict", "These models fit")
    page.get_by_label("RAM", exact=False).nth(1).check()
    page.get_by_label("SAR", exact=False).first.check()
    page.get_by_label("RAM+ (recommended)").check()
    page.wait_for_timeout(2500)
    assert 1 <= len(inspected) <= 4  # at most one for the form and for each change


def test_a_start_that_takes_long_says_so_and_takes_no_second_click(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    page = site.open(f"{FILLED}", "ada")
    shown(page, "#verdict", "These models fit")
    page.locator("#start:not([disabled])").wait_for()
    go_on, submit = Event(), site.service.submit
    monkeypatch.setattr(site.service, "submit", lambda *given: go_on.wait(30) and submit(*given))
    page.locator("#start").click()
    shown(page, "#said", "Starting …")
    assert page.locator("#start").is_disabled()
    go_on.set()
    page.wait_for_url("**/job?id=*")


def test_a_start_of_a_merge_that_exists_says_once_that_nothing_new_was_started(site: Site) -> None:
    for again in (False, True):
        page = site.open(f"{FILLED}&name=twice", "ada")
        page.locator("#start:not([disabled])").wait_for()
        shown(page, "#verdict", "These models fit")
        page.locator("#start").click()
        page.wait_for_url("**/job?id=*")
        shown(page, "#job", "ada/twice")
        if again:
            shown(page, "#answer", "This merge exists already")
            assert "Nothing new was started." in page.locator("#answer").inner_text()
            page.wait_for_function("!location.search.includes('known')")
            page.reload(wait_until="domcontentloaded")
            shown(page, "#job", "ada/twice")
        assert "exists already" not in page.locator("body").inner_text()
    assert len(site.service.store) == 1


def test_what_a_screen_reader_is_told_at_the_end_of_an_event_is_in_words(site: Site) -> None:
    site.service.put([job_view(JOB)])
    page = site.open(f"/job?id={JOB}", "ada")
    page.locator("#cancel").wait_for()
    page.evaluate(
        """() => { window.told = ""; new MutationObserver(() => { window.told += document.body.innerText;
          for (const one of document.querySelectorAll(".sr-only")) window.told += `[${one.textContent.trim()}]`; })
          .observe(document.body, {subtree: true, childList: true, characterData: true}) }"""
    )
    page.locator("#cancel").click()
    shown(page, "#job", "Nothing was published")
    page.wait_for_function("/\\[(Done|common[.]complete)\\]/.test(window.told)")  # gradio says it seconds later
    assert "common." not in page.evaluate("window.told")


def test_a_proposed_name_follows_a_method_that_was_not_inspected_before_a_reload_or_the_start(site: Site) -> None:
    page = site.open(f"{FILLED}&method=ties", "ada")
    holds(page, TARGET_NAME, "base-ties")

    def unseen(label: str, method: str) -> None:
        page.evaluate("window.hm.busy = true")  # as while the connection is gone
        page.get_by_label(label).first.check()
        page.wait_for_function("(name) => localStorage.getItem('hubmerge-form').includes(name)", arg=f'"{method}"')

    unseen("RAM Keeps", "ram")
    page.reload(wait_until="domcontentloaded")
    holds(page, TARGET_NAME, "base-ram")
    page.locator("#start:not([disabled])").wait_for()
    unseen("RAM+ (recommended)", "ram_plus")
    page.locator("#start").click()
    page.wait_for_url("**/job?id=*")
    assert [request.target for request, _ in site.service.requests] == ["ada/base-ram-plus"]


# an outline, or the border of a field of gradio's
_SEEN = """() => { const on = document.activeElement, frames = [on, on.closest(".wrap")].filter(Boolean);
  return getComputedStyle(on).outlineStyle !== "none" || on === document.body
    || frames.some((frame) => getComputedStyle(frame).borderTopColor === "rgb(15, 118, 110)"); }"""


def tab_to(page: Any, selector: str) -> None:
    """Tab until the element has the keyboard, which is seen wherever it stands."""
    for _ in range(120):
        page.wait_for_function(_SEEN)
        if page.evaluate("(where) => !!document.activeElement.closest(where)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab never reaches {selector}")


@pytest.mark.quick
def test_from_an_empty_page_to_a_started_merge_by_tab_letters_and_enter(site: Site) -> None:
    page = site.open("/merge", "ada")
    page.wait_for_function("window.hm?.opened")
    assert page.locator("#start").is_disabled()  # there is nothing to start yet
    # the form is hidden for its first 0.9 s, in which a fast machine tabs round and round
    page.locator("#base").wait_for()
    tab_to(page, "#base")
    page.keyboard.type(BASE, delay=20)
    page.get_by_role("option").filter(has_text=BASE).first.wait_for()
    page.keyboard.press("Enter")
    holds(page, "#base input", BASE)
    tab_to(page, "#agents")
    for count, agent in enumerate((MATH, TOOL), 1):
        page.keyboard.type(agent, delay=20)
        page.keyboard.press("Enter")
        page.wait_for_function(f"document.querySelectorAll('#agents .token').length === {count}")
    tab_to(page, "#target-name")
    page.wait_for_timeout(300)
    assert page.locator("[role=listbox]").count() == 0  # no list of a box that was left lies over the form
    page.keyboard.press("Control+A")
    page.keyboard.type("by-keys")
    shown(page, "#verdict", "These models fit")
    page.locator("#start:not([disabled])").wait_for()
    tab_to(page, "#start")
    page.keyboard.press("Enter")
    page.wait_for_url("**/job?id=*")
    shown(page, "#job", "ada/by-keys")
    [(request, visitor)] = site.service.requests
    assert [request.recipe["base"], *request.recipe["agents"]] == [BASE, MATH, TOOL]
    assert (request.target, request.private) == ("ada/by-keys", False)  # no parent is closed
    assert (visitor.name, visitor.token) == ("ada", "token-of-ada")


_COVERED = """() => { const on = document.activeElement, bar = document.querySelector(".hm-bar-start");
  const [one, other] = [on, bar].map((e) => e.getBoundingClientRect());
  return on !== document.body && !bar.contains(on) && one.top > other.top - 1 && one.bottom < other.bottom + 1; }"""


@pytest.mark.parametrize(("width", "height"), [(390, 844), (800, 600), (320, 256)])
def test_what_has_the_keyboard_does_not_stand_behind_the_bar_with_the_start(
    site: Site, width: int, height: int
) -> None:
    page = site.open(FILLED, "ada", width)
    page.set_viewport_size({"width": width, "height": height})
    shown(page, "#verdict", "These models fit")
    for _ in range(60):
        page.keyboard.press("Tab")
        page.wait_for_timeout(40)
        assert not page.evaluate(_COVERED), page.evaluate("document.activeElement.outerHTML")


def test_a_form_that_cannot_be_copied_says_what_to_change_and_leaves_the_clipboard_alone(site: Site) -> None:
    page = site.open(f"{FILLED}")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown(page, "#verdict", "These models fit")
    page.evaluate("navigator.clipboard.writeText('as before')")
    page.get_by_role("button", name="Advanced").click()
    page.locator("#more textarea").wait_for()
    page.wait_for_timeout(300)  # gradio fills the boxes of a part that opens a frame after they are there
    page.locator("#more textarea").fill("{")
    shown(page, "#verdict", "This cannot be merged yet")  # also what was pasted in one go is checked
    page.locator("#copy-YAML").click()
    told = shown(page, "#uncopied .hm-notice.hm-bad", "This form cannot be copied yet")
    assert not told.locator(".hm-what").inner_text().startswith("E_")
    assert told.locator(".hm-code").inner_text() == "E_RECIPE"
    assert page.locator("#copied").count() == 0
    assert page.evaluate("navigator.clipboard.readText()") == "as before"
    page.locator("#more textarea").fill("")
    shown(page, "#verdict", "These models fit")
    page.locator("#copy-YAML").click()
    page.locator("#copied textarea").wait_for()
    page.locator("#uncopied .hm-notice").wait_for(state="detached")


def test_a_start_is_shut_with_the_reason_beside_it_and_no_late_answer_about_another_form_opens_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, before = Event(), site.service.inspect

    def late(recipe: Any, *given: Any) -> Any:
        if "other/wide-agent" not in recipe["agents"]:
            answered.wait(60)
        return before(recipe, *given)

    monkeypatch.setattr(site.service, "inspect", late)
    page = site.open(f"{FILLED}&agent=other/wide-agent", "ada")
    shown(page, "#verdict", "This cannot be merged yet")
    shown(page, "#verdict", "Another vocabulary size, and 1 more")
    page.locator("#start[disabled]").wait_for()
    page.evaluate(_OPENED_START)
    page.locator("#agents .token").filter(has_text="wide-agent").locator(".token-remove").click()
    shown(page, "#verdict", "Checking")
    page.wait_for_timeout(300)
    page.locator("#agents input").focus()
    page.keyboard.insert_text("other/wide-agent")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelectorAll('#agents .token').length === 3")
    answered.set()
    shown(page, "#verdict", "These models fit")  # the late answer
    shown(page, "#verdict", "This cannot be merged yet")
    assert page.evaluate("window.opened") is False


def test_a_check_that_is_asked_for_during_another_comes_after_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    answered, asked, before = Event(), Event(), site.service.inspect

    def late(recipe: Any, *given: Any) -> Any:
        asked.set()
        answered.wait(60)
        return before(recipe, *given)

    page = site.open(f"{FILLED}", "ada")
    shown(page, "#verdict", "These models fit")
    monkeypatch.setattr(site.service, "inspect", late)
    page.get_by_label("RAM", exact=False).nth(1).check()
    assert asked.wait(30)
    page.get_by_label("SAR", exact=False).first.check()
    page.locator("#inspect").click()
    page.wait_for_timeout(1000)
    answered.set()
    shown(page, "#verdict", "This cannot be merged yet")
    assert "SAR needs" in page.locator("#verdict").inner_text()


def test_typing_into_a_search_raises_no_script_error(site: Site) -> None:
    page = site.open("/merge")
    errors = errors_of(page)
    page.wait_for_function("window.hm?.opened")
    page.locator("#base input").click()
    page.get_by_role("option").filter(has_text=BASE).first.wait_for()  # an empty search shows something
    page.keyboard.type("zoo/math", delay=40)
    page.wait_for_timeout(800)
    for _ in range(8):
        page.keyboard.press("Backspace")
    page.keyboard.type("tool", delay=40)
    page.wait_for_timeout(800)
    page.keyboard.press("Escape")
    page.locator("#agents input").click()
    page.keyboard.type("mem", delay=40)
    page.get_by_role("option").filter(has_text=MEM).first.wait_for()
    assert errors == []


def test_a_swap_is_offered_and_done_with_one_click_and_the_proposed_name_follows_the_models(site: Site) -> None:
    page = site.open(f"/merge?base={MATH}&agent={BASE}&agent={TOOL}", "ada")
    shown(page, "#why", "look swapped")
    shown(page, "#accept", "Swap them").click()
    holds(page, "#base input", BASE)
    assert tokens(page) == [MATH, TOOL]
    holds(page, TARGET_NAME, "base-ram-plus")
    page.wait_for_function(f"location.search.startsWith('?base={BASE}')")
    shown(page, "#verdict", "These models fit")
    page.locator("#accept").wait_for(state="hidden")
    assert "name=" not in page.url


def test_agents_of_the_base_are_offered_to_tick(site: Site) -> None:
    page = site.open(f"/merge?base={BASE}")
    page.get_by_label(MATH).check()
    page.get_by_label(TOOL).check()
    shown(page, "#verdict", "These models fit")
    assert tokens(page) == [MATH, TOOL]
    page.get_by_label(MATH).uncheck()
    shown(page, "#verdict", "Choose another agent")
    assert tokens(page) == [TOOL]


def test_what_is_copied_is_in_the_clipboard_and_a_link_opens_the_same_form(site: Site) -> None:
    page = site.open(f"{FILLED}&weight=1&weight=0.5&method=ram_plus&r=0.25&seed=3&name=mine")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown(page, "#verdict", "These models fit")
    page.locator("#visibility").get_by_label("private").check()
    copies = {}
    for kind, words in (("link", "http"), ("YAML", "r: 0.25"), ("Python", "hubmerge"), ("command", "hubmerge run")):
        page.locator(f"#copy-{kind}").click()
        filled = "(words) => document.querySelector('#copied textarea')?.value.includes(words)"
        page.wait_for_function(filled, arg=words)
        copies[kind] = page.locator("#copied textarea").input_value()
        assert page.evaluate("navigator.clipboard.readText()") == copies[kind]
    assert "weight: 0.5" in copies["YAML"]
    assert "/mine --private <<" in copies["command"]
    link = urlsplit(copies["link"])
    assert link.path == "/merge"
    assert {"weight=0.5", "r=0.25", "seed=3", "name=mine"} <= set(link.query.split("&"))
    again = site.open(copies["link"])
    shown(again, "#verdict", "These models fit")
    again.locator("#copy-YAML").click()
    again.wait_for_function(filled, arg="r: 0.25")
    assert again.locator("#copied textarea").input_value() == copies["YAML"]


def test_what_is_wrong_in_a_link_stays_in_sight_after_the_check(site: Site) -> None:
    page = site.open(f"{FILLED}&method=ties&densty=0.4")
    shown(page, "#verdict", "These models fit")
    shown(page, "#said", "Did you mean density?")


def test_a_job_s_recipe_can_be_used_again_and_keeps_owner_name_visibility_and_license_for_its_owner(site: Site) -> None:
    done = {"state": "done", "queue_position": None, "result": {"repo": "zoo/kept"}}
    site.service.put([job_view(JOB, target="zoo/kept", private=False, license="mit", **done)])
    page = site.open(f"/job?id={JOB}", "ada")
    page.locator(".hm-next-steps").get_by_text("Use this recipe again").click()
    shown(page, "#agents", MEM)
    page.wait_for_function(f"location.search.startsWith('?base={BASE}&agent=')")  # which a visitor may change
    assert page.locator("#base input").input_value() == BASE
    assert page.locator(TARGET_NAME).first.input_value() == "kept"
    assert page.locator("#namespace input").input_value() == "zoo"
    assert page.get_by_label("public", exact=True).is_checked()
    page.locator("#license input").wait_for()
    assert page.locator("#license input").input_value() == "mit"
    stranger = site.open(f"/merge?job={JOB}", "bob")
    shown(stranger, "#agents", MEM)
    holds(stranger, "#namespace input", "bob")


def test_the_address_of_a_job_s_recipe_stays_one_where_its_check_finds_no_room(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.service.put([job_view(JOB)])
    monkeypatch.setattr(merge_page, "inspect_form", Mock(side_effect=QuotaError("too many questions of yours")))
    page = site.open(f"/merge?job={JOB}", "ada")
    shown(page, "#verdict", "Not checked")
    page.wait_for_timeout(500)  # what follows the check writes the address, too
    assert page.url.startswith(f"{site.url}/merge?base={BASE}&agent=")


def test_on_a_phone_the_verdict_and_the_start_stay_at_the_bottom(site: Site) -> None:
    page = site.open(f"{FILLED}", "ada", width=390)
    shown(page, "#verdict", "These models fit")
    for to in (0, 600, 1400):
        page.evaluate(f"window.scrollTo(0, {to})")
        box = page.locator("#start").bounding_box()
        assert 700 < box["y"] < 900


def test_beside_a_long_form_the_verdict_and_the_start_stay_in_sight(site: Site) -> None:
    page = site.open(f"{FILLED}", "ada", width=1024)
    shown(page, "#verdict", "These models fit")
    assert page.locator(".hm-side").evaluate("side => side.scrollHeight <= side.clientHeight")  # all goes with the page
    page.get_by_role("button", name="How it works").click()
    page.get_by_role("button", name="Advanced").click()
    page.locator("#more").scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    assert page.evaluate("window.scrollY") > 300
    assert 0 <= page.locator("#start").bounding_box()["y"] < 300


def test_a_look_into_a_few_layers_recommends_a_method_and_is_forgotten_with_the_models_that_it_was_about(
    site: Site,
) -> None:
    # beside it gradio keeps, in a place that nobody sees, that the look was cancelled
    nothing_told = "document.querySelector('#preview .prose').innerText.trim() === ''"

    def change_the_models() -> None:
        page.locator("#agents .token-remove").first.click()
        page.wait_for_function(nothing_told)

    page = site.open(f"{FILLED}&agent={MEM}&method=linear")
    errors = errors_of(page)
    page.locator("#look:not([disabled])").wait_for()
    site.service.go_on.clear()
    site.service.end.clear()
    page.locator("#look").click()
    shown(page, "#preview", "Read 2.00 MB of about 8.26 MB of the models")
    change_the_models()
    site.service.go_on.set()
    shown(page, "#verdict", "These models fit")
    page.wait_for_timeout(1500)  # it would have told that it is further
    assert page.evaluate(nothing_told)
    site.service.end.set()
    page.wait_for_timeout(1500)  # the answer would have come, and is gone when it has ended
    assert page.evaluate(nothing_told)
    page.locator("#look:not([disabled])").click()
    told = shown(page, "#preview", "Recommended: RAM+")
    assert "71% of what changed was changed by one agent alone" in told.inner_text()
    assert page.locator("#preview .hm-stack .hm-part").count() == 4
    page.get_by_role("button", name="Take RAM+").click()
    page.wait_for_function("location.search.includes('method=ram_plus')")
    page.locator("#take").wait_for(state="hidden")
    change_the_models()
    assert errors == []


# --- however a form was filled, the page comes to rest ----------------------------------------------------

QUIET_MS = 3_000


def by_search(page: Any) -> None:
    for box, name in (("#base", BASE), ("#agents", MATH), ("#agents", TOOL)):
        page.locator(f"{box} input").first.click()
        page.keyboard.type(name, delay=20)
        page.get_by_role("option").filter(has_text=name).first.click()
    page.keyboard.press("Escape")


def pasted(page: Any) -> None:
    """Addresses and a list become the models that they name, with the keyboard alone."""
    agents = f"{MATH}, https://hf.co/{TOOL}  {FakeService().endpoint}/{MEM}"
    for box, text in (("#base", f"https://huggingface.co/{BASE}/tree/main"), ("#agents", agents)):
        page.locator(f"{box} input").first.focus()
        page.keyboard.insert_text(text)
        page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.wait_for_function("document.querySelectorAll('#agents .token').length === 3")
    assert tokens(page) == [MATH, TOOL, MEM]
    assert page.locator("#base input").input_value() == BASE


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
        ("/merge", by_search, "These models fit"),
        ("/merge", pasted, "These models fit"),
        (FILLED, as_it_is, "These models fit"),
        (f"{FILLED}&method=ties&also=ram&vary=density:0.2,0.5", as_it_is, "These models fit"),
        (f"{FILLED}&method=sar", as_it_is, ""),
        (FILLED, with_a_text_that_is_no_name, "cannot be merged"),
    ],
    ids=["search", "pasted", "address", "variants", "calibration", "no name"],
)
def test_a_merge_page_at_rest_asks_the_server_for_nothing(
    site: Site, query: str, fill: Callable[[Any], None], told: str
) -> None:
    page = site.open(f"{query}", "ada")
    errors, asked = errors_of(page), list[str]()
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
    assert (asked, errors) == ([], [])

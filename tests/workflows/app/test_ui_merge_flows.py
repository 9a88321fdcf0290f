"""The merge page in a real browser: it checks by itself, understands what is pasted, keeps the form, and starts."""

from threading import Event
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import gradio.oauth
import pytest
from pages_fake import BASE, MATH, MEM, TOOL, FakeService, job_view
from pages_session import FILLED, TARGET_NAME, Site, errors_of, holds, shown

from hubmerge.errors import QuotaError
from hubmerge.recipe.file import recipe_from_yaml
from hubmerge.recipe.recipe import recipe_from_dict
from workflows.app import merge_page

pytestmark = pytest.mark.browser
JOB = "1" * 64
FIT = "These models fit"

_OPENED_START = """window.opened = false; new MutationObserver(() => {
  window.opened ||= !document.querySelector("#start").disabled;
}).observe(document.body, {subtree: true, childList: true, attributes: true})"""
_IN_SIGHT = """() => { const {top, bottom} = document.querySelector("#said").getBoundingClientRect();
  return top >= 0 && bottom <= document.querySelector(".hm-bar-start").getBoundingClientRect().top; }"""
_TOKENS = "(count) => document.querySelectorAll('#agents .token').length === count"


def tokens(page: Any) -> list[str]:
    return [text.strip() for text in page.locator("#agents .token").all_inner_texts()]


def gone_to(page: Any, site: Site, path: str) -> None:
    page.goto(site.url + path, wait_until="domcontentloaded")


def started(page: Any) -> None:
    page.locator("#start:not([disabled])").click()
    page.wait_for_url("**/job?id=*")


def choose(page: Any, field: str, wanted: str) -> None:
    page.locator(f"{field} input").first.click()
    page.keyboard.type(wanted, delay=20)
    page.get_by_role("option").filter(has_text=wanted).first.click()


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
def test_from_an_empty_page_to_a_started_merge_by_tab_letters_and_enter(site, monkeypatch):
    inspect = Mock(side_effect=site.service.inspect)
    monkeypatch.setattr(site.service, "inspect", inspect)
    page = site.open("/merge", "ada")
    errors = errors_of(page)
    page.wait_for_function("window.hm?.opened")
    assert page.locator("#start").is_disabled()  # there is nothing to start yet
    shown(page, "#outcome", "Choose a base and the agents")
    assert not page.get_by_role("button", name="Copy as").first.is_visible()  # of what is not there yet
    # the form is hidden for its first 0.9 s, in which a fast machine tabs round and round
    page.locator("#base").wait_for()
    tab_to(page, "#base")
    page.keyboard.type("zoo/math", delay=20)
    page.get_by_role("option").filter(has_text=MATH).first.wait_for()
    for _ in range(8):
        page.keyboard.press("Backspace")
    page.keyboard.type(BASE, delay=20)
    page.get_by_role("option").filter(has_text=BASE).first.wait_for()
    inspect.assert_not_called()  # while the form is empty
    page.keyboard.press("Enter")
    holds(page, "#base input", BASE)
    tab_to(page, "#agents")
    for count, agent in enumerate((MATH, TOOL), 1):
        page.keyboard.type(agent, delay=20)
        page.keyboard.press("Enter")
        page.wait_for_function(_TOKENS, arg=count)
    tab_to(page, "#target-name")
    page.wait_for_timeout(300)
    assert page.locator("[role=listbox]").count() == 0  # no list of a box that was left lies over the form
    page.keyboard.press("Control+A")
    page.keyboard.type("by-keys")
    shown(page, "#verdict", FIT)
    page.locator("#start:not([disabled])").wait_for()
    tab_to(page, "#start")
    page.keyboard.press("Enter")
    page.wait_for_url("**/job?id=*")
    shown(page, "#job", "ada/by-keys")
    [(request, visitor)] = site.service.requests
    assert [request.recipe["base"], *request.recipe["agents"]] == [BASE, MATH, TOOL]
    assert (request.target, request.private) == ("ada/by-keys", False)  # no parent is closed
    assert (visitor.name, visitor.token) == ("ada", "token-of-ada")
    assert errors == [], "of scripts"


def test_a_form_is_kept_by_its_address_and_by_the_browser_until_it_is_started_over(site):
    page = site.open(f"{FILLED}&method=ties&density=0.4&densty=1&name=mine")
    shown(page, "#verdict", FIT)
    shown(page, "#said", "Did you mean density?")  # what is wrong in it stays in sight after the check
    page.wait_for_function("location.search.includes('density=0.4')")
    page.get_by_label("RAM+ (recommended)").check()
    page.wait_for_function("location.search.includes('method=ram_plus')")
    page.wait_for_function("!location.search.includes('density')")
    assert page.locator(TARGET_NAME).first.input_value() == "mine"
    page.reload(wait_until="domcontentloaded")
    shown(page, "#verdict", FIT)
    assert page.get_by_label("RAM+ (recommended)").is_checked(), "after a reload"

    def kept() -> None:
        shown(page, "#agents", TOOL)
        holds(page, TARGET_NAME, "kept")

    page.locator(TARGET_NAME).first.fill("kept")
    page.wait_for_function("localStorage.getItem('hubmerge-form').includes('\"kept\"')")
    gone_to(page, site, "/merge?__theme=light")  # as within the Hub's frame
    kept()
    page.route("**/gradio_api/run/**", lambda route: None)  # no answer ever comes
    gone_to(page, site, FILLED)
    page.wait_for_function("document.querySelector('.hm-form')?.inert")
    page.evaluate("document.querySelector('.hm-form').inert = false")  # as it gives up waiting after 10 s
    choose(page, "#base", BASE)
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)
    page.goto("about:blank")  # or else a late question of the page would be answered now
    page.unroute("**/gradio_api/run/**")
    gone_to(page, site, "/merge")
    kept()  # also where a page was left before its form was filled
    page.wait_for_function("location.search.includes('agent=')")
    gone_to(page, site, f"/merge?base={BASE}")
    holds(page, "#base input", BASE)
    page.locator("#inspect:not([disabled])").wait_for()
    assert tokens(page) == [], "an address is opened as it says, also where the kept one begins like it"

    held: list[Any] = []
    page.route("**/gradio_api/run/**", lambda route: held.append(route))
    gone_to(page, site, f"{FILLED}&method=ram")
    page.wait_for_function("document.querySelector('.hm-form')?.inert")
    for route in held:
        route.continue_()
    page.route("**/gradio_api/run/**", lambda route: route.continue_())
    page.wait_for_function("document.querySelector('.hm-form')?.inert === false")
    page.locator(TARGET_NAME).first.fill("typed-at-once")
    shown(page, "#verdict", FIT)
    assert page.locator(TARGET_NAME).first.input_value() == "typed-at-once"
    page.get_by_role("button", name="Start over").click()
    shown(page, "#verdict", "Choose models to begin")
    assert page.url == f"{site.url}/merge"
    assert page.evaluate("localStorage.getItem('hubmerge-form')") is None
    page.go_back(wait_until="domcontentloaded")
    shown(page, "#verdict", FIT)


def test_each_tab_keeps_its_own_form_and_a_new_one_opens_with_the_last(site):
    page = site.open(FILLED)
    shown(page, "#verdict", FIT)
    page.get_by_label("private", exact=True).check()
    other = page.context.new_page()
    gone_to(other, site, f"/merge?base={BASE}&agent={MEM}&agent={TOOL}&name=other")
    shown(other, "#verdict", FIT)
    third = page.context.new_page()
    gone_to(third, site, "/merge")
    holds(third, TARGET_NAME, "other")
    page.reload(wait_until="domcontentloaded")
    holds(page, TARGET_NAME, "base-ram-plus")
    assert page.get_by_label("private", exact=True).is_checked()


def test_a_start_names_the_merge_after_the_form_as_it_is_takes_one_click_and_says_what_existed(site, monkeypatch):
    page = site.open(f"{FILLED}&method=ties", "ada")
    holds(page, TARGET_NAME, "base-ties")

    def unseen(label: str, method: str) -> None:
        """A method that no inspection was about."""
        page.evaluate("window.hm.busy = true")  # as while the connection is gone
        page.get_by_label(label).first.check()
        page.wait_for_function("(name) => localStorage.getItem('hubmerge-form').includes(name)", arg=f'"{method}"')

    unseen("RAM Keeps", "ram")
    page.reload(wait_until="domcontentloaded")
    holds(page, TARGET_NAME, "base-ram")
    page.locator("#start:not([disabled])").wait_for()
    unseen("RAM+ (recommended)", "ram_plus")
    assert page.locator("#suite input").input_value() == "Mathematics"  # the usual one
    page.locator("#suite input").click()
    page.get_by_role("option").filter(has_text="Function calling").first.click()
    go_on, submit = Event(), site.service.submit
    monkeypatch.setattr(site.service, "submit", lambda *given: go_on.wait(30) and submit(*given))
    page.locator("#start").click()
    shown(page, "#said", "Starting …")
    assert page.locator("#start").is_disabled(), "a slow start takes no second click"
    go_on.set()
    page.wait_for_url("**/job?id=*")
    shown(page, "#job", "ada/base-ram-plus")
    assert "exists already" not in page.locator("body").inner_text()
    asked = [(request.target, request.private, request.suite) for request, _ in site.service.requests]
    assert asked == [("ada/base-ram-plus", False, "tool")]

    gone_to(page, site, f"{FILLED}&method=ram_plus&name=base-ram-plus")
    shown(page, "#verdict", FIT)
    started(page)
    shown(page, "#answer", "This merge exists already")
    assert "Nothing new was started." in page.locator("#answer").inner_text()
    page.wait_for_function("!location.search.includes('known')")
    page.reload(wait_until="domcontentloaded")
    shown(page, "#job", "ada/base-ram-plus")
    assert "exists already" not in page.locator("body").inner_text(), "which is said once"
    assert len(site.service.store) == 1


def test_a_merge_that_is_started_before_its_first_check_has_ended_has_the_name_that_it_would_propose(site, monkeypatch):
    go_on, inspect = Event(), merge_page.inspect_form
    monkeypatch.setattr(merge_page, "inspect_form", lambda *given: go_on.wait(30) and inspect(*given))
    page = site.open(f"{FILLED}&method=ram", "ada")
    shown(page, "#verdict", "Checking")
    started(page)
    go_on.set()
    shown(page, "#job", "ada/base-ram")


def test_a_gated_parent_makes_automatic_visibility_private_and_has_a_license_asked_for(site):
    page = site.open(FILLED, "ada")
    shown(page, "#verdict", FIT)
    assert page.locator("#license").count() == 0  # the parents leave nothing open
    page.locator("#visibility").get_by_label("private", exact=True).check()
    started(page)
    gone_to(page, site, f"/merge?base={BASE}&agent={MATH}&agent=secret/gated-agent&name=gated")
    shown(page, "#verdict", "license to be chosen")
    page.locator("#license input").wait_for()
    shown(page, "#outcome", "Gated or private: secret/gated-agent")
    shown(page, "#outcome", "License: your choice is needed")
    page.locator("#copy-command").click()  # which makes it private, too
    page.wait_for_function("document.querySelector('#copied textarea')?.value.includes('/gated --private <<')")
    started(page)
    told = [(request.private, request.suite) for request, _ in site.service.requests]
    assert told == [(True, None)] * 2, "private where it was chosen and where a parent is closed, and not evaluated"


def test_a_refused_start_says_why_in_sight_on_a_phone_and_leads_who_was_signed_out_back(site, monkeypatch):
    page = site.open(f"{FILLED}&method=ram", "ada", 390)
    page.locator("#start:not([disabled])").wait_for()
    shown(page, "#verdict", FIT)  # which proposes a name for an empty field
    field = page.locator(TARGET_NAME).first
    for name, what in (("my merge!", "no repo can have this name"), ("", "the result needs a name")):
        field.fill(name)
        field.blur()
        page.locator("#start:not([disabled])").click()  # what was refused can be tried again
        shown(page, "#said", what)
        page.wait_for_function(_IN_SIGHT)
    field.fill("fine")
    monkeypatch.setattr(gradio.oauth, "_get_valid_oauth_info_from_session", lambda session: None)
    page.locator("#start:not([disabled])").click()
    back = shown(page, "#said a", "Sign in again")
    here = page.evaluate("location.search")
    with page.expect_request("**/login/huggingface?*") as asked:
        back.click()  # which leads to this form, also where another tab has a newer one
    assert parse_qs(urlsplit(asked.value.url).query) == {"_target_url": [f"/merge{here}"]}


def test_a_recipe_in_yaml_fills_the_form_and_another_method_s_parameters_reach_the_recipe(site):
    page = site.open("/merge", width=390)
    page.get_by_text("Load a recipe").click()
    page.locator("#yaml textarea").fill(
        "base: zoo/base\nagents:\n  - zoo/math-agent\n  - {model: zoo/mem-agent, weight: 0.5}\nmethod: ram\nseed: 3\n"
    )
    page.locator("#load-yaml").click()
    shown(page, "#said", "Loaded")
    page.wait_for_function(_IN_SIGHT)
    shown(page, "#agents", MEM)
    assert page.locator("#base input").input_value() == BASE
    assert page.get_by_label("RAM", exact=False).nth(1).is_checked()
    page.get_by_label(MEM).wait_for()  # its fold opens, since its weight is no usual one
    assert page.get_by_label(MEM).input_value() == "0.5"
    page.get_by_label("Another method").check()
    page.locator("#method input").click()
    page.get_by_role("option", name="Task arithmetic", exact=True).click()
    page.get_by_text("How it works, and its settings").click()
    shown(page, "#about-method", "The sum of the agents' updates")
    page.get_by_label("lambda").fill("0.4")
    page.locator("#show-yaml").click()
    page.wait_for_function("document.querySelector('#yaml textarea').value.includes('task_arithmetic')")
    recipe = recipe_from_yaml(page.locator("#yaml textarea").input_value())
    assert (recipe.parameters, recipe.seed, recipe.agents[1].weight) == ({"lambda": 0.4}, 3, 0.5)


def test_a_method_that_weighs_by_sensitivities_is_started_with_its_data(site):
    page = site.open(f"{FILLED}&method=sar", "ada")
    shown(page, "#verdict", "This cannot be merged yet")  # without its data
    card = shown(page, "#calibration", "Dataset")
    for label, value in (("Dataset", "org/rows"), ("Question column", "question"), ("Answer column", "answer")):
        card.get_by_label(label).fill(value)
    card.get_by_label("Rows").fill("64")
    card.locator("#calibration-for input").click()
    page.get_by_role("option", name=TOOL).click()
    holds(page, "#calibration input[type=text], #calibration textarea", "")
    card.get_by_label("Dataset").fill("org/tools")
    page.locator(TARGET_NAME).first.fill("weighed")
    started(page)
    recipe = recipe_from_dict(site.service.requests[0][0].recipe)
    assert recipe.calibration is not None
    shared = (recipe.calibration.data, recipe.calibration.prompt, recipe.calibration.max_pairs)
    assert shared == ("org/rows", "question", 64)
    own = [agent.calibration and (agent.calibration.data, agent.calibration.answer) for agent in recipe.agents]
    assert own == [None, ("org/tools", "answer")]


# what has the keyboard behind the bar with the start, of all that can have it
_COVERED = """() => { const bar = document.querySelector(".hm-bar-start");
  return [...document.querySelectorAll("a[href], button, input, textarea, select, summary, [tabindex='0']")]
    .filter((on) => {
      on.focus();
      if (document.activeElement !== on || bar.contains(on)) return false;
      const [one, other] = [on, bar].map((e) => e.getBoundingClientRect());
      return one.top > other.top - 1 && one.bottom < other.bottom + 1;
    }).map((on) => on.outerHTML); }"""


def test_the_verdict_and_the_start_stay_in_sight_and_cover_nothing_that_has_the_keyboard(site):
    page = site.open(FILLED, "ada", 390)
    shown(page, "#verdict", FIT)
    for to in (0, 600, 1400):
        page.evaluate(f"window.scrollTo(0, {to})")
        assert 700 < page.locator("#start").bounding_box()["y"] < 900, "at the bottom of a phone"
    for width, height in ((390, 844), (800, 600), (320, 256)):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(200)
        assert page.evaluate(_COVERED) == [], (width, height)
    page.set_viewport_size({"width": 1024, "height": 900})
    assert page.locator(".hm-side").evaluate("side => side.scrollHeight <= side.clientHeight")  # all goes with the page
    page.get_by_role("button", name="How it works").click()
    page.get_by_role("button", name="Advanced").click()
    page.locator("#more").scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    assert page.evaluate("window.scrollY") > 300
    assert 0 <= page.locator("#start").bounding_box()["y"] < 300, "beside a long form"


def test_what_is_copied_is_in_the_clipboard_a_link_opens_the_same_form_and_what_cannot_be_copied_is_told(site):
    page = site.open(f"{FILLED}&weight=1&weight=0.5&method=ram_plus&r=0.25&seed=3&name=mine")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown(page, "#verdict", FIT)
    copies = {}
    filled = "(words) => document.querySelector('#copied textarea')?.value.includes(words)"
    for kind, words in (("link", "http"), ("YAML", "r: 0.25"), ("Python", "hubmerge"), ("command", "hubmerge run")):
        page.locator(f"#copy-{kind}").click()
        page.wait_for_function(filled, arg=words)
        copies[kind] = page.locator("#copied textarea").input_value()
        assert page.evaluate("navigator.clipboard.readText()") == copies[kind]
    more = page.locator("#more textarea")  # its fold is open, for the seed
    more.wait_for()
    more.fill("{")
    shown(page, "#verdict", "This cannot be merged yet")  # also what was pasted in one go is checked
    page.locator("#copy-YAML").click()
    told = shown(page, "#uncopied .hm-notice.hm-bad", "This form cannot be copied yet")
    assert not told.locator(".hm-what").inner_text().startswith("E_")
    assert told.locator(".hm-code").inner_text() == "E_RECIPE"
    assert page.locator("#copied").count() == 0
    assert page.evaluate("navigator.clipboard.readText()") == copies["command"], "the clipboard is as before"
    page.goto(copies["link"], wait_until="domcontentloaded")
    shown(page, "#verdict", FIT)
    page.locator("#copy-YAML").click()
    page.wait_for_function(filled, arg="r: 0.25")
    assert page.locator("#copied textarea").input_value() == copies["YAML"], "of the form that the link opens"
    assert page.locator("#copied").inner_text() == "Copied"
    page.evaluate("() => { navigator.clipboard.writeText = async () => { throw Error('too late'); }; }")
    page.locator("#copy-YAML").click()
    shown(page, "#copied", "To copy")
    weight = page.locator("#weights [type=number]").first
    weight.fill("")
    weight.press("-")  # no number, as "0,5" is none to Firefox: it would be an empty box, which means the usual weight
    page.locator("#copy-YAML").click()
    assert weight.evaluate("(box) => box === document.activeElement"), "it is asked for a number"
    page.locator("#yaml-card button").first.click()
    page.get_by_role("textbox", name="Recipe", exact=True).wait_for()  # a fold opens all the same
    weight.fill("0.75")
    page.locator("#copy-YAML").click()
    page.wait_for_function(filled, arg="weight: 0.75")


def test_checks_follow_each_other_and_no_late_answer_about_another_form_opens_the_start(site, monkeypatch):
    go_on, before, asked = Event(), site.service.inspect, list[Any]()

    def late(recipe: Any, *given: Any) -> Any:
        asked.append(recipe["method"])
        if "other/wide-agent" not in recipe["agents"]:
            go_on.wait(60)
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
    page.wait_for_function(_TOKENS, arg=3)
    go_on.set()
    shown(page, "#verdict", FIT)  # the late answer
    shown(page, "#verdict", "This cannot be merged yet")
    assert page.evaluate("window.opened") is False

    page.locator("#agents .token").filter(has_text="wide-agent").locator(".token-remove").click()
    shown(page, "#verdict", FIT)
    go_on.clear()
    asked.clear()
    page.get_by_label("RAM", exact=False).nth(1).check()
    shown(page, "#verdict", "Checking")
    for label in ("RAM+ (recommended)", "SAR Where"):
        page.get_by_label(label).first.check()
    page.locator("#inspect").click()
    page.wait_for_timeout(1000)
    go_on.set()
    shown(page, "#verdict", "SAR needs")
    assert asked in (["ram"], ["ram", "sar"]), "once for all changes meanwhile"


def test_a_swap_is_offered_and_done_with_one_click_and_agents_of_the_base_to_tick(site):
    page = site.open(f"/merge?base={MATH}&agent={BASE}&agent={TOOL}", "ada")
    shown(page, "#why", "look swapped")
    shown(page, "#accept", "Swap them").click()
    holds(page, "#base input", BASE)
    assert tokens(page) == [MATH, TOOL]
    holds(page, TARGET_NAME, "base-ram-plus")  # the proposed name follows the models
    page.wait_for_function(f"location.search.startsWith('?base={BASE}')")
    shown(page, "#verdict", FIT)
    page.locator("#accept").wait_for(state="hidden")
    assert "name=" not in page.url
    page.get_by_label(MATH).uncheck()
    shown(page, "#verdict", "Choose another agent")
    assert tokens(page) == [TOOL]
    page.get_by_label(MATH).check()
    shown(page, "#verdict", FIT)
    assert tokens(page) == [TOOL, MATH]


def test_a_job_s_recipe_can_be_used_again_and_keeps_owner_name_visibility_and_license_for_its_owner(site, monkeypatch):
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
    monkeypatch.setattr(merge_page, "inspect_form", Mock(side_effect=QuotaError("too many questions of yours")))
    stranger = site.open(f"/merge?job={JOB}", "bob")
    shown(stranger, "#agents", MEM)
    holds(stranger, "#namespace input", "bob")
    shown(stranger, "#verdict", "Not checked")
    stranger.wait_for_timeout(500)  # what follows the check writes the address, too
    assert stranger.url.startswith(f"{site.url}/merge?base={BASE}&agent="), "also where its check finds no room"


def test_a_look_into_a_few_layers_recommends_a_method_and_is_forgotten_with_the_models_that_it_was_about(site):
    # beside it gradio keeps, in a place that nobody sees, that the look was cancelled
    nothing_told = "document.querySelector('#preview .prose').innerText.trim() === ''"

    def change_the_models() -> None:
        page.locator("#agents .token-remove").first.click()
        page.wait_for_function(nothing_told)

    page = site.open(f"{FILLED}&agent={MEM}&method=linear")
    errors = errors_of(page)
    page.locator("#look:not([disabled])").wait_for()
    site.service.go_on.clear()
    page.locator("#look").click()
    shown(page, "#preview", "Reading a few megabytes")
    change_the_models()
    site.service.go_on.set()
    shown(page, "#verdict", FIT)
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


def pasted(page: Any) -> None:
    """Addresses and a list become the models that they name, with the keyboard alone."""
    agents = f"{MATH}, https://hf.co/{TOOL}  {FakeService().endpoint}/{MEM}"
    for box, text in (("#base", f"https://huggingface.co/{BASE}/tree/main"), ("#agents", agents)):
        page.locator(f"{box} input").first.focus()
        page.keyboard.insert_text(text)
        page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.wait_for_function(_TOKENS, arg=3)
    assert tokens(page) == [MATH, TOOL, MEM]
    assert page.locator("#base input").input_value() == BASE


def as_it_is(page: Any) -> None:
    """The address has filled the form."""


def with_a_text_that_is_no_name(page: Any) -> None:
    page.locator("#base input").first.focus()
    page.keyboard.insert_text("no such thing!")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")


def with_more_than_a_merge_takes(page: Any) -> None:
    page.locator("#agents input").first.focus()
    page.keyboard.insert_text(" ".join(f"org/a{k}" for k in range(40)))
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.wait_for_function(_TOKENS, arg=42)
    shown(page, "#verdict", "There are more than 32 agents")


def test_a_merge_page_at_rest_asks_the_server_for_nothing_however_its_form_was_filled(site):
    page = site.open("about:blank", "ada")
    errors, asked = errors_of(page), list[str]()
    page.on("request", lambda request: asked.append(request.url) if "/gradio_api/" in request.url else None)
    for query, fill, told in (
        ("/merge", pasted, FIT),
        (f"{FILLED}&method=ties&also=ram&vary=density:0.2,0.5", as_it_is, FIT),
        (f"{FILLED}&method=sar", as_it_is, "cannot be merged"),
        (FILLED, with_a_text_that_is_no_name, "cannot be merged"),
        (FILLED, with_more_than_a_merge_takes, "cannot be merged"),
    ):
        gone_to(page, site, query)
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
        assert (asked, errors) == ([], []), query

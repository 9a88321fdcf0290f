"""The pages in a real browser: form, inspection, start, job, list; on a desk and on a phone."""

from __future__ import annotations

import time
from typing import Any

import gradio.oauth
import pytest
from pages_fake import BASE, HOSTILE, MATH, STATISTICS, TOOL, job_view
from pages_session import FILLED, TARGET_NAME, Site, holds, shown, untouched

from hubmerge.errors import DiskError, HubUnavailableError, IncompatibleError
from hubmerge.recipe.file import recipe_from_yaml
from hubmerge.recipe.recipe import recipe_from_dict
from workflows.app.panels import in_the_form
from workflows.app.signin import sign_in_link
from workflows.values import LogLine

IN_SIGHT = """() => { const {top, bottom} = document.querySelector("#said").getBoundingClientRect();
  return top >= 0 && bottom <= document.querySelector(".hm-bar-start").getBoundingClientRect().top; }"""
pytestmark = pytest.mark.browser
JOB = "1" * 64
RUNNING = {
    "state": "running",
    "stage": "merge",
    "queue_position": None,
    "started": "2026-01-31T14:06:00+00:00",
    "progress": {"stage": "merge", "done": 312e6, "total": 988e6, "unit": "bytes", "per_second": 41e6},
    "statistics": STATISTICS,
}


def choose(page: Any, field: str, typed: str, wanted: str) -> None:
    page.locator(f"#{field} input").click()
    page.keyboard.type(typed)
    page.get_by_role("option").filter(has_text=wanted).first.click()


def test_a_merge_is_evaluated_with_the_suite_that_was_chosen_and_a_private_one_with_none(site: Site) -> None:
    asked = f"{site.url}{FILLED}&name=one"
    for visibility, suite in (("public", "tool"), ("private", None)):
        page = site.open(asked, "ada")
        page.locator("#start:not([disabled])").wait_for()
        shown(page, "#agents", TOOL)
        assert page.locator("#suite input").input_value() == "Mathematics"  # the usual one
        page.locator("#suite input").click()
        page.get_by_role("option").filter(has_text="Function calling").first.click()
        page.locator("#visibility").get_by_label(visibility, exact=True).check()
        page.locator("#start").click()
        page.wait_for_url("**/job?id=*")
        request, _ = site.service.requests[-1]
        assert (request.private, request.suite) == (visibility == "private", suite)


def test_every_problem_is_listed(site: Site) -> None:
    page = site.open(f"/merge?base={BASE}&agent={MATH}&agent=other/wide-agent&method=ram")
    shown(page, "#agents", "other/wide-agent")
    page.locator("#inspect").click()
    shown(page, "#outcome", "things must change first")
    with pytest.raises(IncompatibleError) as expected:
        site.service.inspect({"base": BASE, "agents": [MATH, "other/wide-agent"], "method": "ram"}, None)
    told = [item.text_content() for item in page.locator("#outcome .hm-problems > li").all()]
    assert len(told) == len(expected.value.problems) > 1
    steps = [in_the_form(problem.next_step) for problem in expected.value.problems]
    assert all("into Ignore, under Advanced" in step for step in steps)  # which is where the form has it
    assert all(p.what in text for p, text in zip(expected.value.problems, told, strict=True))
    assert all(step in text for step, text in zip(steps, told, strict=True))


def test_a_form_that_is_not_complete_says_what_is_missing(site: Site) -> None:
    page = site.open("/merge")
    shown(page, "#outcome", "Choose a base and the agents")
    assert not page.get_by_role("button", name="Copy as").first.is_visible()  # of what is not there yet
    choose(page, "base", "base", BASE)
    shown(page, "#verdict", "Choose the agents")
    page.get_by_role("button", name="Copy as link").wait_for()
    assert page.locator("#outcome .hm-problems").count() == 0


def test_a_gated_parent_makes_automatic_visibility_private_and_has_a_license_asked_for(site: Site) -> None:
    two = f"{site.url}/merge?base={BASE}&agent={MATH}"
    page = site.open(f"{two}&agent={TOOL}", "ada")
    shown(page, "#verdict", "These models fit")
    assert page.locator("#license").count() == 0  # the parents leave nothing open
    page.goto(f"{two}&agent=secret/gated-agent", wait_until="domcontentloaded")
    shown(page, "#verdict", "license to be chosen")
    page.locator("#license input").wait_for()
    shown(page, "#outcome", "Gated or private: secret/gated-agent")
    shown(page, "#outcome", "License: your choice is needed")
    page.locator("#start").click()
    page.wait_for_url("**/job?id=*")
    assert site.service.requests[0][0].private is True


def test_a_chosen_method_shows_its_parameters_and_they_reach_the_recipe(site: Site) -> None:
    page = site.open(f"{FILLED}")
    shown(page, "#agents", TOOL)
    page.get_by_label("Another method").check()
    page.locator("#method input").click()
    page.get_by_role("option", name="Task arithmetic", exact=True).click()
    page.get_by_text("How it works, and its settings").click()
    shown(page, "#about-method", "The sum of the agents' updates")
    page.get_by_label("lambda").fill("0.4")
    page.get_by_text("Load a recipe").click()
    page.locator("#show-yaml").click()
    page.wait_for_function("document.querySelector('#yaml textarea').value.includes('task_arithmetic')")
    assert recipe_from_yaml(page.locator("#yaml textarea").input_value()).parameters == {"lambda": 0.4}


def test_a_method_that_weighs_by_sensitivities_is_started_with_its_data(site: Site) -> None:
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
    page.locator("#start").click()
    page.wait_for_url("**/job?id=*")
    recipe = recipe_from_dict(site.service.requests[0][0].recipe)
    assert recipe.calibration is not None
    shared = (recipe.calibration.data, recipe.calibration.prompt, recipe.calibration.max_pairs)
    assert shared == ("org/rows", "question", 64)
    own = [agent.calibration and (agent.calibration.data, agent.calibration.answer) for agent in recipe.agents]
    assert own == [None, ("org/tools", "answer")]


def test_a_name_that_no_repo_can_have_is_not_called_missing_and_that_is_in_sight_on_a_phone(site: Site) -> None:
    page = site.open(f"{FILLED}&method=ram", "ada", 390)
    page.locator("#start:not([disabled])").wait_for()
    shown(page, "#verdict", "These models fit")  # which proposes a name for an empty field
    field = page.locator(TARGET_NAME).first
    for name, what in (("my merge!", "no repo can have this name"), ("", "the result needs a name")):
        field.fill(name)
        field.blur()
        page.locator("#start:not([disabled])").click()  # what was refused can be tried again
        shown(page, "#said", what)
        page.wait_for_function(IN_SIGHT)


def test_who_was_signed_out_meanwhile_finds_the_way_back_where_start_is_answered(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = site.open(f"{FILLED}&method=ram", "ada")
    page.locator("#start:not([disabled])").wait_for()
    monkeypatch.setattr(gradio.oauth, "_get_valid_oauth_info_from_session", lambda session: None)
    page.locator("#start").click()
    back = shown(page, "#said a", "Sign in again")
    assert back.get_attribute("href") == sign_in_link("/merge")


def test_a_recipe_in_yaml_fills_the_form(site: Site) -> None:
    page = site.open("/merge", width=390)
    page.get_by_text("Load a recipe").click()
    page.locator("#yaml textarea").fill(
        "base: zoo/base\nagents:\n  - zoo/math-agent\n  - {model: zoo/mem-agent, weight: 0.5}\nmethod: ram\nseed: 3\n"
    )
    page.locator("#load-yaml").click()
    shown(page, "#said", "Loaded")
    page.wait_for_function(IN_SIGHT)
    shown(page, "#agents", "zoo/mem-agent")
    assert page.locator("#base input").input_value() == "zoo/base"
    assert page.get_by_label("RAM", exact=False).nth(1).is_checked()
    page.get_by_label("zoo/mem-agent").wait_for()  # its fold opens, since its weight is no usual one
    assert page.get_by_label("zoo/mem-agent").input_value() == "0.5"


def test_what_was_typed_survives_a_reload_and_a_page_that_is_left_before_its_form_is_filled(site: Site) -> None:
    def kept() -> None:
        shown(page, "#agents", TOOL)
        holds(page, TARGET_NAME, "kept")

    whole = f"{site.url}{FILLED}&method=ram_plus"
    page = site.open(whole)
    shown(page, "#verdict", "These models fit")
    page.locator(TARGET_NAME).first.fill("kept")
    page.wait_for_function("localStorage.getItem('hubmerge-form').includes('\"kept\"')")
    page.reload(wait_until="domcontentloaded")
    kept()
    page.goto(f"{site.url}/merge?__theme=light", wait_until="domcontentloaded")  # as within the Hub's frame
    kept()
    page.route("**/gradio_api/run/**", lambda route: None)  # no answer ever comes
    page.goto(whole, wait_until="domcontentloaded")
    choose(page, "base", "base", BASE)
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)
    page.unroute("**/gradio_api/run/**")
    page.goto(f"{site.url}/merge", wait_until="domcontentloaded")
    kept()
    assert "agent=" in page.url  # with its address


def test_a_form_can_be_started_over_and_the_way_back_leads_to_what_it_was(site: Site) -> None:
    page = site.open(f"{FILLED}")
    shown(page, "#verdict", "These models fit")
    page.get_by_role("button", name="Start over").click()
    shown(page, "#verdict", "Choose models to begin")
    assert page.url == f"{site.url}/merge"
    assert page.evaluate("localStorage.getItem('hubmerge-form')") is None
    page.go_back(wait_until="domcontentloaded")
    shown(page, "#verdict", "These models fit")


def test_the_form_takes_nothing_before_it_is_filled_which_would_replace_it(site: Site) -> None:
    page = site.open(site.url)
    held: list[Any] = []
    page.route("**/gradio_api/run/**", lambda route: held.append(route))
    page.goto(f"{site.url}{FILLED}&method=ram")
    page.wait_for_function("document.querySelector('.hm-form')?.inert")
    for route in held:
        route.continue_()
    page.route("**/gradio_api/run/**", lambda route: route.continue_())
    page.wait_for_function("document.querySelector('.hm-form')?.inert === false")
    page.locator(TARGET_NAME).first.fill("typed-at-once")
    shown(page, "#verdict", "These models fit")
    assert page.locator(TARGET_NAME).first.input_value() == "typed-at-once"


def test_an_address_is_opened_as_it_says_also_where_the_kept_one_begins_like_it(site: Site) -> None:
    short = f"{site.url}/merge?base={BASE}"
    page = site.open(f"{short}&agent={MATH}&agent={TOOL}")
    shown(page, "#verdict", "These models fit")
    page.goto(short, wait_until="domcontentloaded")
    holds(page, "#base input", BASE)
    page.locator("#inspect:not([disabled])").wait_for()
    assert page.locator("#agents").filter(has_text=MATH).count() == 0


def test_a_job_is_followed_without_a_reload(site: Site) -> None:
    site.service.put([job_view(JOB, queue_position=3)])
    page = site.open(f"/job?id={JOB}")
    shown(page, "#job", "2 jobs are ahead of it")
    site.service.put([job_view(JOB, **RUNNING)])
    shown(page, "#job .hm-amount", "31.6%")
    shown(page, "#job", "312 MB of 988 MB · 41.0 MB/s · about 16 s left")  # 676 / 41 = 16.49
    shown(page, "#job [aria-current=step]", "Merge")
    shown(page, "#statistics", "21.4%")
    result = {"repo": "ada/three-in-one", "commit": "c" * 40}
    site.service.put([job_view(JOB, **{**RUNNING, "state": "done", "stage": "publish"}, result=result)])
    shown(page, "#job", "Published")
    assert page.locator("#job .hm-result a").get_attribute("href") == f"model?model=ada/three-in-one&sha={'c' * 40}"
    assert page.locator(f"#job a[href^='{site.service.endpoint}/ada/three-in-one']").count()


def test_what_a_reader_unfolds_stays_open_while_the_job_goes_on_until_the_reader_folds_it(site: Site) -> None:
    log = (LogLine("2026-01-31T14:06:00+00:00", "claimed"), LogLine("2026-01-31T14:06:01+00:00", "stage", "merge"))
    site.service.put([job_view(JOB, **RUNNING, log=log)])
    page = site.open(f"/job?id={JOB}")
    fold, title = page.locator("#job details"), page.locator("#job summary")
    for opened, share in ((True, "40.5%"), (False, "50.6%")):
        title.click()
        done = {**RUNNING["progress"], "done": 988e4 * float(share.rstrip("%"))}
        site.service.put([job_view(JOB, **{**RUNNING, "progress": done}, log=log)])
        shown(page, "#job .hm-amount", share)
        assert fold.evaluate("(fold) => fold.open") is opened


def test_polling_ends_with_the_job(site: Site) -> None:
    site.service.put([job_view(JOB, **RUNNING)])
    page = site.open("about:blank")
    page.clock.install()
    page.goto(f"{site.url}/job?id={JOB}", wait_until="domcontentloaded")
    shown(page, "#job", "41.0 MB/s")
    with page.expect_request("**/run/predict*"):
        page.clock.fast_forward(2_500)
    site.service.put([job_view(JOB, state="cancelled", queue_position=None)])
    shown(page, "#job", "Nothing was published")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.fast_forward(60_000)
    with page.expect_request("**/robots.txt"):  # the test's own, behind any that the timer made
        page.evaluate("fetch('robots.txt')")
    assert [url.rsplit("/", 1)[1] for url in asked] == ["robots.txt"]


def test_the_owner_cancels_a_job_and_tries_it_again_and_nobody_else_sees_the_buttons(site: Site) -> None:
    site.service.put([job_view(JOB, **RUNNING)])
    strangers = [site.open(f"/job?id={JOB}", user) for user in (None, "bob")]
    for stranger in strangers:
        shown(stranger, "#job", "Running")
        assert stranger.locator("#cancel").count() == 0
    page = site.open(f"/job?id={JOB}", "ada")
    page.locator("#cancel").click()
    shown(page, "#job", "Nothing was published")
    assert site.service.store[JOB].state == "cancelled"
    for stranger in strangers:
        shown(stranger, "#job", "Nothing was published")
        assert stranger.locator("#retry").count() == 0
    page.locator("#retry").click()
    shown(page, "#job", "Queued")
    assert site.service.store[JOB].state == "queued"
    error = DiskError("the disk is full", next_step="Try again later.").as_dict()
    site.service.put([job_view(JOB, state="failed", stage="download", error=error, queue_position=None)])
    shown(page, "#job", "the disk is full")  # the page polls again
    page.locator("#retry").click()
    shown(page, "#job", "Queued")


def test_a_job_of_somebody_else_with_a_private_target_is_not_shown(site: Site) -> None:
    site.service.put([job_view(JOB, private=True, target="ada/secret")])
    page = site.open(f"/job?id={JOB}", "bob")
    shown(page, "#job", "This job cannot be shown")
    assert "ada/secret" not in page.content()
    shown(site.open(f"/job?id={JOB}", "ada"), "#job", "ada/secret")


def test_my_jobs_lists_the_visitor_s_own_and_links_to_them(site: Site) -> None:
    site.service.put([job_view(JOB), job_view("2" * 64, user="bob", target="bob/other")])
    page = site.open("/activity", "ada")
    row = shown(page, "#jobs tbody tr", "ada/three-in-one")
    assert page.locator("#jobs tbody tr").count() == 1
    row.get_by_role("link", name="ada/three-in-one").click()
    page.wait_for_url(f"**/job?id={JOB}")
    shown(site.open("/activity?show=mine"), "#jobs", "Sign in to see your jobs")
    shown(site.open("/activity", "carol"), "#jobs", "No jobs yet")


def test_the_jobs_that_an_address_asks_for_are_those_that_the_page_looks_at_again(site: Site) -> None:
    site.service.put([job_view(JOB, user="bob", target="bob/other")])
    page = site.open("/activity?show=all", "ada")
    shown(page, "#jobs tbody tr", "bob/other")
    site.service.put([job_view("2" * 64, user="carol", target="carol/new")])
    shown(page, "#jobs tbody tr", "carol/new")


def test_what_is_said_of_a_job_s_progress_leaves_the_names_room(site: Site) -> None:
    name = "ada/base-ram-plus-on-math-tool-mem"
    what = "kept 3 of 3 skills: 82% of the gain in math, 99% of the gain in tool use, 94% in memory"
    problem = {"code": "E_X", "what": what}
    site.service.put([job_view(JOB, target=name, state="failed", error={"problems": [problem]}, queue_position=None)])
    page = site.open("/activity", "ada")
    link = shown(page, "#jobs tbody th a", name)
    assert link.evaluate("(e) => e.getClientRects().length") <= 2  # it breaks at its hyphens alone
    table = page.locator("#jobs .hm-table")
    assert table.evaluate("(e) => e.scrollWidth <= e.clientWidth")


@pytest.mark.parametrize("layers", [3, 100])
def test_the_line_below_the_bars_of_layers_ends_with_the_last_bar(site: Site, layers: int) -> None:
    shares = {str(layer): [0.1, 0.2, 0.4] for layer in range(layers)}
    site.service.put([job_view(JOB, **{**RUNNING, "statistics": {**STATISTICS, "layers": shares}})])
    page = site.open(f"/job?id={JOB}", "ada")
    bars = page.locator(".hm-layer-bars").first
    bars.wait_for()
    line, last = bars.bounding_box(), bars.locator("i").last.bounding_box()
    assert line["x"] + line["width"] == pytest.approx(last["x"] + last["width"], abs=1)
    assert line["width"] > 250
    assert page.locator(".hm-layers").evaluate("(e) => e.scrollWidth <= e.clientWidth")


def test_what_is_chosen_ends_before_the_arrow_of_its_field(site: Site) -> None:
    page = site.open(f"/merge?base={BASE}", "ada", 390)
    page.locator("#base .icon-wrap").wait_for()
    text, arrow = page.evaluate(
        """() => { const field = document.querySelector("#base input[role=combobox]");
          const end = field.getBoundingClientRect().right - parseFloat(getComputedStyle(field).paddingRight);
          return [end, document.querySelector("#base .icon-wrap").getBoundingClientRect().left]; }"""
    )
    assert text <= arrow


def test_a_page_says_that_it_is_english_whatever_the_browser_speaks(site: Site) -> None:
    page = site.open(f"/merge?base={BASE}", locale="de-DE")
    page.get_by_role("button", name="Copy as link").wait_for()
    assert page.evaluate("document.documentElement.lang") == "en"


def test_a_link_leads_where_it_says_also_while_the_page_connects_anew(site: Site) -> None:
    page = site.open(FILLED)
    shown(page, "#verdict", "These models fit")
    page.context.set_offline(True)
    page.get_by_label("SAR", exact=False).first.check()
    shown(page, ".toast-body", "Attempting reconnection")
    page.context.set_offline(False)
    page.route(f"{site.url}/", lambda route: (time.sleep(4), route.continue_()))  # gradio looks every two seconds
    page.get_by_role("link", name="Home").click()
    page.get_by_role("link", name="Choose models").wait_for()


def test_the_theme_of_the_hub_s_frame_holds_for_the_pages_that_follow(site: Site) -> None:
    for theme, other in (("dark", "light"), ("light", "dark")):
        page = site.open(f"/?__theme={theme}", color_scheme=other)
        page.get_by_role("link", name="Choose models").click()
        page.wait_for_function("window.hm?.opened")
        assert page.evaluate("document.body.classList.contains('dark')") is (theme == "dark")


def test_text_of_strangers_is_shown_as_text_everywhere(site: Site) -> None:
    problem = {"code": "E_X", "what": HOSTILE, "where": HOSTILE, "got": HOSTILE, "next_step": HOSTILE}
    recipe = {"base": HOSTILE, "agents": [HOSTILE, f"{HOSTILE}2"], "method": "ram"}
    view = job_view(
        *(JOB,),
        **{**RUNNING, "state": "failed"},
        target=HOSTILE,
        warnings=(HOSTILE,),
        error={"message": HOSTILE, "problems": [problem]},
        recipe=recipe,
    )
    site.service.put([view])
    site.service.failure = HubUnavailableError(HOSTILE, where=HOSTILE)
    job = site.open(f"/job?id={JOB}", "ada")
    shown(job, "#job h1", HOSTILE)
    job.locator("#recipe-card button").first.click()
    job.wait_for_function("document.querySelector('#recipe textarea').value.includes('<img src=x')")
    jobs = site.open("/activity", "ada")
    shown(jobs, "#jobs tbody th", HOSTILE)
    again = site.open(f"/merge?job={JOB}", "ada")
    shown(again, "#agents", "<img src=x")
    inspected = site.open(f"{FILLED}", "ada")
    shown(inspected, "#agents", TOOL)
    inspected.locator("#inspect").click()
    shown(inspected, "#outcome .hm-what", HOSTILE)
    untouched(job, jobs, again, inspected)

"""The pages in a real browser: the frame that they share, a job from the queue to its end, and the list of jobs."""

import time
from typing import Any

import pytest
from pages_fake import BASE, HOSTILE, RUNNING, TOOL, job_view, model
from pages_session import FILLED, calls_of_docs, holds, shown, untouched

from hubmerge.errors import DiskError, HubUnavailableError
from workflows.values import LogLine, Published

pytestmark = pytest.mark.browser
JOB, SECRET = "1" * 64, "2" * 64
_SPOKEN = """() => { window.told = ""; new MutationObserver(() => { window.told += document.body.innerText;
  for (const one of document.querySelectorAll(".sr-only")) window.told += `[${one.textContent.trim()}]`; })
  .observe(document.body, {subtree: true, childList: true, characterData: true}) }"""


def test_home_leads_to_example_form_and_docs_in_english_and_in_the_theme_of_the_hub_s_frame(site):
    page = site.open("/?__theme=dark", color_scheme="light", locale="de-DE")
    page.get_by_role("link", name="Try the example").click()
    page.wait_for_url("**/merge?base=zoo/base&**", wait_until="domcontentloaded")
    for name in ("zoo/math-agent", "zoo/tool-agent", "zoo/mem-agent"):
        shown(page, "#agents", name)
    assert page.evaluate("document.body.classList.contains('dark')"), "the theme holds for the pages that follow"
    assert page.evaluate("document.documentElement.lang") == "en"
    bar = page.get_by_role("navigation", name="Pages")
    bar.get_by_role("link", name="Home").click()
    page.get_by_role("link", name="Choose models").click()
    page.wait_for_url("**/merge*", wait_until="domcontentloaded")
    bar.get_by_role("link", name="Docs").click()
    boxes = page.locator("#programs textarea")
    boxes.first.wait_for()
    page.wait_for_function("!document.querySelector('#programs textarea').value.includes(':7860')")
    shown_calls = [box.input_value() for box in boxes.all()]
    assert shown_calls == [call.replace("http://127.0.0.1:7860", site.url) for call in calls_of_docs()]
    assert sum(site.url in call for call in shown_calls) == 2, "calls name the address that the page was opened with"
    page.goto("about:blank")
    page.goto(f"{site.url}/docs#words", wait_until="domcontentloaded")
    page.wait_for_function("Math.abs(document.querySelector('#words')?.getBoundingClientRect().top) < 5")


def test_a_job_is_followed_without_a_reload_to_its_end_and_what_a_reader_unfolds_stays_open(site):
    log = (LogLine("2026-01-31T14:06:00+00:00", "claimed"), LogLine("2026-01-31T14:06:01+00:00", "stage", "merge"))
    site.service.put([job_view(JOB, queue_position=3)])
    page = site.open("about:blank")
    page.clock.install()
    page.goto(f"{site.url}/job?id={JOB}", wait_until="domcontentloaded")

    def goes_on(**changes: Any) -> None:
        site.service.put([job_view(JOB, **{**RUNNING, **changes}, log=log)])
        with page.expect_request("**/run/predict*"):
            page.clock.fast_forward(2_500)

    shown(page, "#job", "2 jobs are ahead of it")
    goes_on()
    shown(page, "#job .hm-amount", "31.6%")
    shown(page, "#job", "312 MB of 988 MB · 41.0 MB/s · about 16 s left")  # 676 / 41 = 16.49
    shown(page, "#job [aria-current=step]", "Merge")
    shown(page, "#statistics", "21.4%")
    for opened, share in ((True, "40.5%"), (False, "50.6%")):
        page.locator("#job summary").click()
        goes_on(progress={**RUNNING["progress"], "done": 988e4 * float(share.rstrip("%"))})
        shown(page, "#job .hm-amount", share)
        assert page.locator("#job details").evaluate("(fold) => fold.open") is opened
    goes_on(state="done", stage="publish", result={"repo": "ada/three-in-one", "commit": "c" * 40})
    shown(page, "#job", "Published")
    assert page.locator("#job .hm-result a").get_attribute("href") == f"model?model=ada/three-in-one&sha={'c' * 40}"
    assert page.locator(f"#job a[href^='{site.service.endpoint}/ada/three-in-one']").count()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.fast_forward(60_000)
    with page.expect_request("**/robots.txt"):  # the test's own, behind any that the timer made
        page.evaluate("fetch('robots.txt')")
    assert [url.rsplit("/", 1)[1] for url in asked] == ["robots.txt"], "polling ends with the job"


def test_the_owner_alone_cancels_a_job_tries_it_again_and_sees_a_private_one(site):
    site.service.put([job_view(JOB, **RUNNING), job_view(SECRET, private=True, target="ada/secret")])
    strangers = [site.open(f"/job?id={JOB}", user) for user in (None, "bob")]
    for stranger in strangers:
        shown(stranger, "#job", "Running")
        assert stranger.locator("#cancel").count() == 0
    page = site.open(f"/job?id={JOB}", "ada")
    page.locator("#cancel").wait_for()
    page.evaluate(_SPOKEN)
    page.locator("#cancel").click()
    shown(page, "#job", "Nothing was published")
    assert site.service.store[JOB].state == "cancelled"
    page.wait_for_function("/\\[(Done|common[.]complete)\\]/.test(window.told)")  # gradio says it seconds later
    assert "common." not in page.evaluate("window.told"), "a screen reader is told words"
    for stranger in strangers:
        shown(stranger, "#job", "Nothing was published")
        assert stranger.locator("#retry").count() == 0
    page.locator("#retry").click()
    shown(page, "#job", "Queued")
    assert site.service.store[JOB].state == "queued"
    error = DiskError("the disk is full", next_step="Try again later.").as_dict()
    site.service.put([job_view(JOB, state="failed", stage="download", error=error, queue_position=None)])
    shown(page, "#job", "the disk is full")  # the page polls again
    for who in (page, *strangers):
        who.goto(f"{site.url}/job?id={SECRET}", wait_until="domcontentloaded")
    shown(page, "#job", "ada/secret")
    for stranger in strangers:
        shown(stranger, "#job", "This job cannot be shown")
        assert "ada/secret" not in stranger.content()


def test_the_activity_lists_whose_jobs_its_address_asks_for_and_evaluate_asks_for_one(site):
    site.service.put([job_view(JOB), job_view(SECRET, user="bob", target="bob/other")])
    page = site.open("/activity?show=mine")
    shown(page, "#jobs", "Sign in to see your jobs")
    page = site.open("/activity", "ada")
    shown(page, "#jobs tbody tr", "ada/three-in-one")
    assert page.locator("#jobs tbody tr").count() == 1, "one's own alone"
    page.get_by_role("link", name="Everybody's").click()
    shown(page, "#jobs tbody tr", "bob/other")
    site.service.put([job_view("3" * 64, user="carol", target="carol/new")])
    shown(page, "#jobs tbody tr", "carol/new")
    page.get_by_role("link", name="ada/three-in-one").click()
    page.wait_for_url(f"**/job?id={JOB}")
    page.goto(f"{site.url}/evaluate?model=zoo/math-agent&suite=tool", wait_until="domcontentloaded")
    holds(page, "#evaluate-model input", "zoo/math-agent")
    holds(page, "#evaluate-suite input", "Function calling")
    page.locator("#ask").click()
    shown(page, "#answer", "zoo/math-agent will be measured. It is number 1 in the queue.")
    shown(page, "#queue", "Function calling")
    page.locator("#evaluate-model input").fill("ada/secret")
    page.keyboard.press("Enter")
    page.locator("#ask").click()
    told = shown(page, "#answer", "no such repo, or one that you may not read")
    assert told.get_by_role("link").count() == 0  # a private model is not measured, whatever the sign-in covers
    page.wait_for_function("location.search === '?model=ada%2Fsecret&suite=tool'")
    page.context.clear_cookies()
    page.locator("#ask").click()
    shown(page, "#answer", "Sign in with the Hub and try again")


def test_a_link_leads_where_it_says_also_while_the_page_connects_anew(site):
    page = site.open(FILLED)
    shown(page, "#verdict", "These models fit")
    page.context.set_offline(True)
    page.get_by_label("SAR", exact=False).first.check()
    shown(page, ".toast-body", "Attempting reconnection")
    page.context.set_offline(False)
    page.route(f"{site.url}/", lambda route: (time.sleep(4), route.continue_()))  # gradio looks every two seconds
    page.get_by_role("link", name="Home").click()
    page.get_by_role("link", name="Choose models").wait_for()


def test_a_name_without_a_break_is_seen_whole_on_a_phone(site):
    name = f"{'o' * 40}/{'W' * 96}"
    site.service.models[name] = model(name, "9", card={"base_model": BASE})
    site.service.shelf[name] = Published(name, "9" * 40, None, "", {}, is_open=True)
    form = f"/merge?base={BASE}&agent={name}&agent={TOOL}&weight=0.5&weight=1"
    for address, *places in ((form, "#suggested label", "#weights label"), (f"/model?model={name}", "#model a")):
        page = site.open(address, width=390)
        for place in places:
            told = shown(page, place, "WWW")
            ends = told.evaluate("(e) => Math.max(...[e, ...e.children].map((e) => e.getBoundingClientRect().right))")
            assert ends < 390, place


def test_text_of_strangers_is_shown_as_text_everywhere(site):
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

"""The layers around gradio: what foreign pages may, what is closed and bounded, titles, and addresses that are none."""

import json
import re
from typing import Any

import pytest
from pages_fake import FakeService
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.testclient import TestClient

from hubmerge.settings import Settings
from workflows.app.app import build_web_app
from workflows.app.frame import PAGES
from workflows.app.guard import MAX_BODY_BYTES, Guard
from workflows.app.site import Site, site_routes

BOARDLESS = [p for p in PAGES if p.path != "leaderboard"]
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture(scope="module")
def site() -> TestClient:
    app = build_web_app(FakeService(), Settings(endpoint="http://127.0.0.1:9"))
    return TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)


def test_an_address_with_a_slash_at_its_end_leads_to_the_page_and_loses_nothing(site):
    for query in ("", "?base=//evil.example&agent=c/d&agent=e/f"):
        answer = site.get(f"/merge/{query}")
        assert (answer.status_code, answer.headers["location"]) == (308, f"/merge{query}")


@pytest.mark.parametrize("page", BOARDLESS, ids=lambda page: page.path or "home")
def test_every_page_says_what_it_is_to_search_engines_and_in_shared_links(site, page):
    answer = site.get(f"/{page.path}")
    assert answer.status_code == site.head(f"/{page.path}").status_code == 200
    head, _, rest = answer.text.partition("<script>window.gradio_config = ")
    assert head.count("<title>") == 1
    for name, value in (("title", page.title), ("description", page.description)):
        assert re.findall(f'<meta property="og:{name}" content="([^"]*)">', head) == [value.replace("'", "&#39;")]
    assert 'property="og:image" content="http://127.0.0.1/social.png"' in head
    assert "gradio" not in re.sub("<style>.*?</style>", "", head, flags=re.DOTALL).lower()
    config = json.loads(rest.partition(";</script>")[0])
    assert config["title"] == page.title
    assert len({p.description for p in PAGES}) == len({p.title for p in PAGES}) == len(PAGES)


@pytest.mark.parametrize(
    ("model", "title"),
    [("org/merge", "org/merge · hubmerge"), ("<b>x</b>", "Model · hubmerge"), ("", "Model · hubmerge")],
)
def test_a_model_s_page_has_the_model_s_name_as_its_title(site, model, title):
    text = site.get("/model", params={"model": model}).text
    assert f"<title>{title}</title>" in text
    assert f'<meta property="og:title" content="{title}">' in text
    assert "<b>x</b>" not in text.partition("<script>window.gradio_config = ")[0]


def test_icon_and_picture_are_served_from_here(site):
    assert site.get("/favicon.svg").headers["content-type"].startswith("image/svg+xml")
    assert site.get("/social.png").content.startswith(b"\x89PNG")
    below = TestClient(Starlette(routes=site_routes()), root_path="/below")
    assert below.get("/below/favicon.svg").status_code == 200


@pytest.mark.parametrize("path", ["/nope", "/merge/x"])
def test_an_address_that_is_none_is_told_on_a_page_and_to_programs_and_below_the_api_as_json(site, path):
    told = site.get(path, headers=BROWSER)
    assert told.status_code == 404
    assert told.headers["content-type"].startswith("text/html")
    assert "There is no such page" in told.text
    assert 'href="./merge"' in told.text
    assert told.headers["content-security-policy"].startswith("frame-ancestors 'self'")
    plain = site.get(path, headers={"accept": "application/json"}), site.get(f"/gradio_api{path}", headers=BROWSER)
    assert [(answer.status_code, answer.json()) for answer in plain] == [(404, {"detail": "Not Found"})] * 2


def test_a_page_that_this_installation_lacks_says_why(site):
    assert "Nothing is evaluated here" in site.get("/leaderboard", headers=BROWSER).text
    assert 'href="./leaderboard"' not in site.get("/nope", headers=BROWSER).text


def test_a_space_names_its_own_host_in_shared_links():
    page = HTMLResponse('<meta charset="utf-8" /><script>window.gradio_config')
    text = TestClient(Site(page, pages=PAGES, host="ada-merge.hf.space")).get("/merge").text
    assert 'content="https://ada-merge.hf.space/social.png"' in text
    assert 'content="https://ada-merge.hf.space/merge"' in text


# --- the layer before gradio: foreign pages are anonymous, uploads are closed, bodies and frames are bounded

HOST = "127.0.0.1:7860"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An app that answers with what it was sent."""
    request = Request(scope, receive)
    try:
        size = len(await request.body())
    except ClientDisconnect:
        size = None
    await JSONResponse({"size": size, **request.headers})(scope, receive, send)


GUARDED = TestClient(Guard(echo, hub="https://hub.example", hosts=["ada-merge.hf.space"]), base_url=f"http://{HOST}")


@pytest.mark.parametrize(
    ("origin", "kept"),
    [
        *((there, False) for there in ("https://evil.example", "null", "http://127.0.0.1:7861", "http://127.0.0.1")),
        *((here, True) for here in (f"http://{HOST}", "https://ada-merge.hf.space", None)),
    ],
)
def test_a_request_from_another_site_loses_its_cookies_and_one_of_these_pages_or_a_program_keeps_them(origin, kept):
    answer = GUARDED.get("/", headers={"cookie": "session=s"} | ({"origin": origin} if origin else {}))
    assert (answer.status_code, "cookie" in answer.json()) == (200, kept)


@pytest.mark.parametrize("path", ["/gradio_api/upload", "/gradio_api/proxy=http://169.254.169.254/", "/monitoring"])
def test_what_no_page_needs_is_closed(path):
    answer = GUARDED.get(path)
    assert (answer.status_code, answer.text) == (404, "not offered here")


def test_a_body_above_the_limit_is_refused_whether_its_length_is_stated_or_not():
    assert GUARDED.post("/", content=b"x" * MAX_BODY_BYTES).json()["size"] == MAX_BODY_BYTES
    assert GUARDED.post("/", content=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
    parts = [b"x" * MAX_BODY_BYTES, b"x"]
    assert GUARDED.post("/", content=iter(parts[:1])).json()["size"] == MAX_BODY_BYTES
    assert GUARDED.post("/", content=iter(parts)).json()["size"] is None


def test_only_this_site_and_the_hub_may_frame_it():
    assert GUARDED.get("/").headers["content-security-policy"] == "frame-ancestors 'self' https://hub.example"

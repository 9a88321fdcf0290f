"""The site around the pages: each page's own title and picture, and addresses that are none."""

from __future__ import annotations

import json
import re

import pytest
from pages_fake import FakeService
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.testclient import TestClient

from hubmerge.settings import Settings
from workflows.app.app import build_web_app
from workflows.app.frame import PAGES
from workflows.app.site import Site, site_routes

BOARDLESS = [p for p in PAGES if p.path != "leaderboard"]
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture(scope="module")
def site() -> TestClient:
    app = build_web_app(FakeService(), Settings(endpoint="http://127.0.0.1:9"))
    return TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)


def test_an_address_with_a_slash_at_its_end_leads_to_the_page_and_loses_nothing(site: TestClient) -> None:
    for query in ("", "?base=a/b&agent=c/d&agent=e/f&method=ram", "?base=//evil.example"):
        answer = site.get(f"/merge/{query}")
        assert (answer.status_code, answer.headers["location"]) == (308, f"/merge{query}")


@pytest.mark.parametrize("page", BOARDLESS, ids=lambda page: page.path or "home")
def test_every_page_says_what_it_is_to_search_engines_and_in_shared_links(site: TestClient, page: object) -> None:
    answer = site.get(f"/{page.path}")  # type: ignore[attr-defined]
    assert answer.status_code == site.head(f"/{page.path}").status_code == 200  # type: ignore[attr-defined]
    head, _, rest = answer.text.partition("<script>window.gradio_config = ")
    assert head.count("<title>") == 1
    for name, value in (("title", page.title), ("description", page.description)):  # type: ignore[attr-defined]
        assert re.findall(f'<meta property="og:{name}" content="([^"]*)">', head) == [value.replace("'", "&#39;")]
    assert 'property="og:image" content="http://127.0.0.1/social.png"' in head
    assert "gradio" not in re.sub("<style>.*?</style>", "", head, flags=re.DOTALL).lower()
    config = json.loads(rest.partition(";</script>")[0])
    assert config["title"] == page.title  # type: ignore[attr-defined]
    assert len({p.description for p in PAGES}) == len({p.title for p in PAGES}) == len(PAGES)


@pytest.mark.parametrize(
    ("model", "title"),
    [("org/merge", "org/merge · hubmerge"), ("<b>x</b>", "Model · hubmerge"), ("", "Model · hubmerge")],
)
def test_a_model_s_page_has_the_model_s_name_as_its_title(site: TestClient, model: str, title: str) -> None:
    text = site.get("/model", params={"model": model}).text
    assert f"<title>{title}</title>" in text
    assert f'<meta property="og:title" content="{title}">' in text
    assert "<b>x</b>" not in text.partition("<script>window.gradio_config = ")[0]


def test_icon_and_picture_are_served_from_here(site: TestClient) -> None:
    assert site.get("/favicon.svg").headers["content-type"].startswith("image/svg+xml")
    assert site.get("/social.png").content.startswith(b"\x89PNG")
    below = TestClient(Starlette(routes=site_routes()), root_path="/below")
    assert below.get("/below/favicon.svg").status_code == 200


@pytest.mark.parametrize("path", ["/nope", "/leaderboard", "/merge/x"])
def test_an_address_that_is_none_is_told_on_a_page_and_to_programs_as_json(site: TestClient, path: str) -> None:
    told = site.get(path, headers=BROWSER)
    assert told.status_code == 404
    assert told.headers["content-type"].startswith("text/html")
    assert "There is no such page" in told.text
    assert 'href="./merge"' in told.text
    assert told.headers["content-security-policy"].startswith("frame-ancestors 'self'")
    assert site.get(path, headers={"accept": "application/json"}).json() == {"detail": "Not Found"}


def test_an_address_of_the_api_that_is_none_is_json_for_everybody(site: TestClient) -> None:
    answer = site.get("/gradio_api/nope", headers=BROWSER)
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_a_page_that_this_installation_lacks_says_why(site: TestClient) -> None:
    assert "Nothing is evaluated here" in site.get("/leaderboard", headers=BROWSER).text
    assert 'href="./leaderboard"' not in site.get("/nope", headers=BROWSER).text


def test_a_space_names_its_own_host_in_shared_links() -> None:
    page = HTMLResponse('<meta charset="utf-8" /><script>window.gradio_config')
    text = TestClient(Site(page, pages=PAGES, host="ada-merge.hf.space")).get("/merge").text
    assert 'content="https://ada-merge.hf.space/social.png"' in text
    assert 'content="https://ada-merge.hf.space/merge"' in text

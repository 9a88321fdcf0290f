"""Sign-in: which providers are trusted, and the whole way through the embedded Hub's consent page."""

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import gradio.oauth
import pytest
import yaml
from huggingface_hub.utils import get_session
from pages_fake import FakeService
from starlette.responses import RedirectResponse
from starlette.testclient import TestClient

from hubmerge.errors import GatedError, HubmergeError, LoginError, Problem, SourceNotFoundError
from hubmerge.hub.errors import UNREADABLE
from hubmerge.settings import Settings
from localhub.fault_rules import LostAnswer, Reset, Status
from localhub.process import LocalHubProcess
from workflows.app.app import RunningApp, build_web_app, launch_app
from workflows.app.panels import access_offer
from workflows.app.signin import (
    BACK_MAX_CHARACTERS,
    SCOPES,
    SIGN_IN_SCOPES,
    AskedScopes,
    OAuthClient,
    sign_in_link,
    use_oauth_client,
)
from workflows.values import Visitor

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures("gradio_oauth")


def signing_in_at(hub: LocalHubProcess) -> dict[str, Any]:
    """How an app is built whose visitors sign in at this Hub."""
    client = OAuthClient(hub.endpoint, hub.oauth["client_id"], hub.oauth["client_secret"])
    return {"settings": Settings(endpoint=hub.endpoint), "oauth": client}


@pytest.fixture(scope="module")
def site(local_hub: LocalHubProcess, gradio_oauth: None) -> Iterator[RunningApp]:
    with launch_app(FakeService(local_hub.endpoint), **signing_in_at(local_hub), port=0) as running:
        yield running


def sign_in(client: TestClient, hub: LocalHubProcess, target: str) -> tuple[Any, Any]:
    """The answers with which ada's sign-in begins and ends; one that does not begin ends at once."""
    start = client.get(f"/login/huggingface?_target_url={target}", follow_redirects=False)
    if start.status_code != 302:
        return start, start
    ada = {"Authorization": f"Bearer {hub.tokens['ada']}"}
    back = get_session().get(start.headers["location"], headers=ada, follow_redirects=False).headers["location"]
    return start, client.get(back, follow_redirects=False)


def held_by(cookie: str) -> dict[str, Any]:
    """What a session keeps of a sign-in."""
    session = cookie.partition("session=")[2].partition(".")[0]
    return dict(json.loads(base64.b64decode(session))["oauth_info"])


@pytest.mark.parametrize("provider", ["http://hub.example", "http://10.0.0.5:8000", "ftp://127.0.0.1", "https://"])
def test_a_provider_must_be_https_or_on_this_machine(provider):
    with pytest.raises(LoginError):
        use_oauth_client(OAuthClient(provider, "id", "a long secret"))


@pytest.mark.parametrize("provider", ["https://hub.example/", "http://[::1]:8000"])
def test_gradio_s_own_oauth_is_given_the_client_whose_secret_no_repr_shows(provider):
    client = OAuthClient(provider, "id", "a long secret")
    use_oauth_client(client)
    assert provider.rstrip("/") == gradio.oauth.OPENID_PROVIDER_URL
    assert ("id", " ".join(SCOPES)) == (gradio.oauth.OAUTH_CLIENT_ID, gradio.oauth.OAUTH_SCOPES)
    assert gradio.oauth.get_space() is not None
    assert "a long secret" not in repr(client)


@pytest.mark.browser
def test_a_visitor_signs_in_at_the_local_hub_and_out_again_while_the_form_is_kept(site, open_page):
    page = open_page(f"{site.url}/job?id=abc")
    page.get_by_role("button", name="Sign in to the local Hub").click()
    page.get_by_role("button", name="Ada (local)").click()
    page.wait_for_url(f"{site.url}/job?id=abc")  # back where the visitor was
    page.get_by_role("button", name="Sign out (ada)").wait_for()
    form = "base=zoo/base&agent=zoo/math-agent&agent=zoo/tool-agent&method=ties&also=ram&vary=density:0.2,0.5"
    page.goto(f"{site.url}/merge?{form}", wait_until="domcontentloaded")
    page.locator("#start:not([disabled])").wait_for()  # the Hub's token was accepted
    page.locator("#agents").filter(has_text="zoo/tool-agent").wait_for()
    page.wait_for_function("(localStorage.getItem('hubmerge-form') || '').includes('zoo/tool-agent')")
    [cookie] = [c for c in page.context.cookies() if c["name"] == "session"]
    assert cookie["httpOnly"]
    assert (cookie["secure"], cookie["sameSite"]) == (False, "Lax"), "WebKit keeps no other one by plain http"
    page.get_by_role("button", name="Sign out (ada)").click()
    page.locator("#sign-in").filter(has_text="Sign in").wait_for()
    page.locator("#hint").filter(has_text="The form is kept while you sign in").wait_for()
    page.locator("#agents").filter(has_text="zoo/tool-agent").wait_for()
    page.locator("#sweep-told").filter(has_text="Sign in to start them").wait_for()
    assert not page.locator("#start").is_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    start = page.get_by_role("button", name="Sign in to start")
    assert start.bounding_box()["y"] > 700  # at the bottom of a phone, too
    start.click()
    page.get_by_role("button", name="Ada (local)").click()
    page.locator("#start:not([disabled])").wait_for()
    assert not start.is_visible()
    page.locator("#agents").filter(has_text="zoo/tool-agent").wait_for()
    page.get_by_role("button", name="Start 3 merges").wait_for()  # the variants, too, outlive a sign-in
    assert page.locator("#sweep-values-0 input, #sweep-values-0 textarea").first.input_value() == "0.2,0.5"
    assert page.locator("#sweep-methods").get_by_text("RAM", exact=True).count() == 1
    assert "also=ram&vary=density:0.2,0.5" in page.url


@pytest.mark.browser
def test_where_nobody_can_sign_in_the_start_says_so(open_page):
    with launch_app(FakeService(), Settings(endpoint="http://127.0.0.1:9"), port=0) as running:
        page = open_page(f"{running.url}/merge")
        page.locator("#hint").filter(has_text="nothing can be started").wait_for()
        assert page.locator("#start").is_disabled()
        assert not page.locator("#start-after").is_visible()


@pytest.mark.parametrize("more", [0, 1])
def test_a_sign_in_leads_back_to_the_whole_address_where_its_cookie_can_hold_it(local_hub, site, more):
    own = "base=a/b&agent=c%20d&agent=%7B"
    own += "&agent=" + "%2B" * ((BACK_MAX_CHARACTERS - len(own) - 7) // 3)
    own += "x" * (BACK_MAX_CHARACTERS - len(own) + more)
    client = TestClient(site.app, base_url="https://127.0.0.1")
    start, done = sign_in(client, local_hub, f"/merge?{own}")
    assert len(start.headers["set-cookie"]) < 4096  # which browsers keep
    assert done.headers["location"] == ("/merge" if more else f"/merge?{own}")
    held = held_by(done.headers["set-cookie"])
    assert held["userinfo"]["preferred_username"] == "ada"
    assert "orgs" not in held["userinfo"], "ada is in one, and with many the cookie would be lost"
    assert held.keys() == {"access_token", "scope", "expires_at", "userinfo"}, "with a token of what she is, too"


@pytest.mark.parametrize("host", ["http://127.0.0.1", "http://localhost:7860"])
def test_a_browser_that_keeps_no_secure_cookie_by_plain_http_is_signed_in_on_this_machine(local_hub, site, host):
    client = TestClient(site.app, base_url=host)
    assert sign_in(client, local_hub, "/activity")[1].headers["location"] == "/activity"
    assert held_by(f"session={client.cookies['session']}")["userinfo"]["preferred_username"] == "ada"


def test_a_browser_that_keeps_no_cookie_is_told_so_and_not_sent_round_for_ever(local_hub, site):
    asked, ada = 0, {"Authorization": f"Bearer {local_hub.tokens['ada']}"}
    client = TestClient(site.app, base_url="http://127.0.0.1", follow_redirects=False)
    answer = client.get("/login/huggingface?_target_url=/activity")
    while answer.is_redirect:
        asked += 1
        client.cookies.clear()
        to = answer.headers["location"]
        at_the_hub = to.startswith(local_hub.endpoint)
        answer = get_session().get(to, headers=ada, follow_redirects=False) if at_the_hub else client.get(to)
    assert (answer.status_code, asked) == (403, 11)
    assert "Your browser kept no cookie of this site" in answer.text
    assert '<a href="/activity" target="_blank">' in answer.text


def test_a_sign_in_asks_for_the_least_and_the_second_one_for_private_models_too(local_hub, site):
    def asked(path: str) -> dict[str, list[str]]:
        answer = get_session().get(site.url + path, follow_redirects=False)
        assert answer.headers["location"].startswith(f"{local_hub.endpoint}/oauth/authorize?")
        return parse_qs(urlsplit(answer.headers["location"]).query)

    least = "openid profile contribute-repos gated-repos read-memberships"
    assert asked("/login/huggingface?_target_url=/jobs")["scope"] == [least]
    # nobody's link asks for what no step needs
    assert asked(f"{sign_in_link()}&with=manage-repos")["scope"] == [least]
    more = asked(sign_in_link("/diff?base=a/b&agent=c/d", private=True))
    assert more["scope"] == [f"{least} read-repos"]
    assert more["redirect_uri"] == [f"{site.url}/login/callback?_target_url=%2Fdiff%3Fbase%3Da%2Fb%26agent%3Dc%2Fd"]
    assert {"state", "nonce"} <= more.keys()


@pytest.mark.parametrize(
    ("target", "page"),
    [
        ("/diff?base=a/b&agent=c/d", "/diff?base=a/b&agent=c/d"),
        ("/diff?base=a/b&__sign=t&agent=c/d", "/diff?base=a/b&agent=c/d"),
        ("//evil.example/x", "/x"),
        ("https://evil.example/x", "/x"),
        ("/\\evil.example", "/evil.example"),
        ("////evil.example", "/evil.example"),
        ("http://[evil.example/x", "/"),
    ],
)
def test_who_refuses_is_told_so_and_led_back_to_a_page_of_this_site(site, target, page):
    client = TestClient(site.app, base_url="http://127.0.0.1")
    refused = {"_target_url": target, "error": "access_denied", "error_description": "no", "state": "s"}
    answer = client.get("/login/callback", params=refused, follow_redirects=False)
    other = client.get("/login/callback", params={**refused, "error": "server_error", "error_description": "<b>x"})
    assert answer.status_code == 403
    assert "You declined on the Hub" in answer.text
    assert f'<a href="{escape(page)}">Back to the page' in answer.text
    assert f'<a href="{escape(sign_in_link(page))}">sign in' in answer.text
    assert other.status_code == 403
    assert "The Hub did not sign you in: &lt;b&gt;x." in other.text


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/.well-known/openid-configuration", Status(status=503)),
        ("/oauth/token", LostAnswer()),
        ("/.well-known/jwks.json", Reset(at=0)),
    ],
    ids=lambda given: getattr(given, "kind", given),
)
def test_a_hub_that_is_away_during_a_sign_in_is_told_and_the_next_try_succeeds(faulty_hub, switch, path, fault, caplog):
    app = build_web_app(FakeService(), **signing_in_at(faulty_hub))  # of its own: an app asks for some of it only once
    with TestClient(app, base_url="https://127.0.0.1") as client:
        switch.add(path, fault, times=None)
        _, told = sign_in(client, faulty_hub, "/jobs")
        assert told.status_code == 503
        assert "The Hub does not answer" in told.text
        assert 'href="/jobs"' in told.text
        assert "a sign-in ended" in caplog.text
        switch.clear()
        _, done = sign_in(client, faulty_hub, "/jobs")
        assert done.status_code in (302, 307), done.text
        assert done.headers["location"] == "/jobs"


def test_where_the_server_s_clock_is_behind_the_hub_s_a_sign_in_says_so(local_hub, site, monkeypatch):
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 600)
    _, told = sign_in(TestClient(site.app, base_url="https://127.0.0.1"), local_hub, "/jobs")
    assert told.status_code == 503
    assert "The clock of this server may be wrong" in told.text


@pytest.mark.parametrize("path", ["/login/huggingface", "/login/callback"])
def test_a_sign_in_asks_for_nothing_that_the_space_did_not_declare(path):
    declared = "https://hub.example/oauth/authorize?scope=openid+profile+contribute-repos&state=s"
    site = TestClient(AskedScopes(RedirectResponse(declared)), follow_redirects=False)
    assert site.get(f"{path}?with=read-repos").headers["location"] == declared


def test_the_space_declares_what_the_app_asks_for_and_a_sign_in_outlives_its_queue():
    card = yaml.safe_load((ROOT / "README.md").read_text("utf-8").split("---")[1])
    assert sorted(["openid", "profile", *card["hf_oauth_scopes"]]) == sorted(SCOPES)
    assert 24 * 60 < card["hf_oauth_expiration_minutes"] <= 43_200  # the Hub's limit; its default is 8 hours


ADA = Visitor("ada", "token", ("ada",), frozenset(SIGN_IN_SCOPES))


def hidden(*names: str) -> HubmergeError:
    problems = [Problem("E_SOURCE", UNREADABLE, f"{name}@main") for name in names]
    return SourceNotFoundError("models are missing", problems=problems)


def test_who_picks_a_model_that_is_not_shown_is_offered_to_allow_private_ones():
    offer = str(access_offer(hidden("ada/secret", "ada/other"), ADA, "https://hub.example"))
    assert "ada/secret, ada/other" in offer
    assert 'href="/login/huggingface?_target_url=%2F&amp;with=read-repos"' in offer
    allowed = replace(ADA, scopes=ADA.scopes | {"read-repos"})
    assert access_offer(hidden("ada/secret"), allowed, "https://hub.example") is None
    assert access_offer(hidden("ada/secret"), None, "https://hub.example") is None  # told to sign in by the problem
    revision = SourceNotFoundError("no such revision or file", where="ada/open@v9")
    assert access_offer(revision, ADA, "https://hub.example") is None


def test_who_picks_a_gated_model_is_sent_to_its_page_or_to_a_wider_sign_in():
    for where in ("meta/llama", "meta/llama@main", "sub/config.json in meta/llama@52c47e508600"):
        gated = GatedError("a gated repo", where=where)
        assert 'href="https://hub.example/meta/llama"' in str(access_offer(gated, ADA, "https://hub.example"))
        earlier = replace(ADA, scopes=frozenset({"openid", "profile", "contribute-repos"}))
        assert f'href="{sign_in_link()}"' in str(access_offer(gated, earlier, "https://hub.example"))


def test_a_sign_in_that_the_hub_takes_no_more_leads_to_another():
    ended = LoginError("the token is not valid or has expired", where="zoo/base", next_step="Sign in again.")
    assert f'href="{sign_in_link()}"' in str(access_offer(ended, ADA, "https://hub.example"))
    assert access_offer(ended, None, "https://hub.example") is None

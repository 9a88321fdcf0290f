"""Sign-in: which providers are trusted, and the whole way through the embedded Hub's consent page."""

from __future__ import annotations

import re
from typing import Any

import gradio.oauth
import pytest
from pages_fake import FakeService

from hubmerge.errors import InternalError, LoginError
from hubmerge.localhub.process import LocalHubProcess
from hubmerge.settings import Settings
from hubmerge.ui.app import build_web_app, launch_app
from hubmerge.ui.signin import OAuthClient, use_oauth_client


@pytest.mark.parametrize("provider", ["http://hub.example", "http://10.0.0.5:8000", "ftp://127.0.0.1", "https://", "x"])
def test_a_provider_must_be_https_or_on_this_machine(provider: str) -> None:
    with pytest.raises(LoginError):
        use_oauth_client(OAuthClient(provider, "id", "a long secret"))


@pytest.mark.usefixtures("gradio_oauth")
@pytest.mark.parametrize("provider", ["https://hub.example/", "http://127.0.0.1:8000", "http://[::1]:8000"])
def test_gradio_s_own_oauth_is_given_the_client(provider: str) -> None:
    use_oauth_client(OAuthClient(provider, "id", "a long secret", "openid"))
    assert provider.rstrip("/") == gradio.oauth.OPENID_PROVIDER_URL
    assert (gradio.oauth.OAUTH_CLIENT_ID, gradio.oauth.OAUTH_SCOPES) == ("id", "openid")
    assert gradio.oauth.get_space() is not None


def test_on_a_space_nothing_is_replaced() -> None:
    before = gradio.oauth.get_space
    with pytest.raises(InternalError):
        build_web_app(FakeService(), Settings(space_id="ada/merge"), oauth=OAuthClient("https://hub.example", "i", "s"))
    assert gradio.oauth.get_space is before


def test_a_client_s_secret_is_not_shown_by_its_repr() -> None:
    assert "a long secret" not in repr(OAuthClient("https://hub.example", "id", "a long secret"))


@pytest.mark.browser
@pytest.mark.usefixtures("gradio_oauth")
def test_a_visitor_signs_in_at_the_local_hub_and_out_again(local_hub: LocalHubProcess, open_page: Any) -> None:
    service = FakeService(local_hub.endpoint)
    oauth = OAuthClient(local_hub.endpoint, local_hub.oauth["client_id"], local_hub.oauth["client_secret"])
    with launch_app(service, Settings(endpoint=local_hub.endpoint), port=0, oauth=oauth) as running:
        page = open_page(f"{running.url}/?base=zoo/base&agent=zoo/math-agent&agent=zoo/tool-agent&method=ram")
        page.wait_for_url(f"{running.url}/")  # the form has them and keeps them over the sign-in
        page.goto(f"{running.url}/job?id=abc", wait_until="domcontentloaded")
        page.get_by_role("button", name="Sign in to the local Hub").click()
        page.get_by_role("button", name="Ada (local)").click()
        page.wait_for_url(f"{running.url}/job?id=abc")  # back where the visitor was
        page.get_by_role("button", name="Sign out (ada)").wait_for()
        page.goto(running.url, wait_until="domcontentloaded")
        page.locator("#start:not([disabled])").wait_for()  # the Hub's token was accepted
        page.locator("#agents").filter(has_text="zoo/tool-agent").wait_for()
        [cookie] = [c for c in page.context.cookies() if c["name"] == "session"]
        assert cookie["httpOnly"]
        assert cookie["secure"]
        page.get_by_role("button", name="Sign out (ada)").click()
        page.get_by_role("button", name=re.compile("Sign in")).wait_for()
        page.locator("#start[disabled]").wait_for()

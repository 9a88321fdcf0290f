"""The pages under test: one app with a service in memory, sessions signed like gradio's, and a headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio.oauth
import pytest
from pages_fake import FakeService
from pages_session import CLIENT, Pages, session_cookie

from hubmerge.settings import Settings
from workflows.app.app import launch_app


@pytest.fixture(scope="package")
def gradio_oauth() -> Iterator[None]:
    """gradio.oauth as it was, once these tests are over."""
    names = ("OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL", "get_space")
    before = {name: getattr(gradio.oauth, name) for name in names}
    yield
    for name, value in before.items():
        setattr(gradio.oauth, name, value)


@pytest.fixture(scope="package")
def served(gradio_oauth: None) -> Iterator[Pages]:
    service = FakeService()
    with launch_app(service, Settings(endpoint=service.endpoint), port=0, oauth=CLIENT) as running:
        yield Pages(service, running)


@pytest.fixture
def pages(served: Pages) -> Pages:
    """The running app with an empty job store."""
    served.service.__init__(served.service.endpoint)
    return served


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Any]:
    """open_page(url, user=None, width=1280): a page in a profile of its own, signed in as `user`."""
    contexts = []

    def opened(url: str, user: str | None = None, width: int = 1280) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900})
        contexts.append(context)
        context.set_default_timeout(20_000)
        if user:
            cookie = {"name": "session", "value": session_cookie(user), "domain": "127.0.0.1", "path": "/"}
            context.add_cookies([{**cookie, "secure": True, "sameSite": "None", "httpOnly": True}])
        page = context.new_page()
        page.goto(url, wait_until="domcontentloaded")
        return page

    yield opened
    for context in contexts:
        context.close()

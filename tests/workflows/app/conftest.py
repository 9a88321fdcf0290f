"""The pages under test: one app with a service in memory, sessions signed like gradio's, and a headless Chromium."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio.oauth
import gradio.queueing
import gradio.utils
import pytest
from pages_fake import FakeBoard, FakeService, Source
from pages_session import CLIENT, Site, browser_cookie

from hubmerge.settings import Settings
from workflows.app.app import launch_app

PATIENCE_MS = 60_000  # on a busy machine; what a page shows ends the wait


@pytest.fixture(scope="package", autouse=True)
def no_event_loop_is_left_open() -> Iterator[None]:
    """gradio leaves one for every Blocks, which Python has not needed since 3.10."""
    with pytest.MonkeyPatch.context() as patch:
        for place in (gradio.queueing, gradio.utils):
            patch.setattr(place, "safe_get_lock", asyncio.Lock)
        patch.setattr(gradio.utils, "safe_get_stop_event", asyncio.Event)
        yield


@pytest.fixture(scope="package")
def gradio_oauth() -> Iterator[None]:
    """gradio.oauth as it was, once these tests are over."""
    names = ("OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL", "get_space")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(gradio.oauth, name, getattr(gradio.oauth, name))
        yield


@pytest.fixture(scope="package")
def served(gradio_oauth: None) -> Iterator[Site]:
    service, board, watchers = FakeService(), FakeBoard(), Source()
    own: dict[str, Any] = {"oauth": CLIENT, "board": board, "watchers": watchers}
    with launch_app(service, Settings(endpoint=service.endpoint), port=0, **own) as running:
        yield Site(service, board, watchers, running.url)


@pytest.fixture
def pages(served: Site) -> Site:
    """The running app with an empty job store and an empty board."""
    served.empty()
    return served


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Any]:
    """open_page(url, user=None, width=1280, **how): a page in a profile of its own, signed in as `user`."""
    contexts = []

    def opened(url: str, user: str | None = None, width: int = 1280, **how: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, **how)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        if user:
            context.add_cookies([browser_cookie(user)])
        page = context.new_page()
        page.goto(url, wait_until="domcontentloaded")
        return page

    yield opened
    for context in contexts:
        print("left at", [page.url for page in context.pages])  # told where the test failed
        context.close()


@pytest.fixture
def site(pages: Site, open_page: Any) -> Site:
    return replace(pages, open_page=open_page)

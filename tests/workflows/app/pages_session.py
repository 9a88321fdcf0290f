"""What the page tests share by name: the OAuth client under test, signed sessions, the running app, and looking."""

import base64
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

import httpx
import itsdangerous
from pages_fake import BASE, MATH, TOOL, FakeBoard, FakeService, Source

from workflows.app.docs_page import _page, _with_calls
from workflows.app.signin import OAuthClient

TARGET_NAME = "#target-name input, #target-name textarea"
FILLED = f"/merge?base={BASE}&agent={MATH}&agent={TOOL}"
CLIENT = OAuthClient("http://127.0.0.1:9", "pages-under-test", "a-secret-of-this-test-run")


def session_cookie(
    user: str, *, secret: str = CLIENT.client_secret, expires_in_s: int = 3600, token: str | None = None
) -> str:
    """The signed session that gradio would have set after a sign-in."""
    ends = int(time.time()) + expires_in_s
    given = {"access_token": token or f"token-of-{user}", "scope": "openid", "expires_at": ends}
    orgs = [{"sub": "1", "name": "zoo", "roleInOrg": "admin"}]
    person = {"name": user, "preferred_username": user, "profile": "", "picture": "", "orgs": orgs}
    info = {**given, "userinfo": person}
    key = hashlib.sha256(f"{secret}-v4".encode()).hexdigest()
    payload = base64.b64encode(json.dumps({"oauth_info": info}).encode())
    return itsdangerous.TimestampSigner(key).sign(payload).decode()


def session_of(user: str, **how: Any) -> dict[str, str]:
    """The headers of a request with that session."""
    return {"Cookie": f"session={session_cookie(user, **how)}"}


def browser_cookie(user: str) -> Any:
    """The session as a browser keeps it."""
    place = {"name": "session", "domain": "127.0.0.1", "path": "/"}
    return {**place, "value": session_cookie(user), "secure": True, "sameSite": "None", "httpOnly": True}


@dataclass(frozen=True)
class Site:
    """The app in memory. `open(path, …)` opens a page of it in a browser, as open_page does."""

    service: FakeService
    board: FakeBoard
    watchers: Source
    url: str
    open_page: Callable[..., Any] = print

    def empty(self) -> None:
        for part in (self.service, self.board, self.watchers):
            part.__init__()  # type: ignore[misc]

    def open(self, path: str, *who: Any, **how: Any) -> Any:
        return self.open_page(urljoin(self.url, path), *who, **how)


def answer_of(url: str, endpoint: str, *data: Any, **how: Any) -> str:
    """What an endpoint answers to plain HTTP, as gradio streams it. `how`: of the client."""
    with httpx.Client(base_url=f"{url}/gradio_api/call/", timeout=60, **how) as http:
        joined = http.post(endpoint, json={"data": data})
        return http.get(f"{endpoint}/{joined.json()['event_id']}").text if joined.is_success else joined.text


def calls_of_docs() -> list[str]:
    """The code on the page about programs, in order."""
    return [call for _, call in _with_calls(_page("api.md")) if call]


def shown(page: Any, selector: str, text: str) -> Any:
    """The first element of a selector with a text, once it is there."""
    found = page.locator(selector).filter(has_text=text)
    found.first.wait_for()
    return found.first


def holds(page: Any, selector: str, text: str) -> None:
    """Wait until the first field of a selector holds exactly this text."""
    page.wait_for_function("([where, text]) => document.querySelector(where)?.value === text", arg=[selector, text])


def untouched(*pages: Any) -> None:
    """No text of a stranger became a script, an element or a link on these pages."""
    for page in pages:
        assert page.evaluate("window.hacked") is None
        assert page.locator("img[src=x]").count() == 0
        assert page.locator("a[href^=javascript]").count() == 0


def errors_of(page: Any) -> list[str]:
    """What the page's scripts raise from now on."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    return found

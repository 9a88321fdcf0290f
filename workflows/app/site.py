"""An ASGI layer around gradio for what a site needs besides its pages.

- An address with a slash at its end leads to the same without. gradio leads there, too, and loses what the address asks
  for.
- Each page has its own title, description, picture and icon where search engines and shared links look for them:
  gradio writes its own name there, and the same title on every page.
- Whoever opens an address that is none gets a page that says so; a program that asks for JSON gets JSON.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qs

from markupsafe import Markup
from starlette.datastructures import URL, Headers
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hubmerge.hub.names import is_hub_id
from workflows.app.format import el, join, link
from workflows.app.frame import FIRST_CSS, PAGES, PLAIN_CSS, TITLE, Page, bar

_STATIC = Path(__file__).parent / "static"
_API = ("/gradio_api/", "/config", "/webhook")
_NO_LEADERBOARD = "Nothing is evaluated here, so there is no leaderboard."
# gradio's own, which name gradio, and a manifest that is not served
_FOREIGN = re.compile(rb'\s*<meta\s+(?:property="og:|name="twitter:)[^>]*>|\s*<link rel="manifest"[^>]*>')

# gradio opens the list of a box anew for every key, Tab included, so that it would lie over what follows for ever
_LEAVE_BY_TAB = """addEventListener("keydown", (event) => {
  if (event.key === "Tab" && event.target.matches?.("[role=combobox]")) event.stopPropagation(); }, true);"""

# gradio makes a block's HTML equal to each new answer, which does not say that a reader opened one of its folds
_STAY_OPEN = """{
  let pressed = null;
  addEventListener("click", (event) => { pressed = event.target.closest?.("summary")?.parentElement; }, true);
  new MutationObserver((changes) => {
    for (const {target} of changes) {
      if (target === pressed) pressed = null;
      else if (target.localName === "details" && !target.open) target.open = true;
    }
  }).observe(document, {subtree: true, attributes: true, attributeFilter: ["open"]});
}"""

# The pages are English. gradio would say a few words of its own, and that the whole page is, in the browser's language,
# in which readers of the screen would then pronounce it.
_ENGLISH = """Object.defineProperty(navigator, "language", {value: "en"});"""

# A sign-in leads back to the page as its address is by then, which has what its form holds.
_COME_BACK = """addEventListener("click", (event) => {
  const way = event.target.closest?.("a[href^='/login/']"), here = location.pathname + location.search;
  if (way) way.search = way.search.replace(/_target_url=[^&]*/, `_target_url=${encodeURIComponent(here)}`);
}, true);"""

# gradio takes a box in which the browser reads no number for an empty one, which means the usual value; Firefox shows
# "0,5" and calls it none. A button then does what it does in a form of the browser's own: it asks for a number, except
# a fold's and those that read none.
_NUMBERS = """addEventListener("click", (event) => {
  const wrong = [...document.querySelectorAll("[type=number]")].find((b) => b.validity.badInput && b.offsetParent);
  const reads = event.target.closest?.("button:not(.label-wrap, #start-over, #load-yaml, #sign-in)");
  if (!wrong || !event.isTrusted || !reads) return;
  event.preventDefault();
  event.stopPropagation();
  wrong.reportValidity();
}, true);"""

# gradio loads a page anew once its server answers again, and would end the way to where a visitor is going meanwhile.
_GO_ON = """{
  const asked = fetch.bind(window), never = new Promise(() => { });
  let leaves = false;
  addEventListener("beforeunload", () => { leaves = true; setTimeout(() => { leaves = false; }, 60000); });
  window.fetch = async (what, ...how) => {
    const answer = await asked(what, ...how);
    return leaves && /\\/app_id$/.test(what.url ?? what) ? never : answer;
  };
}"""

# The Hub's frame tells its theme to the first page alone.
_SAME_THEME = """{
  let theme = new URLSearchParams(location.search).get("__theme");
  try {
    theme ??= sessionStorage.getItem("hubmerge-theme");
    if (theme) sessionStorage.setItem("hubmerge-theme", theme);
  } catch { }
  const dark = theme === "dark", asked = matchMedia.bind(window);
  if (dark || theme === "light") window.matchMedia = (query) => query === "(prefers-color-scheme: dark)"
    ? {matches: dark, addEventListener() { }} : asked(query);
}"""

# The label of a box with a button that copies names that button; readers of the screen are told the box's name, too.
_NAMED = """new MutationObserver(() => {
  for (const box of document.querySelectorAll("label:has(button) textarea:not([aria-label])"))
    box.ariaLabel = box.closest("label").querySelector("[data-testid=block-info]")?.textContent.trim() ?? null;
}).observe(document, {subtree: true, childList: true});"""

_SCRIPTS = (_LEAVE_BY_TAB, _STAY_OPEN, _ENGLISH, _COME_BACK, _NUMBERS, _GO_ON, _SAME_THEME, _NAMED)


class Site:
    """Wraps an ASGI app with the pages `pages`. `host`: the name under which a Space is known, else the request's."""

    def __init__(self, app: ASGIApp, *, pages: Sequence[Page], host: str | None = None) -> None:
        self._app = app
        self._pages = {f"/{page.path}": page for page in pages}
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        path, query = scope["path"].rstrip("/") or "/", scope["query_string"].decode("latin-1")
        if path != scope["path"] and path in self._pages:
            await RedirectResponse(f"{path}?{query}" if query else path, 308)(scope, receive, send)
            return
        page = self._pages.get(path)
        if page is not None:
            scope = {**scope, "method": "GET"}  # gradio knows HEAD for the first page alone; the server sends no body
        begun: Message | None = None
        body: list[bytes] = []

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start" and self._is_ours(scope, message, page):
                begun = message
            elif begun is None:
                await send(message)
            else:
                body.append(message.get("body", b""))

        await self._app(scope, receive, sending)
        if begun is None:
            return
        if page is None:
            answer: Response = self._missing(path)
        else:
            headers = {k: v for k, v in Headers(raw=begun["headers"]).items() if k != "content-length"}
            answer = Response(self._with_head(b"".join(body), page, scope), begun["status"], headers)
        await answer(scope, receive, send)

    def _is_ours(self, scope: Scope, start: Message, page: Page | None) -> bool:
        """Whether the answer is a page, or says that there is none to somebody who wants to see one."""
        kind = Headers(raw=start["headers"]).get("content-type", "")
        if page is not None:
            return start["status"] == 200 and kind.startswith("text/html")
        wanted = Headers(scope=scope).get("accept", "")
        wants_json = "application/json" in wanted and "text/html" not in wanted
        is_api = scope["path"].startswith(_API)
        return start["status"] == 404 and kind.startswith("application/json") and not is_api and not wants_json

    def _missing(self, path: str) -> HTMLResponse:
        lost = "The address may be mistyped, or the page has moved."
        reason = _NO_LEADERBOARD if path.strip("/") == "leaderboard" else lost
        ways = el("p", link("/", "Go to the first page"), " or ", link("/merge", "start a merge"), ".")
        return HTMLResponse(
            plain_page("There is no such page", el("p", reason), ways, pages=list(self._pages.values())), 404
        )

    def _with_head(self, html: bytes, page: Page, scope: Scope) -> bytes:
        url = URL(scope=scope).replace(query="")
        page_title, query = page.title, scope["query_string"].decode("latin-1")
        if page.path == "model" and is_hub_id(model := parse_qs(query).get("model", [""])[-1]):
            page_title = f"{model} · {TITLE}"  # whether there is one is not looked up
        early = None  # lets the browser fetch the board's first rows while gradio's scripts load
        if page.path == "leaderboard":
            href = f"./board/page?{query}" if query else "./board/page"
            early = el("link", rel="preload", href=href, crossorigin="anonymous", **{"as": "fetch"})
        url = url.replace(scheme="https", netloc=self._host) if self._host else url
        marks = (
            el("title", page_title),
            el("meta", name="description", content=page.description),
            el("meta", name="color-scheme", content="light dark"),
            *(
                el("meta", property=f"og:{name}", content=content)
                for name, content in (
                    ("title", page_title),
                    ("description", page.description),
                    ("type", "website"),
                    ("site_name", TITLE),
                    ("url", str(url)),
                    ("image", str(url.replace(path="/social.png"))),
                )
            ),
            el("meta", name="twitter:card", content="summary_large_image"),
            el("link", rel="icon", href="./favicon.svg", type="image/svg+xml"),
            el("style", Markup(FIRST_CSS)),  # noqa: S704  (a constant)
            el("script", Markup("".join(_SCRIPTS))),  # noqa: S704  (a constant)
            early,
        )
        head, found, rest = html.partition(b"<script>window.gradio_config")
        charset = b'<meta charset="utf-8" />'
        head = _FOREIGN.sub(b"", head).replace(charset, charset + str(join(*marks)).encode())
        old, new = (b'"title":' + json.dumps(title, ensure_ascii=False).encode() for title in (TITLE, page_title))
        return head + found + rest.replace(old, new, 1)  # gradio's script sets the title of its settings


def plain_page(title: str, *children: object, pages: Sequence[Page] = PAGES[:2]) -> str:
    """A whole document in the site's look without gradio: for what there is no page for."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="robots", content="noindex"),
        el("title", f"{title} · {TITLE}"),
        el("link", rel="icon", href="/favicon.svg", type="image/svg+xml"),
        el("base", href="/"),
        el("style", Markup(PLAIN_CSS)),  # noqa: S704  (a constant)
    )
    body = el("body", el("header", bar(pages, "-"), cls="hm-top"), el("main", el("h1", title), *children))
    return str(Markup("<!doctype html>") + el("html", head, body, lang="en"))


def site_routes() -> list[BaseRoute]:
    """The icon, and the picture that goes with a shared link."""

    def file(request: Request) -> Response:
        name = request.url.path.rpartition("/")[2]  # behind the path that the app may be served below
        return FileResponse(_STATIC / name, headers={"cache-control": "public, max-age=86400"})

    return [Route("/favicon.svg", file), Route("/social.png", file)]

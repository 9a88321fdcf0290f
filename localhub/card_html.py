"""A model card as HTML that is safe to show: Markdown as the Hub reads it, without anything that could run or call.

Raw HTML stays text, save for bare `<details>` and `<summary>`, which cards fold their tables with. A link leads to the
web or to a file of the repo; an image is a file of the repo, and any other image becomes a link to it.
"""

import re
from collections.abc import Callable, Sequence
from html import escape
from posixpath import normpath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from localhub.cards import split_card

MAX_CARD_CHARACTERS = 400_000
MAX_NESTING = 20

FileAddress = Callable[[str], str | None]  # path in the repo → address; None where it cannot be had

_COMMENT = re.compile(r"\A\s*<!--.*-->\s*\Z", re.DOTALL)
_FOLD = re.compile(r"(<details>|</details>|<summary>|</summary>)")


def card_html(text: str, file_address: FileAddress, *, image_address: FileAddress | None = None) -> str:
    """The body of a README.md as HTML. `file_address`: where a file of the repo is; images may lie elsewhere."""
    markdown = MarkdownIt("commonmark", {"html": True, "maxNesting": MAX_NESTING}).enable("table")
    markdown.validateLink = lambda url: _target(url) is not None  # type: ignore[method-assign]
    markdown.normalizeLinkText = lambda link: link  # type: ignore[method-assign]
    markdown.add_render_rule("html_block", _raw)
    markdown.add_render_rule("html_inline", _raw)
    markdown.add_render_rule("link_open", _link(file_address))
    markdown.add_render_rule("image", _image(file_address, image_address or file_address))
    _, body = split_card(text)
    html = str(markdown.render(body[:MAX_CARD_CHARACTERS]))
    for wide in ("pre", "table"):  # they scroll sideways, also by keys
        html = html.replace(f"<{wide}>", f'<{wide} tabindex="0">')
    return html


def _target(url: str) -> tuple[str, str] | None:
    """("web", url), ("file", its path in the repo) or ("place", "") on the page; None: the address is no link."""
    if any(ord(c) <= 32 or c == "\\" for c in unquote(url)):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme in ("http", "https") and parts.netloc:
        return "web", url
    path = unquote(parts.path)
    if parts.scheme or parts.netloc or ":" in path or path.startswith("/"):
        return None
    if not path:
        return ("place", "") if parts.fragment else None
    path = normpath(path)
    return None if path == "." or path.startswith("..") else ("file", path)  # of the repo, not out of it


def _address(url: str, file_address: FileAddress) -> str | None:
    kind, target = _target(url) or ("", "")
    if kind == "file":
        return file_address(target)
    return target if kind == "web" else None  # the page has no places to go to


def _raw(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Foreign HTML as text; a comment is nothing."""
    content = tokens[index].content
    if _COMMENT.match(content):
        return ""
    return "".join(part if _FOLD.fullmatch(part) else escape(part) for part in _FOLD.split(content))


def _anchor(address: str | None) -> str:
    return "<a>" if address is None else f'<a href="{escape(address)}" rel="noopener noreferrer nofollow">'


def _link(file_address: FileAddress) -> Callable[..., str]:
    def render(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return _anchor(_address(str(tokens[index].attrs.get("href", "")), file_address))

    return render


def _image(file_address: FileAddress, image_address: FileAddress) -> Callable[..., str]:
    def render(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        token = tokens[index]
        source = str(token.attrs.get("src", ""))
        words = escape(token.content or "image")
        kind, target = _target(source) or ("", "")
        if kind == "file" and (address := image_address(target)) is not None:
            return f'<img src="{escape(address)}" alt="{words}" loading="lazy">'
        web = _address(source, file_address)
        return words if web is None else f"{_anchor(web)}{words}</a>"

    return render


def repo_files(prefix: str, sha: str) -> FileAddress:
    """Addresses of the files of a repo at a commit; `prefix`: the path of the repo."""
    return lambda path: f"{prefix}/resolve/{sha}/{quote(path)}"

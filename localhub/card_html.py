"""A model card as HTML that is safe to show: Markdown as the Hub reads it, without anything that could run or call.

Raw HTML stays text, save for bare `<details>` and `<summary>`, which cards fold their tables with. A link leads to the
web or to a file of the repo; an image is a file of the repo, and any other image becomes a link to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from posixpath import normpath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

MAX_CARD_CHARACTERS = 400_000
MAX_NESTING = 20

FileAddress = Callable[[str], str | None]  # path in the repo → address; None where it cannot be had

_HEADER = re.compile(r"\A---[ \t]*\r?\n.*?\r?\n---[ \t]*(\r?\n|\Z)", re.DOTALL)
_COMMENT = re.compile(r"\A\s*<!--.*-->\s*\Z", re.DOTALL)
_FOLD = re.compile(r"(<details>|</details>|<summary>|</summary>)")


def card_html(text: str, file_address: FileAddress, *, image_address: FileAddress | None = None) -> str:
    """The body of a README.md as HTML. `file_address`: where a file of the repo is; images may lie elsewhere."""
    markdown = MarkdownIt("commonmark", {"html": True, "maxNesting": MAX_NESTING}).enable("table")
    markdown.validateLink = lambda url: _kind(url) is not None  # type: ignore[method-assign]
    markdown.normalizeLinkText = lambda link: link  # type: ignore[method-assign]
    markdown.add_render_rule("html_block", _raw)
    markdown.add_render_rule("html_inline", _raw)
    markdown.add_render_rule("link_open", _link(file_address))
    markdown.add_render_rule("image", _image(file_address, image_address or file_address))
    body = _HEADER.sub("", text[:MAX_CARD_CHARACTERS], count=1)
    return str(markdown.render(body))


def _kind(url: str) -> str | None:
    """web, file (of the repo) or place (on the page); None for any other address, which is no link."""
    if any(ord(c) <= 32 or c == "\\" for c in unquote(url)):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme in ("http", "https") and parts.netloc:
        return "web"
    if parts.scheme or parts.netloc:
        return None
    if not parts.path:
        return "place" if parts.fragment else None
    return "file" if _path_of(url) else None


def _path_of(url: str) -> str | None:
    """The file of the repo that a relative address names; None where it leads out of the repo."""
    path = unquote(urlsplit(url).path)
    if ":" in path or path.startswith("/"):
        return None
    path = normpath(path)
    return None if path == "." or path.startswith("..") else path


def _address(url: str, file_address: FileAddress) -> str | None:
    kind = _kind(url)
    if kind == "file" and (path := _path_of(url)):
        return file_address(path)
    return url if kind == "web" else None  # the page has no places to go to


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
        if _kind(source) == "file" and (address := _address(source, image_address)) is not None:
            return f'<img src="{escape(address)}" alt="{words}" loading="lazy">'
        web = _address(source, file_address)
        return words if web is None else f"{_anchor(web)}{words}</a>"

    return render


def repo_files(prefix: str, sha: str) -> FileAddress:
    """Addresses of the files of a repo at a commit; `prefix`: the path of the repo."""
    return lambda path: f"{prefix}/resolve/{sha}/{quote(path)}"

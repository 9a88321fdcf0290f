"""Markdown as the Hub's pages read it at most: what of it does more than show text, and how it is built."""

from markdown_it import MarkdownIt
from markdown_it.token import Token

# what the Hub's pages do at most: tables, links from bare addresses, HTML
PARSER = MarkdownIt("gfm-like", {"html": True})


def tokens(text: str) -> list[Token]:
    """All tokens, inline ones included, of a card's body or any Markdown."""
    flat: list[Token] = []
    for token in PARSER.parse(text):
        flat.append(token)
        flat.extend(token.children or ())
    return flat


def lively(text: str) -> list[tuple[str, str]]:
    """Everything in Markdown that does more than show text: HTML, links, images."""
    found = []
    for token in tokens(text):
        if token.type in ("html_block", "html_inline"):
            found.append(("html", token.content.strip()))
        elif token.type == "link_open":
            found.append(("link", str(token.attrs["href"])))
        elif token.type == "image":
            found.append(("image", str(token.attrs["src"])))
    return found


def structure(text: str) -> list[str]:
    """The kinds of blocks, in order."""
    return [t.type for t in PARSER.parse(text)]


def shown(text: str) -> str:
    return "".join(t.content for t in tokens(text) if t.type in ("text", "code_inline", "text_special"))

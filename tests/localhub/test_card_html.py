"""A stranger's card as HTML: what it may show, and that nothing of it runs, calls or leads astray."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import get_session

from localhub.card_html import MAX_CARD_CHARACTERS, card_html, repo_files

FILES = repo_files("/ada/merge", "a" * 40)
TAGS = {"h1", "h2", "h3", "p", "a", "img", "em", "strong", "code", "pre", "ul", "ol", "li", "hr", "br", "blockquote"}
TAGS |= {"table", "thead", "tbody", "tr", "th", "td", "details", "summary"}
ATTRIBUTES = {"href", "rel", "src", "alt", "loading", "style", "class"}

ATTACKS = (
    "<script>alert(1)</script>",
    "text <script>alert(1)</script> text",
    "<img src=x onerror=alert(1)>",
    "a <img src=x onerror=alert(1)> b",
    "<details open ontoggle=alert(1)><summary>x</summary></details>",
    "<summary onclick=alert(1)>x</summary>",
    "<svg><script>alert(1)</script></svg>",
    "<style>body{display:none}</style>",
    "<base href=https://evil.example/>",
    "<iframe src=https://evil.example></iframe>",
    "<form action=https://evil.example><input></form>",
    "<!-- --><script>alert(1)</script><!-- -->",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](java&#10;script:alert(1))",
    "[x](%6Aavascript:alert(1))",
    "[x](vbscript:msgbox)",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](file:///etc/passwd)",
    "[x](//evil.example/)",
    "[x](/\\evil.example/)",
    "[x](\\\\evil.example)",
    "[x](../../other/repo/resolve/main/f)",
    "[x](/settings/tokens)",
    '[x](https://a.example"onclick="alert(1))',
    "<javascript:alert(1)>",
    "![x](data:image/png;base64,iVBORw0KGgo=)",
    "![x](data:image/svg+xml,<svg onload=alert(1)>)",
    "![x](https://evil.example/pixel.png)",
    "![x](//evil.example/pixel.png)",
    '![x" onerror="alert(1)](figures/a.png)',
    '![x](figures/a.png "t\\" onerror=\\"alert(1)")',
    "![x](javascript:alert(1))",
    "[ref]\n\n[ref]: javascript:alert(1)",
    '```"onclick=alert(1)\nx\n```',
    "| a |\n|---|\n| <img src=x onerror=alert(1)> |",
)


class Reader(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_of_a_stranger_s_card_runs_calls_or_leads_astray(attack: str) -> None:
    for tag, attributes in Reader(card_html(attack, FILES)).found:
        assert tag in TAGS
        assert attributes.keys() <= ATTRIBUTES
        if "style" in attributes:
            assert attributes["style"] in ("text-align:left", "text-align:right", "text-align:center")
        if "src" in attributes:
            assert attributes["src"].startswith(f"/ada/merge/resolve/{'a' * 40}/")
        if "href" in attributes:
            address = attributes["href"]
            assert address.startswith("/ada/merge/resolve/") or urlsplit(address).scheme in ("http", "https")
            assert ".." not in address


def test_a_card_has_its_tables_folds_links_and_figures() -> None:
    text = (
        "---\nlicense: mit\n---\n\n# Title\n\n<details><summary>More <b>of it</b></summary>\n\n| a | b |\n|---|---:|\n"
        "| 1 | 2 |\n\n</details>\n\n<!-- a note -->\n\n![Density](figures/d.png) [recipe](recipe.yaml) "
        "[paper](https://arxiv.org/abs/1)\n"
    )
    html = card_html(text, FILES)
    assert "license" not in html
    assert "a note" not in html
    assert "<details><summary>More &lt;b&gt;of it&lt;/b&gt;</summary>" in html
    assert "<td>1</td>" in html
    assert f'<img src="/ada/merge/resolve/{"a" * 40}/figures/d.png" alt="Density"' in html
    assert f'href="/ada/merge/resolve/{"a" * 40}/recipe.yaml"' in html
    assert 'href="https://arxiv.org/abs/1"' in html


def test_a_card_without_end_is_cut() -> None:
    assert len(card_html("a" * (MAX_CARD_CHARACTERS + 10), FILES)) < MAX_CARD_CHARACTERS + 10


def test_the_page_of_a_repo_shows_its_card_and_lets_no_script_run(ada: HfApi, fresh: Callable[[], str]) -> None:
    repo = str(ada.create_repo(f"ada/{fresh()}").repo_id)
    card = b"---\nlicense: mit\n---\n\n# A merge\n\n<script>alert(1)</script>\n\n![Density](figures/d.png)\n"
    ada.upload_file(path_or_fileobj=b"\x89PNG\r\n\x1a\n", path_in_repo="figures/d.png", repo_id=repo)
    ada.upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id=repo)
    page = get_session().get(f"{ada.endpoint}/{repo}")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "img-src 'self'" in policy
    assert "script" not in policy
    assert "<h1>A merge</h1>" in page.text
    assert "<script" not in page.text
    source = next(attributes["src"] for tag, attributes in Reader(page.text).found if tag == "img")
    figure = get_session().get(f"{ada.endpoint}{source}")
    assert (figure.status_code, figure.headers["content-type"]) == (200, "image/png")

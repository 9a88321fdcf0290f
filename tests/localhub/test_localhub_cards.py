"""What the Hub makes of a README.md: its metadata, what it refuses of it, and its page, where nothing of it runs."""

import json
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from huggingface_hub.utils import get_session

from localhub.card_html import MAX_CARD_CHARACTERS, card_html, repo_files
from localhub.cards import card_problems, parse_card


def card(body: str) -> str:
    return f"---\n{body}\n---\n# Title\n"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
def test_a_card_is_read_however_its_lines_end(start, end):
    text = start + card("license: mit\ntags: [a]").replace("\n", end)
    assert parse_card(text) == {"license": "mit", "tags": ["a"]}
    assert card_problems(start + card("license: nobody-s").replace("\n", end))[0]
    assert card_html(text, FILES) == "<h1>Title</h1>\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("language: no", {"language": "no"}),
        ("language: [no, en, off]", {"language": ["no", "en", "off"]}),
        ("a: true\nb: FALSE\nc: yes", {"a": True, "b": False, "c": "yes"}),
        ("a: 12\nb: -3\nc: 0x1F\nd: 010\ne: 1:30", {"a": 12, "b": -3, "c": 31, "d": "010", "e": "1:30"}),
        ("a: .nan\nb: .inf\nc: -.inf\nd: 1.5", {"a": None, "b": None, "c": None, "d": 1.5}),
        ("2024-01-01: a\n2: b\n~: c", {"2024-01-01": "a", "2": "b", "null": "c"}),
        ("true: d\n1.5: e", {"true": "d", "1.5": "e"}),
        ("a: {2024-01-01: {.nan: 1}}", {"a": {"2024-01-01": {"null": 1}}}),
        ("a: 2024-01-01", {"a": "2024-01-01"}),
        ("a: !!binary aGk=\nb: !!set {x, y}", {"a": "hi", "b": ["x", "y"]}),
    ],
)
def test_every_value_becomes_json_as_yaml_1_2_has_it(body, expected):
    found = parse_card(card(body))
    if "b" in found and isinstance(found["b"], list):
        found["b"].sort()  # a set
    assert found == expected
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(
    "body",
    [
        *("a: &x 1\nb: *x", "a: [", "- a", "? {a: 1}\n: 2", 'a: "\\ud800"', "a: " + "[" * 200 + "]" * 200),
        *(f"a: !!{tag} x" for tag in ("timestamp", "bool", "int", "float")),
        *("a: !!python/name:os.system", "a: 2024-99-99", "x: " + "a" * 2**20),
    ],
)
def test_what_cannot_become_a_card_is_refused_with_a_reason(body):
    with pytest.raises(ValueError, match=r"card|YAML"):
        parse_card(card(body))
    assert card_problems(card(body))[0]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("license: nobody-s", '"license" must be one of'),
        ("model-index: foo", '"model-index" must be an array'),
        ("base_model_relation: cousin", '"base_model_relation" must be one of [finetune'),
    ],
)
def test_a_card_is_held_against_the_hub_s_rules(line, problem):
    [error] = card_problems(card(line))[0]
    assert error.startswith(problem)


FILES = repo_files("/ada/merge", "a" * 40)
TAGS = {"h1", "h2", "h3", "p", "a", "img", "em", "strong", "code", "pre", "ul", "ol", "li", "hr", "br", "blockquote"}
TAGS |= {"table", "thead", "tbody", "tr", "th", "td", "details", "summary"}
ATTRIBUTES = {"href", "rel", "src", "alt", "loading", "style", "class", "tabindex"}

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
def test_nothing_of_a_stranger_s_card_runs_calls_or_leads_astray(attack):
    for tag, attributes in Reader(card_html(attack, FILES)).found:
        assert tag in TAGS
        assert attributes.keys() <= ATTRIBUTES
        assert attributes.get("tabindex", "0") == "0"
        if "style" in attributes:
            assert attributes["style"] in ("text-align:left", "text-align:right", "text-align:center")
        if "src" in attributes:
            assert attributes["src"].startswith(f"/ada/merge/resolve/{'a' * 40}/")
        if "href" in attributes:
            address = attributes["href"]
            assert address.startswith("/ada/merge/resolve/") or urlsplit(address).scheme in ("http", "https")
            assert ".." not in address


def test_a_card_has_its_tables_folds_links_and_figures():
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
    assert '<table tabindex="0">' in html  # a wide one scrolls by keys, too
    assert f'<img src="/ada/merge/resolve/{"a" * 40}/figures/d.png" alt="Density"' in html
    assert f'href="/ada/merge/resolve/{"a" * 40}/recipe.yaml"' in html
    assert 'href="https://arxiv.org/abs/1"' in html


def test_a_card_without_end_is_cut():
    assert len(card_html("a" * (MAX_CARD_CHARACTERS + 10), FILES)) < MAX_CARD_CHARACTERS + 10


def test_the_page_of_a_repo_shows_its_card_and_lets_no_script_run(ada, fresh):
    repo = str(ada.create_repo(f"ada/{fresh()}").repo_id)
    card = b"---\nlicense: mit\n---\n\n# A merge\n\n<script>alert(1)</script>\n\n![Density](figures/d.png)\n"
    ada.upload_file(path_or_fileobj=b"\x89PNG\r\n\x1a\n", path_in_repo="figures/d.png", repo_id=repo)
    ada.upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id=repo)
    assert f'<a href="/{repo}">{repo}</a>' in get_session().get(f"{ada.endpoint}/").text
    page = get_session().get(f"{ada.endpoint}/{repo}")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "img-src 'self'" in policy
    assert "script" not in policy
    assert page.text.count("<main>") == 1  # where a screen reader jumps to
    assert "<h1>A merge</h1>" in page.text
    assert "<script" not in page.text
    source = next(attributes["src"] for tag, attributes in Reader(page.text).found if tag == "img")
    figure = get_session().get(f"{ada.endpoint}{source}")
    assert (figure.status_code, figure.headers["content-type"]) == (200, "image/png")


@pytest.mark.parametrize(
    "body", ["tags: []", "language: no", "tags:", "datasets: []\nbase_model: []", "tags: [1, 2.5]"]
)
def test_what_the_clients_write_is_no_problem(body):
    assert card_problems(card(body)) == ([], [])

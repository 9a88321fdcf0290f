"""What the Hub makes of a README.md: the card as JSON, and what it refuses of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from huggingface_hub import SpaceHardware, SpaceStorage

from localhub.cards import HARDWARE, STORAGE, card_problems, parse_card


def card(body: str) -> str:
    return f"---\n{body}\n---\n# Title\n"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
def test_a_card_is_read_however_its_lines_end(start: str, end: str) -> None:
    text = start + card("license: mit\ntags: [a]").replace("\n", end)
    assert parse_card(text) == {"license": "mit", "tags": ["a"]}
    assert card_problems(start + card("license: nobody-s").replace("\n", end))[0]


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
def test_every_value_becomes_json_as_yaml_1_2_has_it(body: str, expected: dict[str, Any]) -> None:
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
def test_what_cannot_become_a_card_is_refused_with_a_reason(body: str) -> None:
    with pytest.raises(ValueError, match=r"card|YAML"):
        parse_card(card(body))
    assert card_problems(card(body))[0]


@pytest.mark.parametrize(
    "body", ["tags: []", "language: no", "tags:", "datasets: []\nbase_model: []", "tags: [1, 2.5]"]
)
def test_what_the_clients_write_is_no_problem(body: str) -> None:
    assert card_problems(card(body)) == ([], [])


SPACE = "title: x\nemoji: 🐏\nsdk: gradio\ncolorFrom: indigo\ncolorTo: green\n"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"short_description: {'x' * 61}", "at most 60 characters"),
        ("colorFrom: mauve", "one of [red, yellow"),
        ("sdk: flask", "one of [gradio"),
        ("emoji: ram", "an emoji"),
        ("suggested_hardware: a100", "one of [cpu-basic"),
        ("hf_oauth_scopes: [contribute-repos, root]", "not root"),
        ("hf_oauth_scopes: contribute-repos", "valid list"),
        ("hf_oauth_expiration_minutes: 43201", "less than or equal to 43200"),
        ("hf_oauth_expiration_minutes: 8h", "valid integer"),
        ("hf_oauth: yes", "valid boolean"),
        ("pinned: 1", "valid boolean"),
        ("app_port: 70000", "less than or equal to 65535"),
        ("python_version: 2.7", "a version of Python 3"),
        ("startup_duration_timeout: soon", "a duration"),
        ("custom_headers: {x-frame-options: deny}", "not x-frame-options"),
        ("license: nobody-s", '"license" must be one of'),
    ],
)
def test_a_space_s_front_matter_is_held_against_the_hub_s_rules(line: str, problem: str) -> None:
    key = line.partition(":")[0]
    body = "".join(f"{known}\n" for known in SPACE.splitlines() if not known.startswith(f"{key}:")) + line
    [error] = card_problems(card(body), "space")[0]
    assert error.startswith(f'"{key}"')
    assert problem in error
    assert key == "license" or card_problems(card(body), "model")[0] == []  # of a model these mean nothing


@pytest.mark.parametrize(
    "lines",
    [
        f"short_description: {'x' * 60}",
        "python_version: 3.12\nsdk_version: 6.31.0\napp_file: app.py\npinned: false\nlicense: apache-2.0",
        'python_version: "3.10.13"\nhf_oauth: true\nhf_oauth_scopes: [read-repos]\nhf_oauth_expiration_minutes: 43200',
        "suggested_hardware: zero-a10g\nsuggested_storage: small\nstartup_duration_timeout: 1h\nunknown: {a: [b]}",
        "custom_headers: {cross-origin-opener-policy: same-origin}\nmodels: [a/b]\npreload_from_hub: [a/b c.bin]",
    ],
)
def test_what_the_reference_allows_is_allowed(lines: str) -> None:
    assert card_problems(card(SPACE + lines), "space") == ([], [])


def test_the_client_s_hardware_and_storage_are_known() -> None:
    assert {flavor.value for flavor in SpaceHardware} <= {*HARDWARE}
    assert {size.value for size in SpaceStorage} <= {*STORAGE}

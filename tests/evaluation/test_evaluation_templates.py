"""Chat templates made to take all memory and time: each is refused with its reason, in seconds and below 1 GB."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hubmerge.errors import EvaluationError, MemoryLimitError
from hubmerge.evaluation import templates
from hubmerge.isolation.in_child import WallLimitError

pytest.importorskip("transformers")

NESTED = "".join(f"{{% for {x} in range(99999) %}}" for x in "abcd") + "{% endfor %}" * 4
DOUBLED = "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}"
BOMBS = {
    "endless loops": (NESTED, "does not come to an end"),
    "a long text": ("{{ 'x' * 10**10 }}", "too much memory"),
    "a text that doubles": (DOUBLED, "too much memory"),
    "a long list": ("{{ ([0] * 10**10) | length }}", "too much memory"),
    "a long range": ("{{ range(10**9) | list | length }}", "fails"),
    "a huge number": ("{{ 10**(10**9) }}", "does not come to an end"),
    "a wide field": ("{{ '%1000000000d' % 1 }}", "too much memory"),
    "a wide format": ("{{ '{:>1000000000}'.format(1) }}", "too much memory"),
    "a wide filter": ("{{ 'x' | center(1000000000) }}", "too much memory"),
    "a prompt without measure": ("{{ 'x' * 50000000 }}", "too long"),
    "recursion": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    "recursion that branches": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "does not come to an end",
    ),
    "deep brackets": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", ""),
    "a refusal of its own": ("{{ raise_exception('only in pairs') }}", "only in pairs"),
    "no template": ("{% for %}", "TemplateSyntaxError"),
}


@pytest.fixture(scope="module")
def answered() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("template_bombs.py"))],
        input=json.dumps({name: template for name, (template, _) in BOMBS.items()}),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", BOMBS)
def test_a_template_that_takes_too_much_is_refused_with_its_reason_within_five_seconds(
    answered: dict[str, Any], name: str
) -> None:
    answer = answered["answers"][name]
    assert answer["said"].startswith("E_EVALUATION: ")
    assert "chat template" in answer["said"]
    assert BOMBS[name][1] in answer["said"]
    assert answer["seconds"] < 5


def test_no_template_takes_a_gigabyte(answered: dict[str, Any]) -> None:
    assert answered["grown_bytes"] < 10**9


def test_prompts_come_in_their_order_and_are_the_same_on_every_day(answered: dict[str, Any]) -> None:
    assert answered["texts"] == [f"[user: {n} \u00fc \U0001f600]26 Jul 2024" for n in range(300)]


def test_a_fork_that_the_machine_kills_or_does_not_let_run_says_nothing_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(templates, "PROMPT_S", 0.5)
    with pytest.raises(MemoryLimitError, match="was killed"):
        templates.rendered(lambda _: str(os.kill(os.getpid(), signal.SIGKILL)), [1])
    with pytest.raises(WallLimitError, match=r"at most 0.5 s for a prompt"):
        templates.rendered(lambda _: str(time.sleep(600)), [1])
    with pytest.raises(EvaluationError, match="died") as died:
        templates.rendered(lambda _: str(os.abort()), [1])
    assert type(died.value) is EvaluationError

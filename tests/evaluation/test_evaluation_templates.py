"""Chat templates made to take all memory and time: each is refused with its reason, in seconds and below 1 GB."""

import json
import os
import signal
import time
from typing import Any

import pytest
from processes import printed_by

from hubmerge.errors import EvaluationError, MemoryLimitError
from hubmerge.evaluation import templates
from hubmerge.isolation.in_child import WallLimitError

pytest.importorskip("transformers")

NESTED = "".join(f"{{% for {x} in range(99999) %}}" for x in "abcd") + "{% endfor %}" * 4
DOUBLED = "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}"
# as LLaVA's and SmolVLM's templates read a message, which has parts there
IN_PARTS = "{% for m in messages %}<|im_start|>{{ m.role }} {% for part in m.content FROM %}{{ part.text }}{% endfor %}"
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
    "parts that are selected": (
        IN_PARTS.replace("FROM", "| selectattr('type', 'equalto', 'text')") + "<|im_end|>{% endfor %}",
        "leaves out the question",
    ),
    "parts that are asked": (
        IN_PARTS.replace("FROM", "if part['type'] == 'text'") + "{% endfor %}",
        "<|im_start|>user",
    ),
    "no template": ("{% for %}", "TemplateSyntaxError"),
}


# each template in its turn, with the time that it takes and the most memory
RENDERING = """
import json, resource, sys, time
from transformers import AutoTokenizer
from hubmerge.errors import EvaluationError
from hubmerge.evaluation.templates import check_template, rendered
tokenizer = AutoTokenizer.from_pretrained("examples/zoo/base")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
answers = {}
for name, template in json.load(sys.stdin).items():
    tokenizer.chat_template, began, said = template, time.monotonic(), ""
    try:
        check_template(tokenizer)
    except EvaluationError as error:
        said = str(error)
    answers[name] = {"said": said, "seconds": time.monotonic() - began}
tokenizer.chat_template = "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ strftime_now('%d %b %Y') }}"
asked = [[{"role": "user", "content": f"{n} \\u00fc \\U0001f600"}] for n in range(300)]
texts = rendered(lambda messages: tokenizer.apply_chat_template(messages, tokenize=False), asked)
grown = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) - before
print(json.dumps({"answers": answers, "texts": texts, "grown_bytes": 1024 * grown}))
"""


@pytest.fixture(scope="module")
def answered() -> dict[str, Any]:
    given = json.dumps({name: template for name, (template, _) in BOMBS.items()})
    return dict(json.loads(printed_by(RENDERING, given=given, PYTHONWARNINGS="ignore")))


@pytest.mark.parametrize("name", BOMBS)
def test_a_template_that_takes_too_much_is_refused_within_five_seconds(answered, name):
    answer = answered["answers"][name]
    assert answer["said"].startswith("E_EVALUATION: ")
    assert "chat template" in answer["said"]
    assert BOMBS[name][1] in answer["said"]
    assert answer["seconds"] < 5


def test_no_template_takes_a_gigabyte(answered):
    assert answered["grown_bytes"] < 10**9


def test_prompts_come_in_their_order_and_are_the_same_on_every_day(answered):
    assert answered["texts"] == [f"[{n} \u00fc \U0001f600]26 Jul 2024" for n in range(300)]


def test_a_fork_that_the_machine_ends_or_keeps_waiting_says_nothing_of_the_model(monkeypatch):
    monkeypatch.setattr(templates, "PROMPT_S", 0.5)
    with pytest.raises(MemoryLimitError, match="was killed"):
        templates.rendered(lambda _: str(os.kill(os.getpid(), signal.SIGKILL)), [1])
    with pytest.raises(WallLimitError, match=r"at most 0.5 s for a prompt"):
        templates.rendered(lambda _: str(time.sleep(600)), [1])
    with pytest.raises(EvaluationError, match="died") as died:
        templates.rendered(lambda _: str(os.abort()), [1])
    assert type(died.value) is EvaluationError

"""HumanEval and MBPP: gold answers pass, damaged ones fail, and a program is found in many shapes of answers.

LiveCodeBench: its tests and programs come from strangers.
"""

import base64
import json
import os
import pickle
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from task_helpers import own_task, scored

from hubmerge.errors import EvaluationError
from hubmerge.evaluation import builtin, sandbox
from hubmerge.evaluation.tasks import code as code_tasks
from hubmerge.evaluation.tasks.generated_code import completed, whole_program

DATA = Path(__file__).resolve().parents[2] / "examples" / "datasets" / "humaneval" / "openai_humaneval" / "test.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]

# hand-written, in the schema of google-research-datasets/mbpp
MBPP_ROWS: list[dict[str, Any]] = [
    {
        "task_id": 9001,
        "text": "Write a function to find the largest distance between two numbers of a list.",
        "code": "def spread(numbers):\n    return max(numbers) - min(numbers)",
        "test_list": ["assert spread([1, 5, 2]) == 4", "assert spread([7]) == 0", "assert spread([-3, 3]) == 6"],
        "test_setup_code": "",
        "challenge_test_list": [],
    },
    {
        "task_id": 9002,
        "text": "Write a function to sum the values of a linked list.",
        "code": "def total(node):\n    return 0 if node is None else node.value + total(node.rest)",
        "test_list": ["assert total(None) == 0", "assert total(Node(2, Node(3))) == 5"],
        "test_setup_code": (
            "class Node:\n    def __init__(self, value, rest=None):\n        self.value, self.rest = value, rest"
        ),
        "challenge_test_list": [],
    },
    {
        "task_id": 9003,
        "text": "Write a function sum to count the values that are not of a given type.",
        "code": "START = 0\n# added to\ndef sum(a, b):\n    return START + len([x for x in a if type(x) != b])",
        "test_list": ["assert sum([1, 2.0, 'x'], int) == 2", "assert sum([], str) == 0"],
    },
]


HUMANEVAL = own_task("humaneval")


def test_reference_solutions_of_humaneval_pass_also_as_a_plain_continuation_or_after_thoughts():
    assert len(ROWS) == 164
    for number, row in enumerate(ROWS):
        body = row["canonical_solution"]
        answers = (
            f"```python\n{row['prompt']}{body}\n```",
            body,
            body.lstrip() + "\n\ndef other():\n    return",
            f"<think>\n```python\nno\n```\n</think>\n```\n{body}```",
        )
        assert scored(HUMANEVAL, row, answers[number % len(answers)]) == 1.0, row["task_id"]


def test_damaged_solutions_of_humaneval_fail():
    for row in ROWS[::6]:
        assert scored(HUMANEVAL, row, "    return None\n") == 0.0
    for answer in ("", "```python\n```", "I cannot help with that.", "```python\ndef ", "\x00"):
        assert scored(HUMANEVAL, ROWS[0], answer) == 0.0


def test_a_solution_that_does_not_end_fails(monkeypatch):
    monkeypatch.setattr(code_tasks, "TIMEOUT_S", 0.5)
    assert scored(HUMANEVAL, ROWS[0], f"    while True: pass\n{ROWS[0]['canonical_solution']}") == 0.0
    code = MBPP_ROWS[0]["code"].replace("    return", "    while True: pass\n    return")
    assert scored(own_task("mbpp"), MBPP_ROWS[0], code) == 0.0
    monkeypatch.setattr(builtin, "_TEST_S", 1)
    assert builtin.passes("while True: pass", ADD) is False


@pytest.mark.parametrize("row", MBPP_ROWS, ids=lambda row: str(row["task_id"]))
def test_mbpp_golds_pass_and_damaged_ones_fail(row):
    task = own_task("mbpp")
    assert scored(task, row, f"```python\n{row['code']}\n```") == 1.0
    assert scored(task, row, f"Here it is:\n\n{row['code']}\n[DONE]\n[BEGIN]\nprint(x)") == 1.0
    assert scored(task, row, row["code"].replace("return", "return 1 +")) == 0.0
    assert scored(task, row, row["code"].replace("def ", "def my_")) == 0.0
    assert scored(task, row, "") == 0.0
    prompt = task.prompt(row)
    assert all(test in prompt for test in row["test_list"])
    assert row["code"] not in prompt


PROMPT = "import math\n\ndef helper(x):\n    return x\n\ndef area(r):\n    '''Area.'''\n"
BODY = "    return math.pi * helper(r) ** 2\n"


@pytest.mark.parametrize(
    "answer",
    [
        BODY,
        BODY.lstrip(),
        f"{BODY[1:]}    # and on",
        f"\n\n{BODY}\nprint(area(2))\ndef area(r):\n    return 0",
        f"```python\ndef area(r):\n{BODY}```",
        f"```python\n{PROMPT}{BODY}```\nUse it so:\n```python\nprint(area(1))\n```",
        f"```Python\r\ndef area(r):\n{BODY}",
        f"First try:\n```python\ndef area(r):\n    return 3\n```\nBetter:\n```python\ndef area(r):\n{BODY}```",
        f"1. Here:\n   ```python\n   def area(r):\n   {BODY}   ```",
        f"Needs:\n```bash\npip install x\n```\nThen:\n```python\ndef area(r):\n{BODY}```\n",
        f"For\n```text\n2\n```\nit is\n```python title='a.py'\ndef area(r):\n{BODY}```\n\n```pycon\n>>> 1\n```\nEnd.",
        f"```{{python}}\ndef area(r):\n{BODY}```\nNo `math`, see ```area```.",
        f"Sure!\n\ndef area(r):\n{BODY}",
        "Sure!\n\nTWO = 2\n\ndef area(r):\n    return math.pi * r ** TWO\n",
        f"{PROMPT}{BODY}",
    ],
)
def test_a_function_is_completed_from_any_usual_answer(answer):
    space: dict[str, Any] = {}
    exec(completed(PROMPT, answer, "area"), space)
    assert space["area"](1) == pytest.approx(3.14159, abs=1e-4)


def test_a_whole_program_is_the_last_block_that_defines_something():
    answer = "```python\ndef f(): return 1\n```\nand\n```py\ndef f(): return 2\n```\nrun\n```python\nf()\n```"
    assert whole_program(answer) == "def f(): return 2"
    assert whole_program("```\nx = 1\n```") == "x = 1"
    assert whole_program("- So:\n  ```python\n  def f():\n\n      return 1\n```\n") == "def f():\n\n    return 1"
    assert whole_program("```sh\nls\n```\nand\n```python3.12\nx = 1\n```\nprints\n```text\n1\n```\n") == "x = 1"
    assert whole_program("It is:\nimport os\nx = 1\n```\nthat was it") == "import os\nx = 1"
    assert whole_program("<think>def no(): pass</think>def yes(): pass") == "def yes(): pass"


def test_an_answer_made_to_be_slow_is_read_within_seconds():
    """A stranger's tokenizer can have a token of a megabyte of blanks."""
    for answer in (
        "```" + " " * 10**5,
        "```x" * 10**5,
        "```py" + " " * 10**5,
        "\n" * 10**5,
        f"```\n{chr(10) * 10**5}x\n```",
        " \n" * 10**5 + "x",
    ):
        began = time.process_time()
        whole_program(answer)
        completed(PROMPT, answer, "area")
        assert time.process_time() - began < 5


# --- LiveCodeBench ------------------------------------------------------------------------------------------

ADD = {"inputs": ["1 2\n", "30 4\n"], "outputs": ["3\n", "34\n"], "fn_name": None}
METHOD = {"inputs": ["[1, 2]\n2"], "outputs": ["[3, 4]"], "fn_name": "add"}


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_private_tests_are_read_as_text_and_never_as_code(monkeypatch):
    tests = [{"input": "1", "output": "ü"}]
    assert builtin.private_tests(packed(json.dumps(tests))) == tests
    with pytest.raises(EvaluationError, match="names code"):
        builtin.private_tests(packed(Evil()))
    monkeypatch.setattr(builtin, "_MAX_TESTS_BYTES", 1000)
    with pytest.raises(EvaluationError, match="too long"):
        builtin.private_tests(packed("x" * 100_000))


@pytest.mark.parametrize(
    ("code", "tests", "passes"),
    [
        ("a, b = map(int, input().split())\nprint(a + b)", ADD, True),
        ("a, b = map(int, input().split())\nprint(3)", ADD, False),
        ("class Solution:\n    def add(self, a, n):\n        return [x + n for x in a]", METHOD, True),
        ("class Solution:\n    def add(self, a, n):\n        return a", METHOD, False),
        ("", ADD, False),
        ("def broken(:", ADD, False),
        ("import os\nos._exit(0)", ADD, False),
        ("import sys\nsys.exit(0)", ADD, False),
        ("import socket\nsocket.socket()\nprint(3)", ADD, False),
        ('"""\' + open("/etc/passwd").read() #', ADD, False),
        ("import builtins\nbuiltins.exec = lambda *a, **k: None", ADD, False),
        ("class E:\n    __eq__ = lambda s, o: True\nclass Solution:\n    add = lambda s, *a: E()", METHOD, False),
        ("import sys\nsys.modules['__main__'].get_stripped_lines = lambda v: ['3']\nprint('x')", ADD, False),
    ],
)
def test_programs_are_graded_in_the_sandbox(code, tests, passes):
    assert builtin.passes(code, tests) is passes


def test_tests_of_any_size_are_no_fault_of_the_program(monkeypatch):
    """Real problems have a hundred megabytes of them; the memory of both processes is smaller here."""
    monkeypatch.setattr(sandbox, "DEFAULT_LIMITS", replace(sandbox.DEFAULT_LIMITS, memory_bytes=50 << 20))
    tests = {"inputs": ["7" * 100_000] * 150, "outputs": ["100000"] * 150, "fn_name": None}
    program = "import sys\nprint(len(sys.stdin.read()))"
    assert builtin.passes(program, tests)
    assert not builtin.passes(f"{program}\nbytearray(100 << 20)", tests)


def test_to_grade_a_program_changes_no_limit_of_the_process_that_asks():
    before = sys.get_int_max_str_digits()
    assert builtin.passes("print(3)", ADD) is False
    assert sys.get_int_max_str_digits() == before == 4300

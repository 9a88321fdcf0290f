"""LiveCodeBench's tests and programs, which come from strangers."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from typing import Any

import pytest

from hubmerge.errors import EvaluationError
from hubmerge.evaluation import builtin

ADD = {"inputs": ["1 2\n", "30 4\n"], "outputs": ["3\n", "34\n"], "fn_name": None}
METHOD = {"inputs": ["[1, 2]\n2"], "outputs": ["[3, 4]"], "fn_name": "add"}


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_private_tests_are_read_as_text_and_never_as_code(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_programs_are_graded_in_the_sandbox(code: str, tests: dict[str, Any], passes: bool) -> None:
    assert builtin.passes(code, tests) is passes


def test_a_program_that_never_ends_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "_TEST_S", 1)
    assert builtin.passes("while True: pass", ADD) is False

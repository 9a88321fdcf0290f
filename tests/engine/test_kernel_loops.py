"""Kernels' loops as machine code: what a kernel means decides which code stands for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from hubmerge.engine.compiled.kernel_loops import loop_from
from hubmerge.engine.compiled.kernel_meaning import COMPILED_AS, meaning_of
from hubmerge.engine.compiled.machine_code import Code
from hubmerge.methods import ops, registry

SCALE = 0.5


def half(x: Any) -> Any:
    return x * 0.5


def first_kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
    return ops_absolute(inputs[0]) * per_agent[0][0] + inputs[1] * SCALE * constants[0]


def second_kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
    return ops_absolute(inputs[0]) * per_agent[0][0] - inputs[1] * SCALE * constants[0]


ops_absolute = ops.absolute
INPUTS = np.array([[1.0, -2.0, 3.5], [4.0, 6.0, -8.0]], np.float32)
FIRST = np.array([3.0 + 20, 6.0 + 30, 10.5 - 40], np.float32)  # |a| · 3 + b / 2 · 10
SECOND = np.array([3.0 - 20, 6.0 - 30, 10.5 + 40], np.float32)


def run(loop: Code) -> np.ndarray:
    out = np.zeros(3, np.float32)
    assert loop(INPUTS, np.array([[3.0], [0.0]], np.float32), np.array([10.0], np.float32), 3, out) == 0
    return out


def loop_of(kernel: Callable[..., Any], *folders: Path) -> Code:
    return loop_from(folders, kernel, 2, 2, (None,), (None,))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with the code of the first kernel alone."""
    np.testing.assert_array_equal(run(loop_of(first_kernel, tmp_path / "kept")), FIRST)
    return tmp_path / "kept"


def test_kept_code_is_taken_without_compiling(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr("hubmerge.engine.compiled.adapters.object_code", refuse)
    np.testing.assert_array_equal(run(loop_of(first_kernel, kept)), FIRST)
    with pytest.raises(AssertionError, match="compiled"):
        loop_of(second_kernel, kept)


def test_another_kernel_is_other_code(kept: Path) -> None:
    np.testing.assert_array_equal(run(loop_of(second_kernel, kept)), SECOND)
    np.testing.assert_array_equal(run(loop_of(first_kernel, kept)), FIRST)
    assert len(list(kept.iterdir())) == 2


def test_a_constant_of_the_kernels_module_belongs_to_its_meaning(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SCALE", 0.25)
    np.testing.assert_array_equal(run(loop_of(first_kernel, kept)), [3.0 + 10, 6.0 + 15, 10.5 - 20])


def test_kept_loops_and_those_compiled_now_do_not_run_in_each_others_place(tmp_path: Path) -> None:
    """numba numbers functions anew in every process, and a linker takes symbols of one name for one function."""
    program = (
        "import sys; from pathlib import Path; import tests.engine.test_kernel_loops as t\n"
        "loops = [t.loop_of(getattr(t, name), Path(sys.argv[1])) for name in sys.argv[2:]]\n"
        "for loop in loops: print(t.run(loop).tolist())\n"
    )

    def in_a_process(*names: str) -> list[str]:
        command = [sys.executable, "-c", program, str(tmp_path), *names]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
        return done.stdout.splitlines()

    in_a_process("first_kernel")
    for _ in range(2):  # the second is compiled beside the kept one, then both are kept
        assert in_a_process("first_kernel", "second_kernel") == [str(FIRST.tolist()), str(SECOND.tolist())]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_kernel_of_unknown_meaning_is_compiled_and_not_kept(tmp_path: Path) -> None:
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        return np.sqrt(inputs[1] * inputs[1])

    assert meaning_of(kernel) is None
    np.testing.assert_array_equal(run(loop_of(kernel, tmp_path)), [4.0, 6.0, 8.0])
    assert list(tmp_path.iterdir()) == []


def test_the_meaning_of_every_kernel_is_known() -> None:
    for method in registry().values():
        assert meaning_of(method.kernel)


def with_globals(function: Any, **names: Any) -> Any:
    return FunctionType(function.__code__, {**function.__globals__, **names}, closure=function.__closure__)


def test_meanings_differ_where_code_could() -> None:
    def made(factor: float, name: str = "SCALE") -> Any:
        source = f"def kernel(x, y, *, z={factor}):\n    return x * {name} + (lambda v: v + y)(z)\n"
        scope: dict[str, Any] = {"SCALE": 2.0, "OTHER": 2.0}
        exec(source, scope)
        return scope["kernel"]

    def closed(value: Any) -> Any:
        return lambda x: x * value

    plain = made(1.0)
    assert meaning_of(plain) == meaning_of(made(1.0))
    others = [
        made(3.0),
        made(1.0, "OTHER"),
        with_globals(plain, SCALE=3.0),
        with_globals(plain, SCALE=2),
        with_globals(plain, SCALE=-0.0),
        with_globals(plain, SCALE=0.0),
        closed(1.0),
        closed(2.0),
        closed((1.0, 2.0)),
        closed(half),
    ]
    meanings = [meaning_of(f) for f in (plain, *others)]
    assert None not in meanings
    assert len(set(meanings)) == len(meanings)
    assert meaning_of(closed([1.0])) is None
    assert meaning_of(closed(np.float32(1.0))) is None


def test_functions_that_call_each_other_have_a_meaning() -> None:
    scope: dict[str, Any] = {}
    exec("def even(n):\n    return n == 0 or odd(n - 1)\ndef odd(n):\n    return n != 0 and even(n - 1)\n", scope)
    assert meaning_of(scope["even"]) != meaning_of(scope["odd"])


def test_how_an_operation_is_compiled_belongs_to_the_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    before = meaning_of(first_kernel)
    monkeypatch.setitem(COMPILED_AS, ops.absolute, lambda x: lambda x: -x)
    assert meaning_of(first_kernel) != before

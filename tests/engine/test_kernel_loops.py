"""Kernels' machine code stays between processes, and never stands for another kernel or for a damaged file."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
import numpy as np
import pytest
from numba import njit, types
from numba.core.dispatcher import _FunctionCompiler

from hubmerge.compiled import kept_code, kernel_loops
from hubmerge.compiled.kept_code import keep
from hubmerge.compiled.kernel_loops import compile_loop, meaning_of
from hubmerge.compiled.pass_types import APPLY, STRICT
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


def run(loop: Any) -> np.ndarray:
    out = np.zeros(3, np.float32)
    loop(INPUTS, np.array([[3.0], [0.0]], np.float32), np.array([10.0], np.float32), 3, out)
    return out


def through_a_pointer() -> Any:
    """Calls a loop as merge_pass does."""
    return njit(types.void(types.FunctionType(APPLY), *APPLY.args))(lambda loop, a, b, c, n, out: loop(a, b, c, n, out))


def loop_of(kernel: Callable[..., Any], folder: Path | None) -> Any:
    return compile_loop(kernel, 2, 2, 1, 1, folder)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with the code of the first kernel alone."""
    np.testing.assert_array_equal(run(loop_of(first_kernel, tmp_path / "kept")), FIRST)
    return tmp_path / "kept"


def test_kept_code_is_taken_without_compiling(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(_FunctionCompiler, "compile", refuse)
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
    program = (
        "import sys; from functools import partial; from pathlib import Path\n"
        "import tests.engine.test_kernel_loops as t\n"
        "loops = [t.loop_of(getattr(t, name), Path(sys.argv[1])) for name in sys.argv[2:]]\n"
        "for loop in loops: print(t.run(partial(t.through_a_pointer(), loop)).tolist())\n"
    )

    def in_a_process(*names: str) -> list[str]:
        command = [sys.executable, "-c", program, str(tmp_path), *names]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
        return done.stdout.splitlines()

    in_a_process("first_kernel")
    for _ in range(2):  # the second is compiled beside the kept one, then both are kept
        assert in_a_process("first_kernel", "second_kernel") == [str(FIRST.tolist()), str(SECOND.tolist())]
    assert len(list(tmp_path.iterdir())) == 2


def test_threads_that_merge_their_first_chunks_find_numbas_tables_complete() -> None:
    """Adding to the table of argument types while another thread searches it ends that thread's merge."""
    program = (
        "import hubmerge.compiled; from numba.core.typing.typeof import typeof_impl\n"
        "known = set(typeof_impl.registry)\n"
        "import tests.engine.test_compiled as t; from hubmerge.compiled import merge_chunk, probe_chunk\n"
        "from hubmerge.counter_rng import make_key\n"
        "from tests.engine.test_kernel_loops import first_kernel, loop_of\n"
        "chunk = t.chunk_of(2, 100, ('BF16',) * 3)\n"
        "probe_chunk(chunk, 1e-5)\n"
        "merge_chunk(chunk, t.rule_of('ram', chunk, 'nearest'), 'BF16', make_key(0, 'x'), with_inputs=True)\n"
        "loop_of(first_kernel, None)\n"
        "print(set(typeof_impl.registry) - known)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: b"garbage" * 5000,
        lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
        lambda content: bytes([content[0] ^ 1]) + content[1:],
    ],
)
def test_a_damaged_file_is_never_run_but_compiled_anew(kept: Path, damage: Callable[[bytes], bytes]) -> None:
    [path] = kept.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    np.testing.assert_array_equal(run(loop_of(first_kernel, kept)), FIRST)
    assert [p.name for p in kept.iterdir()] == [path.name]
    checksum = kept_code._checksum(path.stem.rpartition("-")[2], path.read_bytes()[32:])
    assert path.read_bytes()[:32] == checksum


def test_the_whole_file_of_another_kernel_is_not_taken_for_this_one(kept: Path) -> None:
    [first] = kept.iterdir()
    loop_of(second_kernel, kept)
    [second] = set(kept.iterdir()) - {first}
    first.write_bytes(second.read_bytes())
    np.testing.assert_array_equal(run(loop_of(first_kernel, kept)), FIRST)


@pytest.mark.parametrize("name", ["__version__", "llvmlite", "processor", "settings"])
def test_what_made_the_code_belongs_to_its_name(kept: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == "__version__":
        monkeypatch.setattr(numba, "__version__", "0.0.1")
    elif name == "llvmlite":
        monkeypatch.setattr("llvmlite.__version__", "0.0.1")
    elif name == "settings":
        monkeypatch.setattr("numba.core.config.OPT", 2)
    else:
        monkeypatch.setattr("numba.core.codegen.JITCPUCodegen.magic_tuple", lambda self: ("other",))
    np.testing.assert_array_equal(run(loop_of(first_kernel, kept)), FIRST)
    assert len(list(kept.iterdir())) == 2


def test_without_a_folder_it_is_compiled(tmp_path: Path) -> None:
    np.testing.assert_array_equal(run(loop_of(first_kernel, None)), FIRST)
    (tmp_path / "file").touch()
    np.testing.assert_array_equal(run(loop_of(first_kernel, tmp_path / "file" / "below")), FIRST)


@pytest.mark.parametrize("failing", ["replace", "write"])
def test_a_folder_that_takes_nothing_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(30, "read-only file system")

    if failing == "replace":
        monkeypatch.setattr(os, "replace", refuse)
    else:
        monkeypatch.setattr(Path, "write_bytes", refuse)
    np.testing.assert_array_equal(run(loop_of(first_kernel, tmp_path)), FIRST)
    assert list(tmp_path.iterdir()) == []


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
    monkeypatch.setitem(kernel_loops._COMPILED_AS, ops.absolute, lambda x: lambda x: -x)
    assert meaning_of(first_kernel) != before


def test_a_change_of_a_file_is_a_change_of_its_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_code, "numbas_folder", lambda: tmp_path / "kept")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    other = tmp_path / "kept_constants.py"
    other.write_text("ADDED = 1\n")

    def load() -> Any:
        (tmp_path / "kept_module.py").write_text(
            "import kept_constants\n"
            "from numba import njit\n"
            "from hubmerge.compiled.kept_code import kept\n"
            "@njit\n"
            "def inner(x):\n"
            "    return x + kept_constants.ADDED\n"
            "@kept(kept_constants, signature='int64(int64)', error_model='numpy')\n"
            "def outer(x):\n"
            "    return inner(x)\n"
        )
        for name in ("kept_module", "kept_constants"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("kept_module").outer

    assert load()(1) == 2
    assert sum(load().stats.cache_hits.values()) == 1
    other.write_text("ADDED = 10\n")
    assert load()(1) == 11
    assert len(list((tmp_path / "kept").iterdir())) == 2
    for name in ("kept_module", "kept_constants"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_signatures_are_kept_apart(tmp_path: Path) -> None:
    def plus(a: Any, b: Any) -> Any:
        return a + b

    def kept_plus() -> Any:
        return keep(njit(**STRICT)(plus), "plus", tmp_path)

    assert kept_plus()(1, 2) == 3
    assert kept_plus()(1.5, 2) == 3.5
    assert len(list(tmp_path.iterdir())) == 2
    loaded = kept_plus()
    assert loaded(1, 2) == 3
    assert loaded(1.5, 2) == 3.5
    assert sum(loaded.stats.cache_hits.values()) == 2
    assert loaded.overloads[(types.int64, types.int64)].signature.return_type == types.int64
    loaded._cache.flush()
    assert list(tmp_path.iterdir()) == []

"""Machine code stays between processes: for the same meaning alone, in files that are whole, for as long as it is used,
and no compiler is imported where all of it is there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import random_base, sparse_agent, write_model
from stream_helpers import bytes_of, plan_of, write_family
from stream_helpers import run as run_merge
from test_kernel_loops import FIRST, INPUTS, SECOND, first_kernel, kept, loop_of, run, second_kernel

import hubmerge.engine.compiled
from hubmerge.engine.compiled import adapters, entries, kept_code
from hubmerge.engine.compiled.entries import Entry
from hubmerge.engine.compiled.machine_code import Code, LinkError, ObjectCode, Packed, length
from hubmerge.engine.progress import Unobserved
from hubmerge.errors import InternalError

__all__ = ["kept"]  # a fixture
USUAL_METHODS = ("ram", "ram_plus", "ties", "dare_ties", "linear", "task_arithmetic")
FOLDER = Path(hubmerge.engine.compiled.__file__).parent
MONTH_S = 31 * 86_400


@pytest.fixture(autouse=True)
def surroundings_are_looked_at() -> Iterator[None]:
    yield
    kept_code.surroundings.cache_clear()


def symbol_of(path: Path) -> str:
    return path.read_bytes()[32:].split(b"\n")[0].decode()


def test_a_merge_that_finds_its_code_kept_imports_no_compiler(tmp_path: Path) -> None:
    base = random_base(seed=0)
    write_model(tmp_path / "base", base)
    for k in range(2):
        write_model(tmp_path / f"agent{k}", sparse_agent(base, density=0.05, seed=k + 1))
    for method in USUAL_METHODS:
        agents = "".join(f"  - model: {tmp_path}/agent{k}\n" for k in range(2))
        (tmp_path / f"{method}.yaml").write_text(f"base: {tmp_path}/base\nmethod: {method}\nagents:\n{agents}")
    program = (
        "import sys; from hubmerge.cli.main import main\n"
        "folder, round, *methods = sys.argv[1:]\n"
        "for method in methods:\n"
        "    out = f'{folder}/{round}_{method}'\n"
        "    assert not main(['merge', f'{folder}/{method}.yaml', '--out', out, '--license', 'apache-2.0'])\n"
        "    assert round == 'first' or 'numba' not in sys.modules\n"
    )
    for turn in ("first", "kept"):
        command = [sys.executable, "-c", program, str(tmp_path), turn, *USUAL_METHODS]
        done = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER.parents[2])
        assert done.returncode == 0, done.stderr
    for method in USUAL_METHODS:
        made = [(tmp_path / f"{turn}_{method}" / "model.safetensors").read_bytes() for turn in ("first", "kept")]
        assert made[0] == made[1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: b"garbage" * 5000,
        lambda content: content[:500] + bytes([content[500] ^ 1]) + content[501:],
        lambda content: bytes([content[0] ^ 1]) + content[1:],
    ],
)
def test_a_damaged_file_is_never_run_but_compiled_anew(kept: Path, damage: Callable[[bytes], bytes]) -> None:
    [path] = kept.iterdir()
    path.write_bytes(damage(path.read_bytes()))
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


def test_an_object_that_cannot_be_linked_is_compiled_anew(kept: Path) -> None:
    [path] = kept.iterdir()
    digest = path.stem.rpartition("-")[2]
    made = kept_code._read(path, digest)
    assert made is not None
    for wrong in (ObjectCode("no_such_symbol", made.image), ObjectCode(made.symbol, b"no object")):
        with pytest.raises(LinkError):
            Code(wrong, ())
        kept_code._write(path, digest, wrong)
        np.testing.assert_array_equal(run(loop_of(first_kernel, kept)), FIRST)
        assert kept_code._read(path, digest) not in (None, wrong)


@pytest.mark.parametrize(
    "what", ["numba", "llvmlite", "numpy", "python", "processor", "features", "variable", "folder", "source"]
)
def test_what_decides_the_code_belongs_to_its_name(
    kept: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    if what == "numba":
        monkeypatch.setattr(kept_code, "_numbas_version", lambda: "0.0.1")
    elif what == "llvmlite":
        monkeypatch.setattr("llvmlite.__version__", "0.0.1")
    elif what == "numpy":
        monkeypatch.setattr("numpy.__version__", "0.0.1")
    elif what == "python":
        monkeypatch.setattr(sys, "version", "3.11.0")
    elif what == "processor":
        monkeypatch.setattr("llvmlite.binding.get_host_cpu_name", lambda: "i486")
    elif what == "features":
        monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", lambda: SimpleNamespace(flatten=lambda: "+none"))
    elif what == "variable":
        monkeypatch.setenv("NUMBA_OPT", "2")
    elif what == "folder":
        (tmp_path / ".numba_config.yaml").write_text("opt: '2'\n")
        monkeypatch.chdir(tmp_path)
    else:
        monkeypatch.setattr(kept_code, "source_files", lambda: "other")
    kept_code.surroundings.cache_clear()
    np.testing.assert_array_equal(run(loop_of(first_kernel, kept)), FIRST)
    assert len(list(kept.iterdir())) == 2


def test_every_file_that_compiled_code_is_made_from_belongs_to_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path in FOLDER.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(kept_code, "_HERE", tmp_path)
    known = {kept_code.source_files()}
    for path in sorted(tmp_path.glob("*.py")):
        path.write_bytes(path.read_bytes() + b"\n")
        known.add(kept_code.source_files())
    assert len(known) == 1 + len(list(tmp_path.glob("*.py")))
    outside = {
        node.module
        for path in FOLDER.glob("*.py")
        if "from numba" in path.read_text() or path.name == "layout.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hubmerge")
        and not node.module.startswith("hubmerge.engine.compiled")
    }  # fmt: skip
    # what source_files adds
    assert outside == {"hubmerge.counter_rng", "hubmerge.engine.counting", "hubmerge.statistics.histogram"}


def test_another_name_other_kinds_or_another_meaning_is_other_code(kept: Path, tmp_path: Path) -> None:
    [path] = kept.iterdir()
    made = kept_code._read(path, path.stem.rpartition("-")[2])
    assert made is not None
    asked: list[str] = []

    def compile_now(digest: str) -> ObjectCode:
        asked.append(digest)
        return made

    wanted = [("f", "gh"), ("fg", "h"), ("f", "g"), ("g", "h")]  # also where one would run on into the other
    for _ in range(2):
        for name, meaning in wanted:
            for kinds in (("int64",), ("bool",)):
                kept_code.code_of(name, kinds, meaning, (tmp_path / "codes",), compile_now)
    assert len(asked) == len(set(asked)) == 8
    assert kept_code._digest("f", "gh") != kept_code._digest("fg", "h")


def test_codes_never_share_a_symbol(kept: Path) -> None:
    loop_of(second_kernel, kept)
    symbols = [symbol_of(path) for path in kept.iterdir()]
    assert len(set(symbols)) == 2
    for path, symbol in zip(kept.iterdir(), symbols, strict=True):
        assert path.stem.rpartition("-")[2] in symbol


def test_codes_of_one_symbol_would_still_be_two(kept: Path) -> None:
    """Every object has a name space of its own."""
    [path] = kept.iterdir()
    made = kept_code._read(path, path.stem.rpartition("-")[2])
    assert made is not None
    one, other = (Code(made, ("float32[2]", "float32[2]", "float32[1]", "int64", "float32[1]")) for _ in range(2))
    assert one.address != other.address
    np.testing.assert_array_equal(run(one), FIRST)
    np.testing.assert_array_equal(run(other), FIRST)


def test_without_a_folder_it_is_compiled(tmp_path: Path) -> None:
    np.testing.assert_array_equal(run(loop_of(first_kernel)), FIRST)
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


def test_code_goes_to_the_first_folder_that_takes_it_and_is_found_in_any(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    places = tmp_path / "file" / "below", tmp_path / "second", tmp_path / "third"
    loop_of(first_kernel, *places)
    assert len(list(places[1].iterdir())) == 1
    assert not places[2].exists()
    loop_of(first_kernel, places[2], places[1])
    assert not places[2].exists()


def test_folders_are_the_packages_then_the_users_unless_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kept_code.folders() == (FOLDER / "__pycache__", tmp_path / "hubmerge")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kept_code.folders()[1] == tmp_path / ".cache" / "hubmerge"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "named"))
    assert kept_code.folders() == (tmp_path / "named" / "hubmerge",)


def test_files_that_nobody_uses_go_when_code_is_added(kept: Path) -> None:
    [used] = kept.iterdir()
    unused, left, recent, other = (kept / name for name in ("f-1.kept", "f-2.kept.0123", "f-3.kept", "module.pyc"))
    for path in (unused, left, recent, other):
        path.write_bytes(b"older")
    for path in (used, unused, left, other):
        os.utime(path, (time.time() - MONTH_S,) * 2)
    loop_of(first_kernel, kept)  # found, which is a use
    assert all(path.exists() for path in (used, unused, left, recent, other))
    loop_of(second_kernel, kept)
    assert [path.exists() for path in (used, unused, left, recent, other)] == [True, False, False, True, True]


def test_a_use_is_noted_once_a_day_at_most(kept: Path) -> None:
    [path] = kept.iterdir()
    for age_s, noted in ((86_400 - 3600, False), (86_400 + 3600, True)):
        os.utime(path, (time.time() - age_s,) * 2)
        before = path.stat().st_mtime_ns
        loop_of(first_kernel, kept)
        assert (path.stat().st_mtime_ns != before) == noted


def test_a_file_that_another_process_removed_meanwhile_does_no_harm(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "glob", lambda self, _: [self / "gone-1.kept"])
    np.testing.assert_array_equal(run(loop_of(second_kernel, kept)), SECOND)
    assert len(list(kept.iterdir())) == 2


def test_threads_that_call_a_function_first_at_once_get_one_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def compile_once(*arguments: Any) -> ObjectCode:
        made.append(arguments[1])
        return compile_now(*arguments)

    compile_now = adapters.object_code
    monkeypatch.setattr(adapters, "object_code", compile_once)
    monkeypatch.setattr(entries.kept_code, "folders", lambda: (tmp_path,))
    flush, start = Entry("counts", "flush", ("uint64[3]", "int64[3]")), Barrier(8)
    packed = np.zeros((1, 4, 8192), np.uint64)
    packed[0, :, 5] = (7 << 40) + 3

    def call(_: int) -> list[int]:
        start.wait()
        magnitudes = np.zeros((2, 1, 8192), np.int64)
        flush(packed.copy(), magnitudes)
        return magnitudes[:, 0, 5].tolist()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, range(8))) == [[28, 12]] * 8
    assert made == ["flush"]


def test_what_is_not_what_the_code_was_made_for_is_refused(kept: Path) -> None:
    loop, out, row = loop_of(first_kernel, kept), np.zeros(3, np.float32), np.ones((2, 1), np.float32)
    for wrong in (np.zeros((2, 3)), np.zeros(3, np.float32), np.zeros((2, 6), np.float32)[:, ::2]):
        with pytest.raises(TypeError, match="not C-contiguous float32"):
            loop(wrong, row, out, 3, out)
    with pytest.raises(ValueError, match="argument"):
        loop(INPUTS, row, out)


def test_arguments_become_words() -> None:
    values = np.arange(6, dtype=np.uint16).reshape(2, 3)
    address = values.ctypes.data
    assert Packed.of("uint16[2]", values) == (address, 2, 3)
    assert Packed.of(("uint16[2]", "bool", "int64"), (values, True, -1)) == (address, 2, 3, 1, 2**64 - 1)
    assert Packed.of("float32", 1e-5) == (int(np.float32(1e-5).view(np.uint32)),)
    assert Packed.of("float32", 1e39) == (0x7F800000,)
    assert Packed.of("float32", float("-inf")) == (0xFF800000,)
    assert Packed.of("uint16[2]", values[:0])[1:] == (0, 3)
    assert length(("uint16[2]", ("float32[1]", "bool"), "int64")) == 3 + 2 + 1 + 1
    values.flags.writeable = False
    assert Packed.of("uint16[2]", values) == (address, 2, 3)


@pytest.mark.parametrize("what", ["compiler", "linker"])
def test_where_nothing_can_be_compiled_the_merge_is_eager_with_one_warning_and_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram_plus")
    run_merge(plan, tmp_path / "compiled")

    def broken(*arguments: object, **options: object) -> ObjectCode:
        if what == "compiler":
            raise NotImplementedError("no code for this processor")
        return ObjectCode("nothing", b"not an object file")

    class Listening(Unobserved):
        def __init__(self) -> None:
            self.said: list[str] = []

        def warning(self, message: str) -> None:
            self.said.append(message)

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr(adapters, "object_code", broken)
    for name in ("_probe_pass", "_merge_pass"):
        entry = getattr(hubmerge.engine.compiled, name)
        monkeypatch.setattr(hubmerge.engine.compiled, name, Entry(entry._module, entry._function, entry._kinds))
    hubmerge.engine.compiled.unavailable.cache_clear()
    kept_code.surroundings.cache_clear()
    listening = Listening()
    try:
        run_merge(plan, tmp_path / "eager", observer=listening)
    finally:
        monkeypatch.undo()
        hubmerge.engine.compiled.unavailable.cache_clear()
    [said] = listening.said
    assert "the merge takes much longer" in said
    assert ("no code for this processor" in said) == (what == "compiler")
    assert bytes_of(tmp_path / "eager", plan) == bytes_of(tmp_path / "compiled", plan)


def test_a_kernel_that_fails_in_compiled_code_ends_the_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_family(tmp_path)
    assert hubmerge.engine.compiled.unavailable() is None  # which is remembered

    class Failing:
        is_there = staticmethod(lambda: True)
        __call__ = staticmethod(lambda *values: -1)

    monkeypatch.setattr(hubmerge.engine.compiled, "_merge_pass", Failing())
    with pytest.raises(InternalError, match="compiled kernel"):
        run_merge(plan_of(tmp_path, "ram"), tmp_path / "out")

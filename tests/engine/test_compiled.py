"""The fast pass as a library: found, built once, kept, refused where it is not ours."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hubmerge.engine import build, compiled, fast
from hubmerge.engine.compiled import Library

MACHINES = build.MACHINES  # of this platform, whatever a fixture builds


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """It takes a hundredth of its time, since nothing is made fast and only what runs on every machine is made."""
    found = build.find_compiler()
    if found is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setattr(build, "_FLAGS", tuple(flag for flag in build._FLAGS if flag != "-O3"))
    monkeypatch.setattr(build, "MACHINES", {1: ()})
    return found


def forget() -> None:
    for known in (compiled.loaded, fast.unavailable, fast._kernels):
        known.cache_clear()


@pytest.fixture
def forgotten() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def bare(forgotten: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which nothing was built; its cache folder."""
    monkeypatch.setattr(compiled, "_places", list)
    monkeypatch.setattr(compiled, "user_cache", lambda: tmp_path)
    return tmp_path


def test_it_is_built_once_and_kept(bare, compiler, monkeypatch):
    assert not compiled.is_built()
    assert fast.unavailable() is None
    assert compiled.is_built()
    compiled.loaded.cache_clear()
    monkeypatch.setattr(compiled, "build", lambda *_: pytest.fail("built again"))
    assert isinstance(compiled.library(), Library)


def test_a_broken_file_is_built_anew(bare, compiler):
    path = compiled._path(bare, compiler)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"torn")
    assert isinstance(compiled.library(), Library)


def test_a_library_of_another_version_of_the_source_is_not_called(tmp_path, compiler, monkeypatch):
    build.build(compiler, tmp_path / "pass.so")
    Library(tmp_path / "pass.so")
    monkeypatch.setattr(compiled, "digest", lambda: "another")
    with pytest.raises(OSError, match=r"another version of pass\.c"):
        Library(tmp_path / "pass.so")


def test_what_computes_other_bits_than_the_definition_is_not_used(bare, compiler, monkeypatch, tmp_path):
    source = tmp_path / "pass.c"
    source.write_text(
        build.SOURCE.read_text()
        .replace("return total / constants[0]", "return total")
        .replace("return where(several, shared / where(several, count, ONE), unique)", "return unique")
    )
    monkeypatch.setattr(build, "SOURCE", source)
    assert fast.unavailable() == "what was built computes other bits than the definition"


def test_what_an_old_compiler_builds_serves_newer_machines_and_loading_it_runs_none_of_their_code(
    tmp_path, compiler, monkeypatch
):
    old, newest, run, made = tmp_path / "cc", max(MACHINES), build._run, {}
    lacking = "".join(MACHINES[newest][:1]) or "none"
    old.write_text(
        f'#!/bin/sh\ncase "$*" in *{lacking}*) echo error: unknown >&2; exit 1;; esac\nexec {compiler[0]} "$@"'
    )
    old.chmod(0o755)

    def kept(command: Sequence[str]) -> str:
        failed = run(command)
        if not failed and "-c" in command:
            made[next(flag for flag in command if flag.startswith("-DMACHINE="))] = Path(command[-1]).read_bytes()
        return failed

    monkeypatch.setattr(build, "_run", kept)
    monkeypatch.setattr(build, "MACHINES", MACHINES)
    build.build((str(old),), tmp_path / "pass.so")
    Library(tmp_path / "pass.so")
    new = (*MACHINES[newest], f"-DMACHINE={newest}", "-c", str(build.SOURCE), "-o", str(tmp_path / "new.o"))
    assert not kept((*compiler, *build._FLAGS, *new))
    assert made.keys() == {f"-DMACHINE={machine}" for machine in MACHINES}
    assert not [machine for machine, code in made.items() if b".init_array" in code and machine != "-DMACHINE=1"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'fatal error: stdint.h: No such file' >&2; exit 1", "stdint.h: No such file"),
        ("exec sleep 60", "timed out"),
    ],
)
def test_a_compiler_that_fails_is_told_in_its_own_words_and_one_that_hangs_is_ended(bare, monkeypatch, script, said):
    broken = bare / "cc"
    broken.write_text(f"#!/bin/sh\n{script}\n")
    broken.chmod(0o755)
    monkeypatch.setattr(compiled, "find_compiler", lambda: (str(broken),))
    monkeypatch.setattr(build, "BUILD_S", 0.5)
    assert said in (fast.unavailable() or "")


@pytest.mark.parametrize("folder", [None, Path("x" * 256)], ids=["no home", "one that cannot be looked into"])
def test_where_nothing_can_be_kept_it_is_built_all_the_same(bare, compiler, monkeypatch, folder):
    monkeypatch.setattr(compiled, "user_cache", lambda: folder)
    assert not compiled.is_built()
    assert isinstance(compiled.library(), Library)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.skipif(build.find_compiler() is None, reason="there is no C compiler")
def test_every_kind_of_machine_that_this_one_is_gives_the_same_bits(monkeypatch):
    for machine in sorted(build.MACHINES):
        forget()
        monkeypatch.setattr(compiled, "MACHINES", {1: (), machine: ()})
        assert fast.unavailable() is None


def test_every_machine_s_code_is_asked_for_in_the_compiler_s_own_spelling(tmp_path, monkeypatch):
    asked: list[str] = []

    def run(command: Sequence[str]) -> str:
        asked.extend(flag for flag in command if flag.startswith("-march"))
        Path(command[-1]).touch()
        return ""

    monkeypatch.setattr(build, "MACHINES", {1: (), 3: ("-march=x86-64-v3",)})
    monkeypatch.setattr(build, "_run", run)
    build.build(("gcc",), tmp_path / "pass.so")
    build.build((sys.executable, "-m", "ziglang", "cc"), tmp_path / "pass.so")
    assert asked == ["-march=x86-64-v3", "-march=x86_64_v3"]

"""`make` takes the first Python on the PATH that runs and is fit, and says in a line what is missing."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from packaging_helpers import ROOT

STUB = "echo no such version >&2; exit 127"  # as a version manager leaves them
OLD = 'exec {python} -c "import sys; sys.version_info = (3, 10, 13); exec(sys.argv[1])" "$2"'
NO_VENV = 'exec {python} -c "import sys; sys.modules[\'ensurepip\'] = None; exec(sys.argv[1])" "$2"'
FIT = 'exec {python} "$@"'


def _place(folder: Path, name: str, script: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n" + script.replace("{python}", shlex.quote(sys.executable)) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def _find(*folders: Path, python: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": ":".join(map(str, folders)), "PYTHON": python}
    command = ["/bin/sh", str(ROOT / ".ci" / "find_python")]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_stub_and_an_old_version_are_passed_over_even_where_they_hide_a_fit_one_of_their_name(tmp_path):
    _place(tmp_path / "shims", "python3.11", STUB)
    _place(tmp_path / "shims", "python3.13", STUB)
    _place(tmp_path / "old", "python3", OLD)
    fit = _place(tmp_path / "bin", "python3", FIT)
    found = _find(tmp_path / "shims", tmp_path / "old", tmp_path / "bin")
    assert (found.stdout, found.stderr, found.returncode) == (fit + "\n", "", 0)


def test_the_python_that_is_named_is_taken_or_refused(tmp_path):
    _place(tmp_path / "bin", "python3.11", FIT)
    other = _place(tmp_path / "other", "mine", FIT)
    assert _find(tmp_path / "bin", python=other).stdout == other + "\n"
    refused = _find(tmp_path / "bin", python=_place(tmp_path / "other", "old", OLD))
    assert refused.returncode == 1
    assert "is no Python from 3.11 to 3.14" in refused.stderr


def test_what_is_missing_is_said_in_one_line(tmp_path):
    _place(tmp_path / "bin", "python3", OLD)
    nothing = _find(tmp_path / "bin")
    assert nothing.returncode == 1
    assert nothing.stderr.startswith("no Python from 3.11 to 3.14 is on the PATH")
    bare = _place(tmp_path / "bin", "python3.12", NO_VENV)
    without = _find(tmp_path / "bin")
    assert without.returncode == 1
    assert without.stderr.startswith(f"{bare} lacks the module venv or ensurepip")
    assert [len(said.stderr.splitlines()) for said in (nothing, without)] == [1, 1]


@pytest.mark.parametrize("name", ["python3.11", "python3.12", "python3.13", "python3.14", "python3", "python"])
def test_any_name_of_a_fit_python_will_do(tmp_path, name):
    fit = _place(tmp_path / "bin", name, FIT)
    assert _find(tmp_path / "bin").stdout == fit + "\n"

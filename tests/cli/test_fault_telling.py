"""What a command tells while something goes wrong: whole lines of JSON where asked for, and nothing twice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from builders import recipe_dict, write_parents
from line import Line
from processes import as_ada

from hubmerge.cli.main import main
from hubmerge.cli.terminal import Terminal
from hubmerge.errors import CorruptError
from localhub.fault_rules import FaultSwitch, Status

REPO = Path(__file__).resolve().parents[2]
BROKEN = 'raise OSError("Could not find/load shared object file")\n'


def test_what_the_client_tries_again_is_told_as_json_too(line: Line, switch: FaultSwitch, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(line.recipe))
    rule = switch.add("/lfs-uploads/", Status(status=500), methods=["PUT"])
    environment = {**os.environ, **as_ada(line.process, tmp_path)}
    command = ["-m", "hubmerge", "run", str(recipe), "--to", line.target, "--license", "mit", "--log-json"]
    done = subprocess.run(
        [sys.executable, *command], env=environment, cwd=REPO, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert switch.state(rule).fired == 1
    told = [json.loads(text) for text in done.stderr.splitlines()]
    assert any(t["type"] == "warning" and "500" in t["message"] for t in told)
    assert not any("X-Amz" in t["message"] for t in told if t["type"] == "warning")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_warning_is_told_once(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    terminal = Terminal(as_json)
    for words in ("no device", "no device", "another"):
        terminal.warning(words)
    assert capsys.readouterr().err.count("no device") == 1


def lines_of(shown: str) -> list[str]:
    """What stood on a line of the terminal at some time."""
    return re.split("[\r\n]+", shown)


def test_a_warning_stands_on_a_line_of_its_own_above_the_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with closing(Terminal(False)) as terminal:
        terminal.progress("merge", 1, 10, "elements")
        terminal.warning("the device is given up")
        terminal.progress("merge", 5, 10, "elements")
    shown = lines_of(capsys.readouterr().err)
    assert any(line.startswith("merging:") for line in shown)
    assert "hubmerge: warning: the device is given up" in shown


def test_the_bar_of_a_stage_that_comes_again_has_the_new_total(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with closing(Terminal(False)) as terminal:
        terminal.progress("verify", 5000, 5000, "B")
        terminal.progress("verify", 7000, 7000, "B")
        terminal._bar.refresh()
    assert any("7.00k/7.00k" in line for line in lines_of(capsys.readouterr().err))


def test_an_error_stands_on_a_line_of_its_own_where_a_bar_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recipe_file: Path
) -> None:
    def fails(prepared: object, hub: object, options: object, observer: Terminal) -> None:
        observer.progress("merge", 1, 10, "elements")
        raise CorruptError("damaged")

    monkeypatch.setattr("hubmerge.cli.probe.probe", fails)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["probe", str(recipe_file)]) == 1
    shown = lines_of(capsys.readouterr().err)
    assert any(line.startswith("merging:") for line in shown)
    assert "hubmerge: E_CORRUPT: damaged." in shown


def test_a_machine_without_a_compiler_merges_the_same_with_one_warning(tmp_path: Path) -> None:
    folders = write_parents(tmp_path)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(recipe_dict(folders[0], folders[1:], "ties")))
    assert main(["merge", str(recipe), "--out", str(tmp_path / "fast")]) == 0
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text("import hubmerge.engine.compiled\nhubmerge.engine.compiled._places = list\n")
    environment = {**os.environ, "PATH": str(bare), "XDG_CACHE_HOME": str(bare)}
    environment["PYTHONPATH"] = os.pathsep.join([str(bare), str(REPO)])

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "hubmerge", *command],
            env=environment,
            cwd=REPO,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    told = run("merge", str(recipe), "--out", str(tmp_path / "eager"))
    assert told.count("this machine has no fast pass") == 1
    assert "there is no C compiler" in told
    assert "pip install ziglang" in told
    assert run("inspect", str(recipe)) == ""
    made = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("eager", "fast")]
    assert made[0] == made[1]

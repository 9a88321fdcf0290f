"""No wait is silent: while a stage takes long, every command says which it is, and what it knows of how far it is."""

import io
import json
import os
import pkgutil
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import StringIO
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from builders import write_sweep
from processes import until

from hubmerge.cli import terminal
from hubmerge.cli.main import main
from hubmerge.cli.terminal import Terminal
from hubmerge.errors import EvaluationError, SensitivityError

READS = ("hubmerge.sources.open._read_header", "resolve")
COUNTS = ("hubmerge.engine.stream.read_chunk", "probe")
MERGES = ("hubmerge.engine.shard_work.read_chunk", "merge")
NO_SUITE, NO_DATA = EvaluationError("enough"), SensitivityError("enough")
OF_DATA = ["--data", "x.jsonl", "--prompt", "p", "--answer", "a", "--out", "s"]
OUT = ["recipe.yaml", "--out", "out"]
# a command and what it says of what: the function that takes long, the stage, and perhaps the error that ends it
SAID: dict[str, tuple[list[str], list[tuple[Any, ...]]]] = {
    "inspect": (["recipe.yaml"], [READS]),
    "init": (["base", "one", "two"], [READS]),
    "probe": (["recipe.yaml"], [COUNTS]),
    "diff": (["base", "one"], [COUNTS]),
    "merge": (OUT, [READS, ("hubmerge.engine.fast.unavailable", "compile"), ("hubmerge.line.render_figures", "card")]),
    "run": (["recipe.yaml", "--to", "ada/run"], [READS]),
    "publish": (
        ["merged", "ada/waited"],
        [
            ("hubmerge.output.publish._verify", "publish"),
            ("hubmerge.hub.client.Hub.preupload", "verify"),
            ("hubmerge.hub.client.Hub.commit", "commit"),
        ],
    ),
    "sweep": (["sweep.yaml", "--out", "out"], [READS, MERGES]),
    "leaderboard": (["--results", "."], [("hubmerge.board.read.read_folder", "results")]),
    "evaluate": (["base", "--suite", "zoo"], [("hubmerge.cli.evaluate.pin", "resolve", NO_SUITE)]),
    "sensitivity": (["base", *OF_DATA], [("hubmerge.cli.sensitivity.load_pairs", "fetch data", NO_DATA)]),
}


@pytest.mark.usefixtures("ada")
@pytest.mark.parametrize("command", SAID)
def test_a_command_says_what_it_waits_for(command, recipe_file, monkeypatch):
    write_sweep(recipe_file, {"method": "ram"})
    monkeypatch.chdir(recipe_file.parent)
    if command == "publish":
        assert main(["merge", "recipe.yaml", "--out", "merged"]) == 0
    terminals, seen, enter = list[Terminal](), dict[str, str](), Terminal.__enter__

    def watched(where: str, error: Exception | None = None) -> Any:
        original = pkgutil.resolve_name(where)

        def watching(*arguments: Any, **named: Any) -> Any:
            seen.setdefault(where, terminals[-1]._stage)
            if error is not None:
                raise error
            return original(*arguments, **named)

        return watching

    if command == "merge":
        monkeypatch.setattr("hubmerge.engine.compiled.is_built", lambda: False)
    monkeypatch.setattr(Terminal, "__enter__", lambda self: terminals.append(self) or enter(self))
    arguments, said = SAID[command]
    for where, _, *error in said:
        monkeypatch.setattr(where, watched(where, *error))
    assert main([command, *arguments, "--log-json"]) == int(any(error for _, _, *error in said))
    assert seen == {where: stage for where, stage, *_ in said}


# --- the terminal itself, by a clock that the test turns ----------------------------------------------------------


class Turned:
    """A terminal whose clock and ticks are the test's: what it has said after each quarter of a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, as_json: bool, live: bool = False) -> None:
        self.now = 0.0
        self.ear = StringIO()
        self.ear.isatty = lambda: live  # type: ignore[method-assign]
        # pytest has its own stderr, anew in every phase of a test
        monkeypatch.setattr(terminal, "sys", SimpleNamespace(stderr=self.ear, stdout=sys.stdout))
        self.terminal = Terminal(as_json, clock=lambda: self.now)

    def spoke_at(self, seconds: float) -> Iterator[float]:
        for _ in range(int(seconds * 4)):
            before = self.ear.getvalue()
            self.now += 0.25
            self.terminal.tick()
            if self.ear.getvalue() != before:
                yield self.now


def test_json_is_silent_for_a_second_at_most(monkeypatch):
    turned = Turned(monkeypatch, as_json=True)
    assert list(turned.spoke_at(5)) == [], "nothing is being done"
    turned.terminal.stage("compile")
    assert list(turned.spoke_at(60)) == [5.0 + n for n in range(1, 61)]
    turned.terminal.progress("compile", 1, 4, "parts")
    list(turned.spoke_at(3))
    assert json.loads(turned.ear.getvalue().splitlines()[-1]) == {
        "type": "waiting", "stage": "compile", "done": 1, "total": 4, "unit": "parts", "seconds": 63.0,
    }  # fmt: skip


def test_a_log_has_a_line_after_two_seconds_and_then_fewer_and_fewer(monkeypatch):
    turned = Turned(monkeypatch, as_json=False)
    turned.terminal.stage("resolve")
    assert list(turned.spoke_at(1.5)) == [], "what is quick is not told"
    turned.terminal.progress("fetch", 2_500_000, 10_000_000, "B")
    assert list(turned.spoke_at(100)) == [3.5, 5.5, 9.5, 17.5, 33.5, 63.5, 93.5]
    first = turned.ear.getvalue().splitlines()[0]
    assert first == "hubmerge: fetching, 2.50 MB of 10.0 MB, 2 s"
    turned.terminal.close()
    assert list(turned.spoke_at(100)) == []


def test_on_a_terminal_the_clock_of_a_stage_moves_on(monkeypatch):
    turned = Turned(monkeypatch, as_json=False, live=True)
    turned.terminal.stage("compile")
    spoken = list(turned.spoke_at(4))
    assert spoken[0] == 1.0
    assert max(b - a for a, b in pairwise(spoken)) <= 1.0
    assert "compiling for this machine (once): 00:0" in turned.ear.getvalue()
    turned.terminal.progress("merge", 0, 100, "elements")
    assert len(list(turned.spoke_at(4))) >= 4
    assert "merging:   0%" in turned.ear.getvalue()
    turned.terminal.close()


def test_a_terminal_that_does_not_know_its_size_shows_the_bar_too():
    script = "from hubmerge.cli.terminal import Terminal; Terminal(False).progress('merge', 0, 4, 'B')"
    ours, theirs = pty.openpty()  # as of a container or a remote command: no columns and no lines
    subprocess.run([sys.executable, "-c", script], stderr=theirs, check=True)
    os.set_blocking(ours, False)
    with open(ours, "rb", buffering=0) as said, open(theirs):
        assert b"merging:   0%" in (said.read(1000) or b"")


def test_a_silence_is_broken_by_itself_until_the_end(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "SILENCE_S", 0.01)
    with Terminal(as_json=True) as told:
        told.stage("merge")
        until(lambda: '"waiting"' in capsys.readouterr().err)
    assert not any(t.name == "hubmerge-terminal" for t in threading.enumerate())


PATIENCE_S = 10.0  # of a test that hears nothing


class Ear(io.StringIO):
    """A stderr that lets another thread wait for what is written to it."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal
        self._written = threading.Condition()

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        with self._written:
            self._written.notify_all()
            return super().write(text)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines() if line.startswith("{")]

    def wait_for(self, stage: str, unit: str | None = None) -> None:
        """Until somebody says that `stage` is what is waited for; fails where nobody does."""
        known, end = len(self.lines()), time.monotonic() + PATIENCE_S
        with self._written:
            while not any(
                line.get("stage") == stage
                and line["type"] in ("waiting", "progress")
                and unit in (None, line.get("unit"))
                for line in self.lines()[known:]
            ):
                assert self._written.wait(max(0.0, end - time.monotonic())), f"nothing was said of {stage}"


class Streams:
    """What the terminal writes to: pytest has its own stderr, anew in every phase of a test."""

    def __init__(self, ear: Ear) -> None:
        self.stderr = ear

    @property
    def stdout(self) -> Any:
        return sys.stdout


def listening(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> Ear:
    monkeypatch.setattr(terminal, "sys", Streams(ear))
    return ear


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Ear:
    monkeypatch.setattr(terminal, "SILENCE_S", 0.05)
    return listening(Ear(), monkeypatch)


class Slowly:
    """Makes functions wait, each at its first call, until the command says which stage it is in."""

    def __init__(self, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ear, self._monkeypatch = ear, monkeypatch
        self.never_waited: set[str] = set()

    def __call__(self, where: str, stage: str, error: Exception | None = None, unit: str | None = None) -> None:
        original = pkgutil.resolve_name(where)

        def waiting(*arguments: Any, **named: Any) -> Any:
            if where in self.never_waited:
                self._ear.wait_for(stage, unit)
                self.never_waited.discard(where)  # several threads may be in it
            if error is not None:
                raise error
            return original(*arguments, **named)

        self._monkeypatch.setattr(where, waiting)
        self.never_waited.add(where)


@pytest.fixture
def slowly(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> Slowly:
    return Slowly(ear, monkeypatch)


def test_inspect_says_how_many_models_are_opened(recipe_file, slowly, ear):
    slowly("hubmerge.sources.open.parse_header", "resolve", unit="models")
    assert main(["inspect", str(recipe_file), "--json", "--log-json"]) == 0
    told = [line for line in ear.lines() if line.get("unit") == "models"]
    assert (told[0]["done"], told[-1]["done"]) == (0, 3)
    assert all(line["done"] <= line["total"] == 3 for line in told)


def test_merge_says_what_takes_long_in_every_stage(recipe_file, slowly, ear, monkeypatch):
    monkeypatch.setattr("hubmerge.engine.compiled.is_built", lambda: False)
    slowly("hubmerge.sources.open._read_header", "resolve")
    slowly("hubmerge.engine.fast.unavailable", "compile")
    slowly("hubmerge.engine.shard_work.read_chunk", "merge")
    slowly("hubmerge.line.render_figures", "card")
    assert main(["merge", str(recipe_file), "--out", str(recipe_file.parent / "out"), "--log-json"]) == 0
    assert slowly.never_waited == set()
    stages = [line["stage"] for line in ear.lines() if line["type"] == "stage"]
    assert stages == ["resolve", "merge", "compile", "merge", "card"]
    told = [(line["done"], line["total"]) for line in ear.lines() if line.get("unit") == "parts"]
    assert (1, 1) in told


@pytest.mark.usefixtures("ada")
def test_publish_says_what_it_reads_sends_and_waits_for(recipe_file, slowly, ear):
    out = recipe_file.parent / "out"
    assert main(["merge", str(recipe_file), "--out", str(out), "--log-json"]) == 0
    slowly("hubmerge.output.publish._verify", "publish")
    slowly("hubmerge.hub.client.Hub.preupload", "verify")
    slowly("hubmerge.hub.client.Hub.commit", "commit")
    assert main(["publish", str(out), "ada/waited-longer", "--log-json"]) == 0
    assert slowly.never_waited == set()
    size = (out / "model.safetensors").stat().st_size
    progress = [line for line in ear.lines() if line["type"] == "progress"]
    for stage in ("verify", "publish"):
        assert [(line["done"], line["total"]) for line in progress if line["stage"] == stage][-1] == (size, size)


def test_nothing_is_said_after_the_end(monkeypatch):
    ear = listening(Ear(), monkeypatch)
    monkeypatch.setattr(terminal, "SILENCE_S", 0.01)
    with Terminal(as_json=True) as told:
        told.stage("merge")
        ear.wait_for("merge")
    length = len(ear.getvalue())
    time.sleep(0.1)
    assert len(ear.getvalue()) == length
    assert not any(t.name == "hubmerge-terminal" for t in threading.enumerate())

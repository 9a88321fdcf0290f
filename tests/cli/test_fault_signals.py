"""A signal at any moment: the command clears up, says how it goes on, and does not wait for a silent Hub."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from builders import recipe_dict
from processes import ROOT, free_port, python

from hubmerge.cli import inspect as inspect_command
from hubmerge.cli.main import main
from hubmerge.recipe import file as reading

IMPATIENT = "import sys, hubmerge.cli.main as c; c._END_AFTER_S = 0.1; sys.exit(c.main(sys.argv[1:], own_process=True))"

PRESSED_TWICE = """
import signal, sys, hubmerge.cli.inspect, hubmerge.cli.main as c
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # where the tests run under nohup
first, second = (signal.Signals[name] for name in sys.argv[1:])
def command(arguments, settings, terminal):
    try:
        signal.raise_signal(first)
    finally:
        signal.raise_signal(second)
        print("cleared up")
hubmerge.cli.inspect.run_cli = command
sys.exit(c.main(["inspect", "recipe.yaml"], own_process=True))
"""

TERMINATED = """
import os, signal, sys, hubmerge.cli.main as c
from hubmerge.engine.sink import ShardWriter
def terminated(writer, finish=ShardWriter.finish):
    os.kill(os.getpid(), signal.SIGTERM)
    return finish(writer)
ShardWriter.finish = terminated
sys.exit(c.main(sys.argv[1:], own_process=True))
"""

HANDLED = """
import os, signal, sys, hubmerge.cli.main as c, hubmerge.cli.merge, hubmerge.cli.methods
ignored = os.environ["IGNORED"] == "yes"
signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
def command(arguments, settings, terminal):
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    print(*(getattr(signal.getsignal(n), "name", "handled") for n in signals))
    return 0
hubmerge.cli.merge.run_merge = hubmerge.cli.methods.run_cli = command
sys.exit(c.main(sys.argv[1:], own_process=True))
"""


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["inspect"], "hubmerge: interrupted (what"),
        (["run", "--to", "ada/x"], "hubmerge: interrupted; the same command goes on (what"),
    ],
    ids=["inspect", "run"],
)
def test_ctrl_c_does_not_wait_for_a_hub_that_never_answers(tmp_path, command, told):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(recipe_dict("ada/base", ["ada/one", "ada/two"])))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        started = [sys.executable, "-c", IMPATIENT, *command, str(recipe)]
        process = subprocess.Popen(started, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            _, words = process.communicate(timeout=30)  # the Hub may take 300 s for an answer
    assert process.returncode == 1
    assert words.splitlines()[-1].startswith(told)  # a busy machine says before that it waits
    assert "Traceback" not in words


def test_ctrl_c_ends_one_of_several_processes_that_waits_for_the_others(recipe_file, tmp_path):
    meeting = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "hubmerge", "merge", str(recipe_file), "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, env={**os.environ, **meeting}, cwd=ROOT, stderr=subprocess.PIPE, text=True) as alone:
        assert alone.stderr is not None
        assert "waiting for the other processes" in alone.stderr.readline()
        alone.send_signal(signal.SIGINT)
        try:
            assert alone.wait(timeout=30) == -signal.SIGINT
        finally:
            alone.kill()


@pytest.mark.parametrize("first", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("second", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_ctrl_c_pressed_again_does_not_cut_off_what_is_cleared_up(first, second):
    done = python("-c", PRESSED_TWICE, first, second)
    code = {"SIGTERM": 143, "SIGHUP": 129}.get(first, 1)
    assert (done.returncode, done.stdout, done.stderr) == (code, "cleared up\n", "hubmerge: interrupted\n")


def test_a_terminal_that_is_gone_changes_no_exit_code():
    with open("/dev/full", "w") as gone:
        command = [sys.executable, "-c", PRESSED_TWICE, "SIGHUP", "SIGHUP"]
        assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=gone, check=False).returncode == 129


def test_sigterm_clears_up_as_ctrl_c_does(recipe_file, tmp_path):
    scratch, out = tmp_path / "scratch", tmp_path / "out"
    scratch.mkdir()
    variables = {"TMPDIR": str(scratch), "HF_ENDPOINT": "http://127.0.0.1:9"}
    for output, told in ((["--null-sink"], ""), (["--out", str(out)], "; the same command goes on")):
        done = python("-c", TERMINATED, "merge", str(recipe_file), *output, **variables)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (143, f"hubmerge: interrupted{told}")
        assert "Traceback" not in done.stderr
    assert not [*scratch.glob("hubmerge-*")]
    assert not [*out.rglob("*.tmp")]
    assert main(["merge", str(recipe_file), "--out", str(out), "--resume"]) == 0


@pytest.mark.parametrize(
    ("command", "processes", "ignored", "handled"),
    [
        (["merge", "recipe.yaml", "--out", "out"], "1", "no", "handled handled handled"),
        (["merge", "recipe.yaml", "--out", "out"], "1", "yes", "SIG_IGN handled SIG_IGN"),
        (["merge", "recipe.yaml", "--out", "out"], "2", "no", "handled SIG_DFL SIG_DFL"),
        (["methods"], "1", "no", "handled SIG_DFL SIG_DFL"),  # Ctrl-C as Python has it
    ],
    ids=["merge", "merge with nohup in a script's background", "merge in two processes", "methods"],
)
def test_one_of_several_processes_which_hears_nothing_while_it_waits_ends_at_once(command, processes, ignored, handled):
    done = python("-c", HANDLED, *command, WORLD_SIZE=processes, RANK="0", IGNORED=ignored)
    assert (done.stdout, done.stderr) == (handled + "\n", "")


@pytest.mark.parametrize(
    "command",
    [["inspect"], ["merge", "--out", "out"], ["run", "--to", "ada/x"], ["evaluate", "--suite", "zoo"]],
    ids=" ".join,
)
def test_an_interrupted_command_says_how_it_goes_on(monkeypatch, refused, recipe_file, command):
    # of the modules that use it: imported here, else one of them would keep the patch
    for module in (inspect_command, reading):
        monkeypatch.setattr(module, "read_document", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr("hubmerge.cli.evaluate.pin", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.chdir(recipe_file.parent)
    told = refused(command[0], recipe_file, *command[1:])
    assert ("goes on" in told) == (command[0] != "inspect")
    *_, last = map(json.loads, refused(command[0], recipe_file, *command[1:], "--log-json").splitlines())
    assert (last["type"], last["code"]) == ("error", "E_CANCELLED")
    assert last["message"] == f"E_CANCELLED: {told.strip().removeprefix('hubmerge: ')}."


@pytest.mark.parametrize("command", [["probe"], ["merge", "--null-sink"]], ids=["probe", "merge"])
def test_ctrl_c_while_the_temporary_folder_is_removed_leaves_none(monkeypatch, recipe_file, tmp_path, command):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    left, rmdir = [1], os.rmdir  # by which every Python removes the folder itself, in the end

    def interrupted(path: Any, **options: Any) -> None:
        if left[0] and Path(path).parent == scratch:
            left[0] -= 1
            raise KeyboardInterrupt
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", interrupted)
    assert main([*command, str(recipe_file)]) == 1
    assert left == [0]
    assert not list(scratch.iterdir())

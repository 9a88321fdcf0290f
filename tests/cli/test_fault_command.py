"""What goes wrong at the command line: named in one line, exit code 1 or 2, no traceback, no secret, nothing twice."""

import errno
import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest
from builders import recipe_dict, tensor, write_model
from line import Line
from processes import ROOT, Done, act_as_ada, as_ada, python

from hubmerge.cli.main import main
from hubmerge.cli.terminal import Terminal
from hubmerge.errors import CorruptError, HubmergeError, LoginError, Problem, SettingsError
from hubmerge.hub.client import Hub
from localhub.fault_rules import Status

CANARY = "hf_canary"


MERGE, EVALUATE = ["merge", "recipe.yaml", "--out", "out"], ["evaluate", "./model", "--suite", "zoo"]


NUMBERS = {
    "--port": ["localhub", "--data", "d"],
    "--every": ["watch", "rule.yaml"],
    **dict.fromkeys(("--threads", "--chunk-elements", "--disk-budget", "--device-memory"), MERGE),
    **dict.fromkeys(("--limit", "--batch-size", "--wall-limit", "--memory-limit"), EVALUATE),
}


@pytest.mark.parametrize("option", NUMBERS)
@pytest.mark.parametrize("value", ["0", "-1", "abc", "", "nan", "1e400"])
def test_an_option_that_is_no_such_number_is_wrong_usage(capsys, option, value):
    if value == "0" and option == "--port":
        value = "9" * 19  # more than a port can be
    with pytest.raises(SystemExit) as stopped:
        main([*NUMBERS[option], f"{option}={value}"])
    assert stopped.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"{option}: must be a " in message


@pytest.mark.parametrize("out", ["/proc/none/r.json", "/proc/r.json", ".", "r.details"])
def test_a_result_that_could_not_be_written_is_refused_before_the_model_is_asked(out, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "hubmerge: E_DISK: " in refused("evaluate", "./model", "--suite", "zoo", "--out", out)


def test_a_file_as_the_data_folder_of_the_local_hub_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("somebody's")
    for data in (tmp_path / "file", tmp_path / "file" / "below"):
        assert refused("localhub", "--data", data).startswith("hubmerge: E_DISK: ")
    assert (tmp_path / "file").read_text() == "somebody's"


@pytest.mark.parametrize(
    ("variable", "value"),
    [("RANK", "first"), ("WORLD_SIZE", "0"), ("SPACES_ZERO_GPU", "perhaps"), ("HUBMERGE_JOBS_PER_USER", "-1")],
)
def test_a_setting_that_makes_no_sense_is_named(monkeypatch, refused, variable, value):
    monkeypatch.setenv(variable, value)
    message = refused("methods")
    assert message.startswith("hubmerge: E_SETTINGS: ")
    assert variable in message


@pytest.mark.parametrize(
    "endpoint",
    [
        "nonsense",
        "ftp://host",
        "http://",
        "http://[bad",
        "http://127.0.0.1:99999",
        "http://a:b@127.0.0.1",
        "http://h?x",
    ],
)
def test_an_address_of_no_hub_is_refused_at_once_and_no_password_shown(endpoint):
    with pytest.raises(SettingsError, match="HF_ENDPOINT") as error:
        Hub(endpoint.replace("a:b@", f"ada:{CANARY}@"))
    assert CANARY not in str(error.value)


@pytest.mark.parametrize(
    "token", [f"{CANARY}\nx", f"{CANARY}\rx", f"{CANARY} x", f"{CANARY}ä", f"\x00{CANARY}", f"{CANARY}\x7f"]
)
def test_a_token_that_no_header_can_hold_is_refused_without_being_shown(token):
    with pytest.raises(LoginError) as error:
        Hub("http://127.0.0.1:9", token)
    assert CANARY not in json.dumps(error.value.as_dict())


def test_a_line_break_after_a_token_does_no_harm(faulty_hub):
    hub = Hub(faulty_hub.endpoint, f" {faulty_hub.tokens['ada']}\r\n")
    assert hub.whoami().name == "ada"
    assert Hub(faulty_hub.endpoint, " \n").token is None


def test_an_upload_that_is_tried_again_is_logged_without_its_signature(faulty_hub, caplog):
    Hub(faulty_hub.endpoint).connect()
    client = logging.getLogger("huggingface_hub.utils._http")
    with caplog.at_level(logging.WARNING, logger=client.name):
        client.addHandler(caplog.handler)
        client.warning("'timeout' thrown while requesting PUT https://s3.example/lfs/ab?X-Amz-Signature=%s&x=1", CANARY)
        client.removeHandler(caplog.handler)
    assert CANARY not in caplog.text
    assert "https://s3.example/lfs/ab" in caplog.text


def test_what_strangers_write_does_not_steer_the_terminal():
    hostile = "a\x1b[2J\r\nE_OK: done\u202e\x9b\ud800 é 漢"
    for error in (HubmergeError(hostile, where=hostile, got=hostile), Problem("E_X", hostile)):
        assert str(error).isprintable()
        assert "é 漢" in str(error)
        str(error).encode()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "E_TOO_BIG: not enough memory. Use fewer --threads, or a larger machine.\n"),
        (OSError(errno.ENOSPC, "Full"), "E_DISK: a file cannot be used: got Full. Free some disk and resume.\n"),
        (FileNotFoundError(2, "No"), "E_DISK: the working folder was removed. Change to a folder that is there.\n"),
    ],
    ids=repr,
)
def test_what_the_machine_lacks_is_named_with_what_to_do(monkeypatch, refused, error, told):
    monkeypatch.setattr("hubmerge.cli.methods.registry", Mock(side_effect=error))
    assert refused("methods") == f"hubmerge: {told}"


def test_a_reader_that_has_seen_enough_gets_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "hubmerge", "methods"]
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, cwd=ROOT, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_command_whose_streams_were_closed_merges_the_same(recipe_file, tmp_path):
    command = [sys.executable, "-m", "hubmerge", "merge", str(recipe_file), "--out"]
    folders = [tmp_path / "open", tmp_path / "closed"]
    assert main([*command[3:], str(folders[0])]) == 0
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command, str(folders[1])], cwd=ROOT, check=True)
    weights = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_were_closed_are_open_in_processes_that_a_command_starts(closed):
    code = (
        "import subprocess, sys; from hubmerge import __main__ as m; m._open_standard_streams(); "
        "sys.exit(subprocess.call(['sh', '-c', 'true <&0 && true >&1 && true >&2']))"
    )
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def test_what_is_piped_is_utf_8_whatever_the_locale(recipe_file):
    agent = (recipe_file.parent / "one").rename(recipe_file.parent / "modèle")
    names = [str(recipe_file.parent / "base"), str(agent), str(recipe_file.parent / "two")]
    written = python("-m", "hubmerge", "init", *names, PYTHONIOENCODING="latin-1")
    for more in ([], ["--json"]):
        told = python("-m", "hubmerge", "inspect", "-", *more, given=written.stdout, PYTHONIOENCODING="latin-1")
        assert (told.returncode, told.stderr) == (0, "")
        assert str(agent) in (json.loads(told.stdout)["agents"][0] if more else told.stdout)


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch, done: Done, line: Line, recipe_file: Path, tmp_path: Path) -> Path:
    """A finished folder of ada's."""
    act_as_ada(monkeypatch, line.process, tmp_path)
    done("merge", recipe_file, "--out", tmp_path / "merged")
    return tmp_path / "merged"


def test_of_a_users_own_files_large_ones_are_published_without_being_held_and_hidden_ones_are_not(
    merged, line, monkeypatch, done
):
    kept, hidden = {"sub/notes.txt", ".gitignore", ".eval_results/mine.yaml"}, (".env", ".aws/key", "sub/.DS_Store")
    for name in (".git/config", ".cache/huggingface/x", "sub/.git", *kept, *hidden):
        (merged / name).parent.mkdir(parents=True, exist_ok=True)
        (merged / name).write_text("x")
    large = merged / "model-Q4.gguf"
    large.write_bytes(b"GGUF" * 10_000)
    monkeypatch.setattr("hubmerge.output.finished.SMALL_FILE_BYTES", 39_999)
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("it was held") if path == large else read(path))
    told = done("publish", merged, line.target).err
    there = set(line.api.list_repo_files(line.target))
    assert {large.name, "model.safetensors", *kept} <= there
    assert not [name for name in there if ".git" in name.split("/") or ".cache" in name or name in hidden]
    assert "hidden files are not published: .aws, .env, .DS_Store" in told
    assert line.hub.read_file(line.target, line.hub.head(line.target), large.name) == read(large)


@pytest.mark.parametrize("unfit", [b"no-utf-8-\xff", b"two\nlines"])
def test_a_file_that_no_repo_can_hold_is_named_before_there_is_a_repo(merged, line, refused, unfit):
    try:
        (merged / os.fsdecode(unfit)).touch()
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    assert "E_RECIPE: a file whose name the Hub does not take" in refused("publish", merged, line.target)
    assert not line.api.repo_exists(line.target)


@pytest.mark.parametrize(
    "change",
    [
        *({"license": "mit"}, {"parents": None}, {"files": [{"name": "x"}]}, {"recipe": []}, {"more": 1}),
        *({"statistics": {}}, {"method": {"title": "x"}}),
    ],
    ids=str,
)
def test_a_manifest_that_somebody_edited_into_none_is_named(merged, line, refused, change):
    manifest = merged / "hubmerge.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    told = refused("publish", merged, line.target)
    assert "E_RECIPE: the manifest is damaged" in told
    assert "https:" not in told
    assert not line.api.repo_exists(line.target)


def test_threads_that_cannot_be_started_are_a_shortage_that_is_named(refused, recipe_file, tmp_path):
    command = ["merge", str(recipe_file), "--out", str(tmp_path / "out")]
    with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        message = refused(*command)
    assert "E_TOO_BIG: no further thread can be started" in message
    assert "ulimit" in message
    assert main([*command, "--resume"]) == 0


def test_another_error_of_the_program_is_not_taken_for_a_shortage(monkeypatch):
    monkeypatch.setattr("hubmerge.cli.main.load_settings", Mock(side_effect=RuntimeError("a mistake")))
    with pytest.raises(RuntimeError, match="a mistake"):
        main(["methods"])


def test_what_the_client_tries_again_is_told_as_json_too(line, switch, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(line.recipe))
    rule = switch.add("/lfs-uploads/", Status(status=500), methods=["PUT"])
    command = ["run", str(recipe), "--to", line.target, "--license", "mit", "--log-json"]
    done = python("-m", "hubmerge", *command, **as_ada(line.process, tmp_path))
    assert done.returncode == 0, done.stderr
    assert switch.state(rule).fired == 1
    told = [json.loads(text) for text in done.stderr.splitlines()]
    stages = [t["stage"] for t in told if t["type"] == "stage"]
    assert stages == ["resolve", "fetch", "merge", "card", "publish"]
    assert any(t["type"] == "warning" and "500" in t["message"] for t in told)
    assert not any("X-Amz" in t["message"] for t in told if t["type"] == "warning")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_warning_is_told_once(capsys, as_json):
    terminal = Terminal(as_json)
    for words in ("no device", "no device", "another"):
        terminal.warning(words)
    assert capsys.readouterr().err.count("no device") == 1


def test_what_is_finished_is_said_at_once_where_nobody_reads_line_by_line(monkeypatch):
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe))
    Terminal(False).say("published\n")
    assert pipe.getvalue() == b"published\n"


def lines_of(shown: str) -> list[str]:
    """What stood on a line of the terminal at some time."""
    return re.split("[\r\n]+", shown)


def test_on_a_terminal_a_warning_has_a_line_above_the_bar_and_a_stage_that_comes_again_its_new_total(
    monkeypatch, capsys
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with closing(Terminal(False)) as terminal:
        terminal.progress("verify", 5000, 5000, "B")
        terminal.progress("verify", 7000, 7000, "B")
        terminal._bar.refresh()
        terminal.progress("merge", 1, 10, "elements")
        terminal.warning("the device is given up")
        terminal.progress("merge", 5, 10, "elements")
    shown = lines_of(capsys.readouterr().err)
    assert any("7.00k/7.00k" in line for line in shown)
    assert any(line.startswith("merging:") for line in shown)
    assert "hubmerge: warning: the device is given up" in shown


def test_a_machine_without_a_compiler_merges_the_same_with_one_warning(recipe_file, tmp_path):
    command = ["merge", str(recipe_file), "--out"]
    assert main([*command, str(tmp_path / "fast")]) == 0
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text("import hubmerge.engine.compiled\nhubmerge.engine.compiled._places = list\n")
    path = os.pathsep.join([str(bare), str(ROOT)])

    def run(*command: str) -> str:
        done = python("-m", "hubmerge", *command, PATH=str(bare), XDG_CACHE_HOME=str(bare), PYTHONPATH=path)
        assert done.returncode == 0, done.stderr
        return done.stderr

    told = run(*command, str(tmp_path / "eager"))
    assert told.count("this machine has no fast pass") == 1
    assert "there is no C compiler" in told
    assert "pip install ziglang" in told
    assert "XDG_CACHE_HOME or TMPDIR" in told  # a machine that has a compiler may have no place for what it makes
    assert run("inspect", str(recipe_file)) == ""
    made = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("eager", "fast")]
    assert made[0] == made[1]


def test_a_probe_keeps_to_its_disk_budget(monkeypatch, done, line, tmp_path):
    act_as_ada(monkeypatch, line.process, tmp_path)
    recipe = tmp_path / "hub.yaml"
    recipe.write_text(json.dumps(line.recipe))
    unlimited = done("probe", recipe).out

    monkeypatch.setattr(Hub, "download", Mock(side_effect=AssertionError("a shard of 250 kB does not fit in")))
    assert done("probe", recipe, "--disk-budget", "0.0001").out == unlimited


def test_a_probe_of_tensors_without_elements_finds_that_nothing_changed_and_cuts_no_name(tmp_path, done):
    empty = {"model.layers.0.mlp.up_proj.weight": tensor(np.zeros((0, 4)))}
    models = [{**empty, "v_head.weight": tensor(np.full(4, k))} for k in range(3)]
    folders = [write_model(tmp_path / f"Qwen2.5-7B-Instruct-GRPO-{k}", model) for k, model in enumerate(models)]
    recipe = recipe_dict(folders[0], folders[1:], ignore=["v_head.*"])
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    table = done("probe", tmp_path / "recipe.yaml").out.splitlines()[1:3]
    assert [line.split()[:2] for line in table] == [[folder.name, "0.00%"] for folder in folders[1:]]


def test_a_terminal_without_greek_letters_is_written_to_all_the_same():
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "hubmerge", "methods"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment, cwd=ROOT) as run:
        os.close(theirs)
        shown = ""
        with suppress(OSError):  # as Linux ends it
            while more := os.read(ours, 65536):
                shown += more.decode("ascii")
        os.close(ours)
    assert run.returncode == 0
    assert "ram_plus" in shown


def test_an_error_stands_on_a_line_of_its_own_where_a_bar_was(monkeypatch, refused, recipe_file):
    def fails(prepared: object, hub: object, options: object, observer: Terminal) -> None:
        observer.progress("merge", 1, 10, "elements")
        raise CorruptError("damaged")

    monkeypatch.setattr("hubmerge.cli.probe.probe", fails)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = lines_of(refused("probe", recipe_file))
    assert any(line.startswith("merging:") for line in shown)
    assert "hubmerge: E_CORRUPT: damaged." in shown

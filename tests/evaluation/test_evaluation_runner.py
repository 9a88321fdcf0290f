"""The runner's promises with a scripted process in lighteval's place: every way to end, and what comes of it."""

import errno
import json
import os
import shutil
import sys
from dataclasses import replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi
from processes import act_as_ada, is_alive, until
from source_helpers import zoo_adapter

from hubmerge import errors
from hubmerge.cli.main import main
from hubmerge.cli.options import _SUITES
from hubmerge.engine.sink import sole_owner
from hubmerge.evaluation import fit, runner
from hubmerge.evaluation.result import parse_result
from hubmerge.evaluation.runner import EvaluateOptions, Unobserved, evaluate
from hubmerge.evaluation.suites import SUITES, pin
from hubmerge.isolation import child
from hubmerge.library import evaluation_folder
from hubmerge.machine import resources
from hubmerge.recipe.model_name import ModelName
from hubmerge.settings import evaluation_environment, load_settings


class Ending(Unobserved):
    """Raises `error` in a stage, once so much of it is done."""

    def __init__(self, error: BaseException, stage: str, at: int) -> None:
        self._error, self._stage, self._at = error, stage, at

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        if stage == self._stage and done >= self._at:
            raise self._error


def test_a_run_that_ends_well_says_all_and_leaves_no_weights(scripted, hub, workdir, notes):
    result = scripted("answers", observer=notes, options={"dtype": "float32", "limit": 3})
    assert parse_result(result.to_json().encode(), where="x") == result
    state = hub.datasets.repo_state("zoo/held-out")
    assert result.status == "done"
    assert result.sha == hub.repo_state("zoo/math-agent").sha
    assert [(s.task, s.domain, s.value, s.stderr, s.samples) for s in result.tasks] == [
        (f"zoo_{d}", d, 0.25, 0.125, 12) for d in ("math", "tool", "mem")
    ]
    assert {s.dataset_revision for s in result.tasks} == {state.sha}
    assert result.suite_version == pin("zoo", hub, limit=3, dtype="float32").version
    assert (result.environment.lighteval, result.environment.seed) == (version("lighteval"), 0)
    assert (result.environment.device, result.environment.dtype) == ("scripted", "float32")
    assert result.facts.parameters == 171776
    assert notes.stages == ["resolve", "fetch model", "fetch data", "generate"]
    assert notes.warnings == ["mind the  [31m gap"]  # nothing that steers a terminal
    assert not (workdir / "inputs").exists()


def test_the_result_of_an_adapter_is_its_own_and_names_the_base_that_it_was_merged_onto(
    scripted, hub, api, tmp_path, workdir
):
    api.create_repo("ada/lora-agent", exist_ok=True)
    api.upload_folder(repo_id="ada/lora-agent", folder_path=zoo_adapter(tmp_path / "lora"))
    result = scripted("answers", model="ada/lora-agent")
    assert (result.status, result.model) == ("done", "ada/lora-agent")
    assert result.sha == hub.repo_state("ada/lora-agent").sha
    assert result.environment.adapter_base == f"zoo/base@{hub.repo_state('zoo/base').sha}"
    assert result.facts.parameters == 171776
    assert not (workdir / "model").exists()


@pytest.mark.parametrize("how", ["crashes", "hangs"])
def test_a_library_that_ends_badly_once_all_is_said_takes_no_score_away(scripted, how, monkeypatch):
    monkeypatch.setattr(child, "_END_S", 0.1)
    assert scripted(f"answers and {how} at its end").status == "done"


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("crashes", "SIGSEGV"),
        ("dies of an import", "exit code 1; its last words were: ModuleNotFoundError: No module named 's3 [31mfs'"),
        ("leaves", "without a result"),
        ("refuses", "the model does not load"),
        ("shouts", "a line without an end"),
        ("talks nonsense", "no event"),
        ("answers other tasks", "other tasks"),
        ("answers beyond the maximum", "cannot be read"),
    ],
)
def test_a_failed_run_has_its_reason_and_no_score(scripted, workdir, mode, reason):
    result = scripted(mode)
    assert (result.status, result.tasks) == ("failed", ())
    assert result.error is not None
    assert result.error.code == "E_EVALUATION"
    assert reason in result.error.message
    assert len(result.error.message) <= 500
    assert str(workdir) not in result.error.message
    assert parse_result(result.to_json().encode(), where="x") == result


@pytest.mark.parametrize(
    ("mode", "code", "reason"),
    [
        ("is killed", "E_TOO_BIG", "SIGKILL"),
        ("runs out of memory", "E_TOO_BIG", "ran out of memory"),
        ("hangs", "E_EVALUATION", "wall limit"),
        ("is kept waiting", "E_EVALUATION", "does not come to an end"),
    ],
)
def test_what_the_machine_may_have_done_is_the_model_s_only_when_it_comes_no_further_again(
    scripted, workdir, mode, code, reason, monkeypatch
):
    wall_s = 3.0 if mode == "hangs" else 60.0  # a busy machine takes seconds to start a process
    monkeypatch.setattr(resources, "oom_kills", count().__next__)
    scripted("answers")  # the data are there, so that the wall limit is the model's alone
    answers = workdir / "generations" / "zoo_math.jsonl"
    for size in (0, 10, 20):  # each run came further than the one before it
        if size:
            answers.parent.mkdir(exist_ok=True)
            answers.write_bytes(b"x" * size)
        with pytest.raises(errors.MachineFaultError, match=reason) as first:
            scripted(mode, options={"wall_s": wall_s})
        assert first.value.retryable
        assert str(workdir) not in str(first.value)
    result = scripted(mode, options={"wall_s": wall_s})
    assert (result.status, result.tasks) == ("failed", ())
    assert result.error is not None
    assert result.error.code == code
    assert reason in result.error.message
    assert not is_alive(int((workdir / "pid").read_text()))
    with pytest.raises(errors.MachineFaultError):  # whoever asks anew has two tries again
        scripted(mode, options={"wall_s": wall_s})


def test_kills_without_want_of_memory_are_never_the_model_s_nor_leave_a_token_in_the_folder(
    scripted, workdir, hub, monkeypatch
):
    monkeypatch.setattr(resources, "oom_kills", lambda: 7)
    for _ in range(2):
        with pytest.raises(errors.MachineFaultError, match="says nothing of the model"):
            scripted("is killed")  # and so the fetched weights are still there
    assert hub.token
    files = [path for path in workdir.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if hub.token.encode() in path.read_bytes()] == []


def test_a_model_that_leaves_less_than_the_reserve_is_refused_before_it_is_fetched(
    scripted, workdir, notes, monkeypatch
):
    total, weights = 100 * 10**9, 343_552 + 2048
    usage = SimpleNamespace(total=total, free=fit.RESERVE_BYTES + 1000)
    monkeypatch.setattr(fit.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(errors.DiskError, match="the model does not fit on this disk") as refusal:
        scripted("answers", observer=notes)
    assert "2.000000 GB of it for everything else" in str(refusal.value)
    assert notes.stages == ["resolve"]
    assert not (workdir / "inputs").exists()
    usage.free = fit.RESERVE_BYTES + 2 * weights
    assert scripted("answers").status == "done"


@pytest.mark.parametrize("when", ["fetched", "answered"])
def test_a_disk_that_fills_meanwhile_gets_back_what_was_fetched_and_says_nothing_of_the_model(
    scripted, workdir, monkeypatch, when
):
    def full(*arguments: Any) -> Any:
        (workdir / "inputs").mkdir()
        (workdir / "inputs" / "part").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    if when == "fetched":
        monkeypatch.setattr(runner, "stage_model", full)
    with pytest.raises(errors.DiskError, match="the disk is full") as told:
        scripted("fills the disk")
    assert told.value.retryable
    assert not (workdir / "inputs").exists()
    assert not (workdir / "model").exists()


def test_two_processes_never_run_one_evaluation(scripted, workdir):
    with sole_owner(workdir), pytest.raises(errors.FolderInUseError):
        scripted("answers")


def test_a_folder_may_have_any_path_where_folders_are_allowed(scripted, tmp_path):
    folder = tmp_path.joinpath(*["deep" * 20] * 4, "m\u00f6\ndel\u202e")
    shutil.copytree(child._ROOT / "examples" / "zoo" / "math", folder)
    result = scripted("answers", model=str(folder), allow_local=True)
    assert (result.status, result.model, result.facts.author) == ("done", "m\u00f6 del", "local")
    for name, reason in ((str(folder), "local folders"), ("zoo/nothing", "zoo/nothing")):
        with pytest.raises(errors.SourceNotFoundError, match=reason):
            scripted("answers", model=name)


@pytest.mark.parametrize(
    "options",
    [
        *({"wall_s": float("nan")}, {"wall_s": float("inf")}, {"wall_s": 2e9}),
        *({"batch_size": 0}, {"batch_size": 10**6 + 1}),  # a result could not name more
    ],
    ids=str,
)
def test_options_without_sense_are_refused_before_a_fetch(scripted, workdir, options):
    with pytest.raises(errors.EvaluationError, match="must be positive"):
        scripted("answers", options=options)
    assert not (workdir / "inputs").exists()


def test_answers_are_kept_under_the_model_the_adapter_s_base_the_tokenizer_and_the_libraries(
    scripted, zoo_hub, tmp_path, workdir, monkeypatch
):
    api, zoo = HfApi(zoo_hub.endpoint, token=zoo_hub.tokens["ada"]), child._ROOT / "examples" / "zoo"
    api.create_repo("ada/moving-base", exist_ok=True)
    api.upload_folder(repo_id="ada/moving-base", folder_path=zoo / "base")
    adapter = str(zoo_adapter(tmp_path / "my l\u00f6ra", "ada/moving-base"))
    own = shutil.copytree(zoo / "math", tmp_path / "own")

    def identity(model: Path | str) -> str:
        assert scripted("answers in the dtype that it was asked for", model=str(model), allow_local=True).tasks
        return str(json.loads((workdir / "spec").read_text())["identity"])

    first = identity(adapter), identity(own)
    assert identity(own) == first[1]
    (own / "tokenizer.json").write_bytes((own / "tokenizer.json").read_bytes() + b"\n")
    api.upload_file(repo_id="ada/moving-base", path_in_repo="moved.txt", path_or_fileobj=b"on")
    second = identity(adapter), identity(own)
    monkeypatch.setattr(runner, "version", lambda name: "0.0.1")
    assert len({*first, *second, identity(own)}) == 5


def test_a_cancelled_run_ends_with_all_its_processes_even_those_that_ignore_sigterm(scripted, workdir, monkeypatch):
    monkeypatch.setattr(child, "GRACE_S", 0.2)
    with pytest.raises(errors.CancelledError):
        scripted("answers", observer=Ending(errors.CancelledError("x"), "fetch model", 0))
    assert not (workdir / "pid").exists()
    with pytest.raises(errors.CancelledError):
        scripted("ignores SIGTERM with a grandchild", observer=Ending(errors.CancelledError("x"), "generate", 2))
    assert not is_alive(int((workdir / "pid").read_text()))
    grandchild = int((workdir / "grandchild").read_text())
    until(lambda: not is_alive(grandchild))  # soon, though nobody waits for the child of a child


def test_the_child_dies_with_its_parent(tmp_path):
    """A parent that is killed cannot clean up; the kernel does."""
    script = (
        "from pathlib import Path\n"
        "from hubmerge.isolation.child import ChildJob, run_child\n"
        f"job = ChildJob('tests.evaluation.scripted_child', {{'workdir': {str(tmp_path)!r}, 'tasks': []}},"
        f" {{}}, Path({str(tmp_path / 'log')!r}), 600, 'x')\n"
        "run_child(job, lambda event: None)\n"
    )
    (tmp_path / "mode").write_text("hangs")
    parent = os.posix_spawn(sys.executable, [sys.executable, "-c", script], {"PYTHONPATH": str(child._ROOT)})
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    until(lambda: not is_alive(pid))


def test_a_child_lacks_token_and_network(scripted, workdir, hub, monkeypatch):
    canary = "hf_CanaryInTheEnvironment0123456789"
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUBMERGE_SECRET", "OAUTH_CLIENT_SECRET", "SOME_OTHER"):
        monkeypatch.setenv(name, canary)
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:{canary}@127.0.0.1:9")
    scripted("looks around")
    environment = (workdir / "environment").read_text()
    assert canary not in environment
    assert str(hub.token) not in environment
    assert json.loads(environment)["HF_HUB_OFFLINE"] == "1"
    assert Path(json.loads(environment)["HOME"]).is_relative_to(workdir)  # no cache or login of this user's
    assert json.loads((workdir / "families").read_text()) == ["AF_UNIX"]


def test_a_package_or_device_that_is_not_there_is_refused_before_anything_is_fetched(hub, workdir, monkeypatch):
    name, suite = ModelName.parse("zoo/base"), pin("zoo", hub)
    monkeypatch.setattr(resources, "device_there", lambda: False)
    with pytest.raises(errors.DeviceError, match="no CUDA device"):
        evaluate(name, suite, hub=hub, workdir=workdir, options=EvaluateOptions(device="cuda"))
    first = replace(suite.tasks[0], task=replace(suite.tasks[0].task, needs=("json", "tree_of_another_kind")))
    suite = replace(suite, tasks=(first, *suite.tasks[1:]))
    with pytest.raises(errors.MissingExtraError, match=r"the suite zoo needs .* no tree_of_another_kind"):
        evaluate(name, suite, hub=hub, workdir=workdir, options=EvaluateOptions())
    assert not workdir.exists()


def test_the_command_writes_result_and_details_over_earlier_ones_and_says_why_a_run_failed(
    zoo_hub, hub, tmp_path, monkeypatch, capsys
):
    act_as_ada(monkeypatch, zoo_hub, tmp_path)
    monkeypatch.setattr(runner, "CHILD_MODULE", "tests.evaluation.scripted_child")
    folder = evaluation_folder(load_settings(), ModelName.parse("zoo/base"), pin("zoo", hub, limit=4))
    out, details = tmp_path / "made" / "result.json", tmp_path / "made" / "result.details"
    for place in (folder / "details" / "zoo_math.parquet", details / "gsm8k.parquet", details / "notes.md"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(place.parent.name)

    def run(mode: str) -> tuple[int, str]:
        (folder / "mode").write_text(mode)
        code = main(["evaluate", "zoo/base", "--suite", "zoo", "--limit", "4", "--out", str(out)])
        return code, capsys.readouterr().out

    code, printed = run("answers")
    result = parse_result(out.read_bytes(), where="x")
    assert (code, result.model, result.status) == (0, "zoo/base", "done")
    kept = {"zoo_math.parquet": "details", "notes.md": "result.details"}
    assert {path.name: path.read_text() for path in details.iterdir()} == kept
    assert "zoo_math   25.0 ± 12.5  exact_match, 12 prompts" in printed
    assert result.suite_version in printed
    code, printed = run("crashes")
    assert (code, parse_result(out.read_bytes(), where="x").status) == (1, "failed")
    assert "SIGSEGV" in printed
    assert [path.name for path in details.iterdir()] == ["notes.md"]
    assert tuple(SUITES) == _SUITES  # which the help names


def test_a_child_inherits_by_an_allow_list_and_a_proxy_only_with_the_network(monkeypatch):
    monkeypatch.setattr("site.ENABLE_USER_SITE", False)
    inherited, proxy = {"PATH": "/bin", "PYTHONPATH": "/lib", "LANG": "C"}, {"HTTPS_PROXY": "http://u:p@h"}
    environment = {**inherited, **proxy, "HF_TOKEN": "t", "AWS_SECRET": "s"}
    assert evaluation_environment(environment, network=False) == inherited
    assert evaluation_environment(environment, network=True) == inherited | proxy
    monkeypatch.setattr("site.ENABLE_USER_SITE", True)  # what pip installed for the user alone
    monkeypatch.setattr("site.getuserbase", lambda: "/home/ada/.local")
    assert evaluation_environment({}, network=False) == {"PYTHONUSERBASE": "/home/ada/.local"}

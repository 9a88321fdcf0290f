"""ZeroGPU's bursts with a platform of our own that forks, pickles, refuses and kills: a GPU costs no byte."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_spaces import spaces
from line import Line
from memory_helpers import planned
from processes import printed_by, until
from stream_helpers import Watching, bytes_of, family_plan, plan_of, run, spoil, tallies, write_family
from test_stream_sensitive import CALIBRATION, write_sensitivities

from hubmerge import line as line_module
from hubmerge.engine import bursts as zero
from hubmerge.engine.bursts import Burst, BurstProcess, announce, run_burst, seconds_of
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.shard_work import Output, ShardTask
from hubmerge.engine.stream import MergeResult
from hubmerge.errors import NonFiniteError
from hubmerge.isolation.child import ChildProcess
from hubmerge.isolation.scrub import Scrubber
from hubmerge.line import merge_to_hub
from hubmerge.plan.disk import output_need
from hubmerge.plan.plan import Plan
from hubmerge.settings import load_settings
from hubmerge.sources.reader import sources_of
from workflows.jobs.protocol import Failure, JobSpec, Notice, Result, decoded
from workflows.jobs.protocol import Line as SpokenLine
from workflows.jobs.worker import child_environment

FAKE = Path(spaces.__file__).parents[1]
ROOT = FAKE.parents[1]
WUDI = {"method": "wudi", "parameters": {"steps": 3}}


@pytest.fixture(autouse=True)
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    monkeypatch.setenv("PYTHONPATH", f"{FAKE}{os.pathsep}{ROOT}")
    monkeypatch.setenv("FAKE_SPACES_NOTES", str(tmp_path / "notes"))
    yield
    assert not [worker for worker in spaces.notes("worker") if Path(f"/proc/{worker}/exe").exists()]


def merged(plan: Plan, out: Path, observer: Watching | None = None) -> tuple[MergeResult, list[str]]:
    observer = observer or Watching()
    return run(plan, out, observer=observer, backend="eager", bursts=True), observer.messages


@pytest.mark.parametrize(("method", "parameters"), [("ram_plus", {}), ("ties", {"trim_scope": "tensor"})], ids=str)
def test_every_shard_is_one_burst_with_the_bytes_of_the_cpu(tmp_path, method, parameters):
    plan = family_plan(tmp_path, method, max_shard_bytes=12_000, parameters=parameters)
    wanted = run(plan, tmp_path / "cpu")
    found, warnings = merged(plan, tmp_path / "lent")
    assert bytes_of(tmp_path / "lent", plan) == bytes_of(tmp_path / "cpu", plan)
    assert tallies(found) == tallies(wanted)
    assert warnings == []
    assert len(spaces.notes("call")) == len(plan.shards) > 1
    assert found.device["bursts"] == len(plan.shards)
    assert set(spaces.notes("call")) == {"15"}  # seconds: the shards are small


@pytest.mark.parametrize(("how", "calls"), [("quota@2", 2), ("kill@2", 2), ("hang", 1), ("queue", 1)])
def test_a_burst_that_is_refused_killed_or_late_goes_on_on_the_cpu_with_the_same_bytes_and_one_warning(
    tmp_path, monkeypatch, how, calls
):
    plan = family_plan(tmp_path, "ram_plus", max_shard_bytes=12_000)
    run(plan, tmp_path / "cpu")
    monkeypatch.setenv("FAKE_SPACES", how)
    if "@" not in how:  # it is waited for in vain, for as long as this clock says once the platform was asked
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000 * len(spaces.notes("call")))
        monkeypatch.setattr(zero, "time", clock)
    _, warnings = merged(plan, tmp_path / "lent")
    assert bytes_of(tmp_path / "lent", plan) == bytes_of(tmp_path / "cpu", plan)
    assert len(warnings) == 1
    assert "no GPU" in warnings[0]
    assert len(spaces.notes("call")) == calls < len(plan.shards)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_merge_that_is_killed_or_broken_off_takes_its_burst_with_it(tmp_path, monkeypatch, end):
    plan = family_plan(tmp_path, "ram")
    monkeypatch.setenv("FAKE_SPACES", "hang")

    class Ending(Watching):
        def progress(self, stage: str, done: int, total: int, unit: str) -> None:
            if spaces.notes("middle"):
                os.kill(os.getpid(), end)

    job = multiprocessing.get_context("fork").Process(target=merged, args=(plan, tmp_path / "lent", Ending()))
    job.start()
    job.join()
    assert job.exitcode in (-signal.SIGKILL, 1)
    [worker] = spaces.notes("worker")
    until(lambda: not Path(f"/proc/{worker}/exe").exists())


def test_where_there_is_a_fast_pass_products_of_matrices_alone_ask_for_a_gpu(tmp_path):
    write_family(tmp_path)
    watching = Watching()
    ram = plan_of(tmp_path, "ram")
    run(ram, tmp_path / "ram", observer=watching, bursts=True)
    assert spaces.notes("call") == []
    wudi = plan_of(tmp_path, "wudi", parameters={"steps": 3})
    found = run(wudi, tmp_path / "wudi", observer=watching, bursts=True)
    assert watching.messages == []
    assert found.device["bursts"] == len(spaces.notes("call")) == 1


def test_why_a_lent_device_cannot_be_used_is_told(tmp_path):
    write_family(tmp_path)
    watching, plan = Watching(), plan_of(tmp_path, "wudi", parameters={"steps": 3})
    run(plan, tmp_path / "lent", observer=watching, bursts=True, device_memory_bytes=1000)
    [warning] = watching.messages
    assert warning.startswith("no GPU for model.safetensors")
    assert "does not fit the device's memory" in warning


def test_a_burst_whose_asker_is_gone_does_not_begin(tmp_path):
    plan = family_plan(tmp_path, "ram")
    (tmp_path / "lent").mkdir()
    task = ShardTask((Output(plan, tmp_path / "lent", (), {}),), 0, None)
    burst = Burst(task, plan.models, {}, StreamOptions())
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=run_burst, args=(burst, os.getppid()))
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    assert [*(tmp_path / "lent").iterdir()] == []


def test_what_is_wrong_with_an_input_is_named_as_on_the_cpu(tmp_path):
    _, agents = write_family(tmp_path)
    spoil(tmp_path, agents)
    with pytest.raises(NonFiniteError, match=r"down_proj.*agent1"):
        merged(plan_of(tmp_path, "ram"), tmp_path / "lent")
    assert len(spaces.notes("call")) == 1


def test_the_process_that_waits_for_another_burst_ends_when_it_is_told_to():
    process = BurstProcess()
    try:
        process.ask("no burst at all")
        until(lambda: process.answer(0.1) is not None)
        stat = Path(f"/proc/{process._process.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")
        process._process.terminate()
        assert process._has_ended(20.0)  # without being killed
    finally:
        process.end()


def test_sensitivity_files_are_read_in_the_burst_too(tmp_path):
    write_family(tmp_path)
    _, measured = write_sensitivities(tmp_path)
    plan = plan_of(tmp_path, "fisher", calibration=CALIBRATION)
    run(plan, tmp_path / "cpu", measured=measured)
    found = run(plan, tmp_path / "lent", measured=measured, backend="eager", bursts=True)
    assert found.device["bursts"] == 1
    assert bytes_of(tmp_path / "lent", plan) == bytes_of(tmp_path / "cpu", plan)


def test_a_burst_is_asked_for_as_long_as_its_products_take():
    seconds = []
    for steps in (1, 300):
        plan = planned("wudi", 3, "synthetic:qwen2.5-0.5b?layers=8", parameters={"steps": steps})
        task = ShardTask((Output(plan, Path("out"), (), {}),), 1, None)  # the first is the embedding
        seconds.append(seconds_of(Burst(task, plan.models, {}, StreamOptions()), 0))
    assert 15 < seconds[0] < seconds[1] < 120


def test_spaces_is_imported_where_the_setting_is_on_and_the_start_registers_one_function(tmp_path):
    script = (
        "import sys\nfrom hubmerge.engine.bursts import announce\n"
        "from hubmerge.settings import load_settings\n"
        "announce(load_settings(), print)\n"
        "print(sorted({'spaces', 'torch', 'gradio'} & set(sys.modules)))\n"
    )
    told = tmp_path / "told"
    assert printed_by(script, SPACES_ZERO_GPU="", FAKE_SPACES_NOTES=str(told)) == "[]\n"
    assert not told.exists()
    assert printed_by(script, SPACES_ZERO_GPU="true", FAKE_SPACES_NOTES=str(told)) == "['spaces']\n"
    assert told.read_text() == "announced 1\n"


def test_an_app_whose_platform_does_not_answer_starts_without_a_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "spaces", None)  # an import of it fails
    told: list[str] = []
    announce(load_settings({"SPACES_ZERO_GPU": "1"}), told.append)
    assert len(told) == 1
    assert "merges run on the CPU" in told[0]


@pytest.mark.parametrize("granted", ["device", "quota", "none"])
def test_the_platforms_own_package_runs_the_bursts(tmp_path, monkeypatch, granted):
    """Its worker, its queues and its requests, with a device API of our own in the platform's place."""
    monkeypatch.delenv("PYTHONPATH")  # where the other one is
    script = Path(__file__).with_name("real_spaces.py")
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "x"), granted], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["announced"] == ["/startup-report"]
    assert told["equal"]
    calls = [path for path, _ in told["asked"]]
    if granted == "device":
        assert told["warnings"] == []
        assert told["device"]["bursts"] == told["shards"] > 1
        assert calls == ["/schedule", "/allow", "/release"] + ["/schedule", "/release"] * (told["shards"] - 1)
        assert all(asked["durationSeconds"] == "15" for path, asked in told["asked"] if path == "/schedule")
    else:
        assert len(told["warnings"]) == 1
        refused = granted == "quota"
        assert calls == (["/schedule"] if refused else ["/schedule", "/allow", "/release"])
        reason = "GPU limit" if refused else "AssertionError|RuntimeError"  # the package's own, or what torch raised
        assert re.search(reason, told["warnings"][0])


def needed_bytes(plan: Plan) -> list[int]:
    """Per output shard, the bytes of all input shards that it is made of."""
    found = []
    for shard in plan.shards:
        parts = {(m, p.shard) for t in shard.tensors for k, s in enumerate(t.inputs) for m, p in sources_of(k, s)}
        found.append(sum(plan.models[m].files[name].size for m, name in parts))
    return found


def published_in_bursts(line: Line, monkeypatch: pytest.MonkeyPatch, inputs: int) -> tuple[dict[str, Any], list[str]]:
    """The environment that the card tells, and the warnings. `inputs`: the part of the disk budget for inputs."""
    prepared = line.prepare()
    budget = output_need(prepared.plan, uploaded=True) + inputs
    told: list[str] = []
    monkeypatch.setattr(line_module, "render_figures", lambda report: {})
    monkeypatch.setattr(line.watcher, "warning", told.append)
    options = StreamOptions(4096, 2, backend="eager", bursts=True, cache=line.inputs, disk_budget=budget)
    merge_to_hub(prepared, line.hub, line.out, options, line.watcher)
    assert line.commits() == 1
    return dict(line.report()["environment"]), told


@pytest.mark.parametrize("method", ["ram_plus", "ram"])
def test_inputs_are_held_within_the_budget_while_a_burst_reads_them(line, undisturbed, monkeypatch, method):
    line.recipe = {**line.recipe, "method": method}
    plan = line.prepare().plan
    budget = max(needed_bytes(plan))
    assert budget < plan.download_bytes  # not all of them
    environment, warnings = published_in_bursts(line, monkeypatch, budget)
    assert warnings == []
    assert environment["bursts"] == len(spaces.notes("call")) == len(plan.shards) > 1
    assert environment["fetch"]["high_water_bytes"] <= budget
    assert environment["fetch"]["ranged_shards"] == 0
    if method == "ram_plus":
        assert line.published() == undisturbed


def test_a_shard_whose_inputs_exceed_the_budget_is_merged_on_the_cpu_and_the_others_are_not(
    line, undisturbed, monkeypatch
):
    needed = needed_bytes(line.prepare().plan)
    budget = max(needed) - 1
    environment, warnings = published_in_bursts(line, monkeypatch, budget)
    assert [w for w in warnings if "disk budget" in w] == warnings
    assert len(warnings) == 1
    assert environment["bursts"] == len([n for n in needed if n <= budget]) < len(needed)
    assert environment["fetch"]["high_water_bytes"] <= budget
    assert line.published() == undisturbed


def test_a_budget_for_ranges_only_asks_for_no_gpu(line, undisturbed, monkeypatch):
    environment, warnings = published_in_bursts(line, monkeypatch, 0)
    assert len(warnings) == 1
    assert (spaces.notes("call"), "bursts" in environment) == ([], False)
    assert line.published() == undisturbed


@contextmanager
def child_of(line: Line, target: str, **environment: str) -> Iterator[ChildProcess]:
    """The child process that the worker would start for this merge."""
    spec = JobSpec(
        user="ada",
        payload={"recipe": line.recipe, "target": target, "private": False, "license": "mit"},
        token=line.process.tokens["ada"],
        workdir=line.folder / target.replace("/", "-"),
        shared=line.folder / "shared",
        endpoint=line.process.endpoint,
    )
    spec.workdir.mkdir(parents=True)
    command = [sys.executable, "-m", "workflows.jobs.child", "--guard-seconds", "300"]
    variables = child_environment({**os.environ, **environment}, line.process.endpoint)
    scrubber = Scrubber(spec.token)
    child = ChildProcess(command, spec.to_line(), variables, spec.workdir / "child.log", scrubber, beating=True)
    try:
        yield child
    except BaseException:
        child.close()
        raise


def ended(child: ChildProcess) -> list[SpokenLine]:
    """What the child still said until its end."""
    lines: list[bytes] = []
    until(lambda: lines.extend(child.lines(0.1)) or child.has_ended())
    return list(decoded(lines + child.close()[1]))


def test_a_job_of_the_app_on_zerogpu_multiplies_its_matrices_there(line):
    line.recipe |= WUDI
    with child_of(line, line.target, SPACES_ZERO_GPU="") as child:
        lines = ended(child)
    assert any(isinstance(line, Result) for line in lines)
    wanted = line.published()
    assert spaces.notes("call") == []
    line.target += "-lent"
    with child_of(line, line.target) as child:
        lines = ended(child)
    assert any(isinstance(line, Result) for line in lines)
    assert not [line for line in lines if isinstance(line, Notice) and "GPU" in line.message]
    assert len(spaces.notes("call")) == len(spaces.notes("worker")) == 1
    assert line.report()["environment"]["bursts"] == 1
    assert line.published().keys() == wanted.keys()


def test_cancelling_a_job_ends_its_burst(line):
    line.recipe |= WUDI
    with child_of(line, line.target, FAKE_SPACES="hang") as child:
        until(lambda: spaces.notes("middle") or (child.lines(0.05) and child.has_ended()))
        assert not child.has_ended()
        child.terminate()
        lines = ended(child)
    assert [line.code for line in lines if isinstance(line, Failure)] == ["E_CANCELLED"]
    [worker] = spaces.notes("worker")
    assert not Path(f"/proc/{worker}/exe").exists()

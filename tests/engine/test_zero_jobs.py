"""Merges of the app in ZeroGPU's bursts, from and to the embedded Hub: within the disk budget, with the CPU's bytes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cache_helpers import KB, FolderHub, made_model, reads_of
from fake_spaces import spaces
from line import Line

from hubmerge import line as line_module
from hubmerge.engine.options import StreamOptions
from hubmerge.isolation.child import ChildProcess
from hubmerge.isolation.scrub import Scrubber
from hubmerge.line import merge_to_hub
from hubmerge.plan.disk import output_need
from hubmerge.plan.plan import Plan
from hubmerge.sources.reader import sources_of
from hubmerge.sources.shard_cache import ShardCache
from workflows.jobs.protocol import Failure, JobSpec, Notice, Result, decoded
from workflows.jobs.protocol import Line as SpokenLine
from workflows.jobs.worker import child_environment

FAKE = Path(spaces.__file__).parents[1]
ROOT = FAKE.parents[1]


@pytest.fixture(autouse=True)
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    monkeypatch.setenv("PYTHONPATH", f"{FAKE}{os.pathsep}{ROOT}")
    monkeypatch.setenv("FAKE_SPACES_NOTES", str(tmp_path / "notes"))
    yield
    assert not [worker for worker in spaces.notes("worker") if Path(f"/proc/{worker}/exe").exists()]


def needed_bytes(plan: Plan) -> list[int]:
    """Per output shard, the bytes of all input shards that it is made of."""
    found = []
    for shard in plan.shards:
        parts = {(m, p.shard) for t in shard.tensors for k, s in enumerate(t.inputs) for m, p in sources_of(k, s)}
        found.append(sum(plan.models[m].files[name].size for m, name in parts))
    return found


def published_in_bursts(
    line: Line, monkeypatch: pytest.MonkeyPatch, inputs: int | None
) -> tuple[dict[str, Any], list[str]]:
    """The environment that the card tells, and the warnings. `inputs`: the part of the disk budget for inputs."""
    prepared = line.prepare()
    budget = None if inputs is None else output_need(prepared.plan, uploaded=True) + inputs
    told: list[str] = []
    monkeypatch.setattr(line_module, "render_figures", lambda report: {})
    monkeypatch.setattr(line.watcher, "warning", told.append)
    options = StreamOptions(4096, 2, backend="eager", bursts=True, cache=line.inputs, disk_budget=budget)
    merge_to_hub(prepared, line.hub, line.out, options, line.watcher)
    assert line.commits() == 1
    return dict(line.report()["environment"]), told


@pytest.mark.parametrize("method", ["ram_plus", "ram"])
def test_inputs_are_held_within_the_budget_while_a_burst_reads_them(
    line: Line, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
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
    line: Line, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = needed_bytes(line.prepare().plan)
    budget = max(needed) - 1
    environment, warnings = published_in_bursts(line, monkeypatch, budget)
    assert [w for w in warnings if "disk budget" in w] == warnings
    assert len(warnings) == 1
    assert environment["bursts"] == len([n for n in needed if n <= budget]) < len(needed)
    assert environment["fetch"]["high_water_bytes"] <= budget
    assert line.published() == undisturbed


def test_a_budget_for_ranges_only_asks_for_no_gpu(
    line: Line, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, warnings = published_in_bursts(line, monkeypatch, 0)
    assert len(warnings) == 1
    assert (spaces.notes("call"), "bursts" in environment) == ([], False)
    assert line.published() == undisturbed


def test_what_is_held_stays_until_it_is_given_back_and_goes_with_its_last_use(tmp_path: Path) -> None:
    hub = FolderHub()
    models = [made_model(hub, name, [[("x", KB)], [("y", KB)]]) for name in ("a", "b")]
    names = ["0.safetensors", "1.safetensors"]
    cache: Any = ShardCache(hub, tmp_path, models, 2 * KB)  # type: ignore[arg-type]
    try:
        cache.expect(reads_of(models, ["x", "y"]), again=False)
        for tensor, name in zip("xy", names, strict=True):
            with cache.held([(m, name) for m in models]) as paths:
                cache.consumed(tensor, KB)
                read = {repo: path.read_bytes() for (repo, _, _), path in paths.items()}
                assert read == {m.ref.id: hub.contents[m.ref.id, name] for m in models}
            assert not any(path.exists() for path in paths.values())
        assert (cache.fetched.shards, cache.fetched.high_water_bytes) == (4, 2 * KB)
        with cache.held([(m, name) for m in models for name in names]) as paths:
            assert paths is None
        assert cache.fetched.shards == 4
    finally:
        cache.close()


# --- the app's own line, in its process ---------------------------------------------------------------------


@contextmanager
def child_of(line: Line, target: str, **environment: str) -> Iterator[ChildProcess]:
    """The child process that the worker would start for this merge."""
    spec = JobSpec(
        job_id="j",
        fence=1,
        kind="merge",
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


def ended(child: ChildProcess, limit_s: float = 120.0) -> list[SpokenLine]:
    """What the child still said until its end."""
    deadline = time.monotonic() + limit_s  # only turns a hang into a failure
    lines: list[bytes] = []
    while not child.has_ended():
        assert time.monotonic() < deadline
        lines += child.lines(0.1)
    return list(decoded(lines + child.close()[1]))


def test_a_job_of_the_app_on_zerogpu_publishes_the_bytes_of_a_job_on_the_cpu(line: Line) -> None:
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
    assert line.published() == wanted


def test_cancelling_a_job_ends_its_burst(line: Line) -> None:
    with child_of(line, line.target, FAKE_SPACES="hang") as child:
        deadline = time.monotonic() + 120
        while not spaces.notes("middle"):
            assert time.monotonic() < deadline
            assert not child.has_ended()
            child.lines(0.05)
        child.terminate()
        lines = ended(child)
    assert [line.code for line in lines if isinstance(line, Failure)] == ["E_CANCELLED"]
    [worker] = spaces.notes("worker")
    assert not Path(f"/proc/{worker}/exe").exists()

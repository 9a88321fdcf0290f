"""`make bench`: what it measures by default, and how."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmark_helpers import MACHINE, SIX, place, ran

from benchmarks import benchmark_page, gpu, metering, sections, side_by_side, suite, zoo
from benchmarks.metering import FailedRunError, OutOfMemoryError, Suite, measure
from hubmerge.plan.disk import DiskGauge


def test_all_methods_at_both_shapes_on_all_machines_are_the_default() -> None:
    options = suite.parsed([])
    assert options.shapes == ["0.5b", "1.5b"]
    assert set(options.compare) == set(side_by_side.METHODS) == set(gpu.METHODS) == SIX
    assert {"comparison", "gpu", "kills", "startup"} <= set(options.sections) == set(suite.SECTIONS)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of figures; pages are drawn beside it."""
    docs = tmp_path / "docs"
    (docs / "data").mkdir(parents=True)
    (docs / "benchmarks.md").write_text(f"{benchmark_page.BEGIN}\n{benchmark_page.END}\n")
    monkeypatch.setattr(suite, "DATA", docs / "data" / "benchmarks.json")
    monkeypatch.setattr(suite, "write_page", lambda data: benchmark_page.write_page(data, docs))
    return suite.DATA


def test_without_arguments_every_section_is_measured_and_one_that_fails_is_told_of(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []

    def section(name: str, machine: Suite) -> list[dict[str, Any]]:
        measured.append(name)
        if name == "floor":
            raise FailedRunError("no room")
        command = {"command": "`x`", "wall_s": 0.123, "cpu_s": 0.1, "peak_rss_bytes": 1}
        return [command] if name == "startup" else []

    monkeypatch.setattr(suite, "SECTIONS", {name: partial(section, name) for name in suite.SECTIONS})
    assert suite.main(["--data", str(tmp_path / "data")]) == 1
    assert measured == [*suite.SECTIONS]
    assert json.loads(kept.read_text()).keys() == {"startup"}
    told = capsys.readouterr().out
    assert "floor: failed: no room" in told
    assert told.splitlines()[-1].endswith(": floor")
    assert "0.12 s | yes" in (kept.parents[1] / "benchmarks.md").read_text()
    assert suite.main(["--data", str(tmp_path / "data"), "startup"]) == 0


def test_a_part_that_fails_in_a_process_of_its_own_has_failed() -> None:
    with pytest.raises(FailedRunError, match="kills ended with 3"):
        sections._in_its_file("kills", [sys.executable, "-c", "raise SystemExit(3)"])


def test_a_line_under_a_table_speaks_for_all_of_its_rows(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes that were measured on another machine, or another day, do not stay beside those measured now."""
    here = {**MACHINE, "processor": "P", "cores": 2, "python": "3.11", "date": "2026-11-22"}
    small, large = ran("0.5b", "imports", wall_s=1.0), ran("1.5b", "imports", wall_s=1.0)
    again = ran("0.5b", "imports", wall_s=2.0)
    monkeypatch.setattr(suite, "machine", lambda: here)
    before = suite._section({}, [small, large])
    assert before == {"machine": here, "rows": [small, large]}
    assert suite._section(before, [again])["rows"] == [large, again]
    for other in ({"date": "2026-11-21"}, {"processor": "Q"}):
        assert suite._section({**before, "machine": {**here, **other}}, [again])["rows"] == [again]


@pytest.mark.slow
def test_a_whole_comparison_without_mergekit_is_measured_and_drawn(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "MERGEKIT", tmp_path / "missing")
    options = ["--data", str(tmp_path / "data"), "--repeat", "1", "--shapes", "tiny"]
    assert suite.main(["comparison", *options]) == 0
    rows = json.loads(kept.read_text())["comparison"]["rows"]
    assert [row["method"] for row in rows if row["what"] == "hubmerge"] == list(side_by_side.METHODS)
    page = (kept.parents[1] / "benchmarks.md").read_text()
    assert page.count("| not run: mergekit is not installed here | not measured |") == len(SIX) + 2
    assert page.count("| mergekit: ") == page.count("| not run: mergekit is not installed here |  |") == len(SIX)
    assert "![" not in page, "no figure of what was not compared"


def test_the_disk_is_looked_at_while_a_process_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, seen = tmp_path / "out", tmp_path / "seen"
    watched.mkdir()
    os.mkfifo(seen)
    sample = DiskGauge.sample

    def sampling(self: DiskGauge) -> None:
        sample(self)
        if (watched / "work").exists() and self.high_water_bytes >= 3_000_000 and seen.exists():
            seen.write_text("seen")
            seen.unlink()

    monkeypatch.setattr(DiskGauge, "sample", sampling)
    code = (
        f"import pathlib; out = pathlib.Path({str(watched)!r}); work = out / 'work'\n"
        "work.write_bytes(bytes(3_000_000))\n"
        f"open({str(seen)!r}).read(); work.unlink(); (out / 'result').write_bytes(bytes(1000)); print('done')"
    )
    run = measure([sys.executable, "-c", code], watched=[watched])
    assert run.output == "done\n"
    assert 3_000_000 <= run.disk_high_water_bytes < 4_000_000
    assert run.to_json().keys() == {"wall_s", "cpu_s", "peak_rss_bytes", "disk_high_water_bytes"}


def test_cpu_is_that_of_all_threads_and_children_and_of_the_system() -> None:
    """Half a second of it at least, most of which the system spends, in a child's thread."""
    child = (
        "import threading, time\n"
        "def work():\n"
        "    with open('/dev/zero', 'rb', buffering=0) as zero:\n"
        "        while time.process_time() < 0.5: zero.read(1 << 20)\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
        "print(time.process_time())\n"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    run = measure([sys.executable, "-c", code])
    assert run.cpu_s >= float(run.output) >= 0.5


def test_of_several_runs_the_one_with_the_least_cpu_time_is_kept_with_its_own_wall_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = iter([{"wall_s": w, "cpu_s": c} for w, c in ((1.0, 5.0), (3.0, 4.0), (2.0, 6.0))] * 2)
    machine = place(tmp_path)
    machine.repeat = 3
    monkeypatch.setattr(machine, "once", lambda *told: (next(rows), ""))
    monkeypatch.setattr(machine, "stream_once", lambda *told: next(rows))
    assert machine.best(["x"]) == {"wall_s": 3.0, "cpu_s": 4.0}
    assert machine.stream(tmp_path) == {"wall_s": 3.0, "cpu_s": 4.0}


def test_a_guarded_process_ends_before_the_machine_is_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready"
    code = f"import pathlib, signal; held = bytearray(50_000_000); pathlib.Path({str(ready)!r}).touch(); signal.pause()"
    monkeypatch.setattr(metering, "available_memory", lambda: 999 if ready.exists() else 1000)
    with pytest.raises(OutOfMemoryError) as ended:
        measure([sys.executable, "-c", code], reserve_bytes=1000)
    assert 50_000_000 <= ended.value.taken_bytes < 500_000_000
    assert measure([sys.executable, "-c", "print(1)"]).output == "1\n", "others are not guarded"


def test_mergekit_is_run_and_told_of_where_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, document = place(tmp_path, compare=("ram",)), tmp_path / "document"
    program = tmp_path / "mergekit"
    monkeypatch.setattr(side_by_side, "MERGEKIT", program)
    assert side_by_side._mergekit(machine, "ram", document) == {"not_run": "absent"}
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    assert side_by_side._mergekit(machine, "ties", document) == {"not_run": "left out"}
    assert "wall_s" in side_by_side._mergekit(machine, "ram", document)
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(metering, "available_memory", lambda: 0)
    assert side_by_side._mergekit(machine, "ram", document)["not_run"] == "broken off"


def test_all_but_the_section_of_the_gpu_is_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As mergekit is; a machine with a GPU would be taken otherwise."""
    machine = place(tmp_path, "tiny")
    commands: list[list[str]] = []

    def run(command: list[str], **more: Any) -> dict[str, Any]:
        commands.append(command)
        return ran("tiny", "")

    monkeypatch.setattr(side_by_side, "MERGEKIT", tmp_path / "missing")
    monkeypatch.setattr(machine, "best", run)
    report = json.dumps({"environment": {"seconds": 1.0}})
    monkeypatch.setattr(machine, "once", lambda command: (run(command), report))
    family = machine.family("tiny")
    monkeypatch.setattr(machine, "family", lambda shape: family)
    for section in (side_by_side.comparison, sections.processes, sections.large):
        list(section(machine))
    merges = [command[command.index("merge") :] for command in commands if "merge" in command]
    assert len(merges) == len(SIX) + 6 + len(sections.LARGE)
    assert all(merge[2:4] == ["--device", "cpu"] for merge in merges)


def test_what_is_predicted_beside_is_of_the_cpu_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = place(tmp_path).synthetic("qwen2.5-0.5b", 2, "ram", layers=1)
    monkeypatch.setattr("hubmerge.engine.prediction._speed", lambda: 1.0)
    found = []
    for there in (False, True):
        monkeypatch.setattr("hubmerge.engine.prediction.device_there", lambda there=there: there)
        found.append(metering.inspected(recipe))
    assert found[0] == found[1]
    assert found[0].keys() == {"parameters", "predicted_memory_bytes", "predicted_seconds"}


def test_without_a_gpu_its_section_is_skipped_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "cuda_device", lambda: None)
    monkeypatch.setattr(sections, "cuda_device", lambda: None)
    assert sections.gpu(place(tmp_path)) == []
    assert "skipped, no CUDA device" in capsys.readouterr().out
    out = tmp_path / "gpu.json"
    assert gpu.main(["--json", str(out), "--out", str(tmp_path)]) == 0
    assert "skipped" in capsys.readouterr().err
    assert not out.exists()


def test_the_board_that_is_timed_is_a_table_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = place(tmp_path)
    tables: list[str] = []

    def best(command: list[str], repeat: int = 0, environment: dict[str, str] | None = None) -> dict[str, Any]:
        _, printed = machine.once(command, environment)
        if "leaderboard" in command:
            tables.append(printed)
        return {"wall_s": 0.1, "cpu_s": 0.1, "peak_rss_bytes": 1}

    monkeypatch.setattr(machine, "best", best)
    monkeypatch.setattr(sections, "RESULTS", 3)
    rows = list(sections.startup(machine))
    assert [row["command"] for row in rows] == [
        "inspect", "methods", "leaderboard", "leaderboard --results REPO", "localhub",
    ]  # fmt: skip
    folder, hub = tables
    assert folder.split() == hub.split()
    assert all(f"org{k}/model-{k}" in folder for k in range(3))


@pytest.mark.usefixtures("one_thread")
def test_the_zoo_s_pages_are_what_their_generator_writes(tmp_path: Path) -> None:
    """With the counts that are kept as data; every method is merged anew."""
    rows = json.loads((zoo.DOCS / "data" / "zoo_evaluation.json").read_text())
    assert zoo.counts_table(rows) in (zoo.DOCS / "evaluation.md").read_text()
    assert zoo.zoo_page(rows, zoo.merged(tmp_path)) == (zoo.DOCS / "zoo.md").read_text(), "run benchmarks.zoo"

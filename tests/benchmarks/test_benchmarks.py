"""`make bench`: what it keeps of its measurements, and how it measures."""

import json
import sys
from typing import Any

import pytest
from benchmark_helpers import MACHINE, place, ran

from benchmarks import suite, zoo
from benchmarks.metering import FailedRunError, Suite, measure


def test_a_section_that_fails_is_told_of_and_leaves_no_figures(tmp_path, monkeypatch, capsys):
    def fails(machine: Suite) -> list[dict[str, Any]]:
        raise FailedRunError("no room")

    monkeypatch.setattr(suite, "DATA", tmp_path / "benchmarks.json")
    monkeypatch.setattr(suite, "write_page", lambda data: None)
    monkeypatch.setattr(suite, "SECTIONS", {"floor": fails, "startup": lambda machine: [{"command": "x"}]})
    assert suite.main(["--data", str(tmp_path / "data")]) == 1
    assert json.loads(suite.DATA.read_text()).keys() == {"startup"}
    assert "floor: failed: no room" in capsys.readouterr().out


def test_a_line_under_a_table_speaks_for_all_of_its_rows(monkeypatch):
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


def test_cpu_is_that_of_all_threads_and_children_and_of_the_system():
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


def test_of_several_runs_the_one_with_the_least_cpu_time_is_kept_with_its_own_wall_time(tmp_path, monkeypatch):
    rows = iter([{"wall_s": w, "cpu_s": c} for w, c in ((1.0, 5.0), (3.0, 4.0), (2.0, 6.0))] * 2)
    machine = place(tmp_path)
    machine.repeat = 3
    monkeypatch.setattr(machine, "once", lambda *told: (next(rows), ""))
    monkeypatch.setattr(machine, "stream_once", lambda *told: next(rows))
    assert machine.best(["x"]) == {"wall_s": 3.0, "cpu_s": 4.0}
    assert machine.stream(tmp_path) == {"wall_s": 3.0, "cpu_s": 4.0}


@pytest.mark.usefixtures("one_thread")
def test_the_zoo_s_pages_are_what_their_generator_writes(tmp_path):
    """With the counts that are kept as data; every method is merged anew."""
    rows = json.loads((zoo.DOCS / "data" / "zoo_evaluation.json").read_text())
    assert zoo.counts_table(rows) in (zoo.DOCS / "evaluation.md").read_text()
    assert zoo.zoo_page(rows, zoo.merged(tmp_path)) == (zoo.DOCS / "zoo.md").read_text(), "run benchmarks.zoo"

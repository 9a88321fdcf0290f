"""The page of the benchmarks: nothing is kept silent, and a target is met where its figures say so."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmark_helpers import MACHINE, SIX, ran

from benchmarks import benchmark_page
from benchmarks.page_targets import NOT_MEASURED, targets

DOCS = Path(__file__).resolve().parents[2] / "docs"


def compared(shape: str, *left_out: str) -> list[dict[str, Any]]:
    rows = [ran(shape, "imports"), ran(shape, "mergekit, imports")]
    rows += [ran(shape, "hubmerge", m, 2 * 10**9) for m in sorted(SIX)]
    return rows + [ran(shape, "mergekit", m, 11 * 10**9) for m in sorted(SIX - set(left_out))]


def test_the_page_is_what_was_measured(tmp_path):
    docs = tmp_path / "docs"
    shutil.copytree(DOCS / "data", docs / "data")
    shutil.copy(DOCS / "benchmarks.md", docs)
    benchmark_page.write_page(json.loads((docs / "data" / "benchmarks.json").read_text()), docs)
    assert (docs / "benchmarks.md").read_text() == (DOCS / "benchmarks.md").read_text(), "draw it: suite page"
    named = {path.name for path in (docs / "figures").iterdir()}
    assert named == {path.name for path in (DOCS / "figures").glob("benchmarks_*")}


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (None, "not run"),
        (
            {"not_run": "broken off", "taken_bytes": 22 * 10**9, "available_bytes": 23 * 10**9},
            "broken off: mergekit had taken 22.0 GB and went on; the machine has 24.0 GB, of which 23.0 GB were free",
        ),
    ],
)
def test_what_was_not_compared_has_its_rows(reason, told, tmp_path):
    rows = compared("tiny", "ram_plus")
    if reason:
        rows.append({"shape": "tiny", "what": "mergekit", "method": "ram_plus", **reason})
    missing = [t for t in targets({"comparison": rows}, {"comparison": MACHINE}, None) if t[0].startswith("RAM+ at")]
    assert [(measured, met) for _, measured, met in missing] == [(told, NOT_MEASURED)] * 2
    page = benchmark_page._comparison(rows, MACHINE, tmp_path)
    assert page.count(f"| mergekit: RAM+ | {told} |") == 1
    assert page.count("| mergekit: RAM |") == 1


def both(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """RAM beside mergekit, of which imports take 10 bytes each."""
    imports = [ran("tiny", what, peak=10) for what in ("imports", "mergekit, imports")]
    return {"comparison": [*imports, ran("tiny", "hubmerge", "ram", **ours), ran("tiny", "mergekit", "ram", **theirs)]}


def beside_the_floor(method: str, stream: float, *, hashed: bool = False) -> dict[str, list[dict[str, Any]]]:
    alone = {"shape": "tiny", "method": "hash", "stream": {"wall_s": 2.0, "cpu_s": 4.0}}
    floor = {"wall_s": 4.0 if hashed else 2.0, "cpu_s": 9.0}
    row = {"shape": "tiny", "method": method, "hashed": hashed, "stream": {"wall_s": stream, "cpu_s": 99.0}}
    return {"floor": [{**row, "floor": floor}, alone]}


def of_memory(peak: int) -> dict[str, list[dict[str, Any]]]:
    return {"large": [{"shape": "llama-70b", "method": "ram", "layers": 1, "peak_rss_bytes": peak}]}


@pytest.mark.parametrize(
    ("target", "met", "missed"),
    [
        ("mergekit's speed", both({}, {"wall_s": 20.0, "cpu_s": 20.0}), both({}, {"wall_s": 19.9, "cpu_s": 99.0})),
        ("mergekit's speed", both({}, {"wall_s": 20.0, "cpu_s": 20.0}), both({}, {"wall_s": 99.0, "cpu_s": 19.9})),
        ("mergekit's peak", both({"peak": 11}, {"peak": 60}), both({"peak": 11}, {"peak": 59})),
        ("of the floor", beside_the_floor("ram", 2.6), beside_the_floor("ram", 2.7)),
        ("of hashing", beside_the_floor("ram", 2.4, hashed=True), beside_the_floor("ram", 2.5, hashed=True)),
        ("≤ 1 GB", of_memory(10**9), of_memory(10**9 + 1)),
    ],
)
def test_a_target_is_met_up_to_what_it_says(target, met, missed):
    for rows, verdict in ((met, "yes"), (missed, "**no**")):
        [found] = [t[2] for t in targets(rows, {}, None) if target in t[0] and t[2] != NOT_MEASURED]
        assert found == verdict

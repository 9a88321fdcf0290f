"""The page of the benchmarks: nothing is kept silent, and a target is met where its figures say so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmark_helpers import MACHINE, SIX, ran

from benchmarks import benchmark_page, page_targets
from benchmarks.page_targets import NOT_MEASURED, targets

DOCS = Path(__file__).resolve().parents[2] / "docs"


def compared(shape: str, *left_out: str) -> list[dict[str, Any]]:
    rows = [ran(shape, "imports"), ran(shape, "mergekit, imports")]
    rows += [ran(shape, "hubmerge", m, 2 * 10**9) for m in sorted(SIX)]
    return rows + [ran(shape, "mergekit", m, 11 * 10**9) for m in sorted(SIX - set(left_out))]


def test_the_page_is_what_was_measured(tmp_path: Path) -> None:
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
        ({"not_run": "left out"}, "not run"),
        ({"not_run": "absent"}, "not run: mergekit is not installed here"),
        (
            {"not_run": "broken off", "taken_bytes": 22 * 10**9, "available_bytes": 23 * 10**9},
            "broken off: mergekit had taken 22.0 GB and went on; the machine has 24.0 GB, of which 23.0 GB were free",
        ),
    ],
)
def test_what_was_not_compared_has_its_rows(reason: dict[str, Any] | None, told: str, tmp_path: Path) -> None:
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


def per_parameter(large: float) -> dict[str, list[dict[str, Any]]]:
    row = {"method": "ram", "layers": 0}
    small = {**row, "shape": "qwen2.5-1.5b", "cpu_ns_per_element": 100.0}
    return {"sizes": [small, {**row, "shape": "qwen2.5-7b", "cpu_ns_per_element": large}]}


def by_agents(eight: float) -> dict[str, list[dict[str, Any]]]:
    return {
        "agents": [{"method": "ram", "agents": k, "cpu_ns_per_element": cost} for k, cost in ((2, 10.0), (8, eight))]
    }


def of_memory(peak: int) -> dict[str, list[dict[str, Any]]]:
    return {"large": [{"shape": "llama-70b", "method": "ram", "layers": 1, "peak_rss_bytes": peak}]}


def started(wall: float) -> dict[str, list[dict[str, Any]]]:
    return {"startup": [{"command": "methods", "wall_s": wall}]}


@pytest.mark.parametrize(
    ("target", "met", "missed"),
    [
        ("mergekit's speed", both({}, {"wall_s": 20.0, "cpu_s": 20.0}), both({}, {"wall_s": 19.9, "cpu_s": 99.0})),
        ("mergekit's speed", both({}, {"wall_s": 20.0, "cpu_s": 20.0}), both({}, {"wall_s": 99.0, "cpu_s": 19.9})),
        ("mergekit's peak", both({"peak": 11}, {"peak": 60}), both({"peak": 11}, {"peak": 59})),
        ("of the floor", beside_the_floor("ram", 2.6), beside_the_floor("ram", 2.7)),
        ("of the floor", beside_the_floor("ram_plus", 3.0), beside_the_floor("ram_plus", 3.1)),
        ("of hashing", beside_the_floor("ram", 2.4, hashed=True), beside_the_floor("ram", 2.5, hashed=True)),
        ("flat", per_parameter(115.0), per_parameter(116.0)),
        ("flat", per_parameter(85.1), per_parameter(84.0)),
        ("number of agents", by_agents(46.0), by_agents(47.0)),
        ("≤ 1 GB", of_memory(10**9), of_memory(10**9 + 1)),
        ("starts in", started(0.99), started(1.0)),
    ],
)
def test_a_target_is_met_up_to_what_it_says(
    target: str, met: dict[str, list[dict[str, Any]]], missed: dict[str, list[dict[str, Any]]]
) -> None:
    for rows, verdict in ((met, "yes"), (missed, "**no**")):
        [found] = [t[2] for t in targets(rows, {}, None) if target in t[0] and t[2] != NOT_MEASURED]
        assert found == verdict


def gpu_target(found: dict[str, Any] | None) -> tuple[str, str]:
    [(_, measured, met)] = [t for t in targets({}, {}, found) if "H200" in t[0]]
    return measured, met


def test_the_target_on_a_gpu_is_told_with_its_figure_or_without() -> None:
    merge = {"method": "ram_plus", "asked": "cuda", "exit_code": 0, "wall_s": 12.34}
    found = {"machine": {"device": "NVIDIA H200"}, "shape": "qwen2.5-7b", "layers": 0, "merges": [merge]}
    assert gpu_target(None) == ("not measured: no GPU", NOT_MEASURED)
    assert gpu_target(found) == ("12.3 s on a machine with NVIDIA H200 (`--device cuda`)", "yes")
    faster = {**merge, "asked": "auto", "wall_s": 11.0}
    assert gpu_target({**found, "merges": [merge, faster]})[0].startswith("11.0 s")
    assert gpu_target({**found, "merges": [{**merge, "wall_s": 15.1}]})[1] == "**no**"
    assert gpu_target({**found, "merges": [{**merge, "device_failed": "lost"}]})[1] == "**no**"
    assert gpu_target({**found, "layers": 2})[1] == gpu_target({**found, "merges": []})[1] == NOT_MEASURED
    assert gpu_target({**found, "machine": {"device": "NVIDIA T4"}})[1] == NOT_MEASURED


def test_a_part_of_a_model_is_called_one() -> None:
    row = {"shape": "qwen2.5-7b", "method": "ram", "layers": 2, "cpu_ns_per_element": 3.0}
    whole = {**row, "layers": 0}
    small = {**whole, "shape": "qwen2.5-1.5b"}
    # 2 × 152,064 × 3,584 + 3,584 of 1,556,113,920, and of 7,615,616,512
    assert page_targets.part_of(row) == "2 of its 28 layers, 70% embedding and head (of the whole: 14%)"
    assert page_targets.part_of(whole) == ""
    [part] = [t for t in targets({"sizes": [small, row]}, {}, None) if "flat" in t[0]]
    assert part[1:] == (f"+0%, but only on {page_targets.part_of(row)}", NOT_MEASURED)
    [flat] = [t for t in targets({"sizes": [small, whole]}, {}, None) if "flat" in t[0]]
    assert flat[1:] == ("+0%", "yes")


def test_the_page_shows_what_a_gpu_gave() -> None:
    merge = {
        "method": "ties", "asked": "cuda", "exit_code": 0, "wall_s": 9.0, "seconds": 8.0, "parameters_per_s": 2 * 10**9,
        "peak_device_bytes": 10**9, "peak_rss_bytes": 10**8,
    }  # fmt: skip
    failed = {"method": "ram", "asked": "cuda", "exit_code": 1, "wall_s": 1.0, "error": "x"}
    machine = {"device": "NVIDIA H200", "cores": 16, "torch": "2", "cuda": "13"}
    auto = {**merge, "asked": "auto", "device": "cpu"}
    rows = [merge, auto, failed]
    found = {"machine": machine, "shape": "qwen2.5-7b", "layers": 0, "same_bytes": False, "merges": rows}
    page = benchmark_page._gpu(found)
    assert "| TIES | cuda | 9.0 | 8.0 | 2.00 B | 1.00 GB | 100 MB |" in page
    assert "| TIES | auto: cpu | 9.0 |" in page
    assert "**not** the same" in page
    assert "the same on both" not in benchmark_page._gpu({**found, "merges": [merge]})
    assert "**Failed: ram on cuda.**" in page
    assert "Not measured: no GPU" in benchmark_page._gpu(None)

"""All measurements of docs/benchmarks.md, and the page.

    python -m benchmarks.suite [SECTION …] [--data DIR] [--repeat 2] [--shapes 0.5b 1.5b] [--compare METHOD …]

Sections: startup, comparison (hubmerge, mergekit and cp on the same files, whole processes), floor, agents, processes,
sizes, chunks, large (70B and 405B tensors into the null sink), gpu (where there is one), kills, page (only draw what
was measured before). The figures of a section replace those of its last run in docs/data/benchmarks.json; other shapes
stay if they were measured on the same machine and day. gpu and kills have files of their own beside it. A section that
fails does not keep the others from being measured, and is told of at the end. mergekit needs `make mergekit` once.

Machines are shared, so every row carries the load that it began with; of `--repeat` runs the one with the least CPU
time is kept, with its own wall time. Streams and their floors, which are compared by wall time, run by turns, three
times each at least, and the one with the least wall time is kept.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import sections
from benchmarks.benchmark_page import write_page
from benchmarks.metering import FailedRunError, Suite, machine
from benchmarks.side_by_side import METHODS, comparison
from benchmarks.synthetic import SHAPES

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data" / "benchmarks.json"

SECTIONS: dict[str, Callable[[Suite], Iterable[dict[str, Any]]]] = {
    "startup": sections.startup,
    "comparison": comparison,
    "floor": sections.floor,
    "agents": sections.agents,
    "processes": sections.processes,
    "sizes": sections.sizes,
    "chunks": sections.chunks,
    "large": sections.large,
    "gpu": sections.gpu,
    "kills": sections.kills,
}


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "sections", metavar="SECTION", nargs="*", choices=[*SECTIONS, "page", []], default=[], help="default: all"
    )
    parser.add_argument("--data", type=Path, default=ROOT / "benchmarks" / "out")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["0.5b", "1.5b"])
    parser.add_argument(
        "--compare", nargs="*", choices=list(METHODS), default=list(METHODS), help="methods that mergekit runs, too"
    )
    options = parser.parse_args(arguments)
    options.sections = options.sections or list(SECTIONS)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where a section failed."""
    options = parsed(arguments)
    suite = Suite(options)
    kept = json.loads(DATA.read_text()) if DATA.is_file() else {}
    failed = []
    try:
        for name in options.sections:
            rows = []
            try:
                for row in SECTIONS[name](suite) if name != "page" else ():
                    print(row, flush=True)
                    rows.append(row)
            except FailedRunError as error:
                failed.append(name)
                print(f"{name}: failed: {error}", flush=True)
                continue
            if rows:
                kept[name] = _section(kept.get(name, {}), rows)
                DATA.write_text(json.dumps(kept, indent=1) + "\n")
    finally:  # what was measured until then
        write_page(kept)
    if failed:
        print(f"failed, so that the page shows what was measured before, if anything: {', '.join(failed)}", flush=True)
    return int(bool(failed))


def _section(before: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of a section: other shapes stay where one line can say of all where and when they were measured."""
    here = machine()
    measured = {row.get("shape") for row in rows}
    others = [row for row in before.get("rows", ()) if "shape" in row and row["shape"] not in measured]
    return {"machine": here, "rows": [*(others if before.get("machine") == here else ()), *rows]}


if __name__ == "__main__":
    sys.exit(main())

"""Our verdicts beside bfcl-eval's, on every row of every category and every damaged variant.

python tests/bfcl/bfcl_parity.py            # prints the numbers; needs .cache/bfcl (tests/bfcl/install.sh)
python tests/bfcl/bfcl_parity.py --rows 8 --write    # damage to 8 rows per category; keep the verdicts
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bfcl_damage import ROOT, Variant, all_variants

from hubmerge.evaluation.tasks.bfcl import TASKS

PYTHON = ROOT / ".cache" / "bfcl" / "bin" / "python"
CHILD = Path(__file__).with_name("bfcl_child.py")
VERDICTS = Path(__file__).with_name("verdicts.json")
_TASKS = {str(task.rows.subset): task for task in TASKS}


def ours(category: str, row: Mapping[str, Any], found: Sequence[Variant]) -> list[bool]:
    """Our verdict on every variant."""
    task = _TASKS[category]
    reference = task.reference(row)
    return [task.score(text, reference) == 1.0 for _, _, text in found]


class Reference:
    """bfcl-eval in its own process."""

    def __enter__(self) -> Reference:
        self._folder = tempfile.TemporaryDirectory()
        self._child = subprocess.Popen(
            [PYTHON, CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "BFCL_PROJECT_ROOT": self._folder.name},  # where it makes its folders
            encoding="utf-8",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._child.communicate()
        self._folder.cleanup()

    def verdicts(self, category: str, row: Mapping[str, Any], found: Sequence[Variant]) -> list[tuple[bool, str]]:
        case = {
            "category": category,
            "function": json.loads(row["function"]),
            "ground_truth": json.loads(row["ground_truth"]),
            "answers": [(form, text) for _, form, text in found],
        }
        return [(valid, reason) for valid, reason in self._ask(case)]

    def values(self, values: Sequence[tuple[str, str, str | None, str]]) -> list[str]:
        """What its converters make of texts; each with language, declared type and item type."""
        return list(self._ask({"values": values}))

    def _ask(self, question: Mapping[str, Any]) -> list[Any]:
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        return list(json.loads(self._child.stdout.readline()))


@dataclass
class Tally:
    """A category's numbers."""

    rows: int = 0
    gold: int = 0  # rows whose gold answer counts
    valid: int = 0  # of the damaged variants
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, found: Sequence[Variant], verdicts: Sequence[bool]) -> None:
        self.rows += 1
        self.digest.update(bytes(verdicts))
        judged = [(kind, valid) for (kind, _, _), valid in zip(found, verdicts, strict=True)]
        self.gold += any(valid for kind, valid in judged if kind == "gold")
        self.valid += sum(valid for kind, valid in judged if kind != "gold")

    def kept(self) -> dict[str, Any]:
        return {"rows": self.rows, "gold": self.gold, "valid": self.valid, "sha256": self.digest.hexdigest()}


def compare(
    reference: Reference, cases: Iterable[tuple[str, Mapping[str, Any], list[Variant]]]
) -> tuple[dict[str, Tally], list[tuple[str, Variant, bool, str]]]:
    """Numbers per category, and every disagreement: row id, variant, our verdict, the reference's reason."""
    tallies: dict[str, Tally] = {}
    differing = []
    for category, row, found in cases:
        theirs = reference.verdicts(category, row, found)
        tallies.setdefault(category, Tally()).add(found, [valid for valid, _ in theirs])
        for variant, mine, (valid, reason) in zip(found, ours(category, row, found), theirs, strict=True):
            if mine != valid:
                differing.append((row["id"], variant, mine, reason))
    return tallies, differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help="per category whose answers are damaged (all)")
    parser.add_argument("--write", action="store_true", help="keep bfcl-eval's verdicts in verdicts.json")
    options = parser.parse_args()
    with Reference() as reference:
        tallies, differing = compare(reference, all_variants(options.rows))
    for name, tally in tallies.items():
        print(f"{name}: {tally.rows:,} rows, {tally.gold:,} gold answers count, {tally.valid:,} damaged ones")
    kinds = Counter((variant[0], variant[1]) for _, variant, _, _ in differing)
    for (kind, form), count in kinds.most_common():
        example = next(d for d in differing if d[1][:2] == (kind, form))
        text = f"{example[0]} ours {example[2]}, theirs {example[3]!r}: {example[1][2]!r}"
        print(f"{count} × {kind!r} ({form}): {text}"[:700])
    if options.write:
        kept = {"damaged_rows": options.rows, "categories": {name: tally.kept() for name, tally in tallies.items()}}
        VERDICTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())

"""Answers to every row of every category with bfcl-eval's verdicts on them, kept in verdicts.jsonl.gz.

    python tests/bfcl/bfcl_parity.py    # asks bfcl-eval again (.cache/bfcl, tests/bfcl/install.sh), keeps what it says

Kept are a gold answer to each row, and damaged ones: one argument's value, a call or the list of calls, or the text was
changed. Of every kind of damage each category has an answer for every reason that bfcl-eval gave among about 300 rows.
Then come texts of Java and JavaScript values, with what its converters make of them.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".cache" / "bfcl" / "bin" / "python"
VERDICTS = Path(__file__).with_name("verdicts.jsonl.gz")
DATA = ROOT / "examples" / "datasets" / "bfcl" / "data"


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def asked_again(kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same answers and values with what bfcl-eval says of them now."""
    rows: dict[str, dict[str, Any]] = {}
    questions: list[dict[str, Any]] = []
    for each in kept:
        if "values" in each:
            questions.append({"values": [value for *value, _ in each["values"]]})
            continue
        if each["category"] not in rows:
            rows[each["category"]] = {row["id"]: row for row in lines(DATA / f"{each['category']}.jsonl.gz")}
        row = rows[each["category"]][each["row"]]
        parts = {name: json.loads(row[name]) for name in ("function", "ground_truth")}
        answers = [[form, text] for _, form, text, _ in each["answers"]]
        questions.append({"category": each["category"], "answers": answers, **parts})
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [PYTHON, Path(__file__).with_name("bfcl_child.py")],
            input="".join(json.dumps(question) + "\n" for question in questions),
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "BFCL_PROJECT_ROOT": folder},  # where it makes its folders
            encoding="utf-8",
            check=True,
        )
    again = []
    for each, line in zip(kept, done.stdout.splitlines(), strict=True):
        name = "values" if "values" in each else "answers"
        said = [verdict if name == "values" else verdict[0] for verdict in json.loads(line)]
        again.append({**each, name: [[*asked, new] for (*asked, _), new in zip(each[name], said, strict=True)]})
    return again


if __name__ == "__main__":
    before = lines(VERDICTS)
    text = "".join(json.dumps(each) + "\n" for each in asked_again(before))
    VERDICTS.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    sys.exit("bfcl-eval's verdicts were others" if lines(VERDICTS) != before else 0)

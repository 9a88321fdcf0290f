"""Pack the published files of BFCL v4 as this dataset: one gzipped JSON-lines file per category.

    python convert.py FOLDER    # holds BFCL_v4_*.json and possible_answer/, for instance bfcl_eval/data of bfcl-eval

Rows are kept in their order and whole. Their parts go into JSON text because the schemas of the functions differ from
row to row, which no table's columns can hold; nothing else is changed. The same input gives the same bytes.
"""

import gzip
import json
import sys
from pathlib import Path

CATEGORIES = (
    *("simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance"),
)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def convert(published: Path, category: str) -> bytes:
    """The packed file of a category."""
    questions = read(published / f"BFCL_v4_{category}.json")
    key = published / "possible_answer" / f"BFCL_v4_{category}.json"
    answers = {row["id"]: row["ground_truth"] for row in read(key)} if key.exists() else {}
    if key.exists() and [row["id"] for row in questions] != list(answers):
        raise SystemExit(f"{key} does not answer the questions of {category}")
    lines = [
        json.dumps(
            {
                "id": row["id"],
                **{name: json.dumps(row[name], ensure_ascii=False) for name in ("question", "function")},
                "ground_truth": json.dumps(answers.get(row["id"], []), ensure_ascii=False),
            },
            ensure_ascii=False,
        )
        for row in questions
    ]
    return gzip.compress(("\n".join(lines) + "\n").encode(), 9, mtime=0)


def main() -> None:
    published, target = Path(sys.argv[1]), Path(__file__).resolve().parent / "data"
    target.mkdir(exist_ok=True)
    for category in CATEGORIES:
        (target / f"{category}.jsonl.gz").write_bytes(convert(published, category))


if __name__ == "__main__":
    main()

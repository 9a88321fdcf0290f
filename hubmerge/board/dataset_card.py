"""README.md of a results dataset: its text, and the configurations that `datasets.load_dataset` reads.

A card that somebody edited is kept; only configurations that it lacks are added to its header.
"""

from __future__ import annotations

import re
from typing import Any

from hubmerge.plain_yaml import dump_plain_yaml, load_plain_yaml

CONFIGS: tuple[dict[str, Any], ...] = (
    {"config_name": "board", "data_files": "data/board.parquet", "default": True},
    {"config_name": "results", "data_files": "data/results.parquet"},
    {"config_name": "details", "data_files": "details/**/*.parquet"},
)
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*\n?", re.DOTALL | re.MULTILINE)
_TEXT = """\
# Evaluation results

Scores of models and of merges of them, measured with hubmerge.

- `results/MODEL/SHA/SUITE-VERSION-SPLIT.json`: one run each. These files are the truth; the tables are made from them.
- `details/…/*.parquet`: what was asked, answered and scored, sample by sample.
- `data/board.parquet`: the leaderboard, a line per model and suite, with 95% intervals.
- `data/results.parquet`: all result files in one table, with their git blob ids.
- `flags.json`, where there is one: models that are contaminated or withdrawn; every merge of them inherits the flag.

```python
from datasets import load_dataset

board = load_dataset("REPO", "board", split="train")
```

`hubmerge leaderboard --results REPO` builds the same board from the result files.

A failed run has a status and an error but no scores, which is not a zero. A score counts only for the commit that it
names.
"""


def dataset_card(current: bytes | None) -> bytes | None:
    """The card to write, or None where the current one does."""
    if current is None:
        own = dump_plain_yaml({"tags": ["hubmerge", "evaluation"], "configs": list(CONFIGS)})
        return f"---\n{own}---\n\n{_TEXT}".encode()
    try:
        text = current.decode("utf-8").replace("\r\n", "\n")
        found = _FRONT_MATTER.match(text)
        header = (load_plain_yaml(found[1]) if found else None) or {}
    except ValueError:
        return None  # not ours to repair
    if not isinstance(header, dict):
        return None
    configs = header.get("configs") or []
    if not isinstance(configs, list):
        return None
    names = [c.get("config_name") for c in configs if isinstance(c, dict)]
    lacking = [c for c in CONFIGS if c["config_name"] not in names]
    if not lacking:
        return None
    if any(isinstance(c, dict) and c.get("default") for c in configs):
        lacking = [{k: v for k, v in c.items() if k != "default"} for c in lacking]
    body = text[found.end() :] if found else text
    return f"---\n{dump_plain_yaml({**header, 'configs': [*configs, *lacking]})}---\n{body}".encode()

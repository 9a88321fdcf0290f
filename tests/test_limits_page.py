"""docs/limits.md against the code: its constants have the values that it states, and its tests exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"\| `(\S+)\.py` `(\w+)` \| ([\d.,]+) \| [^|]+ \| [^|]+ \| `(\S+\.py)` `(\w+)` \|")
ROWS = [line for line in (ROOT / "docs" / "limits.md").read_text("utf-8").splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("line", ROWS)
def test_a_limit_has_the_stated_value_and_a_test_that_exists(line: str) -> None:
    row = ROW.fullmatch(line)
    assert row is not None
    module, name, stated, path, test = row.groups()
    value = getattr(importlib.import_module(module.replace("/", ".")), name)
    assert f"{value:,}" == stated
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_page_lists_limits() -> None:
    assert len(ROWS) > 25

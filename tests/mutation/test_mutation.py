"""What mutation testing by hand names is there: modules and tests move."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from mutation import CHANGED, GROUPS, ROOT


@pytest.mark.parametrize("group", GROUPS)
def test_modules_and_tests_of_a_group_are_there(group: str) -> None:
    modules, tests = GROUPS[group]
    assert {path.split("/")[0] for path in modules} <= set(CHANGED)
    assert [path for path in (*modules, *tests) if not any(ROOT.glob(path))] == []

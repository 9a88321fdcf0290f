"""A short campaign of benchmarks/kills.py: `hubmerge run` killed at random moments and started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_kills_at_random_moments_cost_nothing_but_time(tmp_path: Path) -> None:
    out = tmp_path / "kills.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kills", "--kills", "6", "--models", "synthetic", "--out", str(out)],
        cwd=REPO,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(out.read_text())
    [campaign] = figures["campaigns"]
    assert figures["kills"] == sum(campaign["kills_by_stage"].values()) == 6
    assert campaign["failures"] == []
    assert 0 < campaign["disk_high_water_bytes"] <= campaign["disk_budget_bytes"]

"""Commands and scripts in processes of their own, since libraries read their settings when they are imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from localhub.process import LocalHubProcess

ROOT = Path(__file__).resolve().parents[1]


def printed_by(script: str, *arguments: str, given: str = "", folder: Path = ROOT, **environment: str) -> str:
    """What a script prints; a failure fails the test."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        input=given,
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def as_ada(hub: LocalHubProcess, folder: Path) -> dict[str, str]:
    """The variables of her commands on a Hub, which keep what they keep in `folder`."""
    return {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.tokens["ada"], "HUBMERGE_DATA": str(folder / "data")}

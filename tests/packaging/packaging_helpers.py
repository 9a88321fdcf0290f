"""uv, which resolves and installs from the package index, where both are at hand."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_UNREACHABLE = re.compile(
    r"error sending request|failed to fetch|dns error|connection|timed out|offline", re.IGNORECASE
)


def uv(*arguments: str, given: str = "") -> str:
    """uv's output; skips where it is missing or the package index cannot be reached."""
    program = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if program is None:
        pytest.skip("uv is not installed (requirements-dev.txt)")
    done = subprocess.run([program, *arguments], input=given, capture_output=True, text=True, cwd=ROOT)
    if done.returncode and "No solution found" not in done.stderr and _UNREACHABLE.search(done.stderr):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1][:200]}")
    assert done.returncode == 0, done.stderr
    return done.stdout

"""The command that keeps pictures of the pages still runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("screenshots.py")


@pytest.mark.browser
def test_a_picture_of_a_page_is_kept_in_light_and_dark_with_an_index(chromium: Any, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--only", "model-card", "--widths", "390", "--out", str(tmp_path)]
    subprocess.run(command, check=True, timeout=240)
    names = {f"model-card-390-{scheme}.png" for scheme in ("light", "dark")}
    assert {path.name for path in tmp_path.iterdir()} == {*names, "index.html"}
    index = (tmp_path / "index.html").read_text("utf-8")
    assert all(f'src="{name}"' in index for name in names)

"""The clients' own ways to the Hub, run as their users run them, against the embedded one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from hubmerge.localhub.process import LocalHubProcess

ROOT = Path(__file__).resolve().parents[2]
Hf = Callable[..., str]


@pytest.fixture
def hf(local_hub: LocalHubProcess, tmp_path: Path) -> Hf:
    """hf("repos", "ls"): the output of the `hf` command, signed in as ada; a failure fails the test."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": local_hub.endpoint,
        "HF_TOKEN": local_hub.tokens["ada"],
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "PYTHONWARNINGS": "default",
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }

    def run(*arguments: str, fails: bool = False) -> str:
        command = [sys.executable, "-c", "from huggingface_hub.cli.hf import main; main()", *arguments]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + (done.stderr if fails else "")

    return run


def test_this_repository_is_uploaded_to_a_space_by_the_hf_command(
    hf: Hf, ada: HfApi, fresh: Callable[[], str], tmp_path: Path
) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    tracked = [path for path in listed.split("\0") if path and (ROOT / path).is_file()]
    for path in tracked:
        (tmp_path / "clone" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, tmp_path / "clone" / path)
    space = f"ada/{fresh()}"
    hf("repos", "create", space, "--type", "space", "--space-sdk", "gradio")
    hf("upload", space, "clone", ".", "--repo-type", "space")
    stored = {item.path: item for item in ada.list_repo_tree(space, repo_type="space", recursive=True)}
    assert {*tracked} <= stored.keys()
    assert stored["examples/zoo/base/model.safetensors"].lfs is not None  # type: ignore[union-attr]
    info = ada.space_info(space)
    assert info.card_data is not None
    assert info.card_data.title == "hubmerge"  # type: ignore[attr-defined]

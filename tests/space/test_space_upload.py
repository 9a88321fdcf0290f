"""The repository becomes a Space by the command that the README names; `git push` would be refused for its binaries."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from huggingface_hub import HfApi
from tracked import ROOT, copy_tracked, tracked_files

from localhub.process import LocalHubProcess

MAX_PLAIN_BYTES = 10 * 1024**2  # of a file that is not stored by Git LFS or Xet


def _is_binary(path: Path) -> bool:
    content = path.read_bytes()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return b"\0" in content


def test_no_file_is_larger_than_the_hub_takes_in_git() -> None:
    assert [path for path in tracked_files() if (ROOT / path).stat().st_size > MAX_PLAIN_BYTES] == []


def test_the_upload_that_the_readme_names_makes_a_space_of_the_tracked_files_with_no_binary_in_git(
    local_hub: LocalHubProcess, tmp_path: Path
) -> None:
    paths = tracked_files()
    tree = copy_tracked(tmp_path / "clone", paths)
    for junk in (".venv/lib/module.py", "data/hubmerge.sqlite", "out/model.safetensors"):
        (tree / junk).parent.mkdir(parents=True)
        (tree / junk).write_bytes(b"not for the Space")
    [command] = re.findall(r"^hf (upload .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    command = re.sub(r"\bme/", "ada/", command.split("#")[0])
    environment = {
        **os.environ,
        "HF_ENDPOINT": local_hub.endpoint,
        "HF_TOKEN": local_hub.tokens["ada"],
        "HF_HOME": str(tmp_path / "home"),
    }
    hf = [sys.executable, "-m", "huggingface_hub.cli.hf", *shlex.split(command)]
    done = subprocess.run(hf, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    api = HfApi(local_hub.endpoint, token=local_hub.tokens["ada"])
    space = api.space_info("ada/hubmerge", files_metadata=True)
    assert space.sdk == "gradio"
    assert space.siblings
    uploaded = {sibling.rfilename: sibling for sibling in space.siblings}
    assert set(uploaded) - {".gitattributes"} == set(paths)
    assert all(uploaded[path].size == (ROOT / path).stat().st_size for path in paths)
    assert [path for path in paths if _is_binary(ROOT / path) and uploaded[path].lfs is None] == []
    assert len(api.list_repo_commits("ada/hubmerge", repo_type="space")) == 2  # the empty Space's, and one

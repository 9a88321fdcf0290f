"""The README's front matter is one that the Hub takes, and its command makes a Space of this repository."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml
from huggingface_hub import HfApi, SpaceHardware
from processes import as_ada, python
from tracked import ROOT, copy_tracked, tracked_files

from localhub.process import LocalHubProcess
from localhub.users import default_users

README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.match(r"---\n(.*?)\n---\n", README, re.DOTALL)
assert _BLOCK, "no YAML block at the top"
SPACE = yaml.safe_load(_BLOCK[1])

# from the Hub's configuration reference of Spaces
_KEYS = (
    "title emoji colorFrom colorTo sdk python_version sdk_version suggested_hardware suggested_storage app_file "
    "app_build_command app_port base_path fullWidth header short_description models datasets tags thumbnail pinned "
    "hf_oauth hf_oauth_expiration_minutes hf_oauth_scopes hf_oauth_authorized_org disable_embedding "
    "startup_duration_timeout custom_headers preload_from_hub license license_name license_link"
)
KEYS = frozenset(_KEYS.split())
COLOURS = ("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray")
_SCOPES = (
    "openid profile email read-billing read-repos gated-repos contribute-repos write-repos manage-repos "
    "read-collections write-collections inference-api jobs webhooks write-discussions read-memberships"
)
SCOPES = frozenset(_SCOPES.split())
# ZeroGPU, August 2026: the Gradio SDK alone
ZERO_GPU_PYTHONS = ("3.12.12", "3.10.13")
ZERO_GPU_TORCHES = ("2.8.0", "2.9.1", "2.10.0", "2.11.0")


def _pin(package: str) -> str:
    found = re.search(rf"^{package}(?:\[.*\])?==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_the_hub_takes_the_front_matter() -> None:
    assert SPACE.keys() <= KEYS
    assert SPACE["title"]
    assert len(SPACE["emoji"]) == 1
    assert {SPACE["colorFrom"], SPACE["colorTo"]} <= set(COLOURS)
    assert 0 < len(SPACE["short_description"]) <= 60
    assert SPACE.get("suggested_hardware") in (None, *(each.value for each in SpaceHardware))
    assert re.fullmatch(r"[1-9]\d*[smh]", SPACE.get("startup_duration_timeout", "1h"))
    assert {SPACE.get("pinned", False), SPACE["hf_oauth"]} <= {True, False}
    assert set(SPACE["hf_oauth_scopes"]) <= SCOPES
    assert 0 < SPACE["hf_oauth_expiration_minutes"] <= 43_200


def test_a_sign_in_of_the_demo_lasts_as_long_as_one_of_the_space() -> None:
    assert default_users().oauth.expiration_minutes == SPACE["hf_oauth_expiration_minutes"]


def test_a_gradio_space_runs_the_gradio_that_is_pinned() -> None:
    assert SPACE["sdk"] == "gradio"
    assert SPACE["sdk_version"] == _pin("gradio")
    assert (ROOT / SPACE["app_file"]).is_file()


def test_zero_gpu_has_the_python_and_the_torch_of_the_space() -> None:
    assert SPACE["python_version"] in ZERO_GPU_PYTHONS
    assert _pin("torch") in ZERO_GPU_TORCHES


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
    local_hub: LocalHubProcess, ada: HfApi, tmp_path: Path
) -> None:
    paths = tracked_files()
    tree = copy_tracked(tmp_path / "clone", paths)
    for junk in (".venv/lib/module.py", "data/hubmerge.sqlite", "out/model.safetensors"):
        (tree / junk).parent.mkdir(parents=True)
        (tree / junk).write_bytes(b"not for the Space")
    [command] = re.findall(r"^hf (upload .*)$", README, re.MULTILINE)
    hf = ["huggingface_hub.cli.hf", *shlex.split(re.sub(r"\bme/", "ada/", command.split("#")[0]))]
    done = python("-m", *hf, folder=tree, HF_HOME=str(tmp_path / "home"), **as_ada(local_hub, tmp_path))
    assert done.returncode == 0, done.stderr

    space = ada.space_info("ada/hubmerge", files_metadata=True)
    assert space.sdk == "gradio"
    assert space.siblings
    uploaded = {sibling.rfilename: sibling for sibling in space.siblings}
    assert set(uploaded) - {".gitattributes"} == set(paths)
    assert all(uploaded[path].size == (ROOT / path).stat().st_size for path in paths)
    assert [path for path in paths if _is_binary(ROOT / path) and uploaded[path].lfs is None] == []
    assert len(ada.list_repo_commits("ada/hubmerge", repo_type="space")) == 2  # the empty Space's, and one

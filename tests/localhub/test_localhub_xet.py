"""Uploads through Xet by the Hub's own library (hf_xet), whose storage is a folder of the embedded Hub."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from processes import ROOT, as_ada, printed_by
from raw_requests import ask, header, large, post_commit

from localhub.process import LocalHubProcess

UPLOAD = (
    "import sys; from huggingface_hub import HfApi; HfApi().upload_folder(repo_id=sys.argv[1], folder_path=sys.argv[2])"
)
# hubmerge itself sends nothing through Xet to a Hub on this machine
RUN = """
import sys
from types import SimpleNamespace
from hubmerge.cli.main import main
from hubmerge.hub import client
client.Settings = lambda endpoint: SimpleNamespace(is_loopback=False)
sys.exit(main(sys.argv[1:]))
"""


def through_xet(script: str, hub: LocalHubProcess, folder: Path, *arguments: str, home: str = "home") -> str:
    """What a script prints whose uploads left chunks in the Hub's storage for Xet."""
    storage = hub.data_dir / "xet"
    before = {*storage.rglob("default.*")}
    settings = {"HF_HUB_DISABLE_XET": "0", "HF_HOME": str(folder / home)}
    said = printed_by(script, *arguments, **as_ada(hub, folder), **settings)
    assert {*storage.rglob("default.*")} > before
    return said


def committed(api: HfApi, repo: str, sha256: str) -> Any:
    """The Hub's answer to a commit of a large file by its digest alone."""
    return post_commit(api, repo, header(), large("b.safetensors", sha256, 1))


@pytest.mark.parametrize("home", ["home", "/dev/null"])  # the other cannot be written, as in many containers
def test_a_merge_is_published_through_xet_and_its_result_stands_alone(local_hub, ada, fresh, tmp_path, home):
    target, base, *agents = f"ada/{fresh()}", *(str(ROOT / "examples" / "zoo" / n) for n in ("base", "math", "tool"))
    (tmp_path / "recipe.yaml").write_text(json.dumps({"base": base, "agents": agents, "method": "ram"}))
    command = ["run", str(tmp_path / "recipe.yaml"), "--to", target, "--json"]
    said = json.loads(through_xet(RUN, local_hub, tmp_path, *command, home=home))
    assert said["published"][0]["repo"] == target
    report = Path(ada.hf_hub_download(target, "hubmerge.json", local_dir=tmp_path)).read_text()
    [shard] = ada.get_paths_info(target, "model.safetensors")
    assert shard.lfs.sha256 in report  # type: ignore[union-attr]


def test_only_who_may_upload_is_given_a_storage(local_hub, ada, reader, nobody, repo):
    def asked(api: HfApi, name: str) -> int:
        return int(ask(api, "GET", f"/api/models/{name}/xet-write-token/main").status_code)

    before = {*(local_hub.data_dir / "xet").glob("*/*")}
    assert (asked(reader, repo), asked(nobody, repo), asked(ada, "ada/nothing-there")) == (403, 401, 404)
    assert {*(local_hub.data_dir / "xet").glob("*/*")} == before


def test_what_was_sent_belongs_to_its_repo_and_a_storage_that_lies_makes_no_object(
    local_hub, ada, repo, fresh, tmp_path
):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.safetensors").write_bytes(os.urandom(100_000))
    through_xet(UPLOAD, local_hub, tmp_path, repo, str(tmp_path / "one"))
    [file] = ada.get_paths_info(repo, "a.safetensors")
    sent = str(file.lfs.sha256)  # type: ignore[union-attr]
    elsewhere = committed(ada, ada.create_repo(f"ada/{fresh()}").repo_id, sent)
    assert (elsewhere.status_code, "was not uploaded to" in elsewhere.json()["error"]) == (422, True)

    [shard] = max((local_hub.data_dir / "xet").glob("*/*"), key=os.path.getmtime).rglob("shards/*.mdb")
    content = shard.read_bytes()
    stored = b"".join(int(sent[at : at + 16], 16).to_bytes(8, "little") for at in range(0, 64, 16))
    assert stored in content
    shard.write_bytes(content.replace(stored, bytes(32)))
    answer = committed(ada, repo, "0" * 64)
    assert (answer.status_code, "calls a file" in answer.json()["error"]) == (400, True)
    shard.write_bytes(content[:60])  # cut short
    assert committed(ada, repo, "0" * 64).status_code == 422

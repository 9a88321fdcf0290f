"""Seeding a local Hub from folders without a network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from starlette.testclient import TestClient

from hubmerge.errors import HubUnavailableError, SourceNotFoundError
from localhub.access import find_repo
from localhub.process import LocalHubProcess
from localhub.protocol import open_hub
from localhub.seed import ZOO_MODELS, seed_folder, seed_zoo
from localhub.server import app_of
from localhub.users import default_users

CARD = "---\nlicense: apache-2.0\nbase_model: zoo/base\nbase_model_relation: finetune\n---\n# {}\n"


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """Folders of the shape of examples/zoo."""
    root = tmp_path / "zoo"
    for folder in ZOO_MODELS.values():
        (root / folder).mkdir(parents=True)
        (root / folder / "README.md").write_text(CARD.format(folder))
        (root / folder / "model.safetensors").write_bytes(b"\0weights of " + folder.encode())
        (root / folder / ".hidden").write_text("not for the Hub")
    (root / "eval").mkdir()
    (root / "eval" / "math.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    (root / "eval" / "README.md").write_text("---\nlicense: mit\n---\n")
    return root


def test_the_same_folder_twice_makes_one_commit(tmp_path: Path, zoo: Path) -> None:
    hub = open_hub(tmp_path / "data")
    first = seed_zoo(hub, zoo)
    assert seed_zoo(hub, zoo) == first
    base = find_repo(hub.store, "model", "zoo/base")
    titles = [c.title for c in hub.trees.history(base.id, first["zoo/base"])]
    assert titles == ["Add the trained weights", "initial commit"]
    (zoo / "math" / "README.md").write_text(CARD.format("better"))
    second = seed_zoo(hub, zoo)
    assert {name for name in first if first[name] != second[name]} == {"zoo/math-agent"}
    hub.store.close()


def test_a_seeded_hub_reads_like_one_that_was_uploaded_to(tmp_path: Path, zoo: Path) -> None:
    hub = open_hub(tmp_path / "data")
    heads = seed_zoo(hub, zoo)
    hub.store.close()
    with LocalHubProcess(tmp_path / "data") as process:
        api = HfApi(process.endpoint, token=process.tokens["ada"])
        agents = {model.id for model in api.list_models(filter="base_model:finetune:zoo/base", author="zoo")}
        assert agents == set(ZOO_MODELS)
        assert api.model_info("zoo/math-agent").sha == heads["zoo/math-agent"]
        folder = Path(api.snapshot_download("zoo/math-agent", cache_dir=tmp_path / "cache"))
        assert (folder / "model.safetensors").read_bytes() == b"\0weights of math"
        assert not (folder / ".hidden").exists()
        assert api.get_paths_info("zoo/math-agent", "model.safetensors")[0].lfs is not None
        held_out = sorted(api.list_repo_files("zoo/held-out", repo_type="dataset"))
        assert held_out == [".gitattributes", "README.md", "math.jsonl"]
        # What the seed stored can be built upon.
        api.upload_file(path_or_fileobj=b"\0new", path_in_repo="model.safetensors", repo_id="zoo/math-agent")


def test_a_folder_was_last_changed_by_the_latest_commit_to_it_though_all_have_one_date(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    (folder / "rows").mkdir(parents=True)
    (folder / "rows" / "a.txt").write_text("kept")
    hub = open_hub(tmp_path / "data")
    for text in ("first", "second"):
        (folder / "rows" / "b.txt").write_text(text)
        seed_folder(hub, "ada/rows", "dataset", folder, author="ada", message=text, stable=True)
    with TestClient(app_of(hub), base_url="http://127.0.0.1") as client:
        entries = client.get("/api/datasets/ada/rows/tree/main?recursive=true&expand=true").json()
    titles = {entry["path"]: entry["lastCommit"]["title"] for entry in entries}
    titles.pop(".gitattributes")
    assert titles == {"rows": "second", "rows/a.txt": "first", "rows/b.txt": "second"}


def test_a_folder_that_the_hub_would_not_take_is_refused_with_the_reason(tmp_path: Path, zoo: Path) -> None:
    (zoo / "base" / os.fsdecode(b"\xff.txt")).write_text("no Unicode")
    hub = open_hub(tmp_path / "data")
    with pytest.raises(HubUnavailableError, match=r"zoo/base .*Invalid path"):
        seed_zoo(hub, zoo)
    hub.store.close()
    hub = open_hub(tmp_path / "data", default_users().model_copy(update={"orgs": ()}))
    with pytest.raises(HubUnavailableError, match='the namespace "zoo"'):
        seed_zoo(hub, zoo)
    hub.store.close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    hub = open_hub(tmp_path / "data")
    with pytest.raises(SourceNotFoundError, match="zoo/base"):
        seed_zoo(hub, tmp_path / "nothing")
    assert find_repo(hub.store, "model", "zoo/base") is None
    hub.store.close()

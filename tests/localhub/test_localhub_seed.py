"""Seeding a local Hub from folders without a network, and what `datasets` reads of it, at the same shas everywhere."""

import json
import os
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from processes import ROOT, printed_by
from starlette.testclient import TestClient

from hubmerge.errors import HubUnavailableError, SourceNotFoundError
from hubmerge.evaluation.tasks import registry
from localhub.access import find_repo
from localhub.process import LocalHubProcess
from localhub.protocol import open_hub
from localhub.seed import DATASETS, MIRROR, ZOO_MODELS, seed_datasets, seed_folder, seed_zoo, with_mirrors
from localhub.server import app_of
from localhub.users import Org, User, default_users

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


def test_the_same_folder_twice_makes_one_commit(tmp_path, zoo):
    hub = open_hub(tmp_path / "data")
    first = seed_zoo(hub, zoo)
    assert seed_zoo(hub, zoo) == first
    base = find_repo(hub.store, "model", "zoo/base")
    titles = [c.title for c in hub.trees.history(base.id, first["zoo/base"])]
    assert titles == ["Add the trained weights", "initial commit"]
    tree = hub.trees.at(base.id, first["zoo/base"])
    assert tree.keys() == {".gitattributes", "README.md", "model.safetensors"}
    assert hub.store.lfs_path(tree["model.safetensors"].sha256).read_bytes() == b"\0weights of base"
    (zoo / "math" / "README.md").write_text(CARD.format("better"))
    second = seed_zoo(hub, zoo)
    assert {name for name in first if first[name] != second[name]} == {"zoo/math-agent"}
    hub.store.close()


def test_a_folder_that_the_hub_would_not_take_is_refused_with_the_reason(tmp_path, zoo):
    (zoo / "base" / os.fsdecode(b"\xff.txt")).write_text("no Unicode")
    hub = open_hub(tmp_path / "data")
    with pytest.raises(HubUnavailableError, match=r"zoo/base .*Invalid path"):
        seed_zoo(hub, zoo)
    hub.store.close()
    hub = open_hub(tmp_path / "data", default_users().model_copy(update={"orgs": ()}))
    with pytest.raises(HubUnavailableError, match='the namespace "zoo"'):
        seed_zoo(hub, zoo)
    with pytest.raises(SourceNotFoundError, match="zoo/base"):
        seed_zoo(hub, tmp_path / "nothing")
    assert find_repo(hub.store, "model", "zoo/base") is None
    hub.store.close()


# the datasets of tasks, under their own ids

EXAMPLES = ROOT / "examples"
WANTED = {
    ("openai/gsm8k", "main"): {"train": 1024, "test": 1319},
    ("openai/openai_humaneval", "openai_humaneval"): {"test": 164},
    ("zoo/facts", "single"): {"validation": 120},
    ("zoo/facts", "multi"): {"validation": 120},
    ("zoo/held-out", "math"): {"test": 500, "validation": 300},
    ("zoo/questions", None): {"train": 900},
}
READER = """
import json, sys
import datasets
datasets.disable_progress_bars()
for repo, subset, revision in json.load(sys.stdin):
    found = datasets.load_dataset(repo, subset, revision=revision)
    print(json.dumps({split: [rows.num_rows, rows[0]] for split, rows in found.items()}))
"""


@pytest.mark.slow
def test_datasets_reads_every_seeded_dataset_at_its_sha(zoo_hub, tmp_path):
    api = HfApi(zoo_hub.endpoint, token=False)
    asked = [(repo, subset, api.dataset_info(repo).sha) for repo, subset in WANTED]
    said = printed_by(READER, given=json.dumps(asked), HF_ENDPOINT=zoo_hub.endpoint, HF_HOME=str(tmp_path))
    read = [json.loads(line) for line in said.splitlines()]
    for (repo, subset), splits, found in zip(WANTED, WANTED.values(), read, strict=True):
        assert {split: rows for split, (rows, _) in found.items()} == splits, (repo, subset)
    gsm8k, humaneval = read[0], read[1]
    assert gsm8k["test"][1]["answer"].endswith("#### 18")
    assert humaneval["test"][1]["task_id"] == "HumanEval/0"
    facts = read[2]["validation"][1]
    assert len(facts["context"]["title"]) == len(facts["context"]["sentences"]) == 10


@pytest.mark.slow
def test_the_shas_follow_from_the_content_alone(tmp_path):
    heads = []
    for name in ("one", "two"):
        known = with_mirrors(default_users())
        hub = open_hub(tmp_path / name, known)
        if name == "two":  # another number in the database, at another time
            seed_folder(hub, "bob/other", "dataset", EXAMPLES / "datasets" / "facts", author="bob", message="Other")
        first = seed_datasets(hub, EXAMPLES / "datasets")
        assert seed_datasets(hub, EXAMPLES / "datasets") == first
        repo = find_repo(hub.store, "dataset", "openai/gsm8k")
        assert len(hub.trees.history(repo.id, first["openai/gsm8k"])) == 2
        heads.append(first)
        hub.store.close()
    assert heads[0] == heads[1]
    assert set(heads[0]) == set(DATASETS)


def test_the_mirrors_give_nobody_new_rights():
    users = default_users()
    known = with_mirrors(users)
    assert [org.name for org, _ in known.orgs_of("ada")] == [org.name for org, _ in users.orgs_of("ada")]
    assert known.first_tokens() == users.first_tokens()
    assert {org.name for org in known.orgs} == {
        "zoo",
        *(r.split("/")[0] for r, (_, by) in DATASETS.items() if by == MIRROR),
    }
    assert with_mirrors(known) == known
    taken = users.model_copy(update={"orgs": (*users.orgs, Org(name="openai", members={"bob": "admin"}))})
    assert [org for org in with_mirrors(taken).orgs if org.name == "openai"] == [taken.orgs[-1]]
    assert isinstance(known.user(MIRROR), User)


def test_a_seeded_hub_reads_like_one_that_was_uploaded_to(tmp_path, zoo):
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


def test_a_folder_was_last_changed_by_the_latest_commit_to_it_though_all_have_one_date(tmp_path):
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


def test_the_questions_to_calibrate_with_are_the_rows_to_choose_by():
    parts = [(EXAMPLES / "zoo" / "eval" / f"dev_{name}.jsonl").read_bytes() for name in ("math", "tool", "mem")]
    assert (EXAMPLES / "datasets" / "questions" / "train.jsonl").read_bytes() == b"".join(parts)


CALIBRATION = "zoo/questions"


@pytest.mark.slow
def test_every_dataset_has_a_card_a_license_and_a_use(zoo_hub):
    api = HfApi(zoo_hub.endpoint, token=False)
    repos = {task.rows.repo for task in registry().values()}
    for repo, (folder, _) in DATASETS.items():
        info = api.dataset_info(repo)
        assert info.card_data.license
        assert (EXAMPLES / "datasets" / folder / "LICENSE").is_file()
        assert repo in repos or repo == CALIBRATION

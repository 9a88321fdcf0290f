"""The embedded Hub serves the tasks' datasets under their own ids to `datasets`, at the same shas everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from processes import printed_by

from hubmerge.evaluation.tasks import registry
from localhub.access import find_repo
from localhub.process import LocalHubProcess
from localhub.protocol import open_hub
from localhub.seed import DATASETS, MIRROR, seed_datasets, seed_folder, with_mirrors
from localhub.users import Org, User, default_users

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WANTED = {
    ("openai/gsm8k", "main"): {"train": 1024, "test": 1319},
    ("openai/openai_humaneval", "openai_humaneval"): {"test": 164},
    ("zoo/facts", "single"): {"validation": 120},
    ("zoo/facts", "multi"): {"validation": 120},
    ("zoo/held-out", "math"): {"test": 500, "validation": 300},
    ("zoo/questions", None): {"train": 900},
}
CALIBRATION = "zoo/questions"
READER = """
import json, sys
import datasets
datasets.disable_progress_bars()
for repo, subset, revision in json.load(sys.stdin):
    found = datasets.load_dataset(repo, subset, revision=revision)
    print(json.dumps({split: [rows.num_rows, rows[0]] for split, rows in found.items()}))
"""


@pytest.mark.slow
def test_datasets_reads_every_seeded_dataset_at_its_sha(zoo_hub: LocalHubProcess, tmp_path: Path) -> None:
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


def test_every_dataset_has_a_card_a_license_and_a_use(zoo_hub: LocalHubProcess) -> None:
    api = HfApi(zoo_hub.endpoint, token=False)
    repos = {task.rows.repo for task in registry().values()}
    for repo, (folder, _) in DATASETS.items():
        info = api.dataset_info(repo)
        assert info.card_data.license
        assert (EXAMPLES / "datasets" / folder / "LICENSE").is_file()
        assert repo in repos or repo == CALIBRATION


def test_the_questions_to_calibrate_with_are_the_rows_to_choose_by() -> None:
    parts = [(EXAMPLES / "zoo" / "eval" / f"dev_{name}.jsonl").read_bytes() for name in ("math", "tool", "mem")]
    assert (EXAMPLES / "datasets" / "questions" / "train.jsonl").read_bytes() == b"".join(parts)


def test_the_shas_follow_from_the_content_alone(tmp_path: Path) -> None:
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


def test_the_mirrors_give_nobody_new_rights() -> None:
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

"""What a parent on the Hub holds already is copied there, not uploaded; where the Hub will not, it is uploaded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import llama_shapes, random_base, sparse_agent, write_index, write_model, write_shard
from huggingface_hub import HfApi
from merge_helpers import OUT_SHARD_BYTES, Job

from hubmerge.errors import HubUnavailableError
from hubmerge.output.publish import Target, large_files
from localhub.fault_rules import FaultSwitch, Observe, Status
from localhub.process import LocalHubProcess

DUPLICATE = "/lfs-files/duplicate$"
SENT = "/lfs-uploads/"
UNTOUCHED, OUT_UNTOUCHED = "model-00001-of-00002.safetensors", "model-00001-of-00003.safetensors"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base whose first shard no agent changes, in the very layout of the output, and a tokenizer of 1.2 MB."""
    base = random_base(7, sizes=llama_shapes(layers=1, hidden=96, intermediate=128, vocab=1300))
    assert OUT_SHARD_BYTES - 1000 < base[EMBEDDING].raw.nbytes < OUT_SHARD_BYTES, "nothing else fits in its shard"
    folder, made = tmp_path_factory.mktemp("copied"), {}
    for name, density in (("base", 0.0), ("one", 0.2), ("two", 0.3)):
        tensors = {**(sparse_agent(base, density, len(name)) if density else base), EMBEDDING: base[EMBEDDING]}
        made[name] = write_model(folder / name, tensors)
        (folder / name / "model.safetensors").unlink()
        write_shard(folder / name / UNTOUCHED, {EMBEDDING: base[EMBEDDING]})
        rest = {n: t for n, t in tensors.items() if n != EMBEDDING}
        write_shard(folder / name / UNTOUCHED.replace("00001", "00002", 1), rest)
        index = {n: UNTOUCHED if n == EMBEDDING else UNTOUCHED.replace("00001", "00002", 1) for n in tensors}
        write_index(folder / name, index, sum(t.raw.nbytes for t in tensors.values()))
    (made["base"] / "tokenizer.json").write_bytes(b"\0" + np.random.default_rng(1).bytes(1_200_000))
    return made


@pytest.fixture(scope="module")
def repos(faulty_hub: LocalHubProcess, models: dict[str, Path]) -> dict[str, Any]:
    api = HfApi(faulty_hub.endpoint, token=faulty_hub.tokens["ada"])
    for name, folder in models.items():
        api.create_repo(f"ada/copied-{name}")
        api.upload_folder(repo_id=f"ada/copied-{name}", folder_path=folder)
    return {"base": "ada/copied-base", "agents": ["ada/copied-one", "ada/copied-two"], "method": "ram"}


@pytest.fixture(scope="module")
def whole(
    faulty_hub: LocalHubProcess, repos: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    return Job(faulty_hub, tmp_path_factory.mktemp("whole"), repos, "ada/copied-whole").to_folder()


@pytest.fixture
def merge(
    faulty_hub: LocalHubProcess,
    repos: dict[str, Any],
    whole: dict[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Job:
    name = "ada/c-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]
    return Job(faulty_hub, tmp_path / "job", repos, name)


@pytest.fixture
def private_base(merge: Job) -> Iterator[None]:
    merge.api.update_repo_settings("ada/copied-base", private=True)
    yield
    merge.api.update_repo_settings("ada/copied-base", private=False)


def sent(switch: FaultSwitch, rule: int) -> int:
    return switch.state(rule).seen


def test_an_untouched_shard_and_a_tokenizer_are_copied_by_the_hub_and_never_sent(
    merge: Job, whole: dict[str, str], switch: FaultSwitch, models: dict[str, Path]
) -> None:
    uploads = switch.add(SENT, Observe(), methods=["PUT"], times=None)
    merge.to_hub()
    published = merge.published()
    assert published == whole
    assert published[OUT_UNTOUCHED] == hashlib.sha256((models["base"] / UNTOUCHED).read_bytes()).hexdigest()
    assert published["tokenizer.json"] == hashlib.sha256((models["base"] / "tokenizer.json").read_bytes()).hexdigest()
    assert sent(switch, uploads) == 2, "the shards that the merge has made"
    assert merge.commits() == 1
    assert not [*merge.folder.rglob("*.safetensors")]


@pytest.mark.parametrize("status", [400, 403, 404, 501])
def test_where_the_hub_will_not_copy_the_same_bytes_are_uploaded(
    merge: Job, whole: dict[str, str], switch: FaultSwitch, status: int
) -> None:
    refused = switch.add(DUPLICATE, Status(status=status), times=None)
    uploads = switch.add(SENT, Observe(), methods=["PUT"], times=None)
    merge.to_hub()
    assert switch.state(refused).fired == 2
    assert sent(switch, uploads) == 4
    assert merge.published() == whole
    assert merge.commits() == 1


def test_a_copy_that_the_hub_claims_but_does_not_show_is_uploaded(
    merge: Job, whole: dict[str, str], switch: FaultSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file on this disk is deleted on the word of the target, never on that of the copy."""
    monkeypatch.setattr(HfApi, "_duplicate_lfs_files", lambda *arguments, **more: None)
    uploads = switch.add(SENT, Observe(), methods=["PUT"], times=None)
    merge.to_hub()
    assert sent(switch, uploads) == 4
    assert merge.published() == whole


def test_nothing_is_copied_from_a_private_parent_to_a_public_target(
    merge: Job, private_base: None, whole: dict[str, str], switch: FaultSwitch
) -> None:
    asked = switch.add("/ada/copied-base/lfs-files/duplicate$", Observe(), times=None)
    uploads = switch.add(SENT, Observe(), methods=["PUT"], times=None)
    assert merge.to_hub()
    assert switch.state(asked).seen == 0
    assert sent(switch, uploads) == 3, "the base's tokenizer and the new shards; the agents hold the untouched one"
    assert merge.published() == whole


def test_a_private_target_may_take_from_a_private_parent(merge: Job, private_base: None) -> None:
    models = merge.prepare().plan.models
    bases = {f.sha256 for f in large_files(models, Target("ada/x", True)).values() if f.repo == "ada/copied-base"}
    assert {models[0].files[UNTOUCHED].sha256, models[0].files["tokenizer.json"].sha256} <= bases
    assert {f.repo for f in large_files(models, Target("ada/x", False)).values()} == {
        "ada/copied-one",
        "ada/copied-two",
    }


def test_a_run_that_ended_after_the_copies_is_gone_on_from(
    merge: Job, whole: dict[str, str], switch: FaultSwitch
) -> None:
    switch.add("/commit/main$", Status(status=507), times=None)
    with pytest.raises(HubUnavailableError, match="507"):
        merge.to_hub()
    switch.clear()
    uploads = switch.add(SENT, Observe(), methods=["PUT"], times=None)
    merge.to_hub()
    assert sent(switch, uploads) == 0
    assert merge.published() == whole
    assert merge.commits() == 1

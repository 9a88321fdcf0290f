"""A small family of models in several shards on the Hub with fault switches, and its merge as a worker runs it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from merge_helpers import Job, upload_family

from localhub.fault_rules import FaultSwitch
from localhub.process import LocalHubProcess


@pytest.fixture(scope="session")
def many_shards(faulty_hub: LocalHubProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    api = HfApi(faulty_hub.endpoint, token=faulty_hub.tokens["ada"])
    return upload_family(api, tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="session")
def in_folder(
    faulty_hub: LocalHubProcess, many_shards: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What the merge to a folder gives: the sha256 of every file that is a function of the inputs."""
    return Job(faulty_hub, tmp_path_factory.mktemp("undisturbed"), many_shards, "ada/in-folder").to_folder()


@pytest.fixture
def job(
    faulty_hub: LocalHubProcess,
    tmp_path: Path,
    many_shards: dict[str, object],
    in_folder: dict[str, str],
    switch: FaultSwitch,
    request: pytest.FixtureRequest,
) -> Job:
    """The merge into a target of its own; `in_folder` has run before any fault is switched on."""
    name = "ada/s-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]
    return Job(faulty_hub, tmp_path / "job", many_shards, name)

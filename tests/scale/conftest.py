"""One embedded Hub with fault switches for this folder, and a small family of models in several shards on it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from merge_helpers import Job, unhurried_client, upload_family

from localhub.fault_rules import FaultSwitch
from localhub.process import LocalHubProcess


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    with LocalHubProcess(tmp_path_factory.mktemp("scale"), options=("--faults",)) as hub:
        yield hub


@pytest.fixture
def switch(faulty: LocalHubProcess) -> Iterator[FaultSwitch]:
    with FaultSwitch(faulty.endpoint) as switch:
        yield switch


@pytest.fixture(scope="session")
def recipe(faulty: LocalHubProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    api = HfApi(faulty.endpoint, token=faulty.tokens["ada"])
    return upload_family(api, tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="session")
def undisturbed(
    faulty: LocalHubProcess, recipe: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What the merge to a folder gives: the sha256 of every file that is a function of the inputs."""
    return Job(faulty, tmp_path_factory.mktemp("undisturbed"), recipe, "ada/undisturbed").to_folder()


@pytest.fixture
def job(
    faulty: LocalHubProcess,
    tmp_path: Path,
    recipe: dict[str, object],
    undisturbed: dict[str, str],
    switch: FaultSwitch,
    request: pytest.FixtureRequest,
) -> Job:
    """The merge into a target of its own; `undisturbed` has run before any fault is switched on."""
    name = "ada/s-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]
    return Job(faulty, tmp_path / "job", recipe, name)


@pytest.fixture
def client_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    with unhurried_client(monkeypatch) as pauses:
        yield pauses

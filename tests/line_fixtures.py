"""One embedded Hub with fault switches, all of them off when a test begins, and merges of one family on it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import recipe_dict, write_parents
from fault_line import Family, Line, unhurried_client, upload_family
from huggingface_hub import HfApi

from localhub.fault_rules import FaultSwitch
from localhub.process import LocalHubProcess


@pytest.fixture(scope="session")
def faulty_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    with LocalHubProcess(tmp_path_factory.mktemp("faulty"), options=("--faults",)) as hub:
        yield hub


@pytest.fixture
def switch(faulty_hub: LocalHubProcess) -> Iterator[FaultSwitch]:
    with FaultSwitch(faulty_hub.endpoint) as switch:
        yield switch


@pytest.fixture
def faulty_ada(faulty_hub: LocalHubProcess) -> HfApi:
    return HfApi(faulty_hub.endpoint, token=faulty_hub.tokens["ada"])


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A repo that no other test uses."""
    return "ada/f-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("family")


@pytest.fixture(scope="session")
def family(faulty_hub: LocalHubProcess, family_folder: Path) -> Family:
    api = HfApi(faulty_hub.endpoint, token=faulty_hub.tokens["ada"])
    return upload_family(api, family_folder, "ada/family")


@pytest.fixture(scope="session")
def undisturbed(
    faulty_hub: LocalHubProcess, family: Family, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What the family's merge publishes when nothing goes wrong."""
    line = Line(faulty_hub, tmp_path_factory.mktemp("undisturbed"), family.recipe(), "ada/undisturbed")
    made = line.merge()
    line.run()
    assert line.published() == made
    return made


@pytest.fixture
def line(
    faulty_hub: LocalHubProcess, tmp_path: Path, family: Family, undisturbed: dict[str, str], name: str, switch: object
) -> Line:
    """The family's merge into a target of its own; `undisturbed` has run before any fault is switched on."""
    folder = tmp_path / "here"
    folder.mkdir()
    return Line(faulty_hub, folder, family.recipe(), name)


@pytest.fixture
def own(line: Line, name: str) -> Family:
    """The same family in repos of this test's own, which it may change, and the line over it."""
    family = upload_family(line.api, line.folder / "models", name + "-src")
    line.recipe = family.recipe()
    return family


@pytest.fixture
def client_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    with unhurried_client(monkeypatch) as pauses:
        yield pauses


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    folders = write_parents(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe_dict(folders[0], folders[1:])))
    return path

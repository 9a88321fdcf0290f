"""A model in a folder, a server that has it, and a Hub's client of that server, which does not wait."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import random_base, write_model
from scripted_hub import ScriptedHub

from hubmerge.hub.client import Hub
from hubmerge.hub.errors import Patience
from hubmerge.hub.names import FileInfo


@pytest.fixture
def pauses() -> list[float]:
    """Noted instead of waited for."""
    return []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", random_base(0))


@pytest.fixture
def server(folder: Path) -> Iterator[ScriptedHub]:
    with ScriptedHub({p.name: p.read_bytes() for p in folder.iterdir()}) as running:
        yield running


@pytest.fixture
def hub(server: ScriptedHub, pauses: list[float]) -> Hub:
    return Hub(server.endpoint, "hf_canary_token", patience=Patience(sleep=pauses.append))


def weights(server: ScriptedHub) -> FileInfo:
    content = server.files["model.safetensors"]
    return FileInfo("model.safetensors", len(content), hashlib.sha256(content).hexdigest())


def fetch(hub: Hub, server: ScriptedHub, folder: Path, file: FileInfo | None = None) -> Path:
    return hub.download(server.repo, server.sha, file or weights(server), folder, lambda count: None)

"""A model in a folder, a server that has it, and a Hub's client of that server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import random_base, write_model
from hub_helpers import Clock
from scripted_hub import ScriptedHub

from hubmerge.hub.client import Hub
from hubmerge.hub.errors import Patience


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", random_base(0))


@pytest.fixture
def server(folder: Path) -> Iterator[ScriptedHub]:
    with ScriptedHub({p.name: p.read_bytes() for p in folder.iterdir()}) as running:
        yield running


@pytest.fixture
def hub(server: ScriptedHub, clock: Clock) -> Hub:
    return Hub(server.endpoint, "hf_canary_token", patience=Patience(sleep=clock))

"""The committed zoo and its figures."""

from pathlib import Path

import pytest
from source_helpers import ZOO

from examples.zoo.figures import Figures


@pytest.fixture(scope="session")
def zoo() -> Path:
    return ZOO


@pytest.fixture(scope="session")
def figures() -> Figures:
    return Figures.from_json((ZOO / "figures.json").read_text(encoding="utf-8"))

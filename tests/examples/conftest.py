"""`examples` is no installed package: the tests import it from the repository's root."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
if str(REPOSITORY) not in sys.path:
    sys.path.insert(0, str(REPOSITORY))


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def zoo() -> Path:
    return REPOSITORY / "examples" / "zoo"


@pytest.fixture(scope="session")
def figures(zoo: Path) -> Any:
    from examples.zoo.figures import Figures

    return Figures.from_json((zoo / "figures.json").read_text(encoding="utf-8"))

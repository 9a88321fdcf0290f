"""One launcher for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from process_helpers import Launcher


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    with Launcher(tmp_path_factory.mktemp("errors")) as launcher:
        yield launcher

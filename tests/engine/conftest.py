"""The synthetic families that measurements of memory share."""

from __future__ import annotations

import pytest
from memory_helpers import LONG, SHORT, Family


@pytest.fixture(scope="module")
def long_family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family.written(tmp_path_factory.mktemp("family"), LONG)


@pytest.fixture(scope="module")
def short_family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family.written(tmp_path_factory.mktemp("small"), SHORT)

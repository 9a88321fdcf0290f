from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_helpers import HERE, ROOT, FakeClock

from workflows.jobs.store import Store


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    """A store whose time stands still until the test moves it."""
    opened = Store(tmp_path, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store on the machine's clocks, and an environment in which children find the test's pipelines."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(HERE))))
    opened = Store(tmp_path)
    yield opened
    opened.close()

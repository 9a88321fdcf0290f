from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from job_helpers import HERE, FakeClock
from processes import ROOT
from watch_helpers import Agents, make_bot

from localhub.process import LocalHubProcess
from workflows.bot import Bot
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


@pytest.fixture
def agents(local_hub: LocalHubProcess, tmp_path: Path) -> Agents:
    return Agents(local_hub, tmp_path / "models")


@pytest.fixture
def bot_for(local_hub: LocalHubProcess, tmp_path: Path, clock: FakeClock) -> Iterator[Callable[..., Bot]]:
    """bot_for(rule, …, **settings): a bot on the embedded Hub, with one database for all bots of a test."""
    made: list[Bot] = []

    def make(*rules: Any, **more: Any) -> Bot:
        made.append(make_bot(local_hub, tmp_path / "data", **{"rules": rules, "clock": clock, **more}))
        return made[-1]

    yield make
    for bot in made:
        bot.store.close()

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from job_helpers import HERE, FakeClock
from processes import ROOT
from watch_helpers import SECRET, Agents

from hubmerge.settings import Settings
from localhub.process import LocalHubProcess
from workflows.bot import Bot, Intervals
from workflows.jobs.evaluations import RecordedScores
from workflows.jobs.store import Store
from workflows.jobs.tokens import TokenVault
from workflows.watchers.rules import RuleSet


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
    """bot_for(rule, …, **settings): ada's bot on the embedded Hub, with one database for all bots of a test."""
    made: list[Bot] = []
    usual = {"endpoint": local_hub.endpoint, "token": local_hub.tokens["ada"], "data_dir": tmp_path / "data"}
    secrets = {"secret": "test secret", "webhook_secret": SECRET}

    def make(
        *rules: Any,
        broken: Any = (),
        scores: RecordedScores | None = None,
        intervals: Intervals | None = None,
        **settings: Any,
    ) -> Bot:
        configured = Settings(**{**usual, **secrets, **settings})
        vault = TokenVault.from_settings(configured)
        found = RuleSet(rules, broken)
        made.append(Bot(configured, vault, lambda: found, clock=clock, scores=scores, intervals=intervals))
        return made[-1]

    yield make
    for bot in made:
        bot.store.close()

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from watch_helpers import Agents, FakeClock, make_bot

from localhub.process import LocalHubProcess
from workflows.bot import Bot


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def agents(local_hub: LocalHubProcess, tmp_path: Path) -> Agents:
    return Agents(local_hub, tmp_path / "models")


@pytest.fixture
def bot_for(local_hub: LocalHubProcess, tmp_path: Path, clock: FakeClock) -> Iterator[Callable[..., Bot]]:
    """bot_for(rule, …, **settings): a bot on the embedded Hub, with one database for all bots of a test."""
    made: list[Bot] = []

    def make(*rules: Any, **more: Any) -> Bot:
        made.append(make_bot(local_hub, tmp_path / "data", rules, **{"clock": clock, **more}))
        return made[-1]

    yield make
    for bot in made:
        bot.close()

"""What the tests of rules' turns share: a rule, its jobs, and what a turn came to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from watch_helpers import rule_of

from workflows.bot import Bot
from workflows.jobs.jobs import Job
from workflows.jobs.store import Store
from workflows.watchers.rule import AgentRule
from workflows.watchers.runner import Turn

BotFor = Callable[..., Bot]


def rule_for(base: str, **changes: Any) -> AgentRule:
    return rule_of(**{"base": base, "agents": {"authors": ["ada", "bob"]}, "target": "ada/watched-{set}", **changes})


def jobs(folder: Path) -> list[Job]:
    store = Store(folder / "data")
    found = list(store.list_jobs(limit=1000))
    store.close()
    return found


def one(turns: list[Turn]) -> Turn:
    [turn] = turns
    assert turn.error is None, turn.error
    return turn


def finish(folder: Path, **result: Any) -> None:
    """The jobs are done, as a worker would leave them; `result` changes what they say."""
    store = Store(folder / "data")
    while (job := store.claim("worker")) is not None:
        store.finish(job.id, job.fence, {"repo": job.payload.get("target"), "commit": "c" * 40, **result})
    store.close()


def skipped(turn: Turn) -> dict[str, str]:
    return {skip.subject: skip.code for skip in turn.decision.skips}

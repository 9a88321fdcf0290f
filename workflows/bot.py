"""Puts the bot together: its ticks, its tables, and the routes that the app mounts.

    reap          every 10 s   jobs whose worker fell silent wait again
    inbox         every 2 s    deliveries → turns of the rules
    asked         every 2 s    turns that an owner asked for
    watchers      every 300 s  turns of the rules without a delivery
    evaluations   every 20 s   scores that are missing → jobs
    tokens        every 600 s  the bot's own jobs that the present secret does not open

There is a route for webhooks only where a secret is set; without one, polls alone find new agents.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from starlette.routing import BaseRoute

from hubmerge.errors import QuotaError
from hubmerge.settings import Settings
from workflows.app.watchers_source import WatcherBoard
from workflows.jobs.account import Account
from workflows.jobs.evaluations import EvaluationRequests, is_the_bot_s
from workflows.jobs.jobs import Clock, State, SystemClock
from workflows.jobs.schema import open_engine
from workflows.jobs.store import DATABASE, Store
from workflows.jobs.tokens import TokenVault, UnreadableTokenError
from workflows.schedule.evaluations import schedule_evaluations
from workflows.schedule.scheduler import Scheduler, Tick
from workflows.schedule.scoring import Scoring
from workflows.watchers.inbox import Inbox
from workflows.watchers.ledger import Ledger
from workflows.watchers.rules import RuleSet
from workflows.watchers.runner import Watchers, no_flags, no_ranking
from workflows.watchers.webhook import webhook_route


@dataclass(frozen=True)
class Intervals:
    """Seconds between ticks."""

    reap_s: float = 10.0
    inbox_s: float = 2.0
    poll_s: float = 300.0
    evaluations_s: float = 20.0
    tokens_s: float = 600.0


class Bot:
    """Watchers, webhook and schedule over one job database. Without `scoring` it evaluates nothing."""

    def __init__(
        self,
        settings: Settings,
        vault: TokenVault,
        rules: Callable[[], RuleSet],
        *,
        scoring: Scoring | None = None,
        clock: Clock | None = None,
        intervals: Intervals | None = None,
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        self._intervals = intervals or Intervals()
        self._store = Store(settings.data_dir, clock=self._clock, jobs_per_user=settings.jobs_per_user)
        self._engine = open_engine(settings.data_dir / DATABASE)
        self.account = Account(settings, vault)
        self.ledger = Ledger(self._engine, self._clock, jobs_per_user=settings.jobs_per_user)
        self.inbox = Inbox(self._engine, self._clock)
        self._default_suite = scoring.default_suite if scoring else None
        self.requests = (
            EvaluationRequests(
                self._engine,
                self._clock,
                self.account,
                suite_version=scoring.suite_version,
                known_scores=scoring.known_scores,
                jobs_per_user=settings.jobs_per_user,
            )
            if scoring
            else None
        )
        self.watchers = Watchers(
            rules,
            self.account,
            self.ledger,
            self.inbox,
            requests=self.requests,
            ranking=scoring.ranking if scoring else no_ranking,
            flagged=scoring.flagged if scoring else no_flags,
        )
        every_s = self._intervals.poll_s if settings.token is not None else None
        self.source = WatcherBoard(settings, self.watchers, self.ledger, self._store, every_s)
        self.routes: tuple[BaseRoute, ...] = (
            (webhook_route(settings.webhook_secret, self.inbox),) if settings.webhook_secret else ()
        )
        self._scheduler = Scheduler(self.ticks())

    def ticks(self) -> tuple[Tick, ...]:
        every = self._intervals
        ticks = [
            Tick("reap", every.reap_s, self._store.reap),
            Tick("tokens", every.tokens_s, self.renew_tokens),
            Tick("inbox", every.inbox_s, self.watchers.handle_inbox),
            Tick("asked", every.inbox_s, self.watchers.handle_asked),
            Tick("watchers", every.poll_s, self.watchers.poll),
        ]
        if self.requests is not None:
            due = partial(schedule_evaluations, self._engine, self.requests, self._default_suite)
            ticks.append(Tick("evaluations", every.evaluations_s, due))
        return tuple(ticks)

    def renew_tokens(self) -> int:
        """Seal the bot's token anew for its own jobs that the present secret does not open; returns their number.

        With another HUBMERGE_SECRET they would wait, or have failed, for a login that nobody can give: their token
        is the one in the environment.
        """
        states = (State.QUEUED, State.FAILED)
        renewed = 0
        for job in self._store.list_jobs(user=self.account.name, states=states, limit=1000):
            if not is_the_bot_s(job):
                continue  # somebody's own, with a sign-in of theirs
            sealed = self._store.sealed_token(job.id)
            if job.state is State.FAILED:
                if job.error is not None and job.error.code == UnreadableTokenError.code:
                    with suppress(QuotaError):  # too many are under way; the next tick tries it again
                        self._store.retry(job.id, job.user, self.account.seal(job.id))
                        renewed += 1
            elif sealed is None or not self.account.opens(job.id, sealed):
                self._store.replace_token(job.id, self.account.seal(job.id))
                renewed += 1
        return renewed

    def close(self) -> None:
        self._engine.dispose()
        self._store.close()

    def __enter__(self) -> Self:
        self._scheduler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scheduler.stop()
        self.close()

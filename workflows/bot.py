"""Puts the bot together: its ticks, its tables, and the routes that the app mounts.

There is a route for webhooks only where a secret is set; without one, polls alone find new agents.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from starlette.routing import BaseRoute

from hubmerge.errors import LoginError, QuotaError
from hubmerge.settings import Settings
from workflows.app.watchers_source import WatcherSource
from workflows.jobs.account import Account
from workflows.jobs.evaluations import EvaluationRequests, RecordedScores, is_the_bot_s, schedule_evaluations
from workflows.jobs.jobs import Clock, State
from workflows.jobs.store import Store
from workflows.jobs.tokens import TokenVault, UnreadableTokenError
from workflows.schedule.scheduler import Scheduler, Tick
from workflows.watchers.ledger import Ledger
from workflows.watchers.rules import RuleSet
from workflows.watchers.runner import Watchers
from workflows.watchers.webhook import Inbox, webhook_route


@dataclass(frozen=True)
class Intervals:
    """Seconds between ticks."""

    reap_s: float = 10.0  # jobs whose worker fell silent wait again
    inbox_s: float = 2.0  # deliveries, and what an owner asks for, become turns of the rules
    poll_s: float = 300.0  # turns of all rules without a delivery
    evaluations_s: float = 20.0  # scores that are missing become jobs
    tokens_s: float = 60.0  # the bot's own jobs that failed with an earlier token or secret are tried again


class Bot:
    """Watchers, webhook and schedule over one job database. Without `scores` it evaluates nothing.

    Its ticks come while its `scheduler` is entered.
    """

    def __init__(
        self,
        settings: Settings,
        vault: TokenVault,
        rules: Callable[[], RuleSet],
        *,
        scores: RecordedScores | None = None,
        clock: Clock | None = None,
        intervals: Intervals | None = None,
    ) -> None:
        self._intervals = intervals or Intervals()
        self.store = Store(settings.data_dir, clock=clock, jobs_per_user=settings.jobs_per_user)
        self._first = 1 + max((job.ticket for job in self.store.list_jobs(limit=1)), default=0)  # of this process
        self.account = Account(settings, vault)
        self.ledger = Ledger(self.store)
        self.inbox = Inbox(self.store)
        self.requests = EvaluationRequests(self.store, self.account, scores) if scores else None
        self.watchers = Watchers(rules, self.account, self.ledger, self.inbox, self.requests)
        every_s = self._intervals.poll_s if settings.token is not None else None
        self.source = WatcherSource(settings, self.watchers, self.ledger, self.store, every_s)
        self.routes: tuple[BaseRoute, ...] = (
            (webhook_route(settings.webhook_secret, self.inbox),) if settings.webhook_secret else ()
        )
        self.scheduler = Scheduler(self.ticks())

    def ticks(self) -> tuple[Tick, ...]:
        every = self._intervals
        ticks = [
            Tick("reap", every.reap_s, self.store.reap),
            Tick("tokens", every.tokens_s, self.renew_tokens),
            Tick("inbox", every.inbox_s, self.watchers.handle_inbox),
            Tick("asked", every.inbox_s, self.watchers.handle_asked),
            Tick("watchers", every.poll_s, self.watchers.poll),
        ]
        if self.requests is not None:
            due = partial(schedule_evaluations, self.store, self.requests)
            ticks.append(Tick("evaluations", every.evaluations_s, due))
        return tuple(ticks)

    def renew_tokens(self) -> int:
        """Try the bot's own jobs again that failed for a token that was sealed before this process began.

        It was revoked since, or HUBMERGE_SECRET is another one. They would stay failed, for a login that nobody can
        give: their token is the one in the environment.
        """
        renewed = 0
        for job in self.store.list_jobs(user=self.account.name, states=[State.FAILED], before=self._first, limit=1000):
            for_login = job.error is not None and job.error.code in (LoginError.code, UnreadableTokenError.code)
            if for_login and is_the_bot_s(job):  # not somebody's own, with a sign-in of theirs
                with suppress(QuotaError):  # too many are under way; the next tick tries it again
                    self.store.retry(job.id, job.user, self.account.seal(job.id))
                    renewed += 1
        return renewed

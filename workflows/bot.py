"""Puts the bot together: its ticks, its tables, and the routes that the app mounts.

There is a route for webhooks only where a secret is set; without one, polls alone find new agents.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from starlette.routing import BaseRoute

from hubmerge.settings import Settings
from workflows.app.watchers_source import WatcherSource
from workflows.jobs.account import Account
from workflows.jobs.evaluations import EvaluationRequests, RecordedScores, schedule_evaluations
from workflows.jobs.jobs import Clock
from workflows.jobs.store import Store
from workflows.jobs.tokens import TokenVault
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
            Tick("inbox", every.inbox_s, self.watchers.handle_inbox),
            Tick("asked", every.inbox_s, self.watchers.handle_asked),
            Tick("watchers", every.poll_s, self.watchers.poll),
        ]
        if self.requests is not None:
            due = partial(schedule_evaluations, self.store, self.requests)
            ticks.append(Tick("evaluations", every.evaluations_s, due))
        return tuple(ticks)

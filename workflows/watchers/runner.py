"""One turn of a rule: look, record why models were skipped, start the merge that is due.

    hint or poll → look (kinds/) → Decision → skips to the ledger
                                            → prepare (every check that needs no weights) → one transaction: the job

A turn can be repeated at any time, since it finds the sets that are merged already. Turns of one process run one at a
time.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from hubmerge.errors import (
    EvaluationError,
    HubmergeError,
    HubUnavailableError,
    InternalError,
    LoginError,
    PermissionDeniedError,
    QuotaError,
)
from hubmerge.hub.client import Hub
from hubmerge.line import Request, prepare
from hubmerge.output.publish import Target
from hubmerge.recipe.recipe import recipe_from_dict
from workflows.jobs.account import Account
from workflows.jobs.evaluations import OF_CANDIDATE, WATCHED_MERGE, EvaluationRequests
from workflows.jobs.jobs import Job, NewJob
from workflows.jobs.pipeline import merge_payload
from workflows.watchers.base import Decision, PlannedMerge, Scores, Skip, WatchContext, Watcher
from workflows.watchers.facts import Facts
from workflows.watchers.kinds import registry
from workflows.watchers.ledger import Ledger
from workflows.watchers.rule import RuleHead
from workflows.watchers.rules import RuleSet
from workflows.watchers.webhook import Inbox

log = logging.getLogger(__name__)
PAUSED = "its owner has paused it"


@dataclass(frozen=True)
class Turn:
    """The result of a turn of a rule."""

    rule: str
    decision: Decision = field(default_factory=Decision)
    job: Job | None = None  # started in this turn
    error: HubmergeError | None = None  # the turn, or the merge that it planned, was not possible


class Watchers:
    """The turns of all rules. `rules` is asked anew for every round, so that an edited rule counts at once. Without
    `requests` no model has a flag, and a rule that asks for scores does not look."""

    def __init__(
        self,
        rules: Callable[[], RuleSet],
        account: Account,
        ledger: Ledger,
        inbox: Inbox,
        requests: EvaluationRequests | None = None,
    ) -> None:
        self.rules = rules
        self._account = account
        self._ledger = ledger
        self._inbox = inbox
        self._requests = requests
        self._kinds: dict[str, Watcher] = {name: kind() for name, kind in registry().items()}
        self._turn = threading.Lock()
        self._asked: set[str] = set()  # rules whose owner wants a turn now
        self.polled: datetime | None = None  # when the last round of all rules began; UTC
        self.measures = requests is not None

    def acts_for(self, user: str) -> bool:
        """Whether the bot's account is this user's, so that the rules are."""
        with suppress(HubmergeError):  # there is no account, or the Hub is away
            return self._account.name == user
        return False

    def poll(self) -> list[Turn]:
        """Take a turn of every rule, to find models that no delivery announced."""
        self.polled = datetime.now(UTC)
        return [self.turn(rule) for rule in self.rules().rules]

    def ask(self, rule: str) -> None:
        """Want a turn of one rule at the next tick; asking again before it is the same."""
        self._asked.add(rule)

    def handle_asked(self) -> list[Turn]:
        """Take a turn of every rule that was asked for."""
        asked = set(self._asked)
        self._asked -= asked  # whoever asks from now on wants another turn
        return [self.turn(rule) for rule in self.rules().rules if rule.name in asked] if asked else []

    def handle_inbox(self) -> list[Turn]:
        """Take a turn of every rule if deliveries wait. What a turn cannot do now, the next poll does."""
        deliveries = self._inbox.pending()
        if not deliveries:
            return []
        self._inbox.settle(deliveries)  # first: where nothing can be written, the Hub is not asked at every tick
        hinted = tuple(dict.fromkeys(deliveries.values()))
        return [self.turn(rule, hinted) for rule in self.rules().rules]

    def turn(self, rule: RuleHead, hinted: tuple[str, ...] = (), *, dry_run: bool = False) -> Turn:
        """Take one rule's turn; its errors are part of the result, so that they stop no other rule."""
        with self._turn:
            if not dry_run and self._ledger.is_paused(rule.name):
                return Turn(rule.name, Decision(waiting=PAUSED))
            try:
                turn = self._take(rule, hinted, dry_run)
            except HubmergeError:  # nothing can be written now
                raise
            except Exception as error:  # a job boundary: a bug that one rule meets is not the other rules'
                log.exception("rule %s", rule.name)
                got = type(error).__name__
                turn = Turn(rule.name, error=InternalError("the watcher has a bug", where=f"rule {rule.name}", got=got))
            if dry_run:
                return turn
            if turn.error is not None:
                log.warning("rule %s: %s", rule.name, turn.error)
                self._ledger.turn_ended(rule.name, turn.error.code, str(turn.error))
            else:
                self._ledger.turn_ended(rule.name, None, turn.decision.waiting or None)
            return turn

    def trial(self, rule: RuleHead, hub: Hub, *, own: bool) -> Turn:
        """One look with `hub`, which is whoever's asks, and what it would come to; nothing is changed or remembered.

        `own`: go by what the rule of this name has merged; otherwise by nothing. Raises HubmergeError where the look is
        not possible; why the merge that it plans is not, is the turn's error.
        """
        context = replace(self._context(rule, hub), known={})
        if not own:
            context = replace(context, history=(), budget_left=rule.budget)
        decision = self._kinds[rule.watch].look(rule, context)
        if decision.merge is not None:
            try:
                recipe = recipe_from_dict(dict(decision.merge.recipe))
                prepare(recipe, hub, Request(license=rule.license, calibrate="find"))
            except HubmergeError as error:
                return Turn(rule.name, decision, error=error)
        return Turn(rule.name, decision)

    def _take(self, rule: RuleHead, hinted: tuple[str, ...], dry_run: bool) -> Turn:
        try:
            self._account.require(rule.owner)
            context = self._context(rule, self._account.hub, hinted, noting=not dry_run)
            decision = self._kinds[rule.watch].look(rule, context)
        except HubmergeError as error:
            return Turn(rule.name, error=error)
        if not dry_run:
            self._ledger.skip(rule.name, decision.skips)
        if decision.merge is None:
            return Turn(rule.name, decision)
        return self._start(rule, decision, decision.merge, dry_run)

    def _context(self, rule: RuleHead, hub: Hub, hinted: tuple[str, ...] = (), *, noting: bool = False) -> WatchContext:
        """`noting`: what is read is remembered, and missing scores are asked for."""
        return WatchContext(
            hub=hub,
            hinted=hinted,
            own=self._ledger.own_targets(),
            own_merges=self._ledger.own_merges(),
            history=self._ledger.history(rule.name),
            budget_left=rule.budget - self._ledger.used(rule.name),
            today=self._ledger.today,
            known=self._ledger.known(rule.name),
            remember=partial(self._ledger.remember, rule.name) if noting else lambda model, key, facts: None,
            scores=partial(self._scores, request=noting, private=rule.private),
            flags=self._flags,
        )

    def _start(self, rule: RuleHead, decision: Decision, planned: PlannedMerge, dry_run: bool) -> Turn:
        try:
            new = self._job(rule, planned)
            if dry_run:
                return Turn(rule.name, decision)
            job = self._ledger.start(rule.name, planned, new, self._account.seal(new.id), rule.budget)
        except QuotaError as error:
            waits = Skip(planned.subject, planned.set_id[:40], error.code, str(error).removeprefix(f"{error.code}: "))
            self._ledger.skip(rule.name, [*decision.skips, waits])
            return Turn(rule.name, decision, error=error)
        except HubmergeError as error:
            of_token = isinstance(error, LoginError | PermissionDeniedError)  # with another one it goes on at once
            if not (error.retryable or of_token or dry_run):
                self._ledger.refuse(rule.name, planned, error.code, str(error))
            if not dry_run and (not error.retryable or isinstance(error, HubUnavailableError)):
                self._ledger.forget(rule.name, planned)
            return Turn(rule.name, decision, error=error)
        if job is not None:
            if rule.suite and not self.measures:
                log.warning("rule %s: nothing is evaluated here, since HUBMERGE_RESULTS is not set", rule.name)
            log.info("rule %s: job %s merges %s to %s", rule.name, job.id[:12], planned.subject, planned.target)
        return Turn(rule.name, decision, job)

    def _job(self, rule: RuleHead, planned: PlannedMerge) -> NewJob:
        """The merge job, after every check that needs no weights; the form's jobs are made the same way."""
        target = Target(planned.target, rule.private, expose=planned.expose)
        recipe = recipe_from_dict(dict(planned.recipe))
        prepared = prepare(recipe, self._account.hub, Request(target, rule.license, calibrate="apart"))
        payload = {**merge_payload(prepared, target, rule.license), "watcher": rule.name, "suite": rule.suite}
        return NewJob(id=prepared.identity, user=rule.owner, payload=payload, priority=WATCHED_MERGE)

    def _scores(self, suite: str, models: Sequence[Facts], *, request: bool, private: bool) -> Scores:
        """The leaderboard's scores; missing ones are requested, each model once, though it could not be measured."""
        if self._requests is None:
            raise EvaluationError(
                "there is no results dataset to take scores from",
                where=f"suite {suite}",
                next_step="Set HUBMERGE_RESULTS to that of the leaderboard.",
            )
        recorded = self._requests.scores.known_scores()
        pending: set[str] = set()
        for model in models if request else ():
            key = self._requests.key(model.id, model.sha, suite)
            if key in recorded:
                continue
            try:
                job = self._requests.request(key, OF_CANDIDATE, private=private or model.private)
            except QuotaError:  # others are under way; its turn comes
                pending.add(model.pin)
                continue
            if not job.state.is_terminal:
                pending.add(model.pin)
        # only now: one may have ended meanwhile
        ranked = self._requests.scores.ranking(suite, [(m.id, m.sha) for m in models])
        values = {m.pin: ranked[m.id, m.sha] for m in models if (m.id, m.sha) in ranked}
        return Scores(values, frozenset(pending))

    def _flags(self, models: Sequence[Facts]) -> Mapping[str, str]:
        if self._requests is None:
            return {}
        found = self._requests.scores.flagged([(m.id, m.sha) for m in models])
        return {id: why for (id, _), why in found.items()}

"""The content of the Watchers tab: every rule, its last actions, and why it left models out."""

from __future__ import annotations

from collections.abc import Callable

from workflows.app.service import Visitor, WatcherEvent, WatcherView
from workflows.jobs.store import Store
from workflows.watchers.kinds import registry
from workflows.watchers.ledger import Ledger
from workflows.watchers.rule import RuleHead
from workflows.watchers.rules import RuleSet

MOST_EVENTS = 50  # per rule


class WatcherBoard:
    """Implements workflows.app.service.WatcherSource."""

    def __init__(self, endpoint: str, rules: Callable[[], RuleSet], ledger: Ledger, store: Store) -> None:
        self.endpoint = endpoint
        self._rules = rules
        self._ledger = ledger
        self._store = store

    def watchers(self, visitor: Visitor | None) -> list[WatcherView]:
        known = self._rules()
        shown = [rule for rule in known.rules if not rule.private or (visitor and visitor.name == rule.owner)]
        broken = [WatcherView(name, problem=error.as_dict()) for name, error in known.broken]
        return [*(self._view(rule, bool(visitor and visitor.name == rule.owner)) for rule in shown), *broken]

    def _view(self, rule: RuleHead, own: bool) -> WatcherView:
        state = self._ledger.state(rule.name)
        problem = None
        if state is not None and state.code is not None:
            # an error may name a private repo
            problem = {"code": state.code, "message": state.text if own else "only its owner may see the reason"}
        return WatcherView(
            name=rule.name,
            owner=rule.owner,
            facts=registry()[rule.watch]().summary(rule),
            target=rule.target,
            suite=rule.suite,
            private=rule.private,
            budget=rule.budget,
            used_today=self._ledger.used(rule.name),
            polled=state.polled if state else None,
            waiting="" if state is None or problem else state.text or "",
            problem=problem,
            events=self._events(rule, own),
        )

    def _events(self, rule: RuleHead, own: bool) -> tuple[WatcherEvent, ...]:
        events = [
            WatcherEvent("skipped", note.time, note.subject, note.sha, note.code, note.text)
            for note in self._ledger.skips(rule.name, MOST_EVENTS)
            if own or not note.private
        ]
        for row in self._ledger.sets(rule.name, MOST_EVENTS):
            job = self._store.find(row.job_id) if row.job_id else None
            hidden = row.job_id is None and not own  # what was published says itself what it was made of
            events.append(
                WatcherEvent(
                    "merged" if row.job_id else "refused",
                    row.time,
                    row.target,
                    code=row.code or "",
                    text="" if hidden else row.text or "",
                    agents=() if hidden else row.agents,
                    job_id=row.job_id,
                    job_state=job.state.value if job else None,
                )
            )
        return tuple(sorted(events, key=lambda e: e.time, reverse=True)[:MOST_EVENTS])

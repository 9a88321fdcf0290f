"""The content of the watchers' page: every rule, its last actions and why it left models out, and what an owner says.

A trial of a rule acts as the visitor, never as the bot: with the visitor's token, or without any, so that it shows
nothing that the visitor could not read on the Hub.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from hubmerge.errors import LoginError, PermissionDeniedError, RuleError
from hubmerge.hub.client import Hub
from hubmerge.settings import Settings
from hubmerge.text.plain_yaml import dump_plain_yaml
from workflows.app.submission import checked_recipe
from workflows.jobs.jobs import iso
from workflows.jobs.store import Store
from workflows.values import Trial, Visitor, WatcherEvent, WatcherView
from workflows.watchers.kinds import registry
from workflows.watchers.ledger import Ledger
from workflows.watchers.rule import MergeSpec, RuleHead
from workflows.watchers.rules import rule_data, rule_from_data
from workflows.watchers.runner import Watchers

MOST_EVENTS = 50  # per rule
_NOT_RUNNING = LoginError(
    "no watcher runs here, since the app has no account of its own",
    next_step="Whoever keeps this app gives it a token of the Hub with write access (HF_TOKEN).",
)
_BROKEN = RuleError(
    "the rule cannot be read",  # it may be meant to be private, and an error shows its values
    next_step="The account that this app acts for sees why on this page, and `hubmerge watch FILE --dry-run` tells it.",
)


class WatcherSource:
    """Only a rule's owner may pause, resume and run it. `every_s`: seconds between polls, None where nothing polls."""

    def __init__(
        self, settings: Settings, watchers: Watchers, ledger: Ledger, store: Store, every_s: float | None
    ) -> None:
        self.endpoint = settings.endpoint
        self._forgets = settings.forgets
        self._watchers = watchers
        self._ledger = ledger
        self._store = store
        self._every_s = every_s

    def watchers(self, visitor: Visitor | None) -> list[WatcherView]:
        """Every rule with its last events; one that makes private repos is shown to its owner only."""
        known = self._watchers.rules()
        told = visitor is not None and self._watchers.acts_for(visitor.name)
        broken = [WatcherView(name, problem=(error if told else _BROKEN).as_dict()) for name, error in known.broken]
        shown = (rule for rule in known.rules if not rule.private or _is_own(rule, visitor))
        return [*(self._view(rule, _is_own(rule, visitor)) for rule in shown), *broken]

    def try_watcher(self, rule: Mapping[str, Any], visitor: Visitor | None) -> Trial:
        """What a rule, given as its file says it, would do now for the visitor; nothing is changed."""
        wanted = rule_from_data(rule)
        spec = getattr(wanted, "recipe", None)
        if isinstance(spec, MergeSpec):  # a file would be this server's
            checked_recipe(spec.recipe("org/base", ("org/agent", "org/other")))
        own = any(r.name == wanted.name and _is_own(r, visitor) for r in self._watchers.rules().rules)
        turn = self._watchers.trial(wanted, Hub(self.endpoint, visitor.token if visitor else None), own=own)
        planned = turn.decision.merge
        return Trial(
            about=registry()[wanted.watch]().about(wanted),
            rule=dump_plain_yaml(rule_data(wanted)),
            target=planned.target if planned else "",
            agents=tuple(planned.recipe["agents"]) if planned else (),
            waiting="" if planned else turn.decision.waiting or "everything that it would merge is merged already",
            left_out=tuple(WatcherEvent("skipped", "", s.subject, s.sha, s.code, s.text) for s in turn.decision.skips),
            problem=turn.error.as_dict() if turn.error else None,
            anew=not own,
        )

    def pause_watcher(self, name: str, visitor: Visitor) -> WatcherView:
        """Let a rule start nothing more until it is resumed."""
        rule = self._own(name, visitor)
        self._ledger.pause(rule.name)
        return self._view(rule, own=True)

    def resume_watcher(self, name: str, visitor: Visitor) -> WatcherView:
        rule = self._own(name, visitor)
        self._ledger.resume(rule.name)
        return self._view(rule, own=True)

    def run_watcher(self, name: str, visitor: Visitor) -> WatcherView:
        """Let a rule look within seconds instead of at its next time."""
        rule = self._own(name, visitor)
        if self._every_s is None:
            raise _NOT_RUNNING
        if self._ledger.is_paused(rule.name):
            raise RuleError("this watcher is paused", where=rule.name, next_step="Resume it first.")
        self._watchers.ask(rule.name)
        return self._view(rule, own=True)

    def _own(self, name: str, visitor: Visitor) -> RuleHead:
        """The visitor's rule of a name; RuleError or PermissionDeniedError where there is none."""
        rule = next((rule for rule in self._watchers.rules().rules if rule.name == name), None)
        if rule is None or (rule.private and not _is_own(rule, visitor)):
            # the same answer for both, so that names of private rules cannot be told from guesses
            raise RuleError("no such watcher, or a private one of somebody else", got=ascii(name)[:100])
        if not _is_own(rule, visitor):
            raise PermissionDeniedError(
                "a watcher of somebody else", where=rule.name, expected=rule.owner, got=visitor.name
            )
        return rule

    def _view(self, rule: RuleHead, own: bool) -> WatcherView:
        state, paused = self._ledger.state(rule.name), self._ledger.is_paused(rule.name)
        problem: dict[str, Any] | None = None
        if self._every_s is None:
            problem = _NOT_RUNNING.as_dict()
        elif state is not None and state.code is not None:
            # an error may name a private repo
            problem = {"code": state.code, "message": state.text if own else "only its owner may see the reason"}
        about = registry()[rule.watch]().about(rule)
        if rule.suite and not self._watchers.measures:
            about += " Its merges are not evaluated, since this site has no results dataset."
        next_look = None
        if self._every_s is not None and self._watchers.polled is not None:
            next_look = self._watchers.polled + timedelta(seconds=self._every_s)
        return WatcherView(
            name=rule.name,
            owner=rule.owner,
            about=about,
            target=rule.target,
            suite=rule.suite,
            private=rule.private,
            budget=rule.budget,
            used_today=self._ledger.used(rule.name),
            polled=state.polled if state else None,
            next_look=None if paused or next_look is None else iso(next_look),
            paused=paused,
            forgets=self._forgets,
            own=own,
            rule=dump_plain_yaml(rule_data(rule)),
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
            if job is not None and job.payload.get("private") and not own:  # of a time when the rule was private
                continue
            hidden = job is None and not own  # what was published says itself what it was made of
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


def _is_own(rule: RuleHead, visitor: Visitor | None) -> bool:
    return visitor is not None and visitor.name == rule.owner

"""Finds the evaluations that are due, as a function of the finished merges and the known scores.

    done merges with a suite → the merge, its agents, its base → those without a score → requests, merges first

A parent of many merges is one request, since a request's identity is model, commit, suite and version. When a suite or
its data change, so does its version, and everything is due again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from hubmerge.errors import HubmergeError, QuotaError
from hubmerge.hub.names import is_hub_id
from workflows.jobs.evaluations import OF_MERGE, OF_PARENT, EvaluationRequests, Pin, ScoreKey
from workflows.jobs.jobs import SHA, State, pinned_models
from workflows.jobs.schema import JOBS
from workflows.jobs.store import Store

log = logging.getLogger(__name__)
# uses of output/task.py; "": of a class that is not known
_WRITES_TEXT = ("", "text-generation", "text2text-generation", "image-text-to-text", "audio-text-to-text", "any")


@dataclass(frozen=True)
class DoneMerge:
    """A published merge with what it was made of."""

    merged: Pin
    parents: tuple[Pin, ...]  # the base first
    suite: str
    private: bool = False  # its evaluations are its owner's to see, as it is


def done_merges(store: Store, default_suite: str | None) -> list[DoneMerge]:
    """Every merge that is to have scores, newest first.

    A watcher's merge is evaluated with its rule's suite; any other one with `default_suite`, unless it is private,
    since its scores would be public, or writes no text.
    """
    columns = (JOBS.c.payload, JOBS.c.result)
    query = select(*columns).where(JOBS.c.kind == "merge", JOBS.c.state == State.DONE).order_by(JOBS.c.ticket.desc())
    with store.reading() as connection:
        rows = connection.execute(query).all()
    return [merge for row in rows if (merge := _done_merge(row.payload, row.result or {}, default_suite)) is not None]


def _done_merge(payload: dict[str, Any], result: dict[str, Any], default_suite: str | None) -> DoneMerge | None:
    passed_over = payload.get("private") or result.get("use", "") not in _WRITES_TEXT
    suite = payload.get("suite") or (None if passed_over else default_suite)
    merged = (str(result.get("repo", "")), str(result.get("commit", "")))
    parents = tuple((model, sha) for _, model, sha in pinned_models(payload.get("recipe") or {}))
    if not suite or not is_hub_id(merged[0]) or not SHA.fullmatch(merged[1]):
        return None
    return DoneMerge(merged, parents, suite, bool(payload.get("private")))


def wanted(merges: Sequence[DoneMerge], requests: EvaluationRequests) -> dict[ScoreKey, int]:
    """Every score that should be known, with the priority of its evaluation; merges before parents."""
    missing: set[str] = set()
    merged: dict[ScoreKey, int] = {}
    parents: dict[ScoreKey, int] = {}
    for merge in merges:
        if merge.suite in missing:
            continue
        try:
            key, *of_parents = [requests.key(*pin, merge.suite) for pin in (merge.merged, *merge.parents)]
        except HubmergeError as error:  # a suite that is no longer there, or a Hub that is away
            missing.add(merge.suite)
            log.warning("nothing is evaluated with %s now: %s", merge.suite, error)
            continue
        merged[key] = OF_MERGE
        parents |= dict.fromkeys(of_parents, OF_PARENT)
    return merged | {key: priority for key, priority in parents.items() if key not in merged}


def schedule_evaluations(store: Store, requests: EvaluationRequests) -> int:
    """Request every score that is wanted and not known; returns how many wait for room in the queue."""
    merges = done_merges(store, requests.scoring.default_suite)
    due = wanted(merges, requests)
    public = {pin for merge in merges if not merge.private for pin in (merge.merged, *merge.parents)}
    left = requests.unknown(list(due))
    for place, key in enumerate(left):
        try:
            requests.request(key, due[key], private=(key.model, key.sha) not in public)
        except QuotaError:
            return len(left) - place
    return 0

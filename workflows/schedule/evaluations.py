"""Finds the evaluations that are due, as a function of the finished merges and the known scores.

    done merges with a suite → the merge, its agents, its base → those without a score → requests, merges first

A parent of many merges is one request, since a request's identity is model, commit, suite and version. When a suite or
its data change, so does its version, and everything is due again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import select

from hubmerge.errors import HubmergeError, QuotaError
from hubmerge.hub.names import is_hub_id, is_sha
from workflows.jobs.evaluations import OF_MERGE, OF_PARENT, EvaluationRequests
from workflows.jobs.jobs import State, pinned_models
from workflows.jobs.schema import JOBS
from workflows.jobs.scores import Pin, ScoreKey
from workflows.jobs.store import Store

log = logging.getLogger(__name__)
# uses of output/task.py; "": of a class that is not known
_WRITES_TEXT = ("", "text-generation", "text2text-generation", "image-text-to-text", "audio-text-to-text", "any")


def schedule_evaluations(store: Store, requests: EvaluationRequests) -> int:
    """Request every score that is wanted and not known; returns how many wait for room in the queue."""
    merged: dict[ScoreKey, int] = {}
    parents: dict[ScoreKey, int] = {}
    public: set[Pin] = set()
    missing: set[str] = set()
    for suite, private, pins in _done_merges(store, requests.scores.default_suite):
        if not private:
            public.update(pins)
        if suite in missing:
            continue
        try:
            key, *of_parents = [requests.key(*pin, suite) for pin in pins]
        except HubmergeError as error:  # a suite that is no longer there, or a Hub that is away
            missing.add(suite)
            log.warning("nothing is evaluated with %s now: %s", suite, error)
            continue
        merged[key] = OF_MERGE
        parents |= dict.fromkeys(of_parents, OF_PARENT)
    due = merged | {key: priority for key, priority in parents.items() if key not in merged}
    left = requests.unknown(list(due))
    for place, key in enumerate(left):
        try:
            requests.request(key, due[key], private=(key.model, key.sha) not in public)
        except QuotaError:
            return len(left) - place
    return 0


def _done_merges(store: Store, default_suite: str | None) -> Iterator[tuple[str, bool, list[Pin]]]:
    """Suite, privacy and pins (the merge, its base, its agents) of every merge that is to have scores, newest first.

    The evaluations of a private one are its owner's to see.
    """
    columns = (JOBS.c.payload, JOBS.c.result)
    query = select(*columns).where(JOBS.c.kind == "merge", JOBS.c.state == State.DONE).order_by(JOBS.c.ticket.desc())
    with store.reading() as connection:
        rows = connection.execute(query).all()
    for payload, result in rows:
        suite = suite_of(payload, result, default_suite)
        model, sha = str(result.get("repo", "")), str(result.get("commit", ""))
        if suite and is_hub_id(model) and is_sha(sha):
            parents = [(parent, at) for _, parent, at in pinned_models(payload.get("recipe") or {})]
            yield suite, bool(payload.get("private")), [(model, sha), *parents]


def suite_of(payload: Mapping[str, Any], result: Mapping[str, Any], default_suite: str | None) -> str | None:
    """The suite that a finished merge is evaluated with; None: with none.

    It is the one that its rule or its user named; else `default_suite`, unless the merge is private, since its scores
    would be public, or writes no text.
    """
    passed_over = payload.get("private") or result.get("use", "") not in _WRITES_TEXT
    return payload.get("suite") or (None if passed_over else default_suite)

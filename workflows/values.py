"""The values that pages, API and their service hand on: visitors, models, jobs, evaluations and watchers.

What a job's record or a stranger's file holds is untyped JSON; the functions below look each value up with care.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hubmerge.plan.plan import Plan

PAGE_JOBS = 25  # of a list


@dataclass(frozen=True)
class Visitor:
    """The user behind a request, as the sign-in proved it; never from a form field."""

    name: str
    token: str = field(repr=False)
    namespaces: tuple[str, ...] = ()
    scopes: frozenset[str] = frozenset()  # that the sign-in gave
    expires_at: datetime | None = None  # when the token ends; None where the Hub did not tell


@dataclass(frozen=True)
class ModelFacts:
    """What the Hub states of one model, from its list of files and its card."""

    id: str  # as the Hub writes it
    weight_bytes: int  # of its safetensors files
    license: str | None
    trained_from: tuple[str, ...]  # the models that its card names as its base; empty: it names none
    closed: bool  # gated or private


@dataclass(frozen=True)
class Published:
    """A model on the Hub at one commit, with those of its files that its page shows."""

    id: str
    sha: str
    license: str | None
    card: str  # README.md, a stranger's text; empty: there is none
    report: dict[str, Any]  # hubmerge.json, a stranger's JSON; empty: there is none
    is_open: bool  # neither private nor gated, so that a browser may fetch its pictures from the Hub


@dataclass(frozen=True)
class MergeRequest:
    """One submission of the form."""

    recipe: dict[str, Any]  # the recipe as users write it
    target: str  # org/name
    private: bool
    license: str | None = None  # the user's choice where the inputs leave it open
    suite: str | None = None  # a name of `Service.suites` that the merge and its parents are evaluated with; None: the
    # site's usual one. A private merge has none, since scores are public


@dataclass(frozen=True)
class LogLine:
    """Something that happened to a job."""

    time: str
    kind: str  # submitted, claimed, stage, warning, retry, lost, released, cancel_requested, done, failed, cancelled
    stage: str = ""  # that began
    text: str = ""  # of a warning, or why an attempt failed
    attempt: int | None = None  # that began, or was lost


@dataclass(frozen=True)
class Scoring:
    """The evaluation of a published merge, or of one of its parents."""

    model: str
    sha: str
    role: str  # merge, base or agent
    job: str = ""  # its job; nothing before it is asked for
    state: str = "waiting"  # or the job's
    stage: str = ""
    started: str | None = None
    finished: str | None = None
    place: int | None = None  # in the queue, 1: next; None when not queued, and in lists


@dataclass(frozen=True)
class JobView:
    """A job as a page shows it."""

    id: str
    user: str
    state: str  # queued, running, cancelling, done, failed, cancelled
    stage: str  # resolve, plan, download, probe, merge, card, publish; of evaluations: the runner's and record
    target: str
    private: bool
    recipe: dict[str, Any]
    attempt: int
    queue_position: int | None  # 1: next; None when not queued
    progress: dict[str, Any] | None  # stage, done, total, unit, per_second
    statistics: dict[str, Any] | None  # report.statistics["total"], as soon as it is known
    warnings: tuple[str, ...]
    error: dict[str, Any] | None  # code, message, problems, retryable
    result: dict[str, Any] | None  # repo, url, commit
    created: str
    started: str | None
    finished: str | None
    kind: str = "merge"  # or evaluate: `target` is the model that is measured; or diff: there is no recipe either
    suite: str = ""  # of an evaluation
    signed_in_until: str | None = None  # how long the job may act as its owner; told to the owner alone
    models: tuple[str, ...] = ()  # of a diff: base and agent, each id@sha
    license: str | None = None  # that its owner chose; told to the owner alone
    log: tuple[LogLine, ...] = ()  # oldest first; the newest of a long one. Empty in lists
    typical_s: float | None = None  # what the present stage took in earlier jobs; of a job that waits: the wait
    evaluations: tuple[Scoring, ...] = ()  # of a published merge that is evaluated, the merge first
    ticket: int = 0  # grows with every submission
    after_s: float | None = None  # what followed the present stage in earlier jobs, until their end
    predicted_s: float | None = None  # of the passes over the weights, from the plan, without the network


@dataclass(frozen=True)
class Comparison:
    """Two models that fit each other, and the job that compares them, where there is one."""

    plan: Plan
    job: JobView | None


@dataclass(frozen=True)
class EvaluationAnswer:
    """What became of a request for an evaluation."""

    outcome: str  # queued; under way: it was asked for before; scored; failed: not long ago, and not yet due again
    model: str
    sha: str  # the commit that is measured
    suite: str
    job: str = ""  # its job; empty where the score is older than the jobs that are kept, or the job is private
    place: int | None = None  # in the queue; 1: next


@dataclass(frozen=True)
class QueuedEvaluation:
    """An evaluation that runs or waits."""

    model: str
    sha: str
    suite: str
    job: str
    since: str  # when it began, or was asked for
    place: int | None  # in the queue, where private ones count, too; None: it runs
    stage: str


@dataclass(frozen=True)
class EvaluationQueue:
    """The evaluations of public models."""

    running: tuple[QueuedEvaluation, ...]
    waiting: tuple[QueuedEvaluation, ...]  # in their order; the first of a long queue
    waiting_in_all: int


@dataclass(frozen=True)
class WatcherEvent:
    """Something that a watcher did, or left out with its reason."""

    kind: str  # merged, refused or skipped
    time: str
    subject: str  # the target of a merge, or what was skipped
    sha: str = ""  # of a skipped model
    code: str = ""
    text: str = ""
    agents: tuple[str, ...] = ()  # id@sha, of a merge
    job_id: str | None = None
    job_state: str | None = None


@dataclass(frozen=True)
class WatcherView:
    """A rule as a page shows it; `problem` where its file cannot be read."""

    name: str
    owner: str = ""
    about: str = ""  # what it does, in one sentence
    target: str = ""
    suite: str | None = None
    private: bool = False
    budget: int = 0
    used_today: int = 0
    polled: str | None = None
    next_look: str | None = None  # at the latest; None where none is due
    paused: bool = False
    forgets: bool = False  # a restart ends the pause, since the disk that it is kept on is lost
    own: bool = False  # the visitor's, who may pause it and let it look now
    rule: str = ""  # as YAML
    waiting: str = ""  # what it waits for
    problem: dict[str, Any] | None = None  # code, message, problems, retryable
    events: tuple[WatcherEvent, ...] = ()  # newest first


@dataclass(frozen=True)
class Trial:
    """What a rule would do if it looked now."""

    about: str  # what the rule does, in one sentence
    rule: str  # as YAML
    target: str = ""  # of the merge that it would start; empty: none
    agents: tuple[str, ...] = ()  # id@sha, of that merge
    waiting: str = ""  # why there would be none
    left_out: tuple[WatcherEvent, ...] = ()
    problem: dict[str, Any] | None = None  # why that merge is not possible
    anew: bool = True  # as a watcher that has merged nothing; its owner's trial knows what it has merged


def number(value: Any) -> float | None:
    """A finite number of untyped data, None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):  # of an integer beyond any float
        return float(value) if math.isfinite(value) else None
    return None


def number_of(values: Any, key: str) -> float | None:
    """The same, of what stands under `key`."""
    return number(values.get(key)) if isinstance(values, Mapping) else None


def table_of(values: Any, key: str) -> Mapping[str, Any]:
    """The object under `key` of untyped data; empty where there is none."""
    found = values.get(key) if isinstance(values, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def list_of(values: Any, key: str) -> list[Any]:
    """The list under `key` of untyped data; empty where there is none."""
    found = values.get(key) if isinstance(values, Mapping) else None
    return list(found) if isinstance(found, list | tuple) else []


def tables_of(values: Any, key: str) -> list[Mapping[str, Any]]:
    """The objects in the list under `key` of untyped data."""
    return [each for each in list_of(values, key) if isinstance(each, Mapping)]

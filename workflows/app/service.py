"""The protocols by which the pages ask and act: a few typed questions and actions.

The pages know neither the job store nor the worker. `workflows.service` implements `Service`, and tests may use
another implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from hubmerge.engine.preview import Preview, Tell, untold
from hubmerge.hub.client import RepoSummary
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
    scoring_s: float | None = None  # one evaluation of the merge or a parent; None where what is left cannot be told


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


class Service(Protocol):
    """Every action of the pages and of the API; each raises HubmergeError with a message fit to be shown."""

    endpoint: str

    @property
    def suites(self) -> Mapping[str, str]:
        """Name → title of the suites that an evaluation may be asked for with, the usual one first; none: nothing is
        evaluated here."""

    def visitor(self, name: str | None, token: str) -> Visitor:
        """The user with the namespaces that the token may write to; LoginError where it is not `name`'s, if given."""

    def search(
        self, text: str, visitor: Visitor | None, limit: int = 10, tags: Sequence[str] = ()
    ) -> list[RepoSummary]:
        """Models whose id holds the text and that carry all tags, most downloaded first."""

    def about(self, name: str, visitor: Visitor | None) -> ModelFacts:
        """Of org/name or org/name@revision; SourceNotFoundError and friends where it cannot be read."""

    def published(self, name: str, sha: str | None, visitor: Visitor | None) -> Published:
        """A model's card and report; SourceNotFoundError and friends where the visitor cannot read it."""

    def inspect(self, recipe: Mapping[str, Any], visitor: Visitor | None, license: str | None = None) -> Plan:
        """Headers only; IncompatibleError and friends carry every problem. `license`: what the user chose, if that was
        chosen already."""

    def preview(self, recipe: Mapping[str, Any], visitor: Visitor | None, tell: Tell = untold) -> Preview:
        """What `inspect` checks, then a few megabytes of weights: what the agents changed in a few layers."""

    def submit(self, request: MergeRequest, visitor: Visitor) -> JobView:
        """Check everything that can be checked now, then queue; the same request again finds the same job."""

    def comparison(self, base: str, agent: str, visitor: Visitor | None) -> Comparison:
        """Two models on the Hub as their headers have them; IncompatibleError and friends carry every problem."""

    def compare(self, base: str, agent: str, visitor: Visitor) -> Comparison:
        """Queue their comparison, or find it; the result of its job is a `Diff` as JSON."""

    def request_evaluation(self, model: str, suite: str, visitor: Visitor) -> EvaluationAnswer:
        """Ask for a score of a public model, org/name or org/name@revision; an empty suite is the usual one."""

    def evaluation_queue(self) -> EvaluationQueue:
        """What is measured now and what waits; nothing private."""

    def job(self, job_id: str, visitor: Visitor | None) -> JobView:
        """A job; one with a private target is shown to its owner only."""

    def jobs(self, visitor: Visitor, before: int | None = None) -> list[JobView]:
        """The visitor's own jobs and the evaluations that the visitor asked for, newest first, a page of them;
        `before`: the ticket of the last one seen."""

    def public_jobs(self, before: int | None = None) -> list[JobView]:
        """Everybody's merges and comparisons whose results are public, newest first, a page of them."""

    def under_way(self) -> tuple[int, int, int]:
        """How many public jobs are merging, are evaluating, and wait; for everybody."""

    def cancel(self, job_id: str, visitor: Visitor) -> JobView:
        """Only the owner may."""

    def retry(self, job_id: str, visitor: Visitor) -> JobView:
        """Queue a failed or cancelled job once more, with the visitor's present sign-in. Only the owner may."""


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

"""Evaluations as jobs: which scores are known, which are wanted, and requests for them that never repeat a run.

A job's id is over the model, its commit, the suite, its version and the split. So every request for the same score,
from whichever scheduler, finds the same job, and a new version of the suite makes a new one. Every finding about a
model is recorded, failures too, and is not measured again. If a job failed without a record, the machine or the Hub was
in trouble; the job is due again hours later, and its owner may start it earlier.

    done merges with a suite → the merge, its agents, its base → those without a score → requests, merges first
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import func, select

from hubmerge.board.export import flag_text
from hubmerge.board.lineage import Lineage
from hubmerge.board.results_dataset import LoadedResults, ResultsDataset
from hubmerge.errors import EvaluationError, HubmergeError, QuotaError, SourceNotFoundError
from hubmerge.evaluation.suites import pin
from hubmerge.hub.client import Hub
from hubmerge.hub.names import is_hub_id, is_sha
from workflows.jobs.account import Account
from workflows.jobs.jobs import EVALUATION, Job, NewJob, State, pinned_models
from workflows.jobs.schema import JOBS
from workflows.jobs.store import Store
from workflows.kept import KeptAnswers

log = logging.getLogger(__name__)

Pin = tuple[str, str]  # a model's id and commit
VERSION_S = 300.0  # for so long a suite's version is believed; then its datasets' heads are asked for again
AGAIN_AFTER = timedelta(hours=6)
ASKED_EACH = 3  # evaluations that one visitor asked for, waiting or running
# merges that people start have priority 0; jobs that a person waits for come first
WATCHED_MERGE = -10
OF_MERGE = -20
ASKED = -20  # by a visitor; who asks first is served first
OF_CANDIDATE = -30  # a rule's choice waits for it
OF_PARENT = -40
# uses of output/task.py; "": of a class that is not known
_WRITES_TEXT = ("", "text-generation", "text2text-generation", "image-text-to-text", "audio-text-to-text", "any")


class ScoreKey(NamedTuple):
    """The identity of a score."""

    model: str
    sha: str
    suite: str
    suite_version: str
    split: str


class RecordedScores:
    """Answers the questions of the schedule and the watchers from the results dataset.

    `default_suite`: for public merges that no watcher started; None: they are not evaluated.
    """

    def __init__(self, hub: Hub, dataset: ResultsDataset, default_suite: str | None = None) -> None:
        self._hub = hub
        self.dataset = dataset
        self.default_suite = default_suite
        self._versions = KeptAnswers[str](VERSION_S)

    def suite_version(self, suite: str) -> str:
        """EvaluationError where there is no such suite."""
        return self._versions.get(suite, lambda: pin(suite, self._hub).version)

    def known_scores(self) -> frozenset[ScoreKey]:
        """Every run that is recorded, those that failed included: a tick does not try them again."""
        loaded = self._loaded()
        return frozenset(ScoreKey(r.model, r.sha, r.suite, r.suite_version, r.split) for r in loaded.believed)

    def ranking(self, suite: str, models: Sequence[Pin]) -> Mapping[Pin, float]:
        """The mean over the domains of those among `models` (id, sha) that the current version has scored."""
        loaded, version, wanted = self._loaded(), self.suite_version(suite), set(models)
        return {
            (r.model, r.sha): sum(r.domains.values()) / len(r.domains)
            for r in loaded.believed
            if (r.model, r.sha) in wanted
            and (r.suite, r.suite_version, r.split, r.status) == (suite, version, "test", "done")
        }

    def flagged(self, models: Sequence[Pin]) -> Mapping[Pin, str]:
        """Those among `models` (id, sha) that are contaminated or withdrawn, or descend from one that is, and why."""
        loaded = self._loaded()
        if not loaded.flags:
            return {}
        marks = Lineage(loaded.believed, models).flagged(loaded.flags)
        return {model: "; ".join(map(flag_text, marks[model])) for model in models if model in marks}

    def _loaded(self) -> LoadedResults:
        try:
            return self.dataset.load()
        except SourceNotFoundError:
            return LoadedResults(results=(), sha="")  # nothing was ever recorded


def refuse_on_no_branch(hub: Hub, model: str, sha: str) -> None:
    """EvaluationError for a commit that may be of a pull request: as the model's newest it would take its place."""
    if not hub.is_on_branch_or_tag(model, sha):
        raise EvaluationError(
            "a commit on no branch, which may be of a pull request",
            where=f"{model}@{sha[:12]}",
            next_step="It can be measured once the model's owner has taken it.",
        )


def is_the_bot_s(job: Job) -> bool:
    """Whether the bot started the job, which then acts with the token in the environment."""
    return job.kind == EVALUATION or bool(job.payload.get("watcher"))


def evaluation_id(key: ScoreKey) -> str:
    identity = json.dumps(["evaluate", key.model, key.sha, key.suite, key.split, key.suite_version])
    return hashlib.sha256(identity.encode()).hexdigest()


def evaluation_job(
    key: ScoreKey, user: str, priority: int = OF_MERGE, *, private: bool = False, asked_by: str = ""
) -> NewJob:
    """The job that finds a score; every request gets the same one.

    `private`: only `user` may see the job. `asked_by`: the visitor whose quota it uses.
    """
    payload: dict[str, object] = key._asdict()
    if private:
        payload["private"] = True
    if asked_by:
        payload["asked_by"] = asked_by
    return NewJob(id=evaluation_id(key), kind=EVALUATION, user=user, payload=payload, priority=priority)


class EvaluationRequests:
    """Takes requests for scores: known ones and those under way cost nothing, the others become jobs."""

    def __init__(self, store: Store, account: Account, scores: RecordedScores) -> None:
        self._store = store
        self._account = account
        self.scores = scores
        self.away: set[str] = set()  # suites with which nothing could be evaluated at the last tick

    def key(self, model: str, sha: str, suite: str) -> ScoreKey:
        """The key of the score under the suite's present version; EvaluationError where there is no such suite."""
        return ScoreKey(model, sha, suite, self.scores.suite_version(suite), "test")

    def unknown(self, keys: Sequence[ScoreKey]) -> list[ScoreKey]:
        """The keys that have neither a job nor a score; the leaderboard is asked only where there is no job."""
        present = self.scores.dataset.repo
        # those that are done recorded in the present dataset
        here = func.coalesce(JOBS.c.result["repo"].as_string(), present) == present
        with self._store.reading() as connection:
            asked = set(connection.execute(select(JOBS.c.id).where(JOBS.c.kind == EVALUATION, here)).scalars())
        failed = self._store.list_jobs(states=[State.FAILED], kinds=[EVALUATION], limit=None)
        asked -= {job.id for job in failed if self._failed_long_ago(job)}
        left = [key for key in keys if evaluation_id(key) not in asked]
        scored = self.scores.known_scores() if left else frozenset()
        return [key for key in left if key not in scored]

    def request(self, key: ScoreKey, priority: int, *, private: bool = False, asked_by: str = "") -> Job:
        """The job of this evaluation, queued unless it is there already, in whatever state but failed long ago or done
        for another results dataset than the present one.

        `private`: it is wanted for something that only the account's owner may see. `asked_by`: a visitor wants it, who
        has a quota of ASKED_EACH beside the account's, and for whom a cancelled job starts again. QuotaError when there
        are enough under way; ask again later.
        """
        new = evaluation_job(key, self._account.name, priority, private=private, asked_by=asked_by)

        def again(job: Job) -> bool:
            elsewhere = (job.result or {}).get("repo") not in (None, self.scores.dataset.repo)
            return elsewhere or (job.state is State.CANCELLED and bool(asked_by)) or self._failed_long_ago(job)

        # where merges alone fill every place, a rule would wait for its candidates without end
        limit = ASKED_EACH if asked_by else self._store.jobs_per_user + (priority == OF_CANDIDATE)
        with self._store.writing() as change:
            return change.submit(new, self._account.seal(new.id), limit, again=again)

    def _failed_long_ago(self, job: Job) -> bool:
        """Whether a job failed, and is due again; what a clock that was ahead wrote lies after now."""
        if job.state is not State.FAILED or job.finished is None:
            return False
        now = self._store.clock.now()
        return not now - AGAIN_AFTER <= datetime.fromisoformat(job.finished) <= now


def schedule_evaluations(store: Store, requests: EvaluationRequests) -> int:
    """Request every score that is wanted and not known; returns how many wait for room in the queue.

    A parent of many merges is one request. When a suite or its data change, so does its version, and everything is due
    again.
    """
    merged: dict[ScoreKey, int] = {}
    parents: dict[ScoreKey, int] = {}
    public: set[Pin] = set()
    before, requests.away = requests.away, set()
    for suite, private, pins in _done_merges(store, requests.scores.default_suite):
        if not private:
            public.update(pins)
        if suite in requests.away:
            continue
        try:
            key, *of_parents = [requests.key(*pin, suite) for pin in pins]
        except HubmergeError as error:  # a suite that is no longer there, or a Hub that is away
            requests.away.add(suite)
            if suite not in before:
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

    It is the one that its rule or its user named; else `default_suite`, unless the merge is a rule's, or private, since
    its scores would be public, or writes no text.
    """
    passed_over = payload.get("watcher") or payload.get("private") or result.get("use", "") not in _WRITES_TEXT
    return payload.get("suite") or (None if passed_over else default_suite)

"""Evaluations as jobs: their identity, their priority, and requests for them that never repeat a run.

A job's id is over the model, its commit, the suite, its version and the split. So every request for the same score,
from whichever scheduler, finds the same job, and a new version of the suite makes a new one. Every finding about a
model is recorded, failures too, and is not measured again. If a job failed without a record, the machine or the Hub was
in trouble; the job is due again hours later, and its owner may start it earlier. Where the model is gone, it is due
again after as long as the job has failed for that, so that what was deleted is asked for more and more seldom.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import select

from hubmerge.errors import SourceNotFoundError
from workflows.jobs.account import Account
from workflows.jobs.jobs import EVALUATION, Job, NewJob, State
from workflows.jobs.schema import JOBS
from workflows.jobs.scores import RecordedScores, ScoreKey
from workflows.jobs.store import Store

AGAIN_AFTER = timedelta(hours=6)
ASKED_EACH = 3  # evaluations that one visitor asked for, waiting or running
# merges that people start have priority 0; jobs that a person waits for come first
WATCHED_MERGE = -10
OF_MERGE = -20
ASKED = -20  # by a visitor; who asks first is served first
OF_CANDIDATE = -30  # a rule's choice waits for it
OF_PARENT = -40


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

    def key(self, model: str, sha: str, suite: str) -> ScoreKey:
        """The key of the score under the suite's present version; EvaluationError where there is no such suite."""
        return ScoreKey(model, sha, suite, self.scores.suite_version(suite), "test")

    def unknown(self, keys: Sequence[ScoreKey]) -> list[ScoreKey]:
        """The keys that have neither a job nor a score; the leaderboard is asked only where there is no job."""
        with self._store.reading() as connection:
            asked = set(connection.execute(select(JOBS.c.id).where(JOBS.c.kind == EVALUATION)).scalars())
        failed = self._store.list_jobs(states=[State.FAILED], kinds=[EVALUATION], limit=None)
        asked -= {job.id for job in failed if self._failed_long_ago(job)}
        left = [key for key in keys if evaluation_id(key) not in asked]
        scored = self.scores.known_scores() if left else frozenset()
        return [key for key in left if key not in scored]

    def request(self, key: ScoreKey, priority: int, *, private: bool = False, asked_by: str = "") -> Job:
        """The job of this evaluation, queued unless it is there already, in whatever state but failed long ago.

        `private`: it is wanted for something that only the account's owner may see. `asked_by`: a visitor wants it, who
        has a quota of ASKED_EACH beside the account's, and for whom a cancelled job starts again. QuotaError when there
        are enough under way; ask again later.
        """
        new = evaluation_job(key, self._account.name, priority, private=private, asked_by=asked_by)

        def again(job: Job) -> bool:
            wanted_anew = job.state is State.CANCELLED and bool(asked_by)
            return wanted_anew or self._failed_long_ago(job, asked=bool(asked_by))

        # where merges alone fill every place, a rule would wait for its candidates without end
        limit = ASKED_EACH if asked_by else self._store.jobs_per_user + (priority == OF_CANDIDATE)
        with self._store.writing() as change:
            return change.submit(new, self._account.seal(new.id), limit, again=again)

    def _failed_long_ago(self, job: Job, *, asked: bool = False) -> bool:
        """Whether a job failed, and is due again; what a clock that was ahead wrote lies after now."""
        if job.state is not State.FAILED or job.finished is None or job.error is None:
            return False
        now, ended = self._store.clock.now(), datetime.fromisoformat(job.finished)
        gone = job.error.code == SourceNotFoundError.code and not asked  # whoever asks has seen the model
        wait = max(AGAIN_AFTER, ended - datetime.fromisoformat(job.created)) if gone else AGAIN_AFTER
        return not now - wait <= ended <= now

"""A job as a page shows it: what happened to it so far, how long the rest usually takes, and its evaluations."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from operator import itemgetter

from workflows.jobs.evaluations import suite_of
from workflows.jobs.jobs import Job, JobEvent, State, pinned_models
from workflows.jobs.store import Store
from workflows.values import JobView, LogLine, Scoring, list_of, number_of, table_of

LOG_EVENTS = 300  # of a job, that its page shows
_ASKED = 20  # earlier ones, from which a stage's usual time is taken
_Scorings = Mapping[tuple[str, str], Sequence[Job]]


class Trail:
    """Makes views of jobs."""

    def __init__(self, store: Store, *, suite: str | None, measures: bool) -> None:
        """`measures`: merges are evaluated here, with `suite` where nothing else is said."""
        self._store = store
        self._suite = suite
        self._measures = measures

    def view(self, job: Job, *, own: bool) -> JobView:
        """What a page shows of a job; what only its owner may know where it is the visitor's `own`."""
        return self._view(job, self._scorings([job]), own=own)

    def views(self, jobs: Sequence[Job], is_own: Callable[[Job], bool]) -> list[JobView]:
        """What a list shows of jobs, without logs and statistics; their evaluations are looked for once."""
        scorings = self._scorings(jobs)
        return [self._view(job, scorings, own=is_own(job), in_full=False) for job in jobs]

    def _view(self, job: Job, scorings: _Scorings, *, own: bool, in_full: bool = True) -> JobView:
        events = self._store.events(job.id, LOG_EVENTS, statistics=False) if in_full else ()
        newest = self._store.events(job.id, 1, statistics=True) if in_full else ()
        counted = newest[-1].data.get("values") if newest else None
        sealed = self._store.sealed_token(job.id) if own else None
        warnings = dict.fromkeys(map(str, list_of(job.payload, "warnings")))
        warnings |= dict.fromkeys(str(e.data["message"]) for e in events if e.type == "warning" and "message" in e.data)
        ahead = self._store.waiting_before(job) if job.state is State.QUEUED else None
        unfinished = in_full and job.state in (State.QUEUED, State.RUNNING)
        spent, after = stage_times(self._store.stage_times(job.kind, _ASKED)) if unfinished else ({}, {})
        return JobView(
            id=job.id,
            user=job.user,
            state=job.state.value,
            stage=job.stage,
            target=str(job.payload.get("target") or job.payload.get("model", "")),
            private=bool(job.payload.get("private")),
            recipe=dict(table_of(job.payload, "recipe")),
            attempt=job.attempt,
            queue_position=None if ahead is None else ahead + 1,
            progress=job.progress,
            statistics=counted,
            warnings=tuple(warnings),
            error=job.error.model_dump(mode="json") if job.error else None,
            result=job.result,
            created=job.created,
            started=job.started,
            finished=job.finished,
            kind=job.kind,
            suite=str(job.payload.get("suite") or ""),
            signed_in_until=sealed.expires_at if sealed else None,
            models=tuple(str(job.payload[name]) for name in ("base", "agent") if name in job.payload),
            license=job.payload.get("license") if own else None,
            log=tuple(map(_line, events)),
            typical_s=self._usual(job, ahead, spent),
            evaluations=self._evaluations(job, scorings, in_full=in_full),
            ticket=job.ticket,
            after_s=after.get(job.stage) if job.state is State.RUNNING else None,
            predicted_s=number_of(job.payload, "predicted_s"),
        )

    def _usual(self, job: Job, ahead: int | None, spent: Mapping[str, float]) -> float | None:
        """What the job's stage took in earlier jobs; of one that waits, what those before it will take."""
        if ahead is None or "" not in spent:
            return spent.get(job.stage)
        busy = self._store.list_jobs(states=[State.RUNNING], kinds=[job.kind], limit=1)
        return spent[""] * (ahead + len(busy) / 2)

    def _pins(self, job: Job) -> list[tuple[str, str, str]]:
        """Role, model and commit of a published merge and of its parents, where they may have evaluations."""
        if not self._measures or job.kind != "merge" or job.state is not State.DONE or not job.result:
            return []
        merge = ("merge", str(job.result.get("repo", "")), str(job.result.get("commit", "")))
        return [merge, *pinned_models(table_of(job.payload, "recipe"))]

    def _scorings(self, jobs: Sequence[Job]) -> _Scorings:
        """The evaluations of merges and of their parents by model and commit, newest first."""
        found: dict[tuple[str, str], list[Job]] = defaultdict(list)
        if pins := {(model, sha) for job in jobs for _, model, sha in self._pins(job)}:
            for evaluation in self._store.evaluations_of(pins):
                found[evaluation.payload["model"], evaluation.payload["sha"]].append(evaluation)
        return found

    def _evaluations(self, job: Job, scorings: _Scorings, *, in_full: bool) -> tuple[Scoring, ...]:
        """Those of a merge that is to have any. `in_full`: with the places in the queue."""
        pins = self._pins(job)
        if not pins or job.result is None:
            return ()
        asked = {(model, sha): scorings.get((model, sha), ()) for _, model, sha in pins}
        of_merge = (e.payload["suite"] for e in asked[pins[0][1:]])
        suite = suite_of(job.payload, job.result, self._suite) or next(of_merge, None)
        if suite is None:
            return ()
        # with others, anybody may have a parent measured
        found = {pin: next((e for e in of_pin if e.payload["suite"] == suite), None) for pin, of_pin in asked.items()}
        queued = [e for e in found.values() if in_full and e is not None and e.state is State.QUEUED]
        places = {e.id: self._store.waiting_before(e) + 1 for e in queued}
        return tuple(_scoring(pin, found[pin[1:]], places) for pin in pins)


def _scoring(pin: tuple[str, str, str], job: Job | None, places: Mapping[str, int]) -> Scoring:
    role, model, sha = pin
    if job is None:
        return Scoring(model, sha, role)
    state = job.state.value
    return Scoring(model, sha, role, job.id, state, job.stage, job.started, job.finished, places.get(job.id))


def _line(event: JobEvent) -> LogLine:
    data = event.data
    error = data.get("error")
    reason = error.get("message", "") if isinstance(error, Mapping) else data.get("message", "")
    attempt = data.get("attempt")
    return LogLine(
        event.time,
        event.type,
        stage=str(data.get("stage") or ""),
        text=str(reason or ""),
        attempt=attempt if isinstance(attempt, int) else None,
    )


def stage_times(moments: Iterable[tuple[str, str, str]]) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Stage → the median over jobs of the seconds spent in it ("": in all), and of those that followed it.

    From (job, moment, stage) in order; a stage lasts until the next moment of its job.
    """
    spent: dict[str, list[float]] = defaultdict(list)
    after: dict[str, list[float]] = defaultdict(list)
    for _, passed in groupby(moments, key=itemgetter(0)):
        told = [(datetime.fromisoformat(moment), stage) for _, moment, stage in passed]
        end = told[-1][0]
        of_job: dict[str, float] = defaultdict(float)
        left: dict[str, float] = {}
        for (began, stage), (ended, _) in pairwise(told):
            seconds = max((ended - began).total_seconds(), 0.0)
            of_job[""] += seconds
            if stage:
                of_job[stage] += seconds
                left[stage] = max((end - ended).total_seconds(), 0.0)
        for stage, seconds in of_job.items():
            spent[stage].append(seconds)
        for stage, seconds in left.items():
            after[stage].append(seconds)
    spent_s, after_s = ({s: statistics.median(seconds) for s, seconds in times.items()} for times in (spent, after))
    return spent_s, after_s

"""Evaluations that visitors ask for, and the public queue of all evaluations.

A score and the answers behind it are public, so only a model that everybody may read is measured. The model is looked
at with the visitor's own sign-in, so that nobody learns through the bot's account whether a model exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from hubmerge.board.eval_results import differ_in_scores_alone
from hubmerge.errors import (
    EvaluationError,
    GatedError,
    MemoryLimitError,
    PermissionDeniedError,
    RecipeError,
    SourceChangedError,
    SourceNotFoundError,
)
from hubmerge.evaluation.runner import check_evaluable, usable_memory
from hubmerge.evaluation.suites import SUITES, get_suite
from hubmerge.hub.client import Hub, RepoState
from hubmerge.plan.disk import shown_bytes
from hubmerge.recipe.model_name import ModelName
from hubmerge.settings import Settings
from hubmerge.sources.open import open_model
from workflows.app.service import EvaluationAnswer, EvaluationQueue, QueuedEvaluation, Visitor
from workflows.jobs.evaluations import ASKED, EvaluationRequests, evaluation_id
from workflows.jobs.jobs import ACTIVE, EVALUATION, Job, State
from workflows.jobs.scores import ScoreKey
from workflows.jobs.store import Store

MOST_OF_MEMORY = 0.6  # that weights may take: batches and the process itself need the rest
MOST_LISTED = 100  # that wait
_ZOO = "zoo"  # its questions are on an embedded Hub alone


class Measuring:
    """Answers requests for evaluations. Without `requests` every one is refused, since nothing is evaluated here."""

    def __init__(self, settings: Settings, store: Store, requests: EvaluationRequests | None) -> None:
        self._settings = settings
        self._store = store
        self._requests = requests if settings.token is not None else None

    @property
    def suites(self) -> Mapping[str, str]:
        """Name → title of the suites to offer, the Space's own first; none where nothing is evaluated."""
        if self._requests is None:
            return {}
        own = self._settings.suite
        if self._settings.is_loopback:  # an embedded Hub holds the data of its own suite alone
            names = [own or _ZOO]
        else:
            names = [name for name in SUITES if name != _ZOO or own == _ZOO]
        names.sort(key=lambda name: name != own)
        return {name: SUITES[name].title for name in names if name in SUITES}

    def of_merge(self, suite: str | None, private: bool) -> str | None:
        """The suite that somebody chose for a merge; EvaluationError where the merge cannot be evaluated with it."""
        if not suite:
            return None
        if private:
            raise EvaluationError(
                "a private merge's scores would become public",
                got=suite[:80],
                next_step="Publish the merge openly, or choose no suite.",
            )
        if self._requests is None:
            raise EvaluationError("no merges are evaluated here", got=suite[:80], next_step="Choose no suite.")
        return get_suite(suite, self.suites).name

    def request(self, model: str, suite: str, visitor: Visitor) -> EvaluationAnswer:
        """Ask for a score of a model at its present commit, or at the revision that the name has."""
        if self._requests is None:
            raise EvaluationError(
                "no models are evaluated here",
                expected="a results dataset and an account to fill it",
                got="none",
                next_step="Whoever runs this site can set HUBMERGE_RESULTS and HF_TOKEN.",
            )
        chosen = get_suite(suite or next(iter(self.suites), ""), self.suites).name
        name = ModelName.parse(model)
        if name.local:
            raise RecipeError("a folder, where only models on the Hub can be used", where="model", got=model[:200])
        hub = Hub(self._settings.endpoint, visitor.token)
        state = self._evaluable(name, hub)
        id, sha = state.id, state.sha
        key = self._requests.key(id, sha, chosen)
        if measured := self._measured_at(key, state, hub):
            return EvaluationAnswer("scored", id, measured, chosen)
        before = self._store.find(evaluation_id(key))
        job = self._requests.request(key, ASKED, asked_by=visitor.name)
        shown = "" if job.payload.get("private") else job.id
        asked = "under way" if before is not None and before.state in ACTIVE else "queued"
        outcome = {State.DONE: "scored", State.FAILED: "failed"}.get(job.state, asked)
        place = self._store.waiting_before(job) + 1 if job.state is State.QUEUED else None
        return EvaluationAnswer(outcome, id, sha, chosen, shown, place)

    def _measured_at(self, key: ScoreKey, state: RepoState, hub: Hub) -> str | None:
        """The commit at which the model was measured: this one, or one to which its scores alone were added since."""
        assert self._requests is not None
        known = self._requests.scores.known_scores()
        if key in known:
            return key.sha
        for earlier in sorted(other.sha for other in known if other == key._replace(sha=other.sha)):
            with suppress(SourceNotFoundError, SourceChangedError):  # a history that was rewritten
                if differ_in_scores_alone(hub.repo_state(key.model, earlier), state):
                    return earlier
        return None

    def _evaluable(self, name: ModelName, hub: Hub) -> RepoState:
        """A model that everybody may read and that this machine can evaluate."""
        state = hub.repo_state(name.id, name.revision)
        if state.private:
            raise PermissionDeniedError(
                "a private model's answers would become public",
                where=state.id,
                next_step="Make the model public first; scores and answers can be read by everybody.",
            )
        if state.gated:
            raise GatedError(
                "a gated model cannot be evaluated here",
                where=state.id,
                next_step="Only its owner can open it to everybody; then it can be measured.",
            )
        model = open_model(ModelName(id=state.id, revision=state.sha), hub, allow_local=False)
        whole = check_evaluable(model, hub)
        if whole is not None and hub.repo_state(whole.base.ref.id, whole.base.ref.sha).gated:
            raise GatedError(
                "an adapter of a gated model cannot be evaluated here",
                where=whole.base.ref.id,
                next_step="Only the owner of its base can open that to everybody; then it can be measured.",
            )
        weight_bytes = model.weight_bytes if whole is None else whole.output_bytes
        memory = usable_memory()
        if memory is not None and weight_bytes > MOST_OF_MEMORY * memory:
            most, needed = shown_bytes(int(MOST_OF_MEMORY * memory), weight_bytes)
            raise MemoryLimitError(
                "the model is too big to be evaluated here",
                where=state.id,
                expected=f"at most {most} of weights",
                got=needed,
                next_step="Evaluate it where there is more memory, with hubmerge's command line.",
            )
        return state

    def queue(self) -> EvaluationQueue:
        """What is measured now and what waits, in its order; nothing private."""
        jobs = self._store.list_jobs(states=ACTIVE, kinds=(EVALUATION,), limit=None)
        waiting = sorted((j for j in jobs if j.state is State.QUEUED), key=lambda j: (-j.priority, j.ticket))
        shown = [_queued(job, place) for place, job in enumerate(waiting, 1) if not job.payload.get("private")]
        running = [_queued(j, None) for j in jobs if j.state is not State.QUEUED and not j.payload.get("private")]
        return EvaluationQueue(tuple(reversed(running)), tuple(shown[:MOST_LISTED]), len(shown))


def _queued(job: Job, place: int | None) -> QueuedEvaluation:
    payload = job.payload
    return QueuedEvaluation(
        model=str(payload["model"]),
        sha=str(payload["sha"]),
        suite=str(payload["suite"]),
        job=job.id,
        since=(job.started if place is None else job.created) or job.created,
        place=place,
        stage=job.stage,
    )

"""The actions of the pages on the Hub and the job store, with the checks of the library.

Every action gets a `Visitor`, which is made from a proven sign-in, and checks again what that user may do.

A score and the answers behind it are public, so only a model that everybody may read is measured. The model is looked
at with the visitor's own sign-in, so that nobody learns through the bot's account whether a model exists.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import SecretStr
from pydantic_core import from_json

from hubmerge.board.eval_results import differ_in_scores_alone
from hubmerge.engine.preview import Preview, preview
from hubmerge.engine.sink import MANIFEST
from hubmerge.errors import (
    EvaluationError,
    FormatError,
    GatedError,
    LoginError,
    MemoryLimitError,
    PermissionDeniedError,
    RecipeError,
    SourceChangedError,
    SourceNotFoundError,
    TimeLimitError,
)
from hubmerge.evaluation.runner import check_evaluable, usable_memory
from hubmerge.evaluation.suites import SUITES, get_suite
from hubmerge.hub.client import Hub, Identity, RepoState, RepoSummary
from hubmerge.hub.names import stated_bases
from hubmerge.line import Request, prepare
from hubmerge.output.diff import comparison_recipe, open_comparison
from hubmerge.output.plan_words import plan_summary
from hubmerge.output.publish import Target
from hubmerge.plan.disk import shown_bytes
from hubmerge.plan.plan import Plan
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.settings import Settings
from hubmerge.sources.open import open_model
from hubmerge.text.markdown import duration
from workflows.jobs.comparisons import comparison_id, comparison_job
from workflows.jobs.evaluations import (
    ASKED,
    EvaluationRequests,
    ScoreKey,
    evaluation_id,
    is_the_bot_s,
    refuse_on_no_branch,
)
from workflows.jobs.jobs import ACTIVE, EVALUATION, Job, JobNotFoundError, NewJob, State
from workflows.jobs.pipeline import merge_payload
from workflows.jobs.store import Store
from workflows.jobs.tokens import TokenVault
from workflows.kept import KeptAnswers
from workflows.trail import Trail
from workflows.values import (
    PAGE_JOBS,
    Comparison,
    EvaluationAnswer,
    EvaluationQueue,
    JobView,
    MergeRequest,
    ModelFacts,
    Published,
    QueuedEvaluation,
    Visitor,
)

MAX_READ_BYTES = 16_000_000  # of a model's card, and of a merge's report
MAX_READ_VALUES = 1_000_000  # of a report; one of 32 agents and 80 layers has half of them
MOST_OF_MEMORY = 0.6  # that weights may take: batches and the process itself need the rest
MOST_LISTED = 100  # evaluations that wait
_ZOO = "zoo"  # its questions are on an embedded Hub alone
_IDENTITY_S = 60.0
_FACTS_S = 60.0  # the merge page asks for the facts of all models after every change


class Service:
    """Each action raises HubmergeError with a message fit to be shown. Without `requests` nothing is evaluated here."""

    def __init__(
        self, settings: Settings, store: Store, vault: TokenVault, requests: EvaluationRequests | None = None
    ) -> None:
        self.endpoint = settings.endpoint
        self._settings = settings
        self._longest_s = None if settings.zero_gpu else settings.merge_hours * 3600  # of a lent GPU nothing is known
        self._store = store
        self._vault = vault
        self._requests = requests if settings.token is not None else None
        self._trail = Trail(store, suite=settings.suite, measures=self._requests is not None)
        self._identities = KeptAnswers[Identity](_IDENTITY_S)
        self._facts = KeptAnswers[ModelFacts](_FACTS_S)

    def visitor(self, name: str | None, token: str) -> Visitor:
        """The visitor to whom the token belongs; a name that does not fit the token is refused."""
        identity = self._identities.get(_digest(token), lambda: Hub(self.endpoint, token).whoami())
        if name is not None and identity.name != name:
            raise LoginError("the sign-in does not belong to its token", expected=identity.name, got=name)
        return Visitor(identity.name, token, identity.namespaces)

    def search(
        self, text: str, visitor: Visitor | None, limit: int = 10, tags: Sequence[str] = ()
    ) -> list[RepoSummary]:
        """Models whose id holds the text and that carry all tags, most downloaded first."""
        return self._hub(visitor).search_models(text, limit, tags=tags)

    def about(self, name: str, visitor: Visitor | None) -> ModelFacts:
        """Of org/name or org/name@revision; SourceNotFoundError and friends where it cannot be read."""

        def ask() -> ModelFacts:
            model = ModelName.parse(name)
            return _facts(self._hub(visitor).repo_state(model.id, model.revision))

        return self._facts.get((_digest(visitor.token if visitor else ""), name), ask)

    def published(self, name: str, sha: str | None, visitor: Visitor | None) -> Published:
        """A model's card and report; SourceNotFoundError and friends where the visitor cannot read it."""
        hub = self._hub(visitor)
        state = hub.repo_state(name, sha)

        def text_of(path: str) -> str:
            if path not in state.files:
                return ""
            try:
                return hub.read_file(state.id, state.sha, path, MAX_READ_BYTES).decode("utf-8", errors="replace")
            except FormatError:  # larger
                return ""

        return Published(
            id=state.id,
            sha=state.sha,
            license=state.license,
            card=text_of("README.md"),
            report=_report(text_of(MANIFEST)),
            is_open=not (state.private or state.gated),
        )

    def inspect(self, recipe: Mapping[str, Any], visitor: Visitor | None, license: str | None = None) -> Plan:
        """Headers only; IncompatibleError and friends carry every problem. `license`: what the user chose, if that was
        chosen already."""
        request = Request(license=license or None, calibrate="find")
        plan = prepare(recipe_from_dict(dict(recipe)), self._hub(visitor), request).plan
        self._seconds(plan)
        return plan

    def _seconds(self, plan: Plan) -> float:
        """What the merge is predicted to take; TimeLimitError where it would hold up everybody else's for too long."""
        seconds = float(plan_summary(plan)["predicted_seconds"])
        if self._longest_s is not None and seconds > self._longest_s:
            less = "fewer steps, " if "steps" in plan.recipe.parameters else ""
            raise TimeLimitError(
                "the merge would take too long here",
                where=plan.recipe.method,
                expected=f"{self._longest_s / 3600:g} h at most",
                got=f"about {duration(seconds)}",
                next_step=f"Choose {less}a smaller model or another method, or merge on a machine of your own "
                "(`hubmerge run`).",
            )
        return seconds

    def preview(self, recipe: Mapping[str, Any], visitor: Visitor | None) -> Preview:
        """What `inspect` checks, then a few megabytes of weights: what the agents changed in a few layers."""
        return preview(self.inspect(recipe, visitor), self._hub(visitor))

    def submit(self, request: MergeRequest, visitor: Visitor) -> JobView:
        """Check everything that can be checked now, then queue; the same request again finds the same job."""
        target = Target(request.target.strip(), request.private, expose=not request.private)
        recipe = recipe_from_dict(dict(request.recipe))
        prepared = prepare(recipe, self._hub(visitor), Request(target, request.license, calibrate="apart"))
        suite = self._suite_of_merge(request.suite, request.private)
        payload = merge_payload(prepared, target, request.license) | ({"suite": suite} if suite else {})
        payload["predicted_s"] = self._seconds(prepared.plan)
        sealed = self._vault.seal(prepared.identity, SecretStr(visitor.token), visitor.expires_at)
        new = NewJob(id=prepared.identity, user=visitor.name, payload=payload)
        job = self._store.submit(new, sealed, undone=not prepared.published)  # e.g. deleted by hand meanwhile
        return self._trail.view(job, own=True)

    def comparison(self, base: str, agent: str, visitor: Visitor | None) -> Comparison:
        """Two models on the Hub as their headers have them; IncompatibleError and friends carry every problem."""
        plan = open_comparison(comparison_recipe(base, agent), self._hub(visitor))
        job = self._store.find(comparison_id(plan, visitor.name if visitor else ""))
        return Comparison(plan, None if job is None else self._view(job, visitor))

    def compare(self, base: str, agent: str, visitor: Visitor) -> Comparison:
        """Queue their comparison, or find it; the result of its job is a `Diff` as JSON."""
        plan = open_comparison(comparison_recipe(base, agent), self._hub(visitor))
        new = comparison_job(plan, visitor.name)
        sealed = self._vault.seal(new.id, SecretStr(visitor.token), visitor.expires_at)
        job = self._store.submit(new, sealed, shared=True)
        return Comparison(plan, self._view(job, visitor))

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

    def _suite_of_merge(self, suite: str | None, private: bool) -> str | None:
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

    def request_evaluation(self, model: str, suite: str, visitor: Visitor) -> EvaluationAnswer:
        """Ask for a score of a public model, org/name or org/name@revision; an empty suite is the usual one."""
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
        hub = self._hub(visitor)
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
        if name.revision is not None:
            refuse_on_no_branch(hub, state.id, state.sha)
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

    def evaluation_queue(self) -> EvaluationQueue:
        """What is measured now and what waits, in its order; nothing private."""
        jobs = self._store.list_jobs(states=ACTIVE, kinds=(EVALUATION,), limit=None)
        waiting = sorted((j for j in jobs if j.state is State.QUEUED), key=lambda j: (-j.priority, j.ticket))
        shown = [_queued(job, place) for place, job in enumerate(waiting, 1) if not job.payload.get("private")]
        running = [_queued(j, None) for j in jobs if j.state is not State.QUEUED and not j.payload.get("private")]
        return EvaluationQueue(tuple(reversed(running)), tuple(shown[:MOST_LISTED]), len(shown))

    def job(self, job_id: str, visitor: Visitor | None) -> JobView:
        """A job; one with a private target is shown to its owner only."""
        return self._view(self._seen(job_id, visitor), visitor)

    def _seen(self, job_id: str, visitor: Visitor | None) -> Job:
        job = self._store.find(job_id)
        if job is None or (job.payload.get("private") and not _is_own(job, visitor)):
            # the same answer for both, so that ids of private jobs cannot be told from guesses
            raise JobNotFoundError(
                "no such job, or a private one of somebody else",
                where=f"job {job_id[:12]}",
                next_step="Sign in with the account that started it.",
            )
        return job

    def jobs(self, visitor: Visitor, before: int | None = None, limit: int = PAGE_JOBS) -> list[JobView]:
        """The visitor's own jobs and the evaluations that the visitor asked for, newest first;
        `before`: the ticket of the last one seen."""
        jobs = self._store.list_jobs(user=visitor.name, asked=True, before=before, limit=limit)
        return self._trail.views(jobs, lambda job: _is_own(job, visitor))

    def public_jobs(self, before: int | None = None, limit: int = PAGE_JOBS) -> list[JobView]:
        """Everybody's merges and comparisons whose results are public, newest first."""
        kinds = ("merge", "diff")  # evaluations stand with their merges
        jobs = self._store.list_jobs(kinds=kinds, public=True, before=before, limit=limit)
        return self._trail.views(jobs, lambda job: False)

    def under_way(self) -> tuple[int, int, int]:
        """How many public jobs are merging, are evaluating, and wait; for everybody."""
        jobs = [j for j in self._store.list_jobs(states=ACTIVE, limit=None) if not j.payload.get("private")]
        running = [job.kind for job in jobs if job.state is not State.QUEUED]
        return running.count("merge"), running.count("evaluate"), len(jobs) - len(running)

    def cancel(self, job_id: str, visitor: Visitor) -> JobView:
        """Only the owner may."""
        if not visitor.token:
            raise PermissionDeniedError("only its owner may cancel a job", where=f"job {job_id[:12]}")
        self._seen(job_id, visitor)
        return self._trail.view(self._store.request_cancel(job_id, visitor.name), own=True)

    def retry(self, job_id: str, visitor: Visitor) -> JobView:
        """Queue a failed or cancelled job once more, with the visitor's present sign-in. Only the owner may."""
        job = self._seen(job_id, visitor)
        if self._settings.token is not None and is_the_bot_s(job):  # a sign-in may not write to the results dataset
            sealed = self._vault.seal(job.id, self._settings.token)
        else:
            sealed = self._vault.seal(job.id, SecretStr(visitor.token), visitor.expires_at)
        return self._trail.view(self._store.retry(job.id, visitor.name, sealed), own=True)

    def _hub(self, visitor: Visitor | None) -> Hub:
        return Hub(self.endpoint, visitor.token if visitor else None)

    def _view(self, job: Job, visitor: Visitor | None) -> JobView:
        return self._trail.view(job, own=_is_own(job, visitor))


def _is_own(job: Job, visitor: Visitor | None) -> bool:
    return visitor is not None and visitor.name == job.user


def _digest(token: str) -> bytes:
    """What is kept of a token, in place of it."""
    return hashlib.sha256(token.encode()).digest()


def _report(text: str) -> dict[str, Any]:
    """A stranger's JSON; none where it holds what can be told to nobody: NaN, half a character, endless nesting, or so
    many values, such as 5 million empty lists, that an answer of them would take minutes and gigabytes."""
    if sum(map(text.count, ",[{")) > MAX_READ_VALUES:
        return {}
    try:
        found = from_json(text, allow_inf_nan=False)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _facts(state: RepoState) -> ModelFacts:
    return ModelFacts(
        id=state.id,
        weight_bytes=sum(
            file.size for path, file in state.files.items() if "/" not in path and path.endswith(".safetensors")
        ),
        license=state.license,
        trained_from=stated_bases(state.card),
        closed=state.private or state.gated,
    )


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

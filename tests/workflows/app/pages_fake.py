"""Service, board and watchers in memory for the pages' tests: plans from made-up headers, jobs moved by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

import plan_helpers

from hubmerge.board.values import Board
from hubmerge.engine.preview import Preview
from hubmerge.errors import (
    HubmergeError,
    HubUnavailableError,
    LoginError,
    PermissionDeniedError,
    QuotaError,
    RuleError,
    SourceNotFoundError,
)
from hubmerge.hub.client import RepoSummary
from hubmerge.output.diff import comparison_recipe
from hubmerge.plan.plan import Plan, make_comparison, make_plan
from hubmerge.recipe.model_name import ModelName, ModelRef
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sources.base import Model
from workflows.jobs.comparisons import comparison_id, comparison_job
from workflows.values import (
    Comparison,
    EvaluationAnswer,
    EvaluationQueue,
    JobView,
    MergeRequest,
    ModelFacts,
    Published,
    QueuedEvaluation,
    Trial,
    Visitor,
    WatcherEvent,
    WatcherView,
)

ENDPOINT = "http://127.0.0.1:9"
HOSTILE = '<img src=x onerror="window.hacked=1">${window.hacked=2}{{value}}[x](javascript:alert(1))'
CATALOGUE = BASE, MATH, TOOL, MEM = ("zoo/base", "zoo/math-agent", "zoo/tool-agent", "zoo/mem-agent")
NAMESPACES = {"ada": ("ada", "zoo"), "bob": ("bob",)}

STATISTICS: dict[str, Any] = {
    "elements": 494_032_768,
    "overlap": [],
    "overlap_share": [0.62, 0.27, 0.09, 0.02],
    "shares": {"conflict": 0.03, "overlap": 0.08, "private": 0.27, "unchanged": 0.62},
    "agents": [
        {"agent": "math-agent", "density": 0.214, "unique_share": 0.55, "rho": 0.818},
        {"agent": "tool-agent", "density": 0.172, "unique_share": 0.49, "rho": 1.04},
        {"agent": "mem-agent", "density": 0.12, "unique_share": 0.0, "rho": "inf"},
    ],
    "pairs": [
        {"agents": ["math-agent", "tool-agent"], "jaccard": 0.221, "cosine": 0.113, "sign_agreement": 0.71},
        {"agents": ["math-agent", "mem-agent"], "jaccard": 0.152, "cosine": 0.047, "sign_agreement": 0.66},
        {"agents": ["tool-agent", "mem-agent"], "jaccard": 0.133, "cosine": -0.021, "sign_agreement": 0.48},
    ],
}


RUNNING: dict[str, Any] = {
    "state": "running",
    "stage": "merge",
    "queue_position": None,
    "started": "2026-01-31T14:06:00+00:00",
    "progress": {"stage": "merge", "done": 312e6, "total": 988e6, "unit": "bytes", "per_second": 41e6},
    "statistics": STATISTICS,
}


def model(repo_id: str, sha: str, *, shapes: Mapping[str, tuple[int, ...]] | None = None, **facts: Any) -> Model:
    """A model of two tensors whose header says so; no weights exist."""
    tensors = shapes or {"model.embed_tokens.weight": (512, 64), "model.norm.weight": (64,)}
    config = {"architectures": ["Qwen2ForCausalLM"], "vocab_size": 512, "hidden_size": 64}
    made = plan_helpers.model(repo_id, tensors, config=config, sha256=sha * 64)
    return replace(made, ref=ModelRef("hub", repo_id, sha * 40), **facts)


def models() -> dict[str, Model]:
    shas = dict(zip(CATALOGUE, "abcd", strict=True))
    cards = {name: {"base_model": CATALOGUE[0]} for name in CATALOGUE[1:3]}
    known = {name: model(name, sha, license="apache-2.0", card=cards.get(name, {})) for name, sha in shas.items()}
    known["secret/gated-agent"] = model("secret/gated-agent", "e", license="license", gated=True)
    known["other/wide-agent"] = model(
        "other/wide-agent", "f", shapes={"model.embed_tokens.weight": (640, 64), "lm_head.weight": (640, 64)}
    )
    return known


def job_view(job_id: str = "1" * 64, **changes: Any) -> JobView:
    """A queued job of ada's; `changes` are fields."""
    recipe = recipe_from_dict({"base": CATALOGUE[0], "agents": list(CATALOGUE[1:]), "method": "ram_plus"})
    asked = {"user": "ada", "target": "ada/three-in-one", "private": False, "recipe": recipe.to_dict()}
    stands = {"state": "queued", "stage": "resolve", "attempt": 1, "queue_position": 1, "warnings": ()}
    nothing = dict.fromkeys(("progress", "statistics", "error", "result", "started", "finished"))
    fields: dict[str, Any] = {**asked, **stands, **nothing, "created": "2026-01-31T14:05:00+00:00", **changes}
    return JobView(job_id, **fields)


class FakeService:
    """Keeps the promises of workflows.service.Service, with `store` in the test's hands."""

    def __init__(self, endpoint: str = ENDPOINT) -> None:
        self.endpoint = endpoint
        self.models = models()
        self.store: dict[str, JobView] = {}
        self.requests: list[tuple[MergeRequest, Visitor]] = []
        self.suites = {"math": "Mathematics", "tool": "Function calling"}
        self.evaluations: list[QueuedEvaluation] = []
        self.shelf = {CATALOGUE[0]: Published(CATALOGUE[0], "a" * 40, "mit", "# The base", {}, True)}
        self.go_on = Event()  # a look into layers waits for it
        self.go_on.set()
        self.failure: HubmergeError | None = None  # raised by the next questions while set

    def visitor(self, name: str | None, token: str) -> Visitor:
        name = name or token.removeprefix("token-of-")
        if token != f"token-of-{name}" and not token.startswith("hf_"):
            raise LoginError("the token is not valid or has expired", next_step="Sign in again.")
        return Visitor(name, token, NAMESPACES.get(name, (name,)))

    def search(
        self, text: str, visitor: Visitor | None, limit: int = 10, tags: Sequence[str] = ()
    ) -> list[RepoSummary]:
        found = [name for name in self.models if text.lower() in name]
        bases = {tag.removeprefix("base_model:finetune:") for tag in tags} - {"text-generation"}
        found = [name for name in found if bases <= {self.models[name].card.get("base_model")}]
        return [RepoSummary(name, 10, 1, (), "2026-01-01") for name in found[:limit]]

    def about(self, name: str, visitor: Visitor | None) -> ModelFacts:
        model = self._open(ModelName.parse(name))
        bases = tuple(filter(None, [model.card.get("base_model")]))
        return ModelFacts(model.ref.id, model.weight_bytes, model.license, bases, model.gated or model.private)

    def published(self, name: str, sha: str | None, visitor: Visitor | None) -> Published:
        found = self.shelf.get(name)
        if self.failure is not None:
            raise self.failure
        if found is None or (not found.is_open and visitor is None):
            raise SourceNotFoundError("no such repo, or one that you may not read", where=name)
        return found

    def inspect(self, recipe: Mapping[str, Any], visitor: Visitor | None, license: str | None = None) -> Plan:
        parsed = recipe_from_dict(recipe)
        return make_plan(parsed, self._open(parsed.base), [self._open(a.model) for a in parsed.agents])

    def preview(self, recipe: Mapping[str, Any], visitor: Visitor | None) -> Preview:
        plan = self.inspect(recipe, visitor)
        self.go_on.wait(120.0)
        agents = [{**told, "agent": name} for told, name in zip(STATISTICS["agents"], plan.labels, strict=False)]
        reason = "71% of what changed was changed by one agent alone; averaging would divide it by three."
        figures = {**STATISTICS, "elements": 1_376_256, "agents": agents}
        return Preview(
            "ram_plus", reason, figures, ("model.layers.3.mlp.up_proj.weight",), (3,), 494_032_768, 8_257_536
        )

    def _open(self, name: ModelName) -> Model:
        if self.failure is not None:
            raise self.failure
        if name.id not in self.models:
            raise SourceNotFoundError(
                "no such repo, or one that you may not read",
                where=str(name),
                next_step="Check its name, and sign in if it is private.",
            )
        return self.models[name.id]

    def comparison(self, base: str, agent: str, visitor: Visitor | None) -> Comparison:
        recipe = comparison_recipe(base, agent)
        plan = make_comparison(recipe, self._open(recipe.base), self._open(recipe.agents[0].model))
        return Comparison(plan, self.store.get(comparison_id(plan, visitor.name if visitor else "")))

    def compare(self, base: str, agent: str, visitor: Visitor) -> Comparison:
        plan = self.comparison(base, agent, visitor).plan
        new = comparison_job(plan, visitor.name)
        told = {"target": new.payload["target"], "models": (new.payload["base"], new.payload["agent"])}
        queued = job_view(new.id, user=new.user, kind=new.kind, recipe={}, **told)
        return Comparison(plan, self.store.setdefault(new.id, queued))

    def submit(self, request: MergeRequest, visitor: Visitor) -> JobView:
        asked = {"user": visitor.name, "target": request.target, "private": request.private, "recipe": request.recipe}
        known = [job for job in self.store.values() if all(getattr(job, key) == asked[key] for key in asked)]
        if not known and len(self.store) >= 5:
            raise QuotaError("you have 5 jobs under way", expected="at most 5", next_step="Wait for one to end.")
        self.inspect(request.recipe, visitor)
        self.requests.append((request, visitor))
        if known:
            return known[0]
        job_id, ticket = f"{len(self.requests):064d}", 1 + max((job.ticket for job in self.store.values()), default=0)
        self.store[job_id] = job_view(job_id, ticket=ticket, **asked)
        return self.store[job_id]

    def job(self, job_id: str, visitor: Visitor | None) -> JobView:
        view = self.store.get(job_id)
        if view is None or (view.private and (visitor is None or visitor.name != view.user)):
            raise SourceNotFoundError("no such job", where=job_id[:80])
        return view

    def jobs(self, visitor: Visitor, before: int | None = None, limit: int = 25) -> list[JobView]:
        return self._page([view for view in self.store.values() if view.user == visitor.name], before, limit)

    def public_jobs(self, before: int | None = None, limit: int = 25) -> list[JobView]:
        shown = [view for view in self.store.values() if not view.private and view.kind != "evaluate"]
        return self._page(shown, before, limit)

    def _page(self, views: list[JobView], before: int | None, limit: int) -> list[JobView]:
        newest = sorted(views, key=lambda view: view.ticket)[::-1]
        return [view for view in newest if before is None or view.ticket < before][:limit]

    def under_way(self) -> tuple[int, int, int]:
        jobs = [view for view in self.store.values() if not view.private]
        running = [view.kind for view in jobs if view.state == "running"]
        return running.count("merge"), running.count("evaluate"), sum(view.state == "queued" for view in jobs)

    def request_evaluation(self, model: str, suite: str, visitor: Visitor) -> EvaluationAnswer:
        found, suite = self._open(ModelName.parse(model)).ref, suite or next(iter(self.suites))
        known = [e for e in self.evaluations if (e.model, e.suite) == (found.id, suite)]
        if not known:
            place = len(self.evaluations) + 1
            known = [QueuedEvaluation(found.id, found.sha, suite, f"{place:064x}", "2026-01-31T14:05", place, "")]
            self.evaluations += known
            return EvaluationAnswer("queued", found.id, found.sha, suite, known[0].job, place)
        return EvaluationAnswer("under way", found.id, found.sha, suite, known[0].job, known[0].place)

    def evaluation_queue(self) -> EvaluationQueue:
        return EvaluationQueue((), tuple(self.evaluations), len(self.evaluations))

    def cancel(self, job_id: str, visitor: Visitor) -> JobView:
        return self._changed(job_id, visitor, state="cancelled", queue_position=None)

    def retry(self, job_id: str, visitor: Visitor) -> JobView:
        return self._changed(job_id, visitor, state="queued", queue_position=1, error=None)

    def _changed(self, job_id: str, visitor: Visitor, **changes: Any) -> JobView:
        view = self.job(job_id, visitor)
        if view.user != visitor.name:
            raise PermissionDeniedError("the job of somebody else", where=job_id[:80])
        self.store[job_id] = replace(view, **changes)
        return self.store[job_id]

    def put(self, views: Sequence[JobView]) -> None:
        self.store.update({view.id: view for view in views})


@dataclass
class FakeBoard:
    """A DatasetBoard in the test's hands."""

    content: Board = field(default_factory=Board)
    failure: HubUnavailableError | None = None
    url: str = f"{ENDPOINT}/datasets/zoo/results"

    def board(self) -> Board:
        if self.failure is not None:
            raise self.failure
        return self.content


SHA = "0123456789abcdef" * 2 + "01234567"


def merged(time: str, target: str, job: str, state: str, *agents: str) -> WatcherEvent:
    pins = tuple(f"{agent}@{SHA}" for agent in agents)
    return WatcherEvent("merged", f"{time}:00+00:00", target, agents=pins, job_id=job * 64, job_state=state)


def left_out(time: str, subject: str, code: str, text: str) -> WatcherEvent:
    return WatcherEvent("skipped", f"{time}:00+00:00", subject, SHA, code, text)


ZOO = WatcherView(
    name="zoo-watch",
    owner="ada",
    about="Merges all fine-tunes of zoo/base by zoo, with RAM+, once there are 2 and again with each new one.",
    rule="name: zoo-watch\nowner: ada\nbase: zoo/base\n",
    target="ada/zoo-watch-{set}",
    suite="zoo",
    budget=4,
    used_today=2,
    polled="2030-01-02T10:05:00+00:00",
    next_look="2030-01-02T10:10:00+00:00",
    waiting="the day's budget of 4 is used up; it goes on tomorrow (UTC)",
    events=(
        merged("2030-01-02T10:04", "ada/zoo-watch-282948d5ec", "a", "running", MATH, MEM, TOOL),
        left_out("2030-01-02T09:00", "set 1b2c3d4e5f", "budget", "the day's budget is used"),
        left_out("2030-01-01T09:00", "zoo/wide-agent", "E_INCOMPATIBLE", "another hidden_size: expected 64, got 128"),
        left_out("2030-01-01T08:00", "zoo/other", "license", "its license is not stated"),
        replace(left_out("2030-01-01T07:00", "ada/zoo-watch-1", "E_TARGET_EXISTS", "taken"), kind="refused", sha=""),
        merged("2029-12-31T10:00", "ada/zoo-watch-9f8e7d6c5b", "b", "done", MATH, TOOL),
    ),
)
FRESH = replace(ZOO, name="zoo-trio", events=(), waiting="", polled=None, used_today=0, suite=None)
AWAY = replace(FRESH, name="zoo-away", problem=HubUnavailableError("the Hub cannot be reached").as_dict())
ODD = RuleError("a rule has no such key: colour", where="mine.yaml → colour", got=HOSTILE)
BROKEN = WatcherView("mine.yaml", problem=ODD.as_dict())

TRIAL = Trial(
    about=ZOO.about,
    rule=ZOO.rule,
    target="ada/zoo-watch-282948d5ec",
    agents=ZOO.events[0].agents,
    left_out=tuple(replace(e, time="") for e in ZOO.events[2:4]),
)


class Source:
    """Keeps the promises of workflows.app.watchers_source.WatcherSource, with `views` in the test's hands."""

    endpoint = ENDPOINT

    def __init__(self, views: Sequence[WatcherView] = (ZOO, FRESH, AWAY, BROKEN)) -> None:
        self.views = list(views)
        self.error: HubmergeError | None = None
        self.trial = TRIAL
        self.tried: list[tuple[Mapping[str, Any], str | None]] = []
        self.acted: list[tuple[str, str, str]] = []

    def watchers(self, visitor: Visitor | None) -> list[WatcherView]:
        if self.error is not None:
            raise self.error
        name = visitor.name if visitor else None
        return [replace(v, own=v.owner == name) for v in self.views if not v.private or v.owner == name]

    def try_watcher(self, rule: Mapping[str, Any], visitor: Visitor | None) -> Trial:
        self.tried.append((rule, visitor.name if visitor else None))
        if self.error is not None:
            raise self.error
        return self.trial

    def pause_watcher(self, name: str, visitor: Visitor) -> WatcherView:
        return self._act("pause", name, visitor, paused=True)

    def resume_watcher(self, name: str, visitor: Visitor) -> WatcherView:
        return self._act("resume", name, visitor, paused=False)

    def run_watcher(self, name: str, visitor: Visitor) -> WatcherView:
        return self._act("run", name, visitor)

    def _act(self, action: str, name: str, visitor: Visitor, **changes: Any) -> WatcherView:
        view = next((v for v in self.views if v.name == name), None)
        if view is None or view.owner != visitor.name:
            raise PermissionDeniedError("a watcher of somebody else")
        self.acted.append((action, name, visitor.name))
        self.views = [replace(v, **changes) if v is view else v for v in self.views]
        return replace(view, **changes)

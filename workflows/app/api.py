"""The named endpoints: the pages' actions for programs, with the same checks and the same words.

They answer over HTTP, to gradio's client, and as the tools of an MCP server at /gradio_api/mcp. Who calls comes from
the signed session of a page or from a token of the Hub (session.py), which the Hub is asked about; no endpoint takes a
user. Without either, what acts for somebody answers E_LOGIN, and E_PERMISSION for a job of somebody else. What asks the
Hub answers E_QUOTA where lanes.py has no room. An error's text is the message of `gr.Error`. gradio passes on whatever
values it is sent, so each is read here as the type that its endpoint states.

gradio makes each answer's JSON schema of its return annotation, which it reads as it stands, so this module does not
postpone them.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypedDict

import gradio as gr
from pydantic import TypeAdapter, ValidationError

from hubmerge.board.source import DatasetBoard
from hubmerge.engine.preview import Preview
from hubmerge.errors import HubmergeError, Problem, RecipeError
from hubmerge.hub.client import RepoSummary
from hubmerge.output.plan_words import plan_summary
from workflows.app.api_board import board_endpoints, trial_endpoints, watcher_endpoints
from workflows.app.forms import MAX_NUMBER
from workflows.app.lanes import ASKING, Lanes
from workflows.app.panels import on_the_web
from workflows.app.session import caller_of, signed_in, writer_of
from workflows.app.submission import (
    checked_comparison,
    checked_recipe,
    checked_sweep,
    one_model,
    submission,
    sweep_requests,
)
from workflows.app.watchers_source import WatcherSource
from workflows.service import Service
from workflows.values import Comparison, EvaluationAnswer, EvaluationQueue, JobView, ModelFacts, Published, Visitor

SEARCH_AT_MOST = 20
_TYPES = {str: "text", int: "a whole number", bool: "true or false", dict[str, Any]: "an object of names and values"}
Endpoint = Callable[..., Any]


class Variant(TypedDict):
    name: str
    recipe: dict[str, Any]


class Compared(TypedDict):
    base: str  # id@sha
    agent: str
    parameters: int
    input_bytes: int
    warnings: list[str]
    job: JobView | None


class UnderWay(TypedDict):
    merging: int
    evaluating: int
    waiting: int


def add_api(service: Service, lanes: Lanes, board: DatasetBoard | None, watchers: WatcherSource | None) -> None:
    """Register the endpoints in the current Blocks context."""
    asking = (*_reading(service), *_acting(service), *(trial_endpoints(watchers) if watchers is not None else ()))
    stored = [*_of_the_store(service)]
    stored += board_endpoints(board) if board is not None else ()
    stored += watcher_endpoints(watchers) if watchers is not None else ()
    whose = partial(service.visitor, None)
    for function in asking:
        called = lanes.asking(_called(service, function), _refused, whose=whose)
        gr.api(called, api_name=function.__name__, **ASKING)
    for function in stored:
        called = lanes.asking(_called(service, function), _refused, whose=whose, asks_nothing=True)
        gr.api(called, api_name=function.__name__, concurrency_limit=4)


def _called(service: Service, function: Endpoint) -> Endpoint:
    """`function` as gradio calls it: with its request, profile and token, which become the `visitor`."""
    own = [p for name, p in inspect.signature(function).parameters.items() if name != "visitor"]
    told = {"request": gr.Request, "profile": gr.OAuthProfile | None, "token": gr.OAuthToken | None}

    def called(*given: Any) -> Any:
        *values, request, profile, token = given
        read = [_read(parameter, value) for parameter, value in zip(own, values, strict=True)]
        return _plain(function(*read, visitor=caller_of(service, profile, token, request)))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    added = [inspect.Parameter(name, kind, default=None, annotation=hint) for name, hint in told.items()]
    called.__signature__ = inspect.signature(function).replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    hints = {p.name: p.annotation for p in (*own, *added)}
    hints["return"] = inspect.signature(function).return_annotation
    called.__annotations__ = hints
    called.__annotate__ = lambda _: hints  # type: ignore[attr-defined]  # what `wraps` takes from Python 3.14 on
    # gradio tells only the first line of what an argument is
    called.__name__, called.__doc__ = function.__name__, re.sub(r"\n {8,}", " ", inspect.getdoc(function) or "")
    return called


def _read(parameter: inspect.Parameter, value: Any) -> Any:
    """`value` as the parameter's type; nothing stands for the parameter's default."""
    if value is None and parameter.default is not inspect.Parameter.empty:
        return parameter.default
    try:
        read = TypeAdapter(parameter.annotation).validate_python(value)
    except ValidationError:
        read = None
    if read is None or (isinstance(read, int) and abs(read) > MAX_NUMBER):
        kind = _TYPES[parameter.annotation]
        raise RecipeError("a value of another type", where=parameter.name, expected=kind, got=repr(value)[:100])
    return read


def misread(error: Exception) -> RecipeError:
    """What gradio says of a call that it cannot read, without the way to its own page."""
    said = str(error).partition(" Please click")[0]
    step = "GET /gradio_api/info lists every endpoint with its arguments."
    return RecipeError("no endpoint, or other arguments than it has", got=said[:200], next_step=step)


def _plain(answer: Any) -> Any:
    """`answer` as JSON has it, with `file` for every key `path`: gradio and its client take an object with a path for a
    file, which the server would hand out and the client would fetch. A model's report is a stranger's JSON."""
    if is_dataclass(answer):
        answer = {field.name: getattr(answer, field.name) for field in fields(answer)}
    if isinstance(answer, Mapping):
        return {"file" if key == "path" else key: _plain(value) for key, value in answer.items()}
    # gradio's writer of JSON has no larger integers, and no half of a character
    if isinstance(answer, str) or (isinstance(answer, int) and answer.bit_length() > 63):
        return str(answer).encode(errors="replace").decode()
    return [_plain(value) for value in answer] if isinstance(answer, list | tuple) else answer


def _refused(error: HubmergeError) -> Any:
    """Raise gradio's error, which alone reaches the caller; its trace stays out of the log.

    It has no title, which MCP clients that ask for progress would read before the code.
    """
    said = (replace(problem, next_step=on_the_web(problem.next_step)) for problem in error.problems)
    raise gr.Error("\n".join(map(str, said)), title="", print_exception=False) from None


def _reading(service: Service) -> tuple[Endpoint, ...]:
    def search_models(text: str, visitor: Visitor | None) -> list[RepoSummary]:
        """Models on the Hub whose id holds the text, most downloaded first: id, downloads, likes, tags.

        Args:
            text: part of an id, such as "qwen2.5-0.5b".
        """
        return service.search(text[:100], visitor, SEARCH_AT_MOST)

    def model_facts(name: str, visitor: Visitor | None) -> ModelFacts:
        """What the Hub states of one model: bytes of weights, license, the bases that its card names, whether it is
        gated or private.

        Args:
            name: org/name, org/name@revision, or the address of the model's page on the Hub.
        """
        return service.about(one_model(name, service.endpoint), visitor)

    def model_files(id: str, sha: str = "", *, visitor: Visitor | None) -> Published:
        """A model's card, and the report of its merge with statistics and recipe where hubmerge made it, at one commit.

        Args:
            id: org/name, org/name@revision, or the address of the model's page on the Hub.
            sha: a commit; empty for the newest.
        """
        name, _, revision = one_model(id, service.endpoint).partition("@")
        return service.published(name, sha[:300] or revision or None, visitor)

    def inspect_merge(recipe: dict[str, Any], license: str = "", *, visitor: Visitor | None) -> dict[str, Any]:
        """Check a recipe from headers alone: architecture, sizes, predicted download and disk, warnings, identity.

        A merge that cannot be is refused with every problem listed, as is a license that the parents do not allow.

        Args:
            recipe: such as {"base": "org/base", "agents": ["org/a", {"model": "org/b", "weight": 0.8}],
                "method": "ram"}, with parameters, calibration, dtype, seed or ignore where they are wanted.
            license: the license that was chosen; empty where the parents' decide it.
        """
        return plan_summary(service.inspect(checked_recipe(recipe).to_dict(), visitor, license))

    def preview_merge(recipe: dict[str, Any], visitor: Visitor | None) -> Preview:
        """Look into a few layers of a merge's models: what each agent changed there, where they meet, and the method
        that this speaks for, with the reason. It reads some 8 MB of weights, at most 32 MB.

        Args:
            recipe: as inspect_merge takes it.
        """
        return service.preview(checked_recipe(recipe).to_dict(), visitor)

    def inspect_sweep(sweep: dict[str, Any], visitor: Visitor | None) -> list[Variant]:
        """The variants of a sweep, each with its recipe; the first is checked as by inspect_merge.

        Args:
            sweep: a recipe whose methods stand in a list, and lists of parameters are choices, such as
                {"base": "org/base", "agents": ["org/a", "org/b"], "sweep": [{"method": "ties", "parameters":
                {"density": [0.2, 0.5]}}]}.
        """
        variants = checked_sweep(sweep).variants
        service.inspect(variants[0][1].to_dict(), visitor)
        return [{"name": name, "recipe": recipe.to_dict()} for name, recipe in variants]

    def inspect_diff(base: str, agent: str, visitor: Visitor | None) -> Compared:
        """Two models on the Hub, pinned, and the job that compares them, if there is one: its `result` is what the
        training from base to agent changed, as docs/diff.md has it. Models that do not fit are refused with every
        problem listed.

        Args:
            base: org/name, org/name@revision, or the address of the model's page on the Hub.
            agent: the model that was trained from it.
        """
        return _comparison(service.comparison(*checked_comparison(base, agent, service.endpoint), visitor))

    return search_models, model_facts, model_files, inspect_merge, preview_merge, inspect_sweep, inspect_diff


def _acting(service: Service) -> tuple[Endpoint, ...]:
    def start_merge(
        recipe: dict[str, Any],
        target: str,
        private: bool = True,
        license: str = "",
        suite: str = "",
        *,
        visitor: Visitor | None,
    ) -> JobView:
        """Queue a merge into a new model repo and return its job. Needs a sign-in or a token.

        The same request again returns the same job.

        Args:
            recipe: as inspect_merge takes it.
            target: owner/name of the new repo.
            private: whether only its owner sees it; unlike on the page, it is so unless you say otherwise.
            license: may stay empty where the parents' licenses decide it.
            suite: what a public merge and its parents are evaluated with; empty for the usual one of this site.
        """
        writer = writer_of(service, visitor, "start a merge")
        request = submission(recipe, target=target, private=private, license=license, visitor=writer, suite=suite[:100])
        return service.submit(request, writer)

    def start_sweep(
        sweep: dict[str, Any], target: str, private: bool = True, license: str = "", *, visitor: Visitor | None
    ) -> list[JobView]:
        """Queue a merge for every variant of a sweep and return the jobs. Needs a sign-in or a token.

        Every name is checked before the first is queued. Where a later variant is refused, as by E_QUOTA where there is
        no room for all, the error names those that were queued; the same request later finds them and adds the others.

        Args:
            sweep: as inspect_sweep takes it.
            target: owner/name, to which each variant's name is added.
            private: whether only their owner sees them; unlike on the page, it is so unless you say otherwise.
            license: may stay empty where the parents' licenses decide it.
        """
        writer = writer_of(service, visitor, "start a sweep")
        checked = checked_sweep(sweep)
        jobs: list[JobView] = []
        for request in sweep_requests(checked, target=target, private=private, license=license, visitor=writer):
            try:
                jobs.append(service.submit(request, writer))
            except HubmergeError as error:
                if jobs:
                    what, queued = "the variants before this one have their jobs", ", ".join(j.target for j in jobs)
                    error.problems += (Problem(error.code, what, got=queued, next_step="my_jobs lists them."),)
                raise
        return jobs

    def start_diff(base: str, agent: str, visitor: Visitor | None) -> Compared:
        """Queue a comparison of two models on the Hub, or find the one that is there; answers as inspect_diff.

        Needs a sign-in or a token. job_status tells how far it is.

        Args:
            base: org/name, org/name@revision, or the address of the model's page on the Hub.
            agent: the model that was trained from it.
        """
        both = checked_comparison(base, agent, service.endpoint)
        return _comparison(service.compare(*both, signed_in(visitor, "compare models")))

    def retry_job(job_id: str, visitor: Visitor | None) -> JobView:
        """Queue one of your own jobs that failed or was cancelled once more and return it. Needs a sign-in or a token.

        It goes on from what it finished, with the token that you send now.

        Args:
            job_id: as start_merge returned it.
        """
        return service.retry(job_id, writer_of(service, visitor, "try a job again"))

    def request_evaluation(model: str, suite: str = "", *, visitor: Visitor | None) -> EvaluationAnswer:
        """Ask for a public model to be measured. Needs a sign-in or a token.

        The answer's `outcome` is queued, under way, scored or failed, with the commit, the suite, the job and its place
        in the queue. What cannot be measured is refused with the reason.

        Args:
            model: org/name, org/name@revision, or the address of the model's page on the Hub.
            suite: what it is measured with, such as "math"; empty for the usual one of this site.
        """
        asker = writer_of(service, visitor, "ask for an evaluation")
        return service.request_evaluation(one_model(model, service.endpoint), suite[:100], asker)

    return start_merge, start_sweep, start_diff, retry_job, request_evaluation


def _of_the_store(service: Service) -> tuple[Endpoint, ...]:
    def job_status(job_id: str, visitor: Visitor | None) -> JobView:
        """A job: state, stage, progress, statistics, warnings, error, result. A private one for its owner only.

        Args:
            job_id: as start_merge, start_diff or my_jobs returned it.
        """
        return service.job(job_id, visitor)

    def cancel_job(job_id: str, visitor: Visitor | None) -> JobView:
        """Cancel one of your own jobs and return it. Needs a sign-in or a token.

        Args:
            job_id: as start_merge returned it.
        """
        return service.cancel(job_id, signed_in(visitor, "cancel a job"))

    def my_jobs(before: int = 0, visitor: Visitor | None = None) -> list[JobView]:
        """Your own jobs and the evaluations that you asked for, newest first, a page of them. Needs a sign-in or a
        token.

        Args:
            before: the ticket of the last job of the page above; 0 for the first page.
        """
        return service.jobs(signed_in(visitor, "list your jobs"), before or None)

    def recent_jobs(before: int = 0, visitor: Visitor | None = None) -> list[JobView]:
        """Everybody's merges and comparisons with public results, newest first, a page of them.

        Args:
            before: the ticket of the last job of the page above; 0 for the first page.
        """
        return service.public_jobs(before or None)

    def jobs_under_way(visitor: Visitor | None = None) -> UnderWay:
        """How many jobs with public results are merging, are evaluating, and wait."""
        merging, evaluating, waiting = service.under_way()
        return {"merging": merging, "evaluating": evaluating, "waiting": waiting}

    def evaluation_queue(visitor: Visitor | None = None) -> EvaluationQueue:
        """The evaluations that run and those that wait, in their order: model, commit, suite, job, place. Private ones
        are left out."""
        return service.evaluation_queue()

    return job_status, cancel_job, my_jobs, recent_jobs, jobs_under_way, evaluation_queue


def _comparison(found: Comparison) -> Compared:
    plan = found.plan
    return {
        "base": f"{plan.base.ref.id}@{plan.base.ref.sha}",
        "agent": f"{plan.agents[0].ref.id}@{plan.agents[0].ref.sha}",
        "parameters": plan.elements,
        "input_bytes": plan.input_bytes,
        "warnings": list(plan.warnings),
        "job": found.job,
    }

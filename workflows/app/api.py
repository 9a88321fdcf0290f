"""The named endpoints: the form's actions for programs, with the same checks and the same words.

The signed session alone says who the caller is; no endpoint takes a user or a token. Without a session, `start_merge`,
`start_diff`, `cancel_job`, `retry_job` and `my_jobs` answer E_LOGIN; `cancel_job` and `retry_job` answer E_PERMISSION
for a job of somebody else. Endpoints that ask the Hub answer E_QUOTA where lanes.py has no room. An error's text is the
message of `gr.Error`.

gradio reads return annotations as they stand, so this module does not postpone them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import gradio as gr

from hubmerge.errors import HubmergeError
from hubmerge.output.plan_words import plan_summary
from workflows.app.lanes import ASKING, Lanes
from workflows.app.service import Comparison, JobView, Service
from workflows.app.session import require_visitor, visitor_of, writer_of
from workflows.app.submission import checked_comparison, checked_recipe, submission

SEARCH_AT_MOST = 20


def add_api(service: Service, lanes: Lanes) -> None:
    """Register the endpoints in the current Blocks context."""
    for function in (*_reading(service), *_acting(service)):
        gr.api(lanes.asking(function, _refused), api_name=function.__name__, **ASKING)
    for function in _of_the_store(service):
        gr.api(function, api_name=function.__name__, concurrency_limit=4)


def _refused(error: HubmergeError) -> Any:
    raise gr.Error(str(error), print_exception=False)


def _reading(service: Service) -> tuple[Callable[..., Any], ...]:
    def search_models(
        text: str, profile: gr.OAuthProfile | None = None, token: gr.OAuthToken | None = None
    ) -> list[dict[str, Any]]:
        """Models on the Hub whose id holds the text, most downloaded first: id, downloads, likes, tags."""
        with _told():
            found = service.search(str(text)[:100], visitor_of(profile, token), SEARCH_AT_MOST)
        return [asdict(summary) for summary in found]

    def inspect_merge(
        recipe: dict[str, Any],
        license: str = "",
        profile: gr.OAuthProfile | None = None,
        token: gr.OAuthToken | None = None,
    ) -> dict[str, Any]:
        """Check a recipe from headers alone: architecture, sizes, predicted download and disk, warnings, identity.

        The recipe has base, agents (names, or model with weight), method, parameters, dtype, rounding, seed and
        ignore. A merge that cannot be is refused with every problem listed, as is a `license` that the parents do
        not allow.
        """
        with _told():
            return plan_summary(service.inspect(checked_recipe(recipe).to_dict(), visitor_of(profile, token), license))

    def inspect_diff(
        base: str, agent: str, profile: gr.OAuthProfile | None = None, token: gr.OAuthToken | None = None
    ) -> dict[str, Any]:
        """Two models on the Hub, pinned, and the job that compares them, if there is one: its `result` is what the
        training from `base` to `agent` changed, as docs/diff.md has it. Models that do not fit are refused with every
        problem listed.
        """
        with _told():
            return _comparison(service.comparison(*checked_comparison(base, agent), visitor_of(profile, token)))

    return search_models, inspect_merge, inspect_diff


def _acting(service: Service) -> tuple[Callable[..., Any], ...]:
    def start_merge(
        recipe: dict[str, Any],
        target: str,
        private: bool = True,
        license: str = "",
        profile: gr.OAuthProfile | None = None,
        token: gr.OAuthToken | None = None,
    ) -> dict[str, Any]:
        """Queue a merge into the new model repo `target` (owner/name) and return its job.

        Needs a signed-in session. `license` may stay empty where the parents' licenses decide it. The same request
        again returns the same job.
        """
        with _told():
            visitor = writer_of(service, profile, token)
            request = submission(recipe, target=str(target), private=bool(private), license=license, visitor=visitor)
            return _job(service.submit(request, visitor))

    def start_diff(
        base: str, agent: str, profile: gr.OAuthProfile | None = None, token: gr.OAuthToken | None = None
    ) -> dict[str, Any]:
        """Queue a comparison of two models on the Hub, or find the one that is there; answers as `inspect_diff`.

        Needs a signed-in session. `job_status` tells how far it is.
        """
        with _told():
            visitor = require_visitor(profile, token, "compare models")
            return _comparison(service.compare(*checked_comparison(base, agent), visitor))

    def retry_job(
        job_id: str, profile: gr.OAuthProfile | None = None, token: gr.OAuthToken | None = None
    ) -> dict[str, Any]:
        """Queue one of your own jobs that failed or was cancelled once more and return it. Needs a signed-in session.

        It goes on from what it finished, with the token of this session.
        """
        with _told():
            return _job(service.retry(str(job_id), writer_of(service, profile, token, "try a job again")))

    return start_merge, start_diff, retry_job


def _of_the_store(service: Service) -> tuple[Callable[..., Any], ...]:
    def job_status(
        job_id: str, profile: gr.OAuthProfile | None = None, token: gr.OAuthToken | None = None
    ) -> dict[str, Any]:
        """A job: state, stage, progress, statistics, warnings, error, result. A private one for its owner only."""
        with _told():
            return _job(service.job(str(job_id), visitor_of(profile, token)))

    def cancel_job(
        job_id: str, profile: gr.OAuthProfile | None = None, token: gr.OAuthToken | None = None
    ) -> dict[str, Any]:
        """Cancel one of your own jobs and return it. Needs a signed-in session."""
        with _told():
            return _job(service.cancel(str(job_id), require_visitor(profile, token, "cancel a job")))

    def my_jobs(profile: gr.OAuthProfile | None = None, token: gr.OAuthToken | None = None) -> list[dict[str, Any]]:
        """Your own jobs, newest first. Needs a signed-in session."""
        with _told():
            return [_job(view) for view in service.jobs(require_visitor(profile, token, "list your jobs"))]

    return job_status, cancel_job, my_jobs


@contextmanager
def _told() -> Iterator[None]:
    """Turn a HubmergeError into gradio's error, the only one that reaches the caller; its trace is not logged."""
    try:
        yield
    except HubmergeError as error:
        raise gr.Error(str(error), print_exception=False) from None


def _comparison(found: Comparison) -> dict[str, Any]:
    plan = found.plan
    return {
        "base": f"{plan.base.ref.id}@{plan.base.ref.sha}",
        "agent": f"{plan.agents[0].ref.id}@{plan.agents[0].ref.sha}",
        "parameters": plan.elements,
        "input_bytes": plan.input_bytes,
        "warnings": list(plan.warnings),
        "job": None if found.job is None else _job(found.job),
    }


def _job(view: JobView) -> dict[str, Any]:
    return asdict(view)

"""The pipeline of an evaluation job: measure, record, and update the cards of the merges that the scores concern.

    known already? → evaluate → results dataset → the model's own card, and those of the merges it is a parent of

Every step can be repeated: a run that is recorded is not made again, and one that was broken off goes on from its
answers. A model that cannot be evaluated is recorded as failed with its reason, and so is the job.
"""

import logging
from collections.abc import Sequence
from typing import cast

from hubmerge.board.eval_results import publish_scores
from hubmerge.board.results_dataset import ResultsDataset, details_of
from hubmerge.board.trust import Trust
from hubmerge.errors import EvaluationError, HubmergeError
from hubmerge.evaluation.result import EvaluationResult, Split, result_path
from hubmerge.evaluation.runner import EvaluateOptions, evaluate
from hubmerge.evaluation.signing import signed
from hubmerge.evaluation.suites import pin
from hubmerge.hub.client import Hub
from hubmerge.output.publish import check_writer
from hubmerge.recipe.model_name import ModelName
from workflows.jobs.evaluations import refuse_on_no_branch
from workflows.jobs.pipeline import StageEmitter
from workflows.jobs.protocol import Emit, JobSpec, Result

log = logging.getLogger(__name__)


class OtherDataError(EvaluationError):
    """The suite has other data now than when the job was queued: the Hub lags behind, or the data have changed."""

    retryable = True


def run(spec: JobSpec, emit: Emit) -> None:
    """Evaluate what `spec.payload` names (model, sha, suite, split) and record it in the results dataset."""
    hub = spec.hub
    if spec.results is None:
        raise EvaluationError(
            "there is no results dataset to record scores in",
            next_step="Set HUBMERGE_RESULTS to a dataset that the token may write to.",
        )
    dataset = ResultsDataset(hub, spec.results, trust=Trust(frozenset(spec.trusted_keys)))
    observer = StageEmitter(emit)
    payload = spec.payload
    model, sha = str(payload["model"]), str(payload["sha"])
    observer.stage("resolve")
    suite = pin(str(payload["suite"]), hub, cast(Split, payload["split"]))
    asked = payload.get("suite_version") or suite.version
    if asked != suite.version:
        raise OtherDataError(
            "the suite's data are others now",
            where=suite.suite.name,
            expected=asked,
            got=suite.version,
            next_step="Ask for the score once more.",
        )
    dataset.refuse_to_expose(model, hub.repo_state(model, sha).private)
    refuse_on_no_branch(hub, model, sha)
    result = dataset.find(model, sha, suite.suite.name, suite.version, suite.split)
    if result is None or result.status != "done":
        check_writer(hub, spec.results)  # before hours of work
        name, workdir = ModelName(id=model, revision=sha), spec.workdir / "evaluation"
        options = EvaluateOptions(data_cache=spec.shared / "evaluation-data")
        result = evaluate(name, suite, hub=hub, workdir=workdir, options=options, observer=observer)
        if spec.signing_key is not None:
            result = signed(result, bytes.fromhex(spec.signing_key.get_secret_value()), spec.user)
        observer.stage("record")
        dataset.publish(result, details_of(result, workdir))
    if result.error is not None:
        raise EvaluationError(
            "the model could not be evaluated",
            where=f"{model}@{sha[:12]}",
            got=f"{result.error.code}: {result.error.message}"[:500],
            next_step="The reason is recorded; there is no score.",
        )
    observer.stage("publish")
    told = _tell(hub, dataset, result, observer)
    values = {"repo": dataset.repo, "url": dataset.url, "path": result_path(result)}
    emit(Result(values={**values, "scores": dict(result.domains), "cards": list(told)}))


def _tell(hub: Hub, dataset: ResultsDataset, result: EvaluationResult, observer: StageEmitter) -> Sequence[str]:
    """Update the cards that show this score: the model's own, if it is a merge of ours, and its children's."""
    results = dataset.load().believed
    concerned = set()
    for each in results:
        # by commits, since a parent's repo may have been renamed
        if each.facts.is_merge and result.sha in (each.sha, *(parent.sha for parent in each.facts.parents)):
            concerned.add(each.model)
    told = []
    for merge in sorted(concerned):
        try:
            if publish_scores(hub, merge, results, dataset=dataset, tell=observer.warning) is not None:
                told.append(merge)
        except HubmergeError as error:
            # somebody else's repo, or one that is gone: the score stands in the dataset all the same
            log.info("the card of %s stays as it is: %s", merge, error)
    return told

"""Publishes scores in the merged model's own repo: in the Hub's format, and in the card's tables beside every parent.

    .eval_results/hubmerge-SUITE.yaml    tasks whose dataset is a registered benchmark; the Hub lists them there
    README.md                            `model-index` in the header for the others, and the tables of card_scores.py
    hubmerge.json                        the report with the evaluations that the card was made of

All of it is one commit, and only in a repo whose hubmerge.json carries the identity of a merge and names the repo as
its target, or by a name that it had until it was renamed. If README.md is not what the stored report renders to, it was
edited (or made by another version). It is then left as it is, together with hubmerge.json.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from hubmerge.board.results_dataset import ResultsDataset
from hubmerge.engine.sink import MANIFEST
from hubmerge.errors import FormatError, GatedError, PermissionDeniedError, SourceNotFoundError
from hubmerge.evaluation.result import EvaluationResult
from hubmerge.evaluation.tasks import registry
from hubmerge.hub.client import Hub, RepoState, eval_results
from hubmerge.hub.names import is_hub_id
from hubmerge.output.card import card_of
from hubmerge.output.card_scores import BENCHMARKS, is_benchmark
from hubmerge.output.publish import MAX_MANIFEST_BYTES
from hubmerge.output.report import Report
from hubmerge.text.plain_yaml import dump_plain_yaml
from hubmerge.text.wording import json_file

CARD = "README.md"
FOLDER = ".eval_results"
_OF_A_SCORE = ("domain", "value", "stderr", "samples", "truncated", "few_shot", "dataset", "dataset_revision")
_IDENTITY = re.compile(r"[0-9a-f]{64}")


def publish_scores(
    hub: Hub,
    repo: str,
    results: Iterable[EvaluationResult],
    *,
    dataset: ResultsDataset | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> str | None:
    """Put the scores of the merge in `repo` beside those of its parents; returns the commit, if one is needed.

    `results`: of the merge and of its parents; what does not belong is left out. Scores of suites of which the merge
    has no result among them stay as they are. `dataset`: where the results are recorded, which a public repo names only
    where it is public. `tell` gets the words for a card that stays without the scores.
    """
    results = tuple(results)

    def prepare() -> Callable[[], str] | None:
        state = hub.repo_state(repo)
        report, card = _own_report(hub, state)
        rows = evaluation_rows(report, {state.id, report.target}, results)
        files = benchmark_files(rows, dataset.url_in(state) if dataset and rows else "")
        if rows and not _same(hub, state, CARD, card):
            tell(f"{CARD} of {state.id} was edited or made by another version: it stays as it is, without the scores")
        elif rows:
            suites = [row["suite"] for row in rows]
            others = [row for row in report.evaluations if row.get("suite") not in suites]  # which stay on the card
            told = sorted((*others, *rows), key=lambda row: str(row.get("suite")))
            scored = replace(report, evaluations=tuple(told))
            files[CARD] = card_of(scored, state.files, hub.endpoint).encode()
            files[MANIFEST] = json_file(scored.to_json())
        files = {path: data for path, data in files.items() if not _same(hub, state, path, data)}
        message = f"Scores of hubmerge {report.identity[:16]}"
        commit = partial(hub.commit, state.id, [], files.items(), message=message, description="", parent=state.sha)
        return commit if files else None

    return hub.patience.on_head(prepare)


def differ_in_scores_alone(one: RepoState, other: RepoState) -> bool:
    """Whether two commits of a repo differ in nothing but files that `publish_scores` writes, so that a result of one
    is one of the other."""

    def others(state: RepoState) -> dict[str, str | None]:
        ours = (CARD, MANIFEST)
        return {p: file.blob for p, file in state.files.items() if p not in ours and not p.startswith(f"{FOLDER}/")}

    return others(one) == others(other) and None not in others(one).values()


def evaluation_rows(
    report: Report, names: Collection[str], results: Iterable[EvaluationResult]
) -> list[dict[str, Any]]:
    """`report.evaluations`: per suite the merge's newest result on the test split, task by task with every parent's.

    `names`: of the merge's repo, also one from before it was renamed."""
    results = [r for r in results if r.split == "test"]
    # under the same name there may have been another merge before
    mine = [r for r in results if r.model in names and r.facts.recipe in (None, report.recipe_yaml)]
    own = {r.suite: r for r in sorted(mine, key=lambda r: (r.created, r.sha, r.suite_version))}
    rows: list[dict[str, Any]] = []
    for _, newest in sorted(own.items()):
        same = [r for r in results if (r.suite, r.suite_version) == (newest.suite, newest.suite_version)]
        runs = {"": newest}
        for p in report.parents:
            # by its commit, since its repo may have been renamed
            found = min((r for r in same if r.sha == p.sha), key=lambda r: (r.model != p.id, not r.tasks), default=None)
            if p.kind == "hub" and found is not None:
                runs[p.label] = found
        metrics = {t.task: t.metric for r in runs.values() for t in r.tasks}
        rows += [_row(run, *task, label) for task in metrics.items() for label, run in runs.items()]
    return rows


def _row(run: EvaluationResult, name: str, metric: str, label: str) -> dict[str, Any]:
    task = next((t for t in run.tasks if t.task == name), None)
    row: dict[str, Any] = {"suite": run.suite, "suite_version": run.suite_version, "task": name, "metric": metric}
    if label:
        row["model"] = label
    elif (known := registry().get(name)) is not None:
        row["title"] = known.title
        if task is not None and task.task_version == known.version:  # another one may have asked in another way
            row |= {"prompt": known.asked, "chat": known.chat}
    if task is None:  # a failed run: no number, never a zero
        return row | {"value": None}
    return row | {key: getattr(task, key) for key in _OF_A_SCORE} | {"created": run.created}


def benchmark_files(rows: Iterable[Mapping[str, Any]], source_url: str = "") -> dict[str, bytes]:
    """One file per suite with the merge's scores on registered benchmarks, in percent."""
    suites: dict[str, list[dict[str, Any]]] = {}
    source = {"source_url": source_url, "source_name": "hubmerge results"} if source_url else {}
    for row in rows:
        if row.get("model") or row["value"] is None or not is_benchmark(row):
            continue
        dataset, task_id = BENCHMARKS[row["task"]]
        suites.setdefault(row["suite"], []).append(
            {
                "dataset_id": dataset,
                "task_id": task_id,
                "value": round(100 * row["value"], 2),
                "dataset_revision": row["dataset_revision"],
                "date": row["created"],
                "notes": f"{row['few_shot']}-shot, {row['metric']}, n = {row['samples']}",
                **source,
            }
        )
    return {
        f"{FOLDER}/hubmerge-{suite}.yaml": dump_plain_yaml(eval_results(entries)).encode()
        for suite, entries in suites.items()
    }


def _own_report(hub: Hub, state: RepoState) -> tuple[Report, bytes]:
    """The report of the merge that made this repo, and the card that it renders to.

    PermissionDeniedError where there is none, or one that says something else.
    """
    reason = f"{MANIFEST} is missing"
    if MANIFEST in state.files:
        try:
            report = Report.from_json(json.loads(hub.read_file(state.id, state.sha, MANIFEST, MAX_MANIFEST_BYTES)))
            card = card_of(report, state.files, hub.endpoint).encode()
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError, FormatError):
            reason = f"{MANIFEST} is not a report of this version"
        else:
            reason = f"{MANIFEST} is of another repo"
            with suppress(SourceNotFoundError, GatedError):  # a name may lead on to the repo, since it was renamed
                is_other = report.target != state.id and is_hub_id(report.target)
                named = hub.repo_state(report.target).id if is_other else report.target
                if _IDENTITY.fullmatch(str(report.identity)) and named == state.id:
                    return report, card
    raise PermissionDeniedError(
        "scores are written into the repos of our own merges only",
        where=state.id,
        expected=f"{MANIFEST} with a merge's identity and this target",
        got=reason,
        next_step="Nothing was changed.",
    )


def _same(hub: Hub, state: RepoState, path: str, data: bytes) -> bool:
    known = state.files.get(path)
    if known is None or known.size != len(data):
        return False
    return hub.read_file(state.id, state.sha, path, len(data)) == data

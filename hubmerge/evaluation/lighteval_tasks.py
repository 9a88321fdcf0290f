"""Gives tasks to lighteval. Only the evaluating process imports this: lighteval is heavy and changes the process.

lighteval's registry imports every task module that it has; one of them downloads at import, and another calls functions
that the Hub's client no longer has. So its tasks are made one by one from their single modules; of a task of ours it
gets the questions alone. Rows come from the folders that the fetching process filled, never from the network.
"""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
from lighteval.metrics import apply_metric
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.lighteval_task import LightevalTask
from lighteval.tasks.requests import Doc, SamplingMethod

from hubmerge.errors import EvaluationError, HubmergeError, InternalError
from hubmerge.evaluation.builtin import prepare_builtin
from hubmerge.evaluation.tasks import BuiltinTask, Task, registry
from hubmerge.isolation.in_child import first_line

ASKED, EXAMPLES = "asked", "examples"  # our names for the two splits that lighteval sees
Rows = Mapping[str, list[dict[str, Any]]]  # those two
Scorer = Callable[[Sequence[Doc], Sequence[ModelResponse]], list[float]]
HELD_BACK = 64  # rows that serve as examples where questions come from the same split


def loaded(spec: Mapping[str, Any]) -> tuple[Task | BuiltinTask, list[Doc], Scorer]:
    """A task, its questions in the order of its rows, and what scores answers to them."""
    task, asked = registry()[spec["name"]], (read_rows(spec), spec["few_shot"])
    return task, *(_own(task, *asked) if isinstance(task, Task) else builtin(task, *asked))


def _own(task: Task, rows: Rows, few_shot: int) -> tuple[list[Doc], Scorer]:
    examples = [
        Doc(query=task.prompt(row), choices=[str(task.reference(row))], gold_index=0)
        for row in rows[EXAMPLES][:few_shot]
    ]
    docs = [
        Doc(
            id=str(number),
            query=task.prompt(row),
            choices=[""],
            gold_index=0,
            specific={"reference": task.reference(row)},  # which scores, not the choices
            fewshot_samples=examples,
            generation_size=task.max_new_tokens,
            stop_sequences=list(task.stop),
        )
        for number, row in enumerate(rows[ASKED])
    ]
    return docs, lambda docs, responses: [own_score(task, *each) for each in zip(docs, responses, strict=True)]


def own_score(task: Task, doc: Doc, response: ModelResponse) -> float:
    try:
        return float(task.score(response.final_text[0], doc.specific["reference"]))
    except (HubmergeError, MemoryError, OSError):  # of the machine
        raise
    except Exception as error:  # whatever a task raises is its bug, and says nothing of the model
        got = f"{type(error).__name__}: {first_line(error)}"
        step = "Its `score` gives every text a number from 0 to 1 (hubmerge/evaluation/tasks/base.py)."
        raise InternalError(f"{task.name} does not score an answer", got=got, next_step=step) from error


def builtin(task: BuiltinTask, rows: Rows, few_shot: int) -> tuple[list[Doc], Scorer]:
    prepare_builtin(task)
    table = {config.name: config for config in importlib.import_module(task.module).TASKS_TABLE}
    if task.name not in table:
        raise EvaluationError("this lighteval lacks the task", where=task.name, got=task.module)
    config = table[task.name]
    listed = [metric.metric_name for metric in config.metrics]
    names = {name for each in listed for name in (each if isinstance(each, list) else [each])}
    if task.metric not in names or any(m.category != SamplingMethod.GENERATIVE for m in config.metrics):
        raise EvaluationError(
            "this lighteval measures the task otherwise", where=task.name, expected=task.metric, got=str(sorted(names))
        )
    made = LightevalTask(
        replace(
            config,
            hf_avail_splits=(ASKED, EXAMPLES),
            evaluation_splits=(ASKED,),
            few_shots_split=EXAMPLES,
            num_fewshots=few_shot,
            stop_sequence=list(config.stop_sequence),  # added to a list when the batch is generated
        )
    )
    made.dataset = rows

    def scores(docs: Sequence[Doc], responses: Sequence[ModelResponse]) -> list[float]:
        values = apply_metric(docs=docs, responses=responses, metrics=made.metrics)
        return [float(value[task.metric]) for value in values]

    return sorted(made.get_docs(), key=lambda doc: int(doc.id)), scores


def read_rows(spec: Mapping[str, Any]) -> Rows:
    """The questions of a task, built by the task where it builds its own, and the examples that may precede them.

    lighteval compares a question with its examples in a way that never finds the same row twice, so where both come
    from one split its last rows are the examples, and only those before are asked.
    """
    task = registry()[spec["name"]]
    folder = Path(spec["folder"])
    rows: Sequence[Mapping[str, Any]] = list(datasets.load_from_disk(str(folder / spec["split"])))
    examples: Sequence[Mapping[str, Any]] = ()
    if spec["few_shot_split"] == spec["split"]:
        rows, examples = rows[:-HELD_BACK], rows[-HELD_BACK:]
    elif spec["few_shot_split"]:
        examples = list(datasets.load_from_disk(str(folder / spec["few_shot_split"])))
    built = rows if task.expand is None else task.expand(rows)
    asked = [dict(row) for row in islice(built, spec["limit"])]
    if not asked or len(examples) < spec["few_shot"]:
        raise InternalError(
            "a task has too few rows",
            where=task.name,
            expected=f"a question and {spec['few_shot']} examples",
            got=f"{len(asked)} and {len(examples)}",
        )
    return {ASKED: asked, EXAMPLES: [dict(row) for row in examples]}


def reference_of(doc: Doc) -> str:
    """The reference against which a sample was scored, as JSON."""
    own = isinstance(doc.specific, dict) and "reference" in doc.specific
    value = doc.specific["reference"] if own else doc.get_golds()
    return json.dumps(value, ensure_ascii=False, default=str)

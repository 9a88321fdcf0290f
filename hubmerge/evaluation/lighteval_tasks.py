"""Gives tasks to lighteval. Only the evaluating process imports this: lighteval is heavy and changes the process.

lighteval's registry imports every task module that it has; one of them downloads at import, and another calls functions
that the Hub's client no longer has. So its loading is replaced by exactly the wanted tasks: our own, turned into its
configuration with a metric that calls `task.score`, and built-in ones from their single modules. Rows come from the
folders that the fetching process filled, never from the network.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from lighteval.metrics.metrics_sample import SampleLevelComputation
from lighteval.metrics.utils.metric_utils import SampleLevelMetric
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.lighteval_task import LightevalTask, LightevalTaskConfig
from lighteval.tasks.registry import Registry
from lighteval.tasks.requests import Doc, SamplingMethod

from hubmerge.errors import EvaluationError, HubmergeError, InternalError
from hubmerge.evaluation.builtin import prepare_builtin
from hubmerge.evaluation.tasks import BuiltinTask, Task, registry
from hubmerge.isolation.in_child import first_line

ASKED, EXAMPLES = "asked", "examples"  # our names for the two splits that lighteval sees
HELD_BACK = 64  # rows that serve as examples where questions come from the same split


class TaskScorer(SampleLevelComputation):  # type: ignore[misc]  # lighteval has no types
    """A task's own score in the form of lighteval's metric of a sample."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def compute(self, doc: Doc, model_response: ModelResponse, **_: Any) -> float:
        assert doc.specific is not None
        try:
            return float(self.task.score(model_response.final_text[0], doc.specific["reference"]))
        except (HubmergeError, MemoryError, OSError):  # of the machine
            raise
        except Exception as error:  # whatever a task raises is its bug, and says nothing of the model
            got = f"{type(error).__name__}: {first_line(error)}"
            step = "Its `score` gives every text a number from 0 to 1 (hubmerge/evaluation/tasks/base.py)."
            raise InternalError(f"{self.task.name} does not score an answer", got=got, next_step=step) from error


def own_config(task: Task) -> LightevalTaskConfig:
    """Our task in lighteval's terms."""

    def prompt(row: dict[str, Any], task_name: str = "") -> Doc:
        specific = {"reference": task.reference(row)}  # which scores, not the choices
        return Doc(task_name=task_name, query=task.prompt(row), choices=[""], gold_index=0, specific=specific)

    return LightevalTaskConfig(
        name=task.name,
        prompt_function=prompt,
        hf_repo=task.rows.repo,
        hf_subset=task.rows.subset or "default",
        metrics=[
            SampleLevelMetric(
                metric_name=task.metric,
                category=SamplingMethod.GENERATIVE,
                higher_is_better=True,
                sample_level_fn=TaskScorer(task),
                corpus_level_fn=np.mean,
            )
        ],
        hf_avail_splits=(ASKED, EXAMPLES),
        evaluation_splits=(ASKED,),
        few_shots_split=EXAMPLES,
        few_shots_select="sequential",
        generation_size=task.max_new_tokens,
        stop_sequence=list(task.stop),
        version=task.version,
    )


def builtin_config(task: BuiltinTask) -> LightevalTaskConfig:
    """lighteval's task, reading our rows."""
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
    config.hf_avail_splits = (ASKED, EXAMPLES)
    config.evaluation_splits = (ASKED,)
    config.few_shots_split = EXAMPLES
    config.stop_sequence = list(config.stop_sequence)  # added to a list when the batch is generated
    return config


def install(tasks: Sequence[Mapping[str, Any]]) -> str:
    """Make lighteval know exactly these tasks and read their rows from disk; returns the tasks in its notation."""
    configs: dict[str, LightevalTaskConfig] = {}
    folders: dict[str, Mapping[str, Any]] = {}
    for spec in tasks:
        task = registry()[spec["name"]]
        build = own_config(task) if isinstance(task, Task) else builtin_config(task)
        configs[task.name], folders[task.name] = build, spec
    Registry.load_all_task_configs = staticmethod(lambda custom_tasks=None, load_multilingual=False: configs)
    LightevalTask.download_dataset_worker = staticmethod(lambda task: read_rows(folders[task.name]))
    return ",".join(f"{spec['name']}|{spec['few_shot']}" for spec in tasks)


def read_rows(spec: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
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

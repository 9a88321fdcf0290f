"""Tasks of our own, asked and scored as an evaluation does it."""

import json

from hubmerge.evaluation.tasks import registry
from hubmerge.evaluation.tasks.base import Row, Task


def own_task(name: str) -> Task:
    found = registry()[name]
    assert isinstance(found, Task)
    return found


def scored(task: Task, row: Row, answer: str) -> float:
    """The score of an answer; the reference travels as JSON."""
    return task.score(answer, json.loads(json.dumps(task.reference(row))))

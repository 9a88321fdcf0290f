"""The parent's side of fetching rows: finds the folders that a suite needs, and starts a process for missing ones.

A folder's name holds all that its content depends on (the dataset's commit, subset, split, how many rows). So runs can
share a store of folders, and a folder that exists is right.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hubmerge.errors import MachineFaultError, MemoryLimitError
from hubmerge.evaluation.suites import PinnedSuite, PinnedTask
from hubmerge.evaluation.tasks import Task
from hubmerge.isolation.child import ChildJob, Event, run_child
from hubmerge.isolation.in_child import WallLimitError

FETCH_MODULE = "hubmerge.evaluation.fetch"
MAX_WALL_S = 3600.0


def fetch_rows(
    suite: PinnedSuite,
    store: Path,
    *,
    token: str | None,
    cache: Path,
    environment: Mapping[str, str],
    log: Path,
    wall_s: float,
    on_event: Callable[[Event], None],
    cancelled: Callable[[], bool],
) -> Mapping[str, Path]:
    """The folder below `store` with the rows of every task, fetched where it is not there yet.

    EvaluationError when a dataset cannot be read, MachineFaultError where the fetching was killed or took too long;
    `cache` is the library's own and is removed afterwards.
    """
    folders = {task.name: store / _folder_name(task) for task in suite.tasks}
    missing = [task for task in suite.tasks if not folders[task.name].is_dir()]
    if missing:
        store.mkdir(parents=True, exist_ok=True)
        tasks = [_spec(task, folders[task.name]) for task in missing]
        job = ChildJob(
            module=FETCH_MODULE,
            spec={"token": token, "cache": str(cache), "tasks": tasks},
            environment=environment,
            log=log,
            wall_s=min(MAX_WALL_S, wall_s),
            what=f"the data of {suite.suite.name}",
        )
        try:
            run_child(job, on_event, cancelled)
        except (MemoryLimitError, WallLimitError) as error:
            raise MachineFaultError(
                "the machine ended the fetching of the data, which says nothing of the model",
                where=job.what,
                got=str(error).removeprefix(f"{error.code}: ")[:400],
                next_step="Run it again while nothing else runs here.",
            ) from None
        shutil.rmtree(cache, ignore_errors=True)
    return folders


def few_shot_split(task: PinnedTask) -> str | None:
    """The split from which a task takes its examples; None where it takes none."""
    return task.task.rows.few_shot_split if task.few_shot else None


def _folder_name(task: PinnedTask) -> str:
    rows = task.task.rows
    cut = "all" if task.limit is None or _expands(task) else str(task.limit)
    parts = (task.revision, task.name, rows.subset or "", task.split, few_shot_split(task) or "", cut)
    return "--".join(part.replace("/", "_").replace(":", "_") for part in parts)


def _spec(task: PinnedTask, folder: Path) -> Mapping[str, Any]:
    rows = task.task.rows
    return {
        "repo": rows.repo,
        "revision": task.revision,
        "subset": rows.subset,
        "split": task.split,
        "few_shot_split": few_shot_split(task),
        "data_files": dict(rows.data_files) if rows.data_files else None,
        "limit": task.limit,
        "expands": _expands(task),
        "folder": str(folder),
    }


def _expands(task: PinnedTask) -> bool:
    return isinstance(task.task, Task) and task.task.expand is not None

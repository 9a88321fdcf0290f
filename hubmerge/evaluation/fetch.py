"""The rows of every task, from the Hub at pinned commits to a folder, by a process of their own that runs no model.

    python -m hubmerge.evaluation.fetch

Only this process has the token and the network. It loads the rows through `datasets`, as any reader of the Hub would,
in one of the formats that are nothing but data, and keeps them as Arrow files, which the evaluating process opens
without the network. A folder's name holds all that its content depends on (the dataset's commit, subset, split, how
many rows). So runs can share a store of folders, and one that exists is right and not fetched again.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hubmerge.errors import EvaluationError, HubmergeError, MachineFaultError, MemoryLimitError
from hubmerge.evaluation.suites import PinnedSuite, PinnedTask
from hubmerge.evaluation.tasks import Task, registry
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import refused_token
from hubmerge.isolation.child import ChildJob, Event, fresh_environment, run_child
from hubmerge.isolation.confinement import Limits, confine
from hubmerge.isolation.in_child import Reporter, WallLimitError, first_line, ran_out_of_memory, run
from hubmerge.machine.disk_errors import of_disk
from hubmerge.sources.dataset_rows import load_split

MODULE = "hubmerge.evaluation.fetch"
MAX_ROWS = 1_000_000
MAX_WALL_S = 3600.0
_MAX_FILE_BYTES = 64 * 10**9


def fetch_rows(
    suite: PinnedSuite, store: Path, hub: Hub, workdir: Path, wall_s: float, on_event: Callable[[Event], None]
) -> Mapping[str, Path]:
    """The folder below `store` with the rows of every task, fetched where it is not there yet.

    EvaluationError when a dataset cannot be read, MachineFaultError where the fetching was killed or took too long.
    """
    folders = {task.name: store / _folder_name(task) for task in suite.tasks}
    missing = [task for task in suite.tasks if not folders[task.name].is_dir()]
    if missing:
        store.mkdir(parents=True, exist_ok=True)
        cache = workdir / "datasets"  # the library's own, which is removed afterwards
        tasks = [task.spec(folders[task.name]) for task in missing]
        job = ChildJob(
            module=MODULE,
            spec={"token": hub.token, "cache": str(cache), "tasks": tasks},
            environment=fresh_environment(cache, hub.endpoint, network=True),
            log=workdir / "fetch.log",
            wall_s=min(MAX_WALL_S, wall_s),
            what=f"the data of {suite.suite.name}",
        )
        try:
            run_child(job, on_event)
        except (MemoryLimitError, WallLimitError) as error:
            raise MachineFaultError(
                "the machine ended the fetching of the data, which says nothing of the model",
                where=job.what,
                got=str(error).removeprefix(f"{error.code}: ")[:400],
                next_step="Run it again while nothing else runs here.",
            ) from None
        shutil.rmtree(cache, ignore_errors=True)
    return folders


def _folder_name(task: PinnedTask) -> str:
    rows = task.task.rows
    cut = "all" if task.limit is None or task.task.expand is not None else str(task.limit)
    examples = rows.few_shot_split if task.task.few_shot else None
    parts = (task.revision, task.name, rows.subset or "", task.split, examples or "", cut)
    return "--".join(part.replace("/", "_").replace(":", "_") for part in parts)


def fetch(spec: Mapping[str, Any], reporter: Reporter) -> Mapping[str, Any]:
    """In the child: fetch every task of the spec."""
    confine(Limits(file_bytes=_MAX_FILE_BYTES), network=True)
    import datasets

    datasets.disable_progress_bars()
    tasks = spec["tasks"]
    store = Path(tasks[0]["folder"]).parent
    # nobody else fetches into the store until this process ends, so what is half-fetched there is of a killed one
    held = os.open(store, os.O_RDONLY)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(held, fcntl.LOCK_EX)
        for left in store.glob("*.partial"):
            shutil.rmtree(left, ignore_errors=True)
    for number, task in enumerate(tasks):
        reporter.progress("fetch data", number, len(tasks), "tasks")
        folder = Path(task["folder"])
        if not folder.is_dir():
            _fetch_task(task, folder, spec["token"], Path(spec["cache"]))
    reporter.progress("fetch data", len(tasks), len(tasks), "tasks")
    return {}


def _fetch_task(task: Mapping[str, Any], folder: Path, token: str | None, cache: Path) -> None:
    where = f"{task['repo']}@{task['revision'][:12]}"
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        for split in dict.fromkeys(s for s in (task["split"], task["few_shot_split"]) if s):
            # the splits share one preparation in the library's cache
            rows = load_split(
                task["repo"],
                split,
                revision=task["revision"],
                token=token,
                cache=cache,
                refused=EvaluationError,
                subset=task["subset"],
            )
            if not len(rows):
                raise EvaluationError("a dataset's split is empty", where=where, got=split)
            if len(rows) > MAX_ROWS:
                raise EvaluationError(
                    "a dataset is too long", where=where, expected=f"at most {MAX_ROWS} rows", got=str(len(rows))
                )
            if split == task["split"]:
                _check(task["name"], rows, where)
            # a task that builds its own questions needs all rows for them
            if task["limit"] and split == task["split"] and not task["expands"] and split != task["few_shot_split"]:
                rows = rows.select(range(min(task["limit"], len(rows))))
            rows.save_to_disk(str(partial / split))
    except HubmergeError:
        raise
    except Exception as error:  # a stranger's files: any error of the libraries means the same, but for the machine's
        if of_disk(error) or ran_out_of_memory(error):
            raise
        if (refused := refused_token(error, where)) is not None:
            raise refused from None
        text = first_line(error)
        raise EvaluationError(
            "a dataset cannot be read",
            where=f"{where}, subset {task['subset']}, split {task['split']}",
            got=text.replace(token, "…") if token else text,
            next_step="Check that it exists with this subset and split, and that the token may read it.",
        ) from error
    partial.rename(folder)


def _check(name: str, rows: Any, where: str) -> None:
    """EvaluationError where the task cannot ask the first row: every model would fail by what the dataset lacks."""
    task = registry()[name]
    if not isinstance(task, Task):
        return  # lighteval asks it
    try:
        first = next(iter(rows if task.expand is None else task.expand(list(rows))))
        task.prompt(first)
        task.reference(first)
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration, EvaluationError) as error:
        raise EvaluationError(
            "a dataset's rows are not those that the task asks",
            where=f"{where}, {name}",
            got=f"{type(error).__name__}: {first_line(error)}; the columns are {', '.join(next(iter(rows), {}))[:200]}",
            next_step="Correct the task, or pin the dataset to the commit that it is for (`hubmerge suites --pin`).",
        ) from error


if __name__ == "__main__":
    sys.exit(run(fetch))

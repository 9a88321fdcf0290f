"""The registry of benchmark tasks: every module in this package that defines `TASKS`.

To add a task, add one file here; see base.py for the interface.
"""

import importlib
import pkgutil
from functools import cache

from hubmerge.evaluation.tasks.base import BuiltinTask, Task


@cache
def registry() -> dict[str, Task | BuiltinTask]:
    """Every task by name, in alphabetical order."""
    found: dict[str, Task | BuiltinTask] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for task in getattr(module, "TASKS", ()):
            if task.name in found:
                raise ValueError(f"two tasks are called {task.name!r}")
            found[task.name] = task
    return dict(sorted(found.items()))


__all__ = ["BuiltinTask", "Task", "registry"]

"""The registry of watcher kinds: every module in this package that defines a `Watcher` subclass.

To add a kind, add one file here; see `workflows/watchers/base.py` for the interface.
"""

import importlib
import pkgutil
from functools import cache

from workflows.watchers.base import Watcher


@cache
def registry() -> dict[str, type[Watcher]]:
    """Every kind by name, in alphabetical order."""
    found: dict[str, type[Watcher]] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Watcher) and value.__module__ == module.__name__:
                if value.kind in found:
                    raise ValueError(f"two kinds of watchers are called {value.kind!r}")
                found[value.kind] = value
    return dict(sorted(found.items()))

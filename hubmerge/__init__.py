"""hubmerge: merge RL-trained agents on the Hugging Face Hub.

    import hubmerge

    hubmerge.inspect("recipe.yaml").download_bytes                 # a plan, from headers alone
    hubmerge.probe("recipe.yaml").total                            # what the agents changed, where they meet
    hubmerge.merge("recipe.yaml", "merged")                        # a folder with weights, card and report
    hubmerge.merge("recipe.yaml", to="me/merged")                  # the same, published in one commit
    hubmerge.publish("merged", "me/merged")
    hubmerge.evaluate("me/merged", "math").tasks
    hubmerge.leaderboard("me/results").suites

docs/library.md shows each of them. What they do stands in `line.py`, top to bottom; nothing is imported before it is
used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hubmerge.board.read import leaderboard
    from hubmerge.engine.options import StreamOptions
    from hubmerge.engine.progress import Observer
    from hubmerge.errors import HubmergeError
    from hubmerge.library import evaluate, inspect, merge, probe, publish
    from hubmerge.recipe.recipe import Recipe

__version__ = "0.1.0"

__all__ = [
    "HubmergeError",
    "Observer",
    "Recipe",
    "StreamOptions",
    "evaluate",
    "inspect",
    "leaderboard",
    "merge",
    "probe",
    "publish",
]

_HOMES = {
    "HubmergeError": "hubmerge.errors",
    "Observer": "hubmerge.engine.progress",
    "Recipe": "hubmerge.recipe.recipe",
    "StreamOptions": "hubmerge.engine.options",
    "leaderboard": "hubmerge.board.read",
}


def __getattr__(name: str) -> Any:
    """PEP 562: what `import hubmerge` offers is imported when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'hubmerge' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "hubmerge.library")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

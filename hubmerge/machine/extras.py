"""The extras that can be installed beside the core, and the error where one is missing.

The core merges, publishes and inspects on the CPU. An extra holds the packages for one further purpose: a GPU, models
that run, the app. pyproject.toml lists the packages; this module lists the imports that show whether they are there.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Literal

from hubmerge.errors import MissingExtraError

Extra = Literal["gpu", "eval", "app"]

# by what imports a package first: a module of two extras counts for the first that names it
MODULES: Mapping[Extra, tuple[str, ...]] = {
    "gpu": ("torch",),
    "app": (
        *("gradio", "spaces", "starlette", "uvicorn", "multipart", "sqlalchemy", "apscheduler"),
        *("cryptography", "authlib", "markdown_it"),
    ),
    "eval": (
        *("lighteval", "datasets", "transformers", "torch", "accelerate", "safetensors", "pyarrow", "psutil"),
        *("langdetect", "nltk", "xxhash", "cryptography"),
    ),
}


def require(extra: Extra, what: str, *modules: str) -> None:
    """MissingExtraError where `what` (singular) needs a package of the extra that is not installed.

    `modules`: the imports of the extra that it needs; default: all.
    """
    if missing := _missing(modules or MODULES[extra]):
        raise _error(extra, what, missing)


def is_installed(extra: Extra) -> bool:
    return not _missing(MODULES[extra])


def explained(error: ModuleNotFoundError) -> MissingExtraError | None:
    """The extra that a failed import misses; None where the module belongs to none."""
    name = (error.name or "").partition(".")[0]
    for extra, modules in MODULES.items():
        if name in modules:
            return _error(extra, "this", [name])
    return None


def _missing(modules: Sequence[str]) -> list[str]:
    return [name for name in modules if importlib.util.find_spec(name) is None]


def _error(extra: Extra, what: str, missing: list[str]) -> MissingExtraError:
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return MissingExtraError(
        f"{what} needs packages that are not installed",
        expected=f"hubmerge[{extra}]",
        got=f"no {', '.join(missing[:3])}{more}",
        next_step=f"Run pip install 'hubmerge[{extra}]'.",
    )

"""sentence-transformers' models: a merge merges their first module; the other modules lie in folders.

The other modules' weights go along where all models have the same. Anything else is refused before a weight moves.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence

from hubmerge.errors import Problem
from hubmerge.hub.names import FileInfo
from hubmerge.sources.base import Model
from hubmerge.sources.companions import MAX_FILE_BYTES, MODULE_FOLDER, MODULES, ReadFile
from hubmerge.text.wording import incompatible, named

_MODULE_CLASS = re.compile(r"sentence_transformers(?:\.[A-Za-z_]\w*)+")


def module_problems(base: Model, agents: Sequence[Model], read: ReadFile) -> list[Problem]:
    """Problems of the other modules; where their weights differ, half of the result would silently be the base's."""
    if MODULES not in base.files:
        return []
    problems = list(_foreign_modules(base, read))
    for folder in dict.fromkeys(folder for model in (base, *agents) for folder in _with_weights(model)):
        weights = f"{folder}/model.safetensors"
        for model in (base, *agents):
            if weights not in model.files and folder in _with_weights(model):
                load = "from sentence_transformers import SentenceTransformer as S; "
                load += f"S({model.ref.id!r}).save_pretrained('FOLDER')"
                problems.append(
                    incompatible(
                        "a module whose weights are a pickle",
                        where=f"{folder} in {model.ref}",
                        expected=weights,
                        got="pytorch_model.bin",
                        next_step=f'A pickle is never opened; convert it: python -c "{load}".',
                    )
                )
        for agent in agents:
            if _other_module(base, agent, folder, read):
                problems.append(
                    incompatible(
                        "another module beside the model, which a merge does not reach",
                        where=f"{weights} in {agent.ref}",
                        expected="the same weights as the base's",
                        got="others" if weights in base.files else "one that the base does not have",
                        next_step=f"Remove {agent.ref.id}, or train it with that module frozen.",
                    )
                )
    return problems


def _foreign_modules(base: Model, read: ReadFile) -> Iterator[Problem]:
    try:
        listed = [str(module["type"]) for module in json.loads(read(base, MODULES))]
    except (ValueError, TypeError, KeyError, RecursionError):
        yield incompatible(
            f"a {MODULES} that does not list modules",
            where=str(base.ref),
            expected="what sentence-transformers writes",
            next_step=f"Merge a copy of the base without {MODULES}, and the model merges alone.",
        )
        return
    if foreign := [ascii(name)[1:-1][:80] for name in listed if not _MODULE_CLASS.fullmatch(name)]:
        yield incompatible(
            "modules that need the repo's own code",
            where=f"{MODULES} in {base.ref}",
            expected="classes of sentence_transformers",
            got=named(foreign),
            next_step=f"A merge carries no code: merge a copy of the base without {MODULES}; the model merges alone.",
        )


def _with_weights(model: Model) -> list[str]:
    """The folders of modules with weights, some twice."""
    weights = rf"({MODULE_FOLDER})/(?:model\.safetensors|pytorch_model\.bin)"
    return [match[1] for path in model.files if (match := re.fullmatch(weights, path, re.ASCII))]


def _other_module(base: Model, agent: Model, folder: str, read: ReadFile) -> bool:
    weights = f"{folder}/model.safetensors"
    own, other = base.files.get(weights), agent.files.get(weights)
    if other is None:  # not stored anew, or a pickle, which another check refuses
        return False
    if own is None:
        return folder not in _with_weights(base)
    if own.size != other.size:
        return True
    if own.size > MAX_FILE_BYTES and None in (own.sha256, other.sha256):
        return False  # refused for its size
    return _digest(base, own, read) != _digest(agent, other, read)


def _digest(model: Model, file: FileInfo, read: ReadFile) -> str:
    return file.sha256 or hashlib.sha256(read(model, file.path)).hexdigest()

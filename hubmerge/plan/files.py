"""Every file of a merged folder besides weights, card and manifest.

Where agents add tokens (sources/vocabulary.py), the base's tokenizer gets them, file by file:

    tokenizer.json           `added_tokens`: what the tokenizers library reads
    tokenizer_config.json    `added_tokens_decoder`, where the base has one
    added_tokens.json        token → id, where the base has one: for tokenizers without tokenizer.json

The last two are changed only where the base has them in the form that their names say. The library numbers added tokens
by their order, so the ids here are those that it gives them.

Of sentence-transformers' models a merge merges the first module; the others lie in folders. Their weights go along
where all models have the same. Anything else is refused before a weight moves (`module_problems`).
"""

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hubmerge.errors import InternalError, Problem
from hubmerge.hub.names import FileInfo
from hubmerge.plan.plan import Plan
from hubmerge.sources.base import AddedToken, Model
from hubmerge.sources.companions import (
    MAX_FILE_BYTES,
    MAX_SETTINGS_BYTES,
    MODULE_FOLDER,
    MODULES,
    ReadFile,
    other_content,
    read_companions,
)
from hubmerge.sources.config import merged_config
from hubmerge.sources.open import INDEX, LFS_POINTER, not_fetched
from hubmerge.sources.staged import GENERATION, ends_of, stated_ends
from hubmerge.sources.vocabulary import TOKENIZER
from hubmerge.text.wording import incompatible, json_file, json_table, named

_CONFIG = "tokenizer_config.json"
_ADDED = "added_tokens.json"
_MODULE_CLASS = re.compile(r"sentence_transformers(?:\.[A-Za-z_]\w*)+")


def folder_files(plan: Plan, read: ReadFile) -> tuple[dict[str, bytes], list[str]]:
    """Every file besides weights, card and manifest (path → content), and warnings for the user."""
    config, _ = merged_config(plan.config, [t.dtype for t in plan.tensors()])  # the plan tells what is left out
    companions, left_out = read_companions(plan.companions, plan.models, read)
    files = {"config.json": json_file(config), **companions}
    if plan.vocabulary is not None and plan.vocabulary.united:
        files |= united_tokenizer(files, plan.vocabulary.united)
    if len(plan.shards) > 1:
        files[INDEX] = json_file(
            {
                "metadata": {"total_size": sum(s.size - len(s.header) for s in plan.shards)},
                "weight_map": {t.name: s.filename for s in plan.shards for t in s.tensors},
            }
        )
    files["recipe.yaml"] = plan.recipe.to_yaml().encode()
    return files, left_out


def refuse_pointers(plan: Plan, read: ReadFile) -> None:
    """Refuse files of local folders that git-lfs did not fetch, as where it was asked for the weights alone."""
    small = [(plan.models[f.model], f.source) for f in plan.companions.files if f.size < 1024]
    local = [(model, path) for model, path in small if model.ref.kind == "local"]
    if pointers := [f"{path} in {model.ref}" for model, path in local if read(model, path).startswith(LFS_POINTER)]:
        raise not_fetched(pointers)


def chat_templates(plan: Plan, read: ReadFile) -> list[str]:
    """Warnings of agents whose tokenizer_config.json has another chat template than that of the merge's tokenizer.

    What that file says besides is written anew by every trainer. Files of templates are told by their names
    (companions.py).
    """
    kept = plan.models[plan.vocabulary.donor if plan.vocabulary else 0]
    ours = kept.files.get(_CONFIG)
    if ours is None or "chat_template.jinja" in kept.files:
        return []
    stated = ((agent, agent.files.get(_CONFIG)) for agent in plan.agents)
    others = [a for a, info in stated if info and 0 < info.size <= MAX_SETTINGS_BYTES and other_content(ours, info)]
    if not others or ours.size > MAX_SETTINGS_BYTES:
        return []
    with ThreadPoolExecutor(max_workers=8) as pool:
        own, *theirs = pool.map(lambda model: _template(read(model, _CONFIG)), [kept, *others])
    whose = "the base's" if kept.ref == plan.base.ref else f"{kept.ref.id}'s"
    return [
        f"{agent.ref.id}: the chat template in {_CONFIG} differs from {whose}; the merge keeps {whose}"
        for agent, template in zip(others, theirs, strict=True)
        if template not in (None, own)
    ]


def other_ends(plan: Plan, read: ReadFile) -> list[str]:
    """Warnings of agents whose generation_config.json ends answers at other tokens than the merge, which has the
    base's."""
    if not (told := [agent for agent in plan.agents if GENERATION in agent.files]):
        return []
    with ThreadPoolExecutor(max_workers=8) as pool:
        own, *theirs = pool.map(lambda model: stated_ends(model, read), [plan.base, *told])
    kept = {*(own or ends_of(plan.base.config))}
    return [
        f"{agent.ref.id}: {GENERATION} ends answers at token {_listed(ends)}, the base's at {_listed(kept) or 'none'}; "
        "the merge keeps the base's"
        for agent, ends in zip(told, theirs, strict=True)
        if ends and {*ends} != kept
    ]


def _listed(tokens: Iterable[int]) -> str:
    return named([str(token) for token in sorted({*tokens})])


def united_tokenizer(files: Mapping[str, bytes], tokens: Sequence[AddedToken]) -> dict[str, bytes]:
    """The new content of those of the base's `files` that change when `tokens` are added."""
    if TOKENIZER not in files:
        raise InternalError("the base's tokenizer cannot be extended", where=TOKENIZER, got="no such file")
    content = json.loads(files[TOKENIZER])
    content["added_tokens"] = [*(content.get("added_tokens") or []), *(_entry(t, with_id=True) for t in tokens)]
    changed = {TOKENIZER: _json(content)}
    config = json_table(files.get(_CONFIG, b"")) or {}
    if isinstance(decoder := config.get("added_tokens_decoder"), dict):
        more = {str(t.id): _entry(t, with_id=False) for t in tokens}
        changed[_CONFIG] = _json({**config, "added_tokens_decoder": {**decoder, **more}})
    if (added := json_table(files.get(_ADDED, b""))) is not None:
        changed[_ADDED] = _json({**added, **{t.content: t.id for t in tokens}})
    return changed


def _template(content: bytes) -> str | None:
    """The chat template or templates in a tokenizer_config.json, as JSON."""
    try:
        return json.dumps(found) if (found := (json_table(content) or {}).get("chat_template")) else None
    except RecursionError:
        return None


def _entry(token: AddedToken, *, with_id: bool) -> dict[str, Any]:
    return {**({"id": token.id} if with_id else {}), "content": token.content, **token.matching}


def _json(value: Any) -> bytes:
    # escaped, since the base's file may hold a lone surrogate, which UTF-8 cannot encode
    return (json.dumps(value, indent=2) + "\n").encode()


def module_problems(base: Model, agents: Sequence[Model], read: ReadFile) -> list[Problem]:
    """Problems of the other modules; where their weights differ, half of the result would silently be the base's."""
    if MODULES not in base.files:
        return []
    problems = list(_foreign_modules(base, read))
    for folder in dict.fromkeys(folder for model in (base, *agents) for folder in _with_weights(model)):
        weights = f"{folder}/model.safetensors"
        for model in (base, *agents):
            if weights not in model.files and folder in _with_weights(model):
                load = "import sys; from sentence_transformers import SentenceTransformer as S; "
                at = f", revision='{model.ref.sha}'" if model.ref.kind == "hub" else ""
                load += f"S(sys.argv[1]{at}).save_pretrained('FOLDER')\" {shlex.quote(model.ref.id)}"
                problems.append(
                    incompatible(
                        "a module whose weights are a pickle",
                        where=f"{folder} in {model.ref}",
                        expected=weights,
                        got="pytorch_model.bin",
                        next_step=f'A pickle is never opened; convert it: python -c "{load}',
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

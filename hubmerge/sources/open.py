"""Opens the models that a recipe names: pins them and reads their headers; bytes are read on demand.

A Hub repo costs one request for its state and one per shard for its header (in parallel); no weight moves. A local
folder is pinned by what folder.py says. A repo with full weights is a model, whatever else it holds; one without them
is a LoRA adapter if it has the files that PEFT writes.
"""

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hubmerge.errors import (
    FormatError,
    GatedError,
    HeaderError,
    HubmergeError,
    IndexFileError,
    Problem,
    SourceNotFoundError,
)
from hubmerge.hub.client import Hub
from hubmerge.hub.names import is_hub_id, stated_bases, stated_license
from hubmerge.recipe.model_name import SYNTHETIC, ModelName, ModelRef
from hubmerge.recipe.recipe import Recipe
from hubmerge.sources.adapter_config import FOUR_BITS, parse_adapter_config
from hubmerge.sources.ancestry import stated_ancestors
from hubmerge.sources.base import HeaderDigest, Model, StoredTensor, TokenTable
from hubmerge.sources.folder import ADAPTER_CONFIG, CONFIG, folder_digest, link_outside, list_folder, read_inside
from hubmerge.sources.header import MAX_TENSORS, Header, header_length, parse_header
from hubmerge.sources.remedies import Place
from hubmerge.sources.synthetic import open_synthetic
from hubmerge.sources.vocabulary import MAX_TOKENIZER_BYTES, MAX_TOKENIZER_VALUES, TOKENIZER, rows_differ, token_table
from hubmerge.text.plain_yaml import load_plain_yaml

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADAPTER = "adapter_model.safetensors"
_FIRST_READ_BYTES = 128 * 1024  # most headers fit, so that one request per shard is enough
_MAX_INDEX_BYTES = 50_000_000
_MAX_CONFIG_BYTES = 4_000_000
_MAX_CONFIG_VALUES = 100_000
_MAX_CARD_BYTES = 64 * 1024
_MAX_SHARDS = 2_000
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_MOST_DIGITS = 100  # of an integer; reading long ones takes quadratic time, and a library may lift Python's limit
_SHARD_NAME = re.compile(r"[A-Za-z0-9][\w.\-]{0,200}\.safetensors", re.ASCII)
_READ_HERE = frozenset(("README.md", CONFIG, ADAPTER_CONFIG, INDEX))
_TOLD_EVERY_S = 0.5


def open_models(
    recipe: Recipe,
    hub: Hub,
    *,
    allow_local: bool,
    commits: Sequence[str | None] = (),
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Model, tuple[Model, ...]]:
    """The base and the agents, pinned; every problem of every model is raised together.

    `commits`: per model, a commit to take in place of the recipe's revision, or None. `tell` is called now and then
    with how many models have been opened, of how many; it may raise to cancel.
    """
    names = (recipe.base, *(a.model for a in recipe.agents))
    errors: list[HubmergeError] = []
    models: list[Model] = []
    asked, told = hub.breakable(), False
    with ThreadPoolExecutor(max_workers=8) as pool:
        try:
            opening = [
                pool.submit(open_model, name, asked, allow_local=allow_local, commit=commit, folder=recipe.folder)
                for name, commit in zip(names, commits or [None] * len(names), strict=True)
            ]
            while left := wait(opening, _TOLD_EVERY_S).not_done:
                tell(len(names) - len(left), len(names))
                told = True
            for future in opening:
                try:
                    models.append(future.result())
                except HubmergeError as error:
                    errors.append(error)
        except BaseException:  # interrupted, which the threads that wait for the Hub do not notice
            asked.hang_up()
            raise
    if told:  # not to leave it at less than all
        tell(len(names), len(names))
    if errors:
        problems = tuple(dict.fromkeys(p for e in errors for p in e.problems))
        # what a retry cannot mend decides the kind of the whole
        leading = next((e for e in errors if not e.retryable), errors[0])
        raise type(leading)(leading.what, problems=problems)
    return as_family(models, hub, recipe.tokenizer_of)


def as_family(models: Sequence[Model], hub: Hub, keeper: int | None = None) -> tuple[Model, tuple[Model, ...]]:
    """Base and agents with what more they must tell beside each other: whether the base is the one that an adapter
    names, and tokens where some have other rows. `keeper`: the model whose tokenizer is kept."""
    models = [_of_base(models[0], model, hub) for model in models]
    told = [0, keeper] if keeper else []  # whose tokens must be the base's
    for k in range(len(models)) if rows_differ(models[0], models[1:]) else told:
        models[k] = _with_tokens(models[k], hub, models[0].tokens)
    return models[0], tuple(models[1:])


def _of_base(base: Model, agent: Model, hub: Hub) -> Model:
    """An adapter that knows whether the name that it has for its base is one by which the Hub leads to this base, as
    before it was renamed, or a copy in 4 bits whose card says so."""
    stated = (agent.adapter and agent.adapter.base_name) or ""
    if agent.adapter and base.ref.kind == "hub" and stated != base.ref.id and "/" in stated and is_hub_id(stated):
        with suppress(SourceNotFoundError, GatedError, FormatError):  # then the names alone are compared
            state = hub.repo_state(stated)
            origins = stated_bases(state.card)[:1] if FOUR_BITS.search(stated) else ()
            if base.ref.id in (state.id, *(hub.repo_state(origin).id for origin in origins)):
                return replace(agent, adapter=replace(agent.adapter, of_base=True))
    return agent


def _with_tokens(model: Model, hub: Hub, base: TokenTable | None) -> Model:
    """The model with the tokens of its tokenizer.json, or without tokens where that file cannot be read."""
    if TOKENIZER not in model.files or model.files[TOKENIZER].size > MAX_TOKENIZER_BYTES:
        return model
    if model.ref.kind == "local":
        try:
            raw = read_inside(model.ref.path, TOKENIZER, MAX_TOKENIZER_BYTES)
        except OSError as error:
            raise SourceNotFoundError(
                "a file that cannot be read", where=f"{TOKENIZER} in {model.ref}", got=str(error)
            ) from None
    else:
        raw = hub.read_file(model.ref.id, model.ref.sha, TOKENIZER, MAX_TOKENIZER_BYTES)
    content = _json_object(raw, f"{TOKENIZER} in {model.ref}", MAX_TOKENIZER_VALUES)
    return replace(model, tokens=token_table(content, base))


def open_model(
    name: ModelName,
    hub: Hub,
    *,
    allow_local: bool,
    commit: str | None = None,
    folder: Path | None = None,
) -> Model:
    """One model from its headers; raises SourceNotFoundError, GatedError, FormatError, HeaderError, IndexFileError.

    A relative folder begins at `folder`, or where the process was started.
    """
    if name.local:
        if not allow_local:
            step = "Give a Hub id (org/name, without a folder in the repo)."
            raise SourceNotFoundError("local folders cannot be used here", where=name.id, next_step=step)
        return open_synthetic(name.id) if name.id.startswith(SYNTHETIC) else _open_folder(name.id, folder)
    try:
        state = hub.repo_state(name.id, commit or name.revision)
    except SourceNotFoundError as error:
        if allow_local and Path(name.id).is_dir():
            raise SourceNotFoundError(
                error.what, where=str(name), next_step=f"If the folder is meant, write ./{name.id}."
            ) from None
        raise
    ref = ModelRef("hub", state.id, state.sha, name.revision or "main")
    read_range = partial(hub.read_range, state.id, state.sha)
    read_file = partial(hub.read_file, state.id, state.sha)
    place = Place(str(ref), state.id, None, state.files, state.card, read_range, read_file, name.revision)
    return replace(
        _read_headers(place, ref),
        license=state.license,
        gated=state.gated,
        private=state.private,
        made_from=() if state.private else stated_ancestors(state.card, state.files, read_file),
    )


def _config(place: Place, name: str) -> dict[str, Any]:
    """The content of config.json or adapter_config.json."""
    return _json_object(place.read_file(name, _MAX_CONFIG_BYTES), f"{name} in {place.where}", _MAX_CONFIG_VALUES)


def _without_weights(place: Place, expected: str) -> FormatError:
    try:
        config = _config(place, CONFIG) if CONFIG in place.files else {}
    except HubmergeError:  # it would only make the message better
        config = {}
    return place.without_weights(expected, config)


def _open_folder(text: str, begin: Path | None) -> Model:
    try:
        folder = (begin or Path()) / os.path.expanduser(text)
        found = folder.is_dir()
    except OSError as error:  # a name that is too long
        raise SourceNotFoundError("a folder that cannot be read", where=text[:200], got=str(error.strerror)) from None
    if not found:
        raise _no_folder(text, folder, begin or Path())

    def read_range(path: str, start: int, end: int) -> bytes:
        with open(folder / path, "rb") as file:
            file.seek(start)
            return file.read(end - start)

    try:
        files, outside = list_folder(folder)
        for name in outside:
            if name in _READ_HERE or _SHARD_NAME.fullmatch(name):
                raise link_outside(text, name)
        card = _card_data(read_range("README.md", 0, _MAX_CARD_BYTES)) if "README.md" in files else {}
        place = Place(text, text, folder, files, card, read_range, partial(read_inside, folder))
        ref = ModelRef("local", text, "", place="" if begin is None else str(folder))
        model = _read_headers(place, ref)
        digest = folder_digest(folder, ADAPTER_CONFIG if model.adapter else CONFIG, model.shards)
        made_from = stated_ancestors(card, files, place.read_file)
    except OSError as error:
        raise SourceNotFoundError("a folder that cannot be read", where=text, got=str(error)) from None
    ref = replace(ref, sha=digest)
    return replace(model, ref=ref, license=stated_license(card), made_from=made_from, outside=outside)


def _no_folder(text: str, folder: Path, begin: Path) -> SourceNotFoundError:
    if folder.is_file():
        what, step = "a file, where a model's folder is needed", f"Name its folder: {Path(text).parent}."
        return SourceNotFoundError(what, where=text, next_step=step)
    step = "Give a folder of a model, or a Hub id (org/name; fetch a folder in a repo first)."
    if begin != Path() and Path(text).is_dir():
        step = f"Paths in a recipe begin at its folder: write {os.path.relpath(text, begin)}."
    return SourceNotFoundError("no such folder", where=text if begin == Path() else str(folder), next_step=step)


def _card_data(content: bytes) -> dict[str, Any]:
    """The YAML front matter of a local card; empty where it is broken."""
    match = re.match(r"\s*---\r?\n(.*?)\r?\n---", content.decode("utf-8-sig", errors="replace"), re.DOTALL)
    try:
        data = load_plain_yaml(match.group(1)) if match else {}
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _read_headers(place: Place, ref: ModelRef) -> Model:
    """The model by its config.json, or the adapter's config where there is one, and by the headers of all shards."""
    where, files = place.where, place.files
    config: dict[str, Any] = {}
    adapter, weight_map = None, None
    shards: tuple[str, ...] = (ADAPTER,)
    if SINGLE in files or INDEX in files:
        shards, weight_map = _shards(place)
        if CONFIG not in files:
            raise FormatError(
                "no config.json",
                where=where,
                expected="a transformers model",
                next_step="Copy the base's config.json beside the weights, if they are of that architecture.",
            )
        config = _config(place, CONFIG)
    elif ADAPTER_CONFIG not in files:
        raise _without_weights(place, f"{SINGLE} or {INDEX}")
    elif ADAPTER not in files:
        raise _without_weights(place, ADAPTER)
    else:
        adapter = parse_adapter_config(_config(place, ADAPTER_CONFIG), f"{ADAPTER_CONFIG} in {where}")
    tensors: dict[str, StoredTensor] = {}
    digests: dict[str, HeaderDigest] = {}
    for shard, (header, digest) in zip(shards, _all_headers(place, shards), strict=True):
        digests[shard] = digest
        for entry in header.tensors:
            if entry.name in tensors:
                raise IndexFileError("two shards store the same tensor", where=where, got=entry.name)
            tensors[entry.name] = StoredTensor(shard, entry)
    for name, shard in (weight_map or {}).items():
        if name not in tensors or tensors[name].shard != shard:
            raise IndexFileError(
                "the index names a tensor that its shard does not hold",
                where=where,
                expected=ascii(f"{name[:80]} in {shard}")[1:-1],
                got="no such tensor",
            )
    if not tensors:
        raise FormatError("the model has no tensors", where=where)
    card = MappingProxyType(dict(place.card))
    stored = MappingProxyType(tensors)
    return Model(
        ref, MappingProxyType(config), files, stored, card=card, adapter=adapter, headers=MappingProxyType(digests)
    )


def _all_headers(place: Place, shards: Sequence[str]) -> list[tuple[Header, HeaderDigest]]:
    """The headers of all shards, fetched in parallel and parsed one by one; the number of their tensors is limited."""
    one_at_a_time = threading.Lock()
    found = 0

    def check() -> None:
        if found > MAX_TENSORS:
            most, got = f"at most {MAX_TENSORS}", str(found)
            raise HeaderError("the model has too many tensors", where=place.where, expected=most, got=got)

    def read(shard: str) -> tuple[Header, HeaderDigest]:
        nonlocal found
        check()
        raw = _read_header(place, shard)
        with one_at_a_time:
            header = parse_header(raw[8:], place.files[shard].size, f"{shard} in {place.where}")
            found += len(header.tensors)
        return header, HeaderDigest(len(raw), hashlib.sha256(raw).hexdigest())

    with ThreadPoolExecutor(max_workers=8) as pool:
        headers = list(pool.map(read, shards))
    check()
    return headers


def _shards(place: Place) -> tuple[tuple[str, ...], dict[str, str] | None]:
    """The names of the shards, and the index's `weight_map` where there is one: tensor → shard."""
    where, files = place.where, place.files
    if SINGLE in files:
        # transformers, too, looks for the single file first
        return (SINGLE,), None
    if files[INDEX].size > _MAX_INDEX_BYTES:
        raise IndexFileError("the index is too large", where=where, got=f"{files[INDEX].size} bytes")
    index = _json_object(place.read_file(INDEX, _MAX_INDEX_BYTES), f"{INDEX} in {where}", 2 * MAX_TENSORS)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise IndexFileError("the index has no weight_map", where=where)
    for shard in weight_map.values():
        # checked before any request is made with it
        if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard) or shard not in files:
            raise IndexFileError(
                "the index names a file that is not a shard of this repo",
                where=where,
                expected="a *.safetensors file beside it",
                got=ascii(shard)[:120],
                next_step="Fetch the whole model, with all of its shards.",
            )
    shards = tuple(sorted(set(weight_map.values())))
    if len(shards) > _MAX_SHARDS:
        raise IndexFileError("the index names too many shards", where=where, got=str(len(shards)))
    return shards, weight_map


def _read_header(place: Place, shard: str) -> bytes:
    """The first bytes of a shard, up to the end of its header."""
    where, size = f"{shard} in {place.where}", place.files[shard].size
    if size < 10:
        raise HeaderError("the file is too short for a safetensors header", where=where, got=f"{size} bytes")
    first = place.read_range(shard, 0, min(_FIRST_READ_BYTES, size))
    if first.startswith(LFS_POINTER):
        step = "Fetch the weights into the folder: git lfs pull."
        raise FormatError("a pointer of git-lfs stands in for the weights", where=where, next_step=step)
    end = 8 + header_length(first, where)
    if end > size:
        raise HeaderError(
            "the header is longer than the file", where=where, expected=f"at most {size} bytes", got=str(end)
        )
    return first[:end] if len(first) >= end else first + place.read_range(shard, len(first), end)


def not_fetched(places: Sequence[str]) -> FormatError:
    """The refusal of files beside the weights that git-lfs has left as pointers."""
    what, step = "a pointer of git-lfs stands in for a file", "Fetch the files into the folder: git lfs pull."
    problems = [Problem(FormatError.code, what, place, next_step=step) for place in places]
    return FormatError(what, problems=problems)


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("an integer of too many digits")
    return int(digits)


def _json_object(raw: bytes, where: str, most_items: int) -> dict[str, Any]:
    """A JSON object of at most about `most_items` values; a bomb of a million empty lists is not even parsed."""
    if raw.startswith(LFS_POINTER):
        raise not_fetched([where])
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > most_items:
        raise FormatError("a JSON file that holds too much", where=where, expected=f"at most {most_items} values")
    try:
        value = json.loads(raw, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        at = ""
        if isinstance(error, json.JSONDecodeError):
            at = f"{error.msg} (line {error.lineno}, column {error.colno})"
        raise FormatError("not valid JSON", where=where, got=at, next_step="Correct it, or fetch it again.") from None
    if not isinstance(value, dict):
        raise FormatError("not a JSON object", where=where)
    return value

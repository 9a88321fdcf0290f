"""Makes a folder that transformers can load from a stranger's model: weights, config and tokenizer.

transformers sees this folder and never the repo. The weights are the safetensors shards whose headers were checked,
under an index written here; keys that name code or a place are taken out, as in a merge (config.py).
Of generation_config.json only the tokens that end an answer are taken, so that no repo's penalties or sampling change
what its score means. No pickle and no code is fetched.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hubmerge.hub.client import Hub
from hubmerge.sources.base import Model
from hubmerge.sources.companions import MAX_SETTINGS_BYTES, ReadFile, reader, tokenizer_files
from hubmerge.sources.config import merged_config, told
from hubmerge.sources.folder import CONFIG, check_planned
from hubmerge.sources.open import INDEX, SINGLE
from hubmerge.sources.reader import LocalOrFetched
from hubmerge.text.wording import json_table

GENERATION = "generation_config.json"


def stage_model(model: Model, hub: Hub, folder: Path, inputs: Path, progress: Callable[[int, int], None]) -> list[str]:
    """Make `folder` anew; returns notes on what was left out. A Hub model's shards are fetched into `inputs`.

    `progress` is called with the bytes of shards that are there, and their total.
    """
    shutil.rmtree(folder, ignore_errors=True)
    left_out = stage_settings(model, hub, folder)
    total, done = model.weight_bytes, 0

    def fetched(_: str, count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    store = LocalOrFetched(hub, inputs, fetched)
    for shard in model.shards:
        path = store.path(model, shard)
        check_planned(path, model, shard)
        (folder / shard).symlink_to(path.resolve())
    if model.shards != (SINGLE,):
        write_index(folder, {name: tensor.shard for name, tensor in model.tensors.items()}, total)
    return left_out


def write_index(folder: Path, shards: Mapping[str, str], total_bytes: int) -> None:
    """Write the index that says in which shard each tensor lies."""
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(shards)}
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def stage_settings(model: Model, hub: Hub, folder: Path, tokenizer: Model | None = None) -> list[str]:
    """Write config.json and the tokenizer into `folder`; returns notes on what was left out of them.

    `tokenizer`: the model whose tokenizer it is, where that is another one.
    """
    config, dropped = merged_config(model.config, [t.entry.dtype for t in model.tensors.values()])
    files, left_out = tokenizer_files(tokenizer or model, reader(hub))
    if ends := stated_ends(model, reader(hub)):
        files[GENERATION] = json.dumps({"eos_token_id": ends}).encode()
    for name, content in {CONFIG: json.dumps(config, indent=1).encode(), **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return [*([told(CONFIG, dropped)] if dropped else []), *left_out]


def stated_ends(model: Model, read: ReadFile) -> list[int]:
    """The tokens that end an answer by the model's generation_config.json, where it states any."""
    info = model.files.get(GENERATION)
    if info is None or info.size > MAX_SETTINGS_BYTES:
        return []
    return ends_of(json_table(read(model, GENERATION)))


def ends_of(settings: Any) -> list[int]:
    """The tokens that end an answer by a config or a generation_config."""
    stated = settings.get("eos_token_id") if isinstance(settings, Mapping) else None
    return [token for token in (stated if isinstance(stated, list) else [stated]) if type(token) is int]

"""Takes out of strangers' JSON files whatever names code or a place to load it from; everything else stays.

A loader obeys these files. transformers 5.23 fetches or runs something for

    auto_map, custom_pipelines, custom_generate, trust_remote_code   code of a repo
    *implementation*                                                 kernels of a repo, also in nested tables
    backbone, default_backbone                                       a model that is looked up on the Hub
    *_name_or_path, *_file, *_path, *_dir, *_url, *_repo             a file, folder or repo
    configuration_files, transformers_weights, gguf_file             other files in place of these
    init_inputs, audio_tokenizer                                     arguments of a tokenizer: files, or a model
    attribute_map                                                    one key in the place of another
    strings that read as `repo--module.Class`, a path or an address

So these are taken out at any depth. So is every key with `_` in front, which is a library's own state, but for the few
that are parameters under such a name. An allow-list of known keys was tried and lost what models compute with.
Labels, tokens and templates stay, whatever they read like, since they are text.

A merge runs without transformers. known_classes.txt tells which models transformers can load without the repo's own
code; `python -m hubmerge.sources.config` writes it from the installed transformers.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import isfinite, isnan
from pathlib import Path
from typing import Any

from hubmerge.errors import Problem
from hubmerge.numerics.dtypes import TORCH_NAMES
from hubmerge.sources.base import Model
from hubmerge.sources.open import INDEX
from hubmerge.text.wording import incompatible, json_file, named, shown

KNOWN_CLASSES = Path(__file__).with_name("known_classes.txt")
MAX_DEPTH = 32  # tables within tables; transformers' own have up to five

_CODE = frozenset(
    (
        *("auto_map", "custom_pipelines", "custom_generate", "trust_remote_code", "attribute_map"),
        *("configuration_files", "transformers_weights", "gguf_file", "init_inputs", "audio_tokenizer"),
    )
)
# the output stores plain numbers, whatever the base did; compressed-tensors' older key, and MLX's
_QUANTIZATION = ("quantization_config", "compression_config", "quantization")
# bookkeeping of other tools, whose loss nobody needs to hear of
_BOOKKEEPING = frozenset(
    (
        *("_name_or_path", "name_or_path", "_commit_hash", "_from_model_config", "_original_object_hash"),
        *("_attn_implementation_autoset", "_diffusers_version"),
    )
)
# numbers that transformers' configurations compute with, under a name that otherwise marks a library's own state
_PARAMETERS = frozenset(
    (
        *("_remove_final_layer_norm", "_sliding_window_pattern", "_frame_rate"),
        *("_label_trainable_num_channels", "_pad_token_id"),
    )
)
_VERSIONS = "__version__"  # of packages, as sentence-transformers writes them
_LOOKED_UP = frozenset(("backbone", "default_backbone"))
_WITH_BACKBONE = frozenset(("backbone_config", "use_timm_backbone", "use_pretrained_backbone"))
_PLACE_KEY = re.compile(r".*(name_or_path|_files?|_paths?|_dir|_folder|_urls?|_repo|_repo_id|_checkpoint)|checkpoint")
# tables and lists of text: labels, tokens, letters, templates, prompts, and what an answer is taken apart by
_TEXT_KEY = re.compile(
    r"(?=\w{1,100}\Z)(?:id2label|label2id|label_names|label_descriptions|class_names|labels|classes|content|prefix"
    r"|suffix|stop_strings|character|character_list|pattern|PATTERN|\w+_to_id|\w*special_tokens\w*|\w*tokens_decoder"
    r"|\w+_tokens?|\w*chat_template\w*|\w*prompts?|\w+_sep|response_(template|schema))"
)
_ADDRESS = re.compile(r"[A-Za-z][\w+.\-]*:\S")  # https://…, hf-hub:…, C:\…
_PATH = re.compile(r"[/\\~]|\.{1,2}([/\\]|$)")  # at the begin
_CODE_FILE = re.compile(r"\S+\.(py|so|dll|pt|pth|bin|pkl|pickle|ckpt|h5|gguf|onnx|safetensors)", re.IGNORECASE)
_LEFT_OUT = object()  # stands for a value that is not carried over
# how transformers writes what JSON has no number for, and tokens
_TAGGED = {"__float__": ("Infinity", "-Infinity", "NaN"), "__type": ("AddedToken",)}


def merged_config(base: Mapping[str, Any], dtypes: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A config.json for weights of `dtypes` (safetensors' names, one a tensor), and the keys of `base` left out."""
    left_out: list[str] = []
    kept = {k: v for k, v in base.items() if k not in ("dtype", "torch_dtype")}
    kept = _cleaned(kept, left_out)
    floats = [TORCH_NAMES[d] for d in dtypes if d in TORCH_NAMES]
    said = base.get("dtype") or base.get("torch_dtype")
    # what the base is computed in, where the output has such tensors; else what most of them are stored as
    dtype = said if said in floats else max(dict.fromkeys(floats), key=floats.count, default=None)
    kept = {key: _adapted(value, frozenset(floats), dtype) for key, value in kept.items()}
    if dtype:
        kept["dtype"] = dtype
    return kept, _named(left_out)


def config_problems(base: Model, agents: Sequence[Model]) -> list[Problem]:
    """Problems where the rest of the base's config.json would describe another model, one that nobody can load, or one
    whose weights lie elsewhere than where they were read."""
    problems = list(_own_code(base))
    others = base.config.get("configuration_files")
    if isinstance(others, list) and others:
        problems.append(_elsewhere(base, "configuration_files", "configurations", "one config.json"))
    problems += _looked_up(base)
    for model in (base, *agents):
        weights = model.config.get("transformers_weights")
        if weights and weights not in (*model.shards, INDEX):
            problems.append(_elsewhere(model, "transformers_weights", "weights", ", ".join(model.shards[:1])))
    return problems


def _own_code(model: Model) -> Iterator[Problem]:
    auto_map = model.config.get("auto_map")
    if not isinstance(auto_map, dict):
        return
    code = {str(k): str(v) for k, v in auto_map.items() if str(k) == "AutoConfig" or str(k).startswith("AutoModel")}
    if not code:  # a tokenizer's or a processor's
        return
    model_type, known = str(model.config.get("model_type")), known_classes()
    theirs = {name.rpartition(".")[2] for name in code.values()}
    named_classes = model.config.get("architectures")
    architectures = set(map(str, named_classes)) if isinstance(named_classes, list) else set()
    everywhere = frozenset[str]().union(*known.values())
    if model_type in known and not (architectures & theirs) - everywhere:
        return
    yield incompatible(
        "a model that needs code of its own (trust_remote_code), which no merge carries over",
        where=f"auto_map in config.json of {model.ref}",
        expected="a model type and a class that transformers has",
        got=f"{shown(model_type)}, {shown(', '.join(code.values()))}",
        next_step="Choose a version of the model for transformers' own classes, if there is one.",
    )


def _elsewhere(model: Model, key: str, what: str, expected: str) -> Problem:
    where, got = f"{key} in config.json of {model.ref}", shown(model.config[key])
    what, step = f"config.json that points to other {what}", "Save the model anew with a current transformers."
    return incompatible(what, where=where, expected=expected, got=got, next_step=step)


def quantized(config: Mapping[str, Any]) -> tuple[str, Any] | None:
    """Where a config.json or a table in it says that the weights stand for others, and what it says there."""
    stated = ((path, key, table.get(key)) for path, table in _tables(config) for key in _QUANTIZATION)
    found = next(((f"{path}.{key}" if path else key, value) for path, key, value in stated if value), None)
    if found and isinstance(found[1], dict):  # what tells its kind, first
        return found[0], dict(sorted(found[1].items(), key=lambda item: item[0] != "quant_method"))
    return found


def _looked_up(model: Model) -> Iterator[Problem]:
    for path, table in _tables(model.config):
        name = table.get("backbone") or table.get("default_backbone")
        if table.get("model_type") == "timm_backbone" or not isinstance(name, str):
            continue
        if isinstance(table.get("backbone_config"), dict) or not _WITH_BACKBONE & table.keys():
            continue
        yield incompatible(
            "a backbone that transformers looks up elsewhere",
            where=f"{f'{path}.' if path else ''}backbone in config.json of {model.ref}",
            expected="a backbone_config",
            got=shown(name),
            next_step="Save the model anew with a current transformers, which writes its backbone_config.",
        )


def _tables(table: Mapping[str, Any], path: str = "", depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, table
    for key, value in table.items():
        if isinstance(value, dict) and depth < MAX_DEPTH:
            yield from _tables(value, ascii(f"{path}.{key}" if path else key)[1:-1][:80], depth + 1)


def without_code(content: bytes) -> tuple[bytes | None, tuple[str, ...]]:
    """A JSON file without what names code or a place, and the keys taken out; None where it is no JSON.

    A file without such keys comes back byte for byte.
    """
    repeated: list[str] = []

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):  # a repeated key, of which another parser might take the other value
            repeated.append("")
        return found

    left_out: list[str] = []
    try:
        data = json.loads(content, object_pairs_hook=table)
        # the keys of a file of tokens and their numbers alone are text
        is_vocabulary = isinstance(data, dict) and all(type(v) is int for v in data.values())
        clean = data if is_vocabulary else _cleaned(data, left_out)
        if clean is _LEFT_OUT:
            return None, ()
        changed = repeated or data != clean  # bookkeeping goes without a word
        return (json_file(clean) if changed else content), _named(left_out)
    except (ValueError, RecursionError):
        return None, ()


def told(file: str, left_out: Sequence[str]) -> str:
    """The warning about keys that were left out of `file`."""
    return f"{file}: {named(left_out)} left out (names code, or a place to load something from)"


def reads_as_place(text: str) -> bool:
    """Whether a loader could take `text` for a class of a repo, an address, a path or a repo."""
    text = text.strip()
    if _ADDRESS.match(text) or _PATH.match(text) or _CODE_FILE.fullmatch(text) or "../" in text or "..\\" in text:
        return True
    if re.search(r"\s", text):
        return False
    dashes = text.find("--", 1)
    of_repo = dashes > 0 and "." in text[dashes + 2 : -1]  # repo--module.Class
    return of_repo or "/" in text or "\\" in text


def _names_code(key: str, value: Any, table: Mapping[str, Any]) -> bool:
    if key in _TAGGED:
        return value not in _TAGGED[key]
    if key.startswith("_") and key != _VERSIONS:
        return key not in _PARAMETERS or not _is_number(value)
    if key in _CODE or "implementation" in key.lower():
        return True
    if key in _LOOKED_UP and isinstance(value, str):
        # timm's own name, which is looked up nowhere
        return key != "backbone" or table.get("model_type") != "timm_backbone"
    return bool(_PLACE_KEY.fullmatch(key)) and _holds_text(value)


def _cleaned(value: Any, left_out: list[str], path: str = "", depth: int = 0, text: bool | None = None) -> Any:
    """`value` without what names code or a place; _LEFT_OUT where nothing else is in it.

    `text`: these are labels, tokens or templates, which are kept whatever they read like, and so are the keys that lead
    to them; False: of a flat table the keys are texts, too.
    """
    if isinstance(value, str) and text is None:
        return _LEFT_OUT if reads_as_place(value) else value
    if not isinstance(value, dict | list):
        return value
    if depth > MAX_DEPTH:
        return _LEFT_OUT
    if isinstance(value, list):
        # a list with a hole would be another list
        items = [_cleaned(v, left_out, path, depth + 1, None if text is None else True) for v in value]
        return _LEFT_OUT if _LEFT_OUT in items else items
    kept: dict[str, Any] = {}
    for key, held in value.items():
        here = f"{path}.{key}" if path else key
        if text is None and (key in _QUANTIZATION or key in _BOOKKEEPING):
            continue
        keyed = text is not False or (isinstance(held, dict | list) and not _is_number(held))
        inside = True if text is not None else False if _TEXT_KEY.fullmatch(key) else None
        names = keyed and _names_code(key, held, value)
        clean = _LEFT_OUT if names else _cleaned(held, left_out, here, depth + 1, inside)
        if clean is not _LEFT_OUT:
            kept[key] = clean
        elif text is not None or held not in (None, "", [], {}):
            left_out.append(here)
    return kept


def _is_number(value: Any) -> bool:
    if isinstance(value, dict):  # as `_adapted` writes what JSON has none for
        return value.keys() == {"__float__"} and value["__float__"] in _TAGGED["__float__"]
    return value is None or isinstance(value, bool | int | float)


def _holds_text(value: Any) -> bool:
    left = [value]  # no recursion: lists may lie deeper in one another than Python goes
    while left:
        value = left.pop()
        if isinstance(value, str) and value != "":
            return True
        if isinstance(value, dict | list) and not _is_number(value):
            left += value.values() if isinstance(value, dict) else value
    return False


def _adapted(value: Any, stored: frozenset[str], dtype: str | None) -> Any:
    """A value for weights of the dtypes `stored`, as JSON has it.

    Parts of a model that are computed in another dtype keep it where the output has it, and numbers that JSON does
    not have are tagged as transformers tags them.
    """
    if isinstance(value, list):
        return [_adapted(v, stored, dtype) for v in value]
    if isinstance(value, dict):
        table = {k: _adapted(v, stored, dtype) for k, v in value.items()}
        for key in ("dtype", "torch_dtype"):
            if isinstance(table.get(key), str) and table[key] not in stored:
                table[key] = dtype
        return table
    if isinstance(value, float) and not isfinite(value):
        return {"__float__": "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return value


def _named(left_out: Sequence[str]) -> tuple[str, ...]:
    """The names, each once, in plain letters and short enough to be shown."""
    return tuple(dict.fromkeys(ascii(name)[1:-1][:80] for name in left_out))


@cache
def known_classes() -> Mapping[str, frozenset[str]]:
    """Model type → the classes that transformers' auto classes take for it."""
    lines = KNOWN_CLASSES.read_text(encoding="utf-8").splitlines()
    return {model_type: frozenset(classes) for model_type, *classes in map(str.split, lines)}


def installed_classes() -> str:
    """The content of known_classes.txt, from the installed transformers."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    classes: dict[str, set[str]] = {model_type: set() for model_type in CONFIG_MAPPING_NAMES}
    for name, mapping in vars(modeling_auto).items():
        if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES"):
            for model_type, found in mapping.items():
                classes[model_type] |= {found} if isinstance(found, str) else set(found)
    return "".join(" ".join([model_type, *sorted(found)]) + "\n" for model_type, found in sorted(classes.items()))


if __name__ == "__main__":
    KNOWN_CLASSES.write_text(installed_classes(), encoding="utf-8")

"""Every configuration of the pinned transformers passes unharmed: at its defaults, and with every option of text."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.configuration_utils import ALLOWED_LAYER_TYPES
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from hubmerge.sources.config import merged_config

# what transformers itself does not build at its defaults
NO_DEFAULTS = {
    "gemma4_assistant": "its own check refuses its own defaults",
    "nougat": "its encoder's model type is not one of transformers' model types",
}
# what goes though it is harmless at its default
LEFT_OUT = {"lightglue": {"keypoint_detector_config.attn_implementation"}}


def configurations() -> Iterator[tuple[str, Any]]:
    for model_type in sorted(CONFIG_MAPPING_NAMES):
        if model_type not in NO_DEFAULTS:
            yield model_type, CONFIG_MAPPING[model_type]


def test_every_configuration_survives_at_its_defaults():
    for model_type, kind in configurations():
        config = kind()
        for text in (config.to_json_string(use_diff=False), config.to_json_string(use_diff=True)):
            table = json.loads(text)
            kept, left_out = merged_config(table, [])
            assert set(left_out) == LEFT_OUT.get(model_type, set()), model_type
            merged = json.dumps(kept, allow_nan=False)
            # the same text tells the same
            assert merged == json.dumps(table) or told_by(kind, merged) == told_by(kind, text), model_type


def told_by(kind: type[PreTrainedConfig], text: str) -> str:
    """A configuration read from JSON, with everything that it knows."""
    config = kind.from_dict(kind._decode_special_floats(json.loads(text)))
    return str(config.to_json_string(use_diff=False))


@pytest.mark.parametrize("model_type", NO_DEFAULTS)
def test_what_has_no_defaults_still_has_none(model_type):
    with pytest.raises((ValueError, StrictDataclassError)):
        CONFIG_MAPPING[model_type]()


def test_every_option_of_text_survives():
    checked = 0
    for model_type, kind in configurations():
        for key, options in options_of(kind).items():
            for option in options:
                for config in ({key: option}, {"text_config": {key: option}}, {key: [option, option]}):
                    assert merged_config(config, []) == (config, ()), (model_type, key, option)
                    checked += 1
    assert checked > 30_000  # that the classes are read at all


# options of text that name a place, or whose key does
PLACES = {"attn_implementation", "vocab_file", "backbone"}


def options_of(kind: type[PreTrainedConfig]) -> dict[str, set[str]]:
    """Key → the texts that a configuration's class says it may be: annotations, documentation, tables of functions."""
    found: dict[str, set[str]] = {}
    documented = kind.__doc__ or ""
    for field in fields(kind):
        name, hint = field.name, field.type
        if name in PLACES or name.startswith("_") or name in ("dtype", "id2label", "label2id"):
            continue
        options = set(re.findall(r"Literal\[([^\]]*)\]", str(hint)))
        options = {o.strip("'\" ") for text in options for o in text.split(",") if "'" in text or '"' in text}
        if "str" in str(hint) or isinstance(getattr(kind, name, None), str):
            entry = re.search(rf"^\s*{re.escape(name)} \(.*?(?=^\s*\w+ \(|\Z)", documented, re.DOTALL | re.MULTILINE)
            if entry:
                # a repo whose checkpoint a text speaks of is no option
                options |= {o for o in re.findall(r'`"([^"`]+)"`', entry[0]) if not re.fullmatch(r"[\w.\-]+/\S+", o)}
            if isinstance(getattr(kind, name, None), str):
                options.add(getattr(kind, name))
            if "act" in name:
                options |= set(ACT2FN)
            if "layer" in name or "block" in name:
                options |= set(ALLOWED_LAYER_TYPES)
            if "rope" in name:
                options |= set(ROPE_INIT_FUNCTIONS)
        if options:
            found[name] = options
    return found

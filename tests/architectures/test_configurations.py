"""Every configuration of the pinned transformers passes unharmed at its defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedConfig
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
        text = kind().to_json_string(use_diff=False)
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

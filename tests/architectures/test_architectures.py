"""Architectures that transformers builds from a configuration merge, load and are what their base would be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweep import FAMILIES, PAGE, SWEPT, page, swept
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from hubmerge.sources.config import merged_config

# heads, tables and configurations that are read in a way of their own, and one in fifteen of the others; sweep.py
# measures all
PECULIAR = {
    *("bark", "bart", "bert", "bloom", "clip", "csm", "gemma3", "gpt2", "llava", "mixtral", "oneformer", "opt"),
    *("pop2piano", "qwen2_audio", "qwen2_vl", "seamless_m4t", "switch_transformers", "t5", "t5gemma", "vits"),
    *("voxtral", "wav2vec2", "whisper"),
}

pytestmark = pytest.mark.usefixtures("one_thread", "without_figures")


@pytest.fixture(scope="module", autouse=True)
def without_progress_bars() -> Iterator[None]:
    shown = is_progress_bar_enabled()
    disable_progress_bar()
    yield
    if shown:
        enable_progress_bar()


@pytest.mark.parametrize("family", sorted({*PECULIAR, *SWEPT[::15]}))
def test_an_architecture_merges_and_loads_as_it_was(family: str, tmp_path: Path):
    swept(family, tmp_path)


def test_the_page_lists_every_family_once():
    assert len(FAMILIES) > len(SWEPT) > 450
    assert PAGE.read_text(encoding="utf-8") == page(), "run sweep.py"


# what transformers itself does not build at its defaults
NO_DEFAULTS = ("gemma4_assistant", "nougat")
# what goes though it is harmless at its default
LEFT_OUT = {"lightglue": {"keypoint_detector_config.attn_implementation"}}


def test_every_configuration_survives_at_its_defaults():
    def told_by(kind: Any, text: str) -> str:
        """A configuration read from JSON, with everything that it knows."""
        return str(kind.from_dict(kind._decode_special_floats(json.loads(text))).to_json_string(use_diff=False))

    for model_type in sorted(set(CONFIG_MAPPING_NAMES) - set(NO_DEFAULTS)):
        kind = CONFIG_MAPPING[model_type]
        text = kind().to_json_string(use_diff=False)
        kept, left_out = merged_config(json.loads(text), [])
        assert set(left_out) == LEFT_OUT.get(model_type, set()), model_type
        merged = json.dumps(kept, allow_nan=False)
        # the same text tells the same
        assert merged == json.dumps(json.loads(text)) or told_by(kind, merged) == told_by(kind, text), model_type

"""Architectures that transformers builds from a configuration merge, load and are what their base would be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sweep import FAMILIES, PAGE, SWEPT, page, swept
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

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

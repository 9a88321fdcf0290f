"""Every architecture that transformers builds from a configuration merges, loads and computes what its base would."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from architectures_page import PAGE, as_row, page, recorded
from sweep import FAMILIES, Kind, built, swept
from tiny_exceptions import NOT_BUILT
from transformers import LlavaForConditionalGeneration
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

BATCHES = 30
SWEPT = [family for family in FAMILIES if family not in NOT_BUILT]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", autouse=True)
def without_progress_bars() -> Iterator[None]:
    shown = is_progress_bar_enabled()
    disable_progress_bar()
    yield
    if shown:
        enable_progress_bar()


@pytest.fixture(autouse=True)
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card's figures take longer than the rest of a small merge, and are the same for all."""
    monkeypatch.setattr("hubmerge.line.render_figures", lambda report: {})


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_architecture_merges_loads_and_computes_the_same(batch: int, tmp_path: Path):
    known = recorded()
    wrong = {}
    for family in SWEPT[batch::BATCHES]:
        folder = tmp_path / family
        try:
            found = (FAMILIES[family].name, as_row(swept(FAMILIES[family], folder)))
            if found != known.get(family):
                wrong[family] = f"{found}, but the page says {known.get(family)}"
        except Exception as error:
            wrong[family] = f"{type(error).__name__}: {error}"[:500]
        shutil.rmtree(folder, ignore_errors=True)
    assert wrong == {}


def test_the_page_lists_every_family_once_and_is_as_it_would_be_written():
    import transformers

    rows = recorded()
    assert rows.keys() == FAMILIES.keys()
    assert {f: why for f, (_, why) in rows.items() if not why.startswith("yes")} == NOT_BUILT
    assert len(rows) - len(NOT_BUILT) > 450
    assert PAGE.read_text(encoding="utf-8") == page(rows, transformers.__version__)


# --- what a list of known keys once lost, in models whose outputs show it ----------------------------------------

LOST = {
    "modernbert": Kind("modernbert", "ModernBertForSequenceClassification", "", {"classifier_pooling": "mean"}),
    "deberta_v2": Kind(
        "deberta-v2",
        "DebertaV2ForSequenceClassification",
        "",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "id2label": {"0": "and/or", "1": "N, P"}},
    ),
    "opt": Kind("opt", "OPTForCausalLM", "CAUSAL_LM", {"_remove_final_layer_norm": True}),
    "labels": Kind("bert", "BertForTokenClassification", "", {"id2label": {"0": "B-a/b", "1": "https://x", "2": "O"}}),
    "many labels": Kind(
        "llama",
        "LlamaForSequenceClassification",
        "",
        {"id2label": {str(i): f"a/{i}" for i in range(5)}, "pad_token_id": 0},
    ),
    "questions": Kind("roberta", "RobertaForQuestionAnswering", ""),
    "regression": Kind("distilbert", "DistilBertForSequenceClassification", "", {"problem_type": "regression"}),
    "a head beside tied text": Kind(
        "qwen2_audio", "Qwen2AudioForConditionalGeneration", "", {"text_config.tie_word_embeddings": True}
    ),
    "windows": Kind("gemma3_text", "Gemma3ForCausalLM", "CAUSAL_LM", {"_sliding_window_pattern": 2}),
}


@pytest.mark.parametrize("kind", LOST.values(), ids=LOST)
def test_what_a_model_computes_with_reaches_its_merge(kind: Kind, tmp_path: Path):
    assert swept(kind, tmp_path)


def test_llava_reads_its_images_as_its_base_does(tmp_path: Path):
    """The base takes the class token along, which its default leaves out: 17 features of 4 × 4 patches."""
    changes = {"vision_feature_select_strategy": "full"}
    assert swept(Kind("llava", "LlavaForConditionalGeneration", "IMAGE_TEXT_TO_TEXT", changes), tmp_path)
    image = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
    features = []
    for folder in ("out", "own"):
        model = LlavaForConditionalGeneration.from_pretrained(tmp_path / folder).eval()
        with torch.no_grad():
            found = model.get_image_features(pixel_values=image)
        features.append(torch.cat(list(getattr(found, "pooler_output", found))))
    assert len(features[0]) == 17
    assert torch.equal(*features)


@pytest.mark.parametrize("family", NOT_BUILT)
def test_what_is_listed_as_not_built_is_still_not(family: str, tmp_path: Path):
    """So that the list cannot silently grow, nor stay when a newer transformers builds more."""
    reason = NOT_BUILT[family]
    package, _, more = reason.removeprefix("needs ").partition("; ")
    if reason.startswith("needs ") and find_spec(package):
        if more:
            pytest.skip(more)
        swept(FAMILIES[family], tmp_path)
    elif reason.startswith("too large"):
        assert sum(p.numel() for p in _on_no_device(family).parameters()) > 15_000_000
    else:
        with pytest.raises(Exception) as caught:
            built(FAMILIES[family])
        if reason.startswith("needs "):
            assert isinstance(caught.value, ImportError)


def _on_no_device(family: str):
    with torch.device("meta"):
        return built(FAMILIES[family])

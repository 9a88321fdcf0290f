"""What a model is for, by its class: the table here held against transformers' own lists of classes."""

import ast
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import transformers
from report_helpers import report
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hubmerge.output.card import metadata
from hubmerge.output.task import _USES, Task, snippet, task_of

NAMED_ALIKE = """
TOKEN_CLASSIFICATION QUESTION_ANSWERING DOCUMENT_QUESTION_ANSWERING VISUAL_QUESTION_ANSWERING TABLE_QUESTION_ANSWERING
IMAGE_CLASSIFICATION VIDEO_CLASSIFICATION AUDIO_CLASSIFICATION OBJECT_DETECTION ZERO_SHOT_OBJECT_DETECTION
MASK_GENERATION DEPTH_ESTIMATION
"""
# transformers' list of classes → what a class in it may be for
USES: dict[str, set[str]] = {
    "CAUSAL_LM": {"text-generation"},
    "MASKED_LM": {"fill-mask"},
    "SEQ_TO_SEQ_CAUSAL_LM": {"text2text-generation"},
    "SPEECH_SEQ_2_SEQ": {"automatic-speech-recognition"},
    "CTC": {"automatic-speech-recognition"},
    "RNNT": {"speech-transducer"},
    "TDT": {"speech-transducer"},
    "SEQUENCE_CLASSIFICATION": {"text-classification"},
    "ZERO_SHOT_IMAGE_CLASSIFICATION": {"zero-shot-image-classification", "features"},
    **{f"{kind}_SEGMENTATION": {"image-segmentation"} for kind in ("SEMANTIC", "INSTANCE", "UNIVERSAL", "IMAGE")},
    **{name: {name.lower().replace("_", "-")} for name in NAMED_ALIKE.split()},
    "IMAGE_TEXT_TO_TEXT": {"image-text-to-text", "any"},
    "MULTIMODAL_LM": {"image-text-to-text", "audio-text-to-text", "automatic-speech-recognition", "any"},
    "TEXT_TO_WAVEFORM": {"text-to-audio", "any"},
    "TEXT_TO_SPECTROGRAM": {"text-to-audio"},
    "MODEL": {"feature-extraction", "encoder-decoder", "features", "image-feature-extraction"},
    "IMAGE": {"image-feature-extraction", "features"},
    "TEXT_ENCODING": {"feature-extraction", "encoder-decoder", "features"},
}
# the first list that a class stands in decides: the others are what it can do besides
FIRST = ("MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT", "TEXT_TO_WAVEFORM")
APART = {
    "PI0ForConditionalGeneration": "",  # a robot's policy
    "EvollaForProteinText2Text": "",
    "Pop2PianoForConditionalGeneration": "",  # music to music
    "ClvpModelForConditionalGeneration": "",
    "ImageGPTModel": "feature-extraction",  # pixels are its words
    "DiaForConditionalGeneration": "text-to-audio",  # stands among the recognizers
    "XLMWithLMHeadModel": "text-generation",  # is both
    **{f"{n}ForConditionalGeneration": "audio-text-to-text" for n in ("AudioFlamingo3", "MusicFlamingo")},
}


def classes() -> dict[str, dict[str, str]]:
    """Class → the lists that it stands in, each with a model type that it is of."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name in dir(modeling_auto):
        if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES"):
            label = name.removesuffix("_MAPPING_NAMES").removeprefix("MODEL_FOR_").removesuffix("_MAPPING")
            for model_type, entry in getattr(modeling_auto, name).items():
                for one in [entry] if isinstance(entry, str) else entry:
                    found[one].setdefault("MODEL" if name == "MODEL_MAPPING_NAMES" else label, model_type)
    return found


def defaults(model_type: str) -> dict[str, Any]:
    try:
        return dict(CONFIG_MAPPING[model_type]().to_dict())
    except (ValueError, TypeError, ImportError, KeyError):  # one that needs arguments or a package
        return {}


def test_what_every_class_of_transformers_is_for():
    wrong = []
    told = defaultdict(int)
    for name, lists in classes().items():
        parts = name.endswith("ForConditionalGeneration") or "IMAGE" in lists
        use = task_of({**(defaults(next(iter(lists.values()))) if parts else {}), "architectures": [name]}).use
        told[use] += 1
        if name in APART:
            allowed = {APART[name]}
        else:
            first = [one for one in FIRST if one in lists] or [one for one in lists if one in USES]
            allowed = set().union(*(USES[one] for one in first)) if first else {""}
            if "MODEL" in lists and "Model" not in name[-5:]:
                allowed |= {""}  # encoders and the like, that are part of others
        if use not in allowed:
            wrong.append((name, use, sorted(lists)))
    assert wrong == []
    assert sum(told.values()) > 1_000
    assert told["text-generation"] > 100
    assert told[""] < 200


@pytest.mark.parametrize("use", _USES)
def test_every_snippet_is_python_for_any_place_and_imports_what_there_is(use):
    for where in ("org/name", 'a"b\\', "\n"):
        nodes = [*ast.walk(ast.parse(snippet(Task(use), where)))]
        assert [n.value for n in nodes if isinstance(n, ast.Constant) and n.value == where] == [where]
    imports = [n for n in nodes if isinstance(n, ast.ImportFrom) and n.module == "transformers"]
    assert [a.name for n in imports for a in n.names if not hasattr(transformers, a.name)] == []


def test_a_snippet_asks_as_a_plain_evaluation_did_and_a_prompt_stays_a_value():
    for asked in ("mem {letter}=", 'MODEL_ID "PROMPT"\n"""', "TASK\\"):
        code = snippet(Task("text-generation"), "org/PROMPT-MODEL_ID", asked)
        values = {n.value for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Constant)}
        assert {asked, "org/PROMPT-MODEL_ID"} <= values
        assert "chat_template" not in code
    assert "chat_template" in snippet(Task("text-generation"), "org/name")


def test_a_class_that_nobody_knows_gets_no_tag_and_is_only_loaded():
    for config in ({"architectures": ["Strange"]}, {}, {"architectures": []}, {"architectures": "LlamaForCausalLM"}):
        task = task_of(config)
        assert (task.use, task.pipeline_tag, task.library) == ("", None, "transformers")
        assert "AutoModel.from_pretrained" in snippet(task, "x")


@pytest.mark.parametrize(
    ("name", "config", "use"),
    [
        ("NewVLForConditionalGeneration", {"vision_config": {}}, "image-text-to-text"),
        ("NewAudioForConditionalGeneration", {"audio_config": {}, "text_config": {}}, "audio-text-to-text"),
        ("NewT5ForConditionalGeneration", {"is_encoder_decoder": True}, "text2text-generation"),
        ("T5ForConditionalGeneration", {"is_encoder_decoder": True}, "text2text-generation"),
        ("NewForConditionalGeneration", {}, ""),
        ("NewModel", {"vocab_size": 4}, "feature-extraction"),
        ("NewModel", {"num_channels": 3}, "image-feature-extraction"),
        ("NewForCausalLM", {}, "text-generation"),
    ],
)
def test_a_new_class_is_told_by_its_name_and_parts(name, config, use):
    assert task_of({**config, "architectures": [name]}).use == use


@pytest.mark.parametrize(
    ("name", "stated", "tag"),
    [
        ("T5ForTextToText", "text2text-generation", "text-generation"),  # no task of the Hub any more
        ("T5ForConditionalGeneration", "translation", "translation"),
        ("BartForSequenceClassification", "zero-shot-classification", "zero-shot-classification"),
        ("Qwen3ForCausalLM", "text-ranking", "text-ranking"),
        ("ViTForImageClassification", "text-generation", "image-classification"),
        ("LlamaForCausalLM", "<script>", "text-generation"),
        ("LlamaForCausalLM", ["x"], "text-generation"),
        ("ClapModel", "zero-shot-audio-classification", "feature-extraction"),
        ("Strange", "robotics", "robotics"),
        ("Strange", "text-retrieval", "text-retrieval"),
        ("Strange", "text2text-generation", None),
        ("Strange", "no-such-task", None),
    ],
)
def test_the_bases_card_may_say_a_narrower_task_and_no_other(name, stated, tag):
    assert task_of({"architectures": [name]}, stated=stated).pipeline_tag == tag


def test_sentence_transformers_are_listed_as_such():
    def of(name: str, stated: str | None = None) -> tuple[str | None, str]:
        task = task_of({"architectures": [name], "vocab_size": 4}, modules=True, stated=stated)
        return task.pipeline_tag, task.library

    assert of("BertModel") == ("sentence-similarity", "sentence-transformers")
    assert of("BertModel", "feature-extraction") == ("feature-extraction", "sentence-transformers")
    assert of("BertForSequenceClassification") == ("text-ranking", "sentence-transformers")
    assert of("BertForMaskedLM") == ("feature-extraction", "sentence-transformers")


def test_a_report_of_before_is_listed_by_its_architecture():
    assert (
        metadata(replace(report(), architecture="ViTForImageClassification"))["pipeline_tag"] == "image-classification"
    )
    assert "pipeline_tag" not in metadata(replace(report(), architecture="Strange"))


def test_a_tag_that_the_hub_does_not_know_does_not_reach_the_card():
    told = Task("text-generation", "x\n---", "transformers").as_dict()
    assert "pipeline_tag" not in metadata(replace(report(), task=told))

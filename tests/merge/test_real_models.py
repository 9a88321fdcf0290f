"""Models of many kinds as transformers writes them, merged: files that are the base's, and a card whose code runs."""

from __future__ import annotations

import importlib
import json
import shutil
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as t
import yaml
from markdown_reading import PARSER
from PIL import Image
from plan_helpers import NOWHERE
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as token_models

from hubmerge.engine.options import StreamOptions
from hubmerge.line import Request, merge_to_folder, prepare
from hubmerge.recipe.recipe import recipe_from_dict

WORDS = 60
IMAGE = "<image>"
_SIZE = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
_TEXT = {**_SIZE, "vocab_size": WORDS, "num_hidden_layers": 1}
_BERT = {**_TEXT, "pad_token_id": 3}
_VISION = {**_SIZE, "num_hidden_layers": 2, "image_size": 16, "patch_size": 4}
_CONVOLUTIONS = {"conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2}
_SPEECH = {**_TEXT, **_CONVOLUTIONS, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}


def words() -> t.PreTrainedTokenizerFast:
    special = ["<unk>", "<s>", "</s>", "<pad>", "<mask>", IMAGE]
    vocabulary = {w: i for i, w in enumerate([*special, *(f"w{i}" for i in range(len(special), WORDS))])}
    tokenizer = Tokenizer(token_models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return t.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        mask_token="<mask>",
        additional_special_tokens=[IMAGE],
    )


def write(kind: str, folder: Path) -> Path:
    """A model of a kind (a key of KINDS), its tokenizer or processor beside it."""
    torch.manual_seed(0)
    KINDS[kind](folder)
    return folder


def trained(folder: Path, into: Path, count: int) -> list[Path]:
    """Agents: the model in `folder` with one in ten weights moved."""
    agents = []
    for number in range(count):
        agent = into / f"agent{number}"
        shutil.copytree(folder, agent)
        generator = torch.Generator().manual_seed(number + 1)
        tensors = load_file(agent / "model.safetensors")
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                moved = torch.rand(tensor.shape, generator=generator) < 0.1
                tensors[name] = tensor + moved * 0.05 * torch.randn(tensor.shape, generator=generator)
        save_file(tensors, agent / "model.safetensors", metadata={"format": "pt"})
        agents.append(agent)
    return agents


def _saved(model: Any, *others: Any) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        model().save_pretrained(folder)
        for other in others:
            other().save_pretrained(folder)

    return save


def _vit_processor() -> Any:
    return t.ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=[0.4, 0.5, 0.6])


def _llava() -> Any:
    text = {**_TEXT, "model_type": "llama", "num_key_value_heads": 2}
    vision = {**_VISION, "model_type": "clip_vision_model", "projection_dim": 16}
    config = t.LlavaConfig(vision_config=vision, text_config=text, image_token_id=5, vision_feature_layer=-1)
    return t.LlavaForConditionalGeneration(config)


def _llava_processor() -> Any:
    template = (
        "{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'image' %}<image> {% else %}"
        "{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
    )
    return t.LlavaProcessor(
        image_processor=t.CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}),
        tokenizer=words(),
        patch_size=4,
        vision_feature_select_strategy="default",
        image_token=IMAGE,
        num_additional_image_tokens=1,
        chat_template=template,
    )


def _clip() -> Any:
    text = {**_TEXT, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 3}
    return t.CLIPModel(t.CLIPConfig(text_config=text, vision_config=_VISION, projection_dim=8))


def _clip_processor() -> Any:
    size = {"height": 16, "width": 16}
    images = t.CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=size)
    return t.CLIPProcessor(image_processor=images, tokenizer=words())


def _t5(folder: Path) -> None:
    """As its authors published it: a sentencepiece model and no tokenizer.json."""
    import sentencepiece

    config = t.T5Config(vocab_size=80, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0)
    t.T5ForConditionalGeneration(config).save_pretrained(folder)
    text = folder / "text"
    text.write_text("\n".join(f"how old are you today the house is {w} and wonderful" for w in "abcdefghij" * 5))
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    how = {"vocab_size": 60, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=str(folder / "spiece"), **ids, **how)
    (folder / "spiece.vocab").unlink()
    text.unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 10}))


def _vits() -> Any:
    text = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16}
    prior = {"flow_size": 16, "prior_encoder_num_flows": 1, "prior_encoder_num_wavenet_layers": 1, "window_size": 2}
    posterior = {"spectrogram_bins": 9, "posterior_encoder_num_wavenet_layers": 1, "depth_separable_num_layers": 1}
    duration = {"duration_predictor_num_flows": 1, "duration_predictor_filter_channels": 8}
    wave = {"upsample_initial_channel": 16, "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8]}
    wave |= {"resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1]]}
    return t.VitsModel(t.VitsConfig(**text, **prior, **posterior, **duration, **wave))


def _vits_tokenizer(folder: Path) -> None:
    _saved(_vits)(folder)
    (folder / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate("_ abcdefghijklmnopqrstuvwxyz?.,")}))
    config = {"tokenizer_class": "VitsTokenizer", "pad_token": "_", "add_blank": True, "phonemize": False}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "is_uroman": False, "language": "eng"}))


def _speech(model: Any) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        model(t.Wav2Vec2Config(**_SPEECH, num_labels=3)).save_pretrained(folder)
        letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefghijklmnopqrstuvwxyz"]
        (folder / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(letters)}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Wav2Vec2CTCTokenizer"}))
        t.Wav2Vec2FeatureExtractor().save_pretrained(folder)

    return save


def _bert(model: Any, labels: int = 3) -> Callable[[Path], None]:
    return _saved(lambda: model(t.BertConfig(**_BERT, num_labels=labels)), words)


KINDS: dict[str, Callable[[Path], None]] = {
    "llama": _saved(lambda: t.LlamaForCausalLM(t.LlamaConfig(**_TEXT, num_key_value_heads=2)), words),
    "t5": _t5,
    "masked": _bert(t.BertForMaskedLM),
    "classifier": _bert(t.BertForSequenceClassification),
    "tagger": _bert(t.BertForTokenClassification),
    "reader": _bert(t.BertForQuestionAnswering, 2),
    "encoder": _bert(t.BertModel),
    "vit": _saved(lambda: t.ViTForImageClassification(t.ViTConfig(**_VISION, num_labels=3)), _vit_processor),
    "vit_features": _saved(lambda: t.ViTModel(t.ViTConfig(**_VISION)), _vit_processor),
    "clip": _saved(_clip, _clip_processor),
    "llava": _saved(_llava, _llava_processor),
    "ctc": _speech(t.Wav2Vec2ForCTC),
    "audio_classifier": _speech(t.Wav2Vec2ForSequenceClassification),
    "vits": _vits_tokenizer,
}


def merged(base: Path, agents: list[Path], out: Path) -> Path:
    recipe = recipe_from_dict({"base": str(base), "agents": [str(a) for a in agents], "method": "ram"})
    prepared = prepare(recipe, NOWHERE, Request(license="mit", allow_local=True))
    merge_to_folder(prepared, NOWHERE, out, StreamOptions(backend="eager", cache=out.parent / "cache"))
    return out


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """kind → (base, its merge), made when first asked for."""
    made: dict[str, tuple[Path, Path]] = {}

    def pair(kind: str) -> tuple[Path, Path]:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            base = write(kind, folder / "base")
            made[kind] = base, merged(base, trained(base, folder, 2), folder / "merged")
        return made[kind]

    return pair


def card_of(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def code_of(folder: Path) -> str:
    fences = [block for block in PARSER.parse(card_of(folder)) if block.type == "fence"]
    [code] = [block.content for block in fences if block.info == "python"]
    return str(code)


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_of_a_model_that_transformers_wrote_is_lost(models: Any, kind: str):
    base, result = models(kind)
    assert {p.name for p in base.iterdir()} <= {p.name for p in result.iterdir()}
    for path in base.iterdir():
        if path.name == "generation_config.json":
            wanted = {k: v for k, v in json.loads(path.read_bytes()).items() if not k.startswith("_")}
            assert json.loads((result / path.name).read_bytes()) == wanted
        elif path.name not in ("config.json", "model.safetensors"):
            assert (result / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_on_the_card_runs(
    models: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    _, result = models(kind)
    code = code_of(result)
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.arange(20 * 24 * 3, dtype=np.uint8).reshape(20, 24, 3)).save("photo.jpg")
    with wave.open("speech.wav", "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes((np.sin(np.arange(16_000) / 20) * 9_000).astype(np.int16).tobytes())
    assert "path/to/this/folder" in code
    exec(compile(code.replace("path/to/this/folder", str(result)), kind, "exec"), {})
    assert capsys.readouterr().out  # of untrained weights perhaps an empty line


def test_sentence_transformers_keep_their_modules(tmp_path: Path, capsys: Any):
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="not installed")
    encoder = write("encoder", tmp_path / "encoder")
    modules = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    parts = [modules.Transformer(str(encoder)), modules.Pooling(16, pooling_mode="cls")]
    parts += [modules.Dense(16, 4), modules.Normalize()]
    base = tmp_path / "base"
    sentence_transformers.SentenceTransformer(modules=parts, prompts={"query": "query: "}).save(str(base))
    result = merged(base, trained(base, tmp_path, 2), tmp_path / "merged")
    before, after = (sentence_transformers.SentenceTransformer(str(folder)) for folder in (base, result))
    assert [type(m) for m in before] == [type(m) for m in after]
    assert before.prompts == after.prompts
    dense = [dict(m[2].state_dict()) for m in (before, after)]
    assert all((dense[0][k] == dense[1][k]).all() for k in dense[0])
    assert after.encode(["w7 w8"]).shape == (1, 4)
    header = yaml.safe_load(card_of(result).split("---\n")[1])
    assert (header["pipeline_tag"], header["library_name"]) == ("sentence-similarity", "sentence-transformers")
    exec(code_of(result).replace("path/to/this/folder", str(result)), {})
    assert "tensor" in capsys.readouterr().out

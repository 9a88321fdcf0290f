"""Tiny models of many kinds with what belongs to them, written by transformers itself, as their authors would.

folder = write("vit", tmp_path / "base")      a repo as save_pretrained leaves it
agents = trained(folder, tmp_path, 2)         the same with other weights
"""

import json
import shutil
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as t
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as token_models

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


def _whisper(folder: Path) -> None:
    ids = {"pad_token_id": 70, "bos_token_id": 70, "eos_token_id": 70, "decoder_start_token_id": 71}
    encoder = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "max_source_positions": 1500}
    decoder = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "max_target_positions": 32}
    sizes = {"vocab_size": 80, "d_model": 16, "num_mel_bins": 8, **encoder, **decoder}
    config = t.WhisperConfig(**sizes, **ids, suppress_tokens=[], begin_suppress_tokens=[])
    model = t.WhisperForConditionalGeneration(config)
    model.generation_config = t.GenerationConfig(**ids, max_length=16)
    model.save_pretrained(folder)
    letters = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ġc", "ol", "our", "col"]
    (folder / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\no l\nc ol\n")
    (folder / "normalizer.json").write_text(json.dumps({"colour": "color"}))
    added = {str(i): {"content": c, "special": True} for i, c in ((70, "<|endoftext|>"), (71, "<|startoftranscript|>"))}
    classes = {"tokenizer_class": "WhisperTokenizer", "processor_class": "WhisperProcessor"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**classes, "added_tokens_decoder": added}))
    t.WhisperFeatureExtractor(feature_size=8).save_pretrained(folder)


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


def _tekken(folder: Path) -> None:
    """As Mistral publishes: tekken.json and no other tokenizer."""
    text = {**_TEXT, "vocab_size": 275, "num_key_value_heads": 2}
    t.MistralForCausalLM(t.MistralConfig(**text)).save_pretrained(folder)
    pieces = [bytes([n]) for n in range(256)] + [b"ho", b"how", b" o", b" ol", b" old"]
    vocabulary = [{"rank": n, "token_bytes": b64encode(p).decode(), "token_str": None} for n, p in enumerate(pieces)]
    control = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
    control += ("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "<pad>")
    special = [{"rank": n, "token_str": s, "is_control": True} for n, s in enumerate(control)]
    sizes = {"num_vocab_tokens": len(pieces), "default_vocab_size": len(pieces) + 14, "default_num_special_tokens": 14}
    config = {"pattern": r"\s?\w+|\S", "version": "v3", **sizes}
    content = {"config": config, "vocab": vocabulary, "special_tokens": special}
    (folder / "tekken.json").write_text(json.dumps(content))


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
    "tekken": _tekken,
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
    "whisper": _whisper,
    "vits": _vits_tokenizer,
}

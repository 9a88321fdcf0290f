"""The task of a model, by its class: the card's `pipeline_tag` and `library_name`, and code that loads the model.

    task_of(config, …)      from config.json; nothing of transformers is imported
    snippet(task, where)    Python that runs

The class in config.json decides what can be done with the weights, so the snippet depends on it alone. The base's own
card may state a narrower task (`translation` where the class says text to text). Its `pipeline_tag` is taken where the
class can do that, and dropped where it cannot. An unknown class gets no tag, and a snippet that only loads the model.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """How a model is listed and used. JSON in and out (`as_dict`, `Task(**…)`)."""

    use: str  # a key of `_USES`, "" where the class is not known
    pipeline_tag: str | None = None
    library: str = "transformers"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Use:
    snippet: str  # TASK stands for the tag, MODEL_ID for the model
    also: tuple[str, ...] = ()  # what the base's card may say instead
    tag: str = ""  # "": as the use is called


def task_of(config: Mapping[str, Any], *, modules: bool = False, stated: object = None) -> Task:
    """The task of a model by its config.json. `modules`: sentence-transformers' lie beside it; `stated`: the
    `pipeline_tag` of its base's card."""
    names = config.get("architectures") or [""]
    use = _use_of(str(names[0]) if isinstance(names, list) else "", config)
    if modules:
        use = {"text-classification": "cross-encoder", "fill-mask": "sparse-encoder"}.get(use, "sentence-similarity")
    known = _USES.get(use)
    tag = (known.tag or use) if known else None
    if isinstance(stated, str) and (stated in known.also if known else stated in HUB_TAGS):
        tag = stated
    return Task(use, tag, "sentence-transformers" if modules else "transformers")


def snippet(task: Task, where: str, asked: str | None = None) -> str:
    """Python that loads the model from `where`, a repo or folder, and uses it. `asked`: how an evaluation asked it as
    plain text, with what differs from question to question in braces."""
    use = _USES.get(task.use)
    text = use.snippet.replace("TASK", use.tag or task.use) if use else _load("AutoModel")
    if asked is not None:
        text = text.replace(_ASK, _ASK_PLAINLY)
    values = {"MODEL_ID": where, "PROMPT": asked}
    return re.sub("MODEL_ID|PROMPT", lambda found: json.dumps(values[found[0]]), text)


def _use_of(name: str, config: Mapping[str, Any]) -> str:
    for pattern, use in _CLASSES:
        if re.fullmatch(pattern, name, re.ASCII):
            return use
    if re.fullmatch(r"\w+ForConditionalGeneration", name, re.ASCII):
        return _of_parts(config)
    if re.fullmatch(r"\w+(Model|EncoderModel)", name, re.ASCII):
        return _of_encoder(config)
    return ""


def _of_parts(config: Mapping[str, Any]) -> str:
    """The use of a class that generates text; the model's parts tell from which kind of input."""
    keys = " ".join(str(key) for key, value in config.items() if value is not None)
    if re.search(r"vision|image|vq_config|pixel|visual", keys):
        return "image-text-to-text"
    if re.search(r"audio|speech|mel_bins|codec", keys):
        return "audio-text-to-text"
    return "text2text-generation" if config.get("is_encoder_decoder") else ""


def _of_encoder(config: Mapping[str, Any]) -> str:
    """The use of a model without a head."""
    keys = " ".join(map(str, config))
    if re.search(r"vision_|audio_|mel_bins|conv_dim|feat_extract|speech|video|upsampl", keys):
        return "features"
    if re.search(r"num_channels|image_size", keys):
        return "image-feature-extraction"
    if not isinstance(config.get("vocab_size"), int):
        return "features"
    return "encoder-decoder" if config.get("is_encoder_decoder") else "feature-extraction"


_AUDIO = r"(?:Data2VecAudio|Hubert|SEWD?|UniSpeech(?:Sat)?|Wav2Vec2(?:Bert|Conformer)?|WavLM|AST|Whisper)"
# class → use; the first pattern that fits
_CLASSES: tuple[tuple[str, str], ...] = (
    (r"(?:Pop2Piano|PI0|ClvpModel)ForConditionalGeneration|EvollaForProteinText2Text", ""),
    (r"(?:Fuyu|Git|Mistral4)ForCausalLM|NemotronH_Omni\w+|VisionEncoderDecoderModel", "image-text-to-text"),
    (r"DiffusionGemmaForBlockDiffusion|IdeficsForVisionText2Text", "image-text-to-text"),
    (r"(?:Phi4Multimodal)ForCausalLM|Qwen[\d_]*Omni\w*ForConditionalGeneration|JanusForConditionalGeneration", "any"),
    (r"FlaubertWithLMHeadModel", "fill-mask"),
    (r"\w+(?:ForCausalLM|LMHeadModel|WithLMHead)|BertGenerationDecoder", "text-generation"),
    (r"\w+ForMaskedLM", "fill-mask"),
    (rf"{_AUDIO}For(?:Sequence|Audio)Classification", "audio-classification"),
    (r"\w+ForSequenceClassification", "text-classification"),
    (r"\w+ForTokenClassification", "token-classification"),
    (r"(?:Blip|Vilt)ForQuestionAnswering", "visual-question-answering"),
    (r"LayoutLM(?:v2|v3)?ForQuestionAnswering", "document-question-answering"),
    (r"TapasForQuestionAnswering", "table-question-answering"),
    (r"\w+ForQuestionAnswering(?:Simple)?", "question-answering"),
    (r"\w+ForImageClassification\w*", "image-classification"),
    (r"\w+ForVideoClassification", "video-classification"),
    (r"(?:MM)?(?:GroundingDino|Owlv2|OwlViT|OmDetTurbo)ForObjectDetection", "zero-shot-object-detection"),
    (r"\w+ForObjectDetection", "object-detection"),
    (r"\w+For(?:Semantic|Universal|Instance)?Segmentation", "image-segmentation"),
    (r"\w+ForDepthEstimation", "depth-estimation"),
    (r"\w+For(?:CTC|SpeechToText)", "automatic-speech-recognition"),
    (
        r"(?:CohereAsr|Canary|KyutaiSpeechToText|Moonshine\w*|Speech2Text|Whisper)ForConditionalGeneration"
        r"|SpeechEncoderDecoderModel",
        "automatic-speech-recognition",
    ),
    (r"\w+For(?:TDT|RNNT)", "speech-transducer"),
    (r"(?:Csm|Dia|\w+TTS|HiggsAudioV2|Musicgen\w*|VibeVoice)ForConditionalGeneration", "text-to-audio"),
    (r"\w+ForTextToSpeech|FastSpeech2Conformer\w+|(?:Bark|Vits)Model", "text-to-audio"),
    (r"MarianMTModel|EncoderDecoderModel|\w+ForTextToText", "text2text-generation"),
    (
        r"(?:Align|AltCLIP|Blip|CLIP|CLIPSeg|ChineseCLIP|MetaClip2|Siglip2?|Tipsv2)Model",
        "zero-shot-image-classification",
    ),
    (r"Blip2ForImageTextRetrieval", "zero-shot-image-classification"),
    (r"(?:EdgeTam|Sam2?|SamHQ|Sam3Tracker)Model", "mask-generation"),
)


def _load(auto: str) -> str:
    return f"""\
from transformers import {auto}

model = {auto}.from_pretrained(MODEL_ID, dtype="auto", device_map="auto")
print(model)
"""


def _pipeline(verb: str, given: str) -> str:
    return f"""\
from transformers import pipeline

{verb} = pipeline("TASK", model=MODEL_ID)
print({verb}({given}))
"""


def _speech(verb: str) -> str:
    return f"""\
import wave

import numpy as np
from transformers import pipeline

{verb} = pipeline("TASK", model=MODEL_ID)
with wave.open("speech.wav") as file:  # 16 bits, one channel, at the rate that the model was trained on
    samples = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)
    speech = {{"raw": samples.astype(np.float32) / 32768, "sampling_rate": file.getframerate()}}
print({verb}(speech))
"""


_ASK = """\
prompt = "What is 17 + 25?"
if tokenizer.chat_template:
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
else:
    inputs = tokenizer(prompt, return_tensors="pt")
"""
_ASK_PLAINLY = """\
prompt = PROMPT  # fill in what stands in braces
inputs = tokenizer(prompt, return_tensors="pt")
"""
_CAUSAL = f"""\
from transformers import AutoModelForCausalLM, AutoTokenizer

model_id = MODEL_ID
tokenizer = AutoTokenizer.from_pretrained(model_id)
model = AutoModelForCausalLM.from_pretrained(model_id, dtype="auto", device_map="auto")

{_ASK}inputs = inputs.to(model.device)
output = model.generate(**inputs, max_new_tokens=256)
print(tokenizer.decode(output[0][inputs["input_ids"].shape[1] :], skip_special_tokens=True))
"""
_SEQ2SEQ = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model_id = MODEL_ID
tokenizer = AutoTokenizer.from_pretrained(model_id)
model = AutoModelForSeq2SeqLM.from_pretrained(model_id, dtype="auto", device_map="auto")

inputs = tokenizer("translate English to German: How old are you?", return_tensors="pt").to(model.device)
output = model.generate(**inputs, max_new_tokens=256)
print(tokenizer.decode(output[0], skip_special_tokens=True))
"""
_IMAGE_TEXT = """\
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

model_id = MODEL_ID
processor = AutoProcessor.from_pretrained(model_id)
model = AutoModelForImageTextToText.from_pretrained(model_id, dtype="auto", device_map="auto")

image, prompt = Image.open("photo.jpg").convert("RGB"), "What is in this picture?"
if getattr(processor, "chat_template", None):
    content = [{"type": "image", "image": image}, {"type": "text", "text": prompt}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
else:
    inputs = processor(images=image, text=prompt, return_tensors="pt")
inputs = inputs.to(model.device, model.dtype)
output = model.generate(**inputs, max_new_tokens=256)
print(processor.batch_decode(output, skip_special_tokens=True)[0])
"""
_SENTENCES = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(MODEL_ID)
embeddings = model.encode(["The weather is lovely today.", "It is sunny outside."])
print(model.similarity(embeddings, embeddings))
"""
_CROSS = """\
from sentence_transformers import CrossEncoder

model = CrossEncoder(MODEL_ID)
print(model.predict([("How is the weather?", "It is sunny outside.")]))
"""

_IMAGE, _TEXT = '"photo.jpg"', '"The weather is lovely today."'
_IMAGE_AND_LABELS = f'{_IMAGE}, candidate_labels=["a cat", "a dog"]'
_USES: Mapping[str, _Use] = {
    "text-generation": _Use(_CAUSAL, ("text-ranking", "translation", "summarization")),
    "text2text-generation": _Use(  # which the Hub lists no more
        _SEQ2SEQ, ("translation", "summarization", "question-answering"), tag="text-generation"
    ),
    "fill-mask": _Use(_pipeline("fill", 'f"What a {fill.tokenizer.mask_token} day."'), ("feature-extraction",)),
    "text-classification": _Use(
        _pipeline("classify", _TEXT),
        ("zero-shot-classification", "text-ranking", "tabular-classification"),
    ),
    "token-classification": _Use(_pipeline("classify", '"Ada lives in London."')),
    "question-answering": _Use(_load("AutoModelForQuestionAnswering")),
    "feature-extraction": _Use(_pipeline("extract", _TEXT), ("sentence-similarity", "text-ranking")),
    "encoder-decoder": _Use(_load("AutoModel"), tag="feature-extraction"),
    "features": _Use(_load("AutoModel"), tag="feature-extraction"),
    "image-classification": _Use(_pipeline("classify", _IMAGE)),
    "image-feature-extraction": _Use(_pipeline("extract", _IMAGE), ("feature-extraction",)),
    "object-detection": _Use(_pipeline("detect", _IMAGE)),
    "zero-shot-object-detection": _Use(_pipeline("detect", _IMAGE_AND_LABELS), ("object-detection",)),
    "zero-shot-image-classification": _Use(
        _pipeline("classify", _IMAGE_AND_LABELS),
        ("feature-extraction", "image-feature-extraction", "image-segmentation"),
    ),
    "image-segmentation": _Use(_pipeline("segment", _IMAGE)),
    "mask-generation": _Use(_pipeline("segment", _IMAGE), ("image-segmentation",)),
    "depth-estimation": _Use(_pipeline("estimate", _IMAGE)),
    "video-classification": _Use(_load("AutoModelForVideoClassification")),
    "image-text-to-text": _Use(
        _IMAGE_TEXT,
        (
            *("image-to-text", "visual-question-answering", "video-text-to-text", "document-question-answering"),
            "any-to-any",
        ),
    ),
    "visual-question-answering": _Use(_load("AutoModelForVisualQuestionAnswering"), ("image-text-to-text",)),
    "document-question-answering": _Use(_load("AutoModelForDocumentQuestionAnswering")),
    "table-question-answering": _Use(_load("AutoModelForTableQuestionAnswering")),
    "automatic-speech-recognition": _Use(_speech("recognize"), ("translation", "audio-text-to-text")),
    "speech-transducer": _Use(_speech("recognize"), tag="automatic-speech-recognition"),
    "audio-classification": _Use(_speech("classify")),
    "text-to-audio": _Use(_pipeline("speak", _TEXT), ("text-to-speech",)),
    "audio-text-to-text": _Use(_load("AutoModelForMultimodalLM"), ("automatic-speech-recognition", "translation")),
    "any": _Use(
        _load("AutoModelForMultimodalLM"),
        ("image-text-to-text", "audio-text-to-text", "automatic-speech-recognition", "text-to-audio"),
        tag="any-to-any",
    ),
    "sentence-similarity": _Use(_SENTENCES, ("feature-extraction",)),
    "sparse-encoder": _Use(
        _SENTENCES.replace("SentenceTransformer", "SparseEncoder"), ("sentence-similarity",), tag="feature-extraction"
    ),
    "cross-encoder": _Use(_CROSS, ("text-classification",), tag="text-ranking"),
}
# what the Hub lists models by (PIPELINE_DATA of the npm package @huggingface/tasks)
HUB_TAGS = frozenset(
    (
        *(use.tag or name for name, use in _USES.items()),
        *(tag for use in _USES.values() for tag in use.also),
        *("image-to-image", "image-to-3d", "keypoint-detection", "time-series-forecasting", "voice-activity-detection"),
        *("reinforcement-learning", "robotics", "graph-ml", "multiple-choice", "visual-document-retrieval"),
        *("tabular-regression", "unconditional-image-generation", "audio-to-audio", "other", "text-to-image"),
        *("image-to-video", "text-to-video", "video-to-video", "image-text-to-image", "image-text-to-video"),
        *("text-to-3d", "tabular-to-text", "table-to-text", "text-retrieval"),
    )
)

"""Models of many kinds as transformers writes them, merged: processors that do what the base's do, a card that says
what the model is for, and code on it that runs."""

import importlib
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as t
import yaml
from markdown_reading import PARSER
from PIL import Image
from plan_helpers import NOWHERE
from real_models import KINDS, trained, write

from hubmerge.engine.options import StreamOptions
from hubmerge.line import Request, merge_to_folder, prepare
from hubmerge.recipe.recipe import recipe_from_dict

TAGS = {
    "llama": "text-generation",
    "tekken": "text-generation",
    "t5": "text-generation",
    "masked": "fill-mask",
    "classifier": "text-classification",
    "tagger": "token-classification",
    "reader": "question-answering",
    "encoder": "feature-extraction",
    "vit": "image-classification",
    "vit_features": "image-feature-extraction",
    "clip": "zero-shot-image-classification",
    "llava": "image-text-to-text",
    "ctc": "automatic-speech-recognition",
    "audio_classifier": "audio-classification",
    "whisper": "automatic-speech-recognition",
    "vits": "text-to-audio",
}
TEXT = "w7 w8 colour how old are you <image>"


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


def purpose_of(folder: Path) -> tuple[str, str]:
    """What the card's header says that the model is for, and which library runs it."""
    header = yaml.safe_load(card_of(folder).split("---\n")[1])
    return header["pipeline_tag"], header["library_name"]


def code_of(folder: Path) -> str:
    fences = [block for block in PARSER.parse(card_of(folder)) if block.type == "fence"]
    [code] = [block.content for block in fences if block.info == "python"]
    return str(code)


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_of_a_model_that_transformers_wrote_is_lost(models, kind):
    base, result = models(kind)
    assert {p.name for p in base.iterdir()} <= {p.name for p in result.iterdir()}
    for path in base.iterdir():
        if path.name == "generation_config.json":
            wanted = {k: v for k, v in json.loads(path.read_bytes()).items() if not k.startswith("_")}
            assert json.loads((result / path.name).read_bytes()) == wanted
        elif path.name not in ("config.json", "model.safetensors"):
            assert (result / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("kind", KINDS)
def test_the_card_says_what_the_model_is_for(models, kind):
    _, result = models(kind)
    assert purpose_of(result) == (TAGS[kind], "transformers")


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_on_the_card_runs(models, kind, tmp_path, monkeypatch, capsys):
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


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("vit", "vit_features")])
def test_the_tokenizer_of_a_merge_does_what_the_bases_does(models, kind):
    base, result = (t.AutoTokenizer.from_pretrained(folder) for folder in models(kind))
    assert type(base) is type(result)
    assert base(TEXT)["input_ids"] == result(TEXT)["input_ids"]
    assert len(set(base(TEXT)["input_ids"])) > 3
    assert base.decode(base(TEXT)["input_ids"]) == result.decode(base(TEXT)["input_ids"])


@pytest.mark.parametrize("kind", ["vit", "clip", "llava", "vit_features"])
def test_the_processor_of_a_merge_does_what_the_bases_does(models, kind):
    image = Image.fromarray(np.arange(20 * 24 * 3, dtype=np.uint8).reshape(20, 24, 3))
    base, result = (t.AutoProcessor.from_pretrained(folder) for folder in models(kind))
    assert type(base) is type(result)
    given = {"images": image, **({} if kind.startswith("vit") else {"text": TEXT}), "return_tensors": "np"}
    wanted, found = base(**given), result(**given)
    assert wanted.keys() == found.keys() >= {"pixel_values"}
    for name in wanted:
        np.testing.assert_array_equal(wanted[name], found[name])


@pytest.mark.parametrize("kind", ["whisper", "ctc"])
def test_the_feature_extractor_of_a_merge_does_what_the_bases_does(models, kind):
    sound = np.sin(np.arange(4_000) / 20).astype(np.float32)
    base, result = (t.AutoFeatureExtractor.from_pretrained(folder) for folder in models(kind))
    wanted, found = (e(sound, sampling_rate=16_000, return_tensors="np") for e in (base, result))
    np.testing.assert_array_equal(wanted[next(iter(wanted))], found[next(iter(wanted))])


def test_sentence_transformers_keep_their_modules(tmp_path, capsys):
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
    assert purpose_of(result) == ("sentence-similarity", "sentence-transformers")
    exec(code_of(result).replace("path/to/this/folder", str(result)), {})
    assert "tensor" in capsys.readouterr().out

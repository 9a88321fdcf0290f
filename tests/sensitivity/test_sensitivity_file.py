"""The file: what it says of itself, when it fits a model, and models that can have none; the command that makes it."""

import argparse
import json
import os
import re
import shutil
from pathlib import Path
from unittest.mock import Mock, call

import numpy as np
import pytest
from builders import T, llama_config, llama_shapes, random_base, tensor, tokenizer_files, write_model
from plan_helpers import opened
from processes import printed_by
from safetensors.numpy import load_file, save_file
from sensitivity_helpers import PAIRS, SPEC, compute, llama, load, write_rows
from source_helpers import lora, pair, write_adapter

from hubmerge.cli.main import main
from hubmerge.cli.options import of_sensitivity
from hubmerge.cli.terminal import Terminal
from hubmerge.errors import FormatError, SensitivityError, SourceNotFoundError
from hubmerge.hub.client import Hub
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.recipe.model_name import ModelName
from hubmerge.sensitivity.compute import compute_sensitivity
from hubmerge.sensitivity.file import SensitivityFile, check_sensitivity, read_sensitivity
from hubmerge.sensitivity.network import Network
from hubmerge.sensitivity.pairs import Pair, digest, load_pairs
from hubmerge.sources.open import open_model
from hubmerge.sources.reader import LocalOrFetched, TensorReader

_PARTS = {"text_encoder": "t5", "audio_encoder": "encodec", "decoder": "musicgen_decoder"}
TWO_TEXTS = {"model_type": "musicgen", **{part: {"model_type": kind} for part, kind in _PARTS.items()}}


def rewritten(made: SensitivityFile, path: Path, change=lambda tensors: None, **metadata: str) -> SensitivityFile:
    """A copy with other tensors or metadata, by the reference writer."""
    tensors = load_file(made.path)
    change(tensors)
    save_file(tensors, path, metadata={**made.metadata.to_strings(), **metadata})
    return read_sensitivity(path)


def test_the_metadata_says_what_it_was_made_from(made, folder):
    model = opened(folder)
    said = made.metadata
    assert said.model_id == "agent"  # no path of this machine
    assert said.model_sha == model.ref.sha
    assert said.data == "pairs.jsonl"
    assert said.data_digest == digest(PAIRS)
    assert (said.pairs, said.max_tokens, said.prompt, said.answer) == (5, 32, "question", "answer")
    assert (said.dtype, said.device, said.format) == ("float32", "cpu", "hubmerge-sensitivity-1")
    assert str(folder.parent).encode() not in made.path.read_bytes()[:4000]


def test_it_fits_its_model_and_a_copy_of_the_folder_whose_identity_is_another_and_no_other_model(
    made, folder, tmp_path
):
    check_sensitivity(made, opened(folder))
    copy = shutil.copytree(folder, tmp_path / "copy")
    os.utime(copy / "model.safetensors", ns=(1, 1))
    assert opened(copy).ref.sha != opened(folder).ref.sha
    check_sensitivity(made, opened(copy))
    with pytest.raises(SensitivityError, match="it belongs to another model"):
        check_sensitivity(made, opened(llama(tmp_path / "other", seed=1)))


def test_missing_extra_and_misshapen_tensors_are_listed_together(made, folder, tmp_path):
    def change(tensors):
        del tensors["model.norm.weight"]
        tensors["model.other.weight"] = np.zeros(3, dtype=np.float32)
        tensors["lm_head.weight"] = tensors["lm_head.weight"].T.copy()

    with pytest.raises(SensitivityError) as caught:
        check_sensitivity(rewritten(made, tmp_path / "s.safetensors", change), opened(folder))
    text = str(caught.value)
    assert "it lacks tensors in s.safetensors: expected model.norm.weight" in text
    assert "the model does not store in s.safetensors: expected none, got model.other.weight" in text
    assert "lm_head.weight: [40, 16] → [16, 40]" in text
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("value", [-1e-30, float("nan"), float("inf"), float("-inf")])
def test_values_that_no_square_has_are_counted_by_tensor(made, folder, tmp_path, value):
    def change(tensors):
        tensors["model.norm.weight"][[3, 7]] = value

    file = rewritten(made, tmp_path / "s.safetensors", change)
    with pytest.raises(SensitivityError, match=r"got model\.norm\.weight \(2\)"):
        check_sensitivity(file, opened(folder))


def test_what_is_no_sensitivity_file_is_refused(made, folder, tmp_path):
    def change(tensors):
        tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float16)

    with pytest.raises(SensitivityError, match="float32 alone"):
        rewritten(made, tmp_path / "s.safetensors", change)
    with pytest.raises(SensitivityError, match="not a sensitivity file"):
        read_sensitivity(folder / "model.safetensors")
    with pytest.raises(SourceNotFoundError):
        read_sensitivity(tmp_path / "nope")


def test_a_model_from_the_hub_is_fetched_and_named_by_its_commit(folder, made, local_hub, ada, tmp_path):
    ada.create_repo("ada/sensitive-agent")
    commit = ada.upload_folder(repo_id="ada/sensitive-agent", folder_path=folder)
    hub = Hub(local_hub.endpoint)
    online = open_model(ModelName.parse("ada/sensitive-agent"), hub, allow_local=False)
    progress = Mock()
    file = compute_sensitivity(online, PAIRS, tmp_path / "s.safetensors", spec=SPEC, hub=hub, progress=progress)
    assert (file.metadata.model_id, file.metadata.model_sha) == ("ada/sensitive-agent", commit.oid)
    size = (folder / "model.safetensors").stat().st_size
    assert call("fetch", size, size, "B") in progress.mock_calls
    own, local = load_file(file.path), load_file(made.path)
    assert all(np.array_equal(own[n], local[n]) for n in local)
    # the weights are the same, so each file fits both places
    check_sensitivity(made, online)
    check_sensitivity(file, opened(folder))


# --- models that cannot have one -----------------------------------------------------------------------------


def refused(folder: Path, tmp_path: Path, **options) -> str:
    progress = Mock()
    with pytest.raises((SensitivityError, FormatError)) as caught:
        compute(folder, tmp_path / "s.safetensors", progress=progress, **options)
    assert "sensitivity" not in [told.args[0] for told in progress.mock_calls]  # nothing was computed
    assert not (tmp_path / "s.safetensors").exists()
    return str(caught.value)


def base(**more: T) -> dict[str, T]:
    return {**random_base(0, sizes=llama_shapes(), scale=0.3), **more}


def test_stored_integers_have_no_sensitivity(tmp_path):
    tensors = base(**{"model.counter": tensor([1, 2, 3], "I64")})
    folder = write_model(tmp_path / "model", tensors, config=llama_config(base()))
    file = compute(folder, tmp_path / "s.safetensors")
    assert file.tensors.keys() == base().keys()
    check_sensitivity(file, opened(folder))


UP = "model.layers.1.mlp.up_proj.weight"
TOO_MANY = {"model.layers.0.extra.weight": tensor([1.0, 2.0]), "adapter.scale": tensor(1.0)}
NO_MODEL = "a model that transformers does not know"


@pytest.mark.parametrize(
    ("tensors", "config", "files", "reason"),
    [
        (TOO_MANY, {}, {}, r"tensors that stand for no parameter.*got (?=.*adapter\.scale).*layers\.0\.extra\.weight"),
        ({UP: None}, {}, {}, rf"missing_keys: {UP}"),
        ({}, {"vocab_size": 41}, {}, r"does not fit its own config\.json|cannot load"),
        ({}, {"quantization_config": {"quant_method": "fp8"}}, {}, "quantized weights"),
        ({}, {"pad_token_id": 99}, {}, "a model that transformers cannot load"),
        ({}, {"num_attention_heads": 0}, {}, NO_MODEL),
        ({}, {"num_hidden_layers": "two"}, {}, NO_MODEL),
        ({}, TWO_TEXTS, {}, NO_MODEL),
        ({}, {"model_type": "t5"}, {}, "a model that has no likelihood of an answer after a prompt"),
        ({}, {}, {"tokenizer.json": b"{}"}, "a tokenizer that transformers cannot read"),
        (
            {},
            {},
            tokenizer_files(90),
            "a token that the model does not have in row 6",
        ),
        ({}, {}, None, "no tokenizer"),
    ],
    ids=[
        *("too many", "too few", "other shapes", "quantized", "padding", "heads", "types", "two texts", "encoder"),
        *("a broken tokenizer", "another vocabulary", "no tokenizer"),
    ],
)
def test_a_model_that_can_have_none_is_refused_with_its_reason(tmp_path, tensors, config, files, reason):
    stored = {name: value for name, value in base(**tensors).items() if value is not None}
    folder = write_model(tmp_path / "model", stored, config=llama_config(base(), **config), files=files)
    for path in folder.glob("tokenizer*") if files is None else ():
        path.unlink()
    assert re.search(reason, refused(folder, tmp_path, pairs=[*PAIRS, Pair("w3", "w80", 6)] if files else PAIRS))


def test_an_adapter_is_no_whole_model(tmp_path):
    adapter = write_adapter(tmp_path / "a", pair("model.norm", *lora((16, 16))), files=tokenizer_files())
    assert "an adapter, which is no whole model" in refused(adapter, tmp_path)


def test_neither_a_model_nor_a_tokenizer_brings_code(tmp_path):
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w')".encode()
    own = {"model_type": "mine", "architectures": ["Mine"], "auto_map": {"AutoModelForCausalLM": "mine.Mine"}}
    refused(write_model(tmp_path / "a", base(), config=llama_config(base(), **own), files={"mine.py": code}), tmp_path)
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>"}
    tokenizer |= {"auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    files = {"tokenizer_config.json": json.dumps(tokenizer).encode(), "mine.py": code}
    compute(write_model(tmp_path / "b", base(), files=files), tmp_path / "s.safetensors", PAIRS[:1])
    assert not marker.exists()


def test_weights_that_come_back_in_another_order_are_noticed(folder):
    module, _ = load(folder)
    network = Network(module, opened(folder))
    network.verify(folder)
    norm = module.model.norm.weight.data
    norm[:2] = norm[:2].flip(0) + 1
    with pytest.raises(SensitivityError, match=r"model\.norm\.weight"):
        network.verify(folder)


def test_no_pairs_and_unknown_devices_are_refused(folder, tmp_path):
    assert "no calibration pairs" in refused(folder, tmp_path, pairs=())
    assert "no such device" in refused(folder, tmp_path, device="abacus")


# --- the command --------------------------------------------------------------------------------------------


def run(*words: object) -> int:
    return main(["sensitivity", *map(str, words)])


def test_the_command_writes_the_file_and_tells_what_it_is(tmp_path, capsys, monkeypatch):
    folder = llama(tmp_path / "agent")
    data = write_rows(tmp_path / "data.jsonl", [{"q": p.prompt, "a": p.answer} for p in PAIRS])
    out = tmp_path / "s.safetensors"
    seen: list[tuple[str, int, int, str]] = []
    words = (folder, "--data", data, "--prompt", "q", "--answer", "a", "--out", out, "--max-pairs", 3, "--seed", 2)
    monkeypatch.setattr(Terminal, "progress", lambda _, *news: seen.append(news))
    assert run(*words) == 0
    pairs = load_pairs(CalibrationSpec(data=str(data), prompt="q", answer="a", max_pairs=3, seed=2))
    said = read_sensitivity(out).metadata
    assert (said.pairs, said.data_digest) == (3, digest(pairs))
    assert seen == [("load model", 0, 0, ""), *(("sensitivity", n, 3, "pairs") for n in range(4))]
    assert capsys.readouterr().out == f"{out}: 21 tensors from 3 pairs, data {digest(pairs)[:16]}\n"
    before = out.stat().st_mtime_ns
    assert run(*words) == 0
    assert out.stat().st_mtime_ns == before
    assert run(*words, "--restart") == 0
    assert out.stat().st_mtime_ns != before
    assert run(*words, "--max-pairs", 0) == 1
    assert "this must be greater than or equal to 1 in --max-pairs" in capsys.readouterr().err


@pytest.mark.parametrize(
    "metadata",
    [
        {"format": "hubmerge-sensitivity-2"},
        {"pairs": "0"},
        {"pairs": "many"},
        {"data_digest": "abc"},
        {"model_sha": "../../etc"},
        {"surprise": "yes"},
        {"model_id": "x" * 1000},
    ],
)
def test_metadata_of_another_kind_is_refused(made, tmp_path, metadata):
    with pytest.raises(SensitivityError, match="not a sensitivity file"):
        rewritten(made, tmp_path / "s.safetensors", **metadata)


def test_a_file_that_became_shorter_is_told(made, folder, tmp_path):
    path = shutil.copy(made.path, tmp_path / "s.safetensors")
    known = read_sensitivity(path)
    os.truncate(path, made.size - 1)
    with pytest.raises(SensitivityError, match="became shorter"):
        check_sensitivity(known, opened(folder))


def test_it_is_read_like_any_other_source(made):
    source = made.as_model()
    values = load_file(made.path)
    with TensorReader([source], LocalOrFetched(Hub(), made.path.parent)) as reader:
        for name, stored in source.tensors.items():
            flat = values[name].reshape(-1)
            half = flat.size // 2
            np.testing.assert_array_equal(reader.raw(0, stored, half, flat.size - half), flat[half:])


def test_a_nan_in_the_weights_is_found_before_the_first_pair(tmp_path):
    tensors = base()
    tensors["model.norm.weight"].raw[3] = 0x7FC0
    text = refused(write_model(tmp_path / "model", tensors), tmp_path)
    assert "loaded weights are not the stored ones" in text
    assert "model.norm.weight" in text


def test_arguments_that_make_no_sense_are_listed_together(tmp_path, capsys):
    words = ("x/y", "--data", "d", "--prompt", "q", "--answer", "", "--out", tmp_path / "s", "--max-pairs", 0)
    assert run(*words) == 1
    told = capsys.readouterr().err
    assert told.count("E_SENSITIVITY") == 2
    assert "--answer" in told
    assert "this must be greater than or equal to 1 in --max-pairs" in told


def test_importing_the_package_loads_neither_torch_nor_transformers():
    code = (
        "import sys, hubmerge.sensitivity.of_plan\n"
        "print({'torch', 'transformers', 'datasets', 'accelerate', 'huggingface_hub'} & set(sys.modules))"
    )
    assert printed_by(code) == "set()\n"


def test_the_defaults_in_the_help_are_those_of_the_specification():
    parser = argparse.ArgumentParser()
    of_sensitivity(parser)
    text = " ".join(parser.format_help().split())
    defaults = CalibrationSpec(data="d", prompt="q", answer="a")
    assert f"texts ({defaults.max_pairs})" in text
    assert f"of one pair ({defaults.max_tokens})" in text
    assert f"chosen ({defaults.seed})" in text
    assert f"of a Hub dataset ({defaults.split})" in text

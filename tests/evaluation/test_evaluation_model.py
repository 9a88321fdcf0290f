"""What of a stranger's model reaches the evaluating process, and what is believed of what its repo says."""

import copy
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plan_helpers import NOWHERE, opened
from report_helpers import report_data
from safetensors.numpy import save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch
from source_helpers import ADAPTED, ZOO, lora, zoo_adapter

from hubmerge.errors import EvaluationError, FormatError, HubUnavailableError, LoginError
from hubmerge.evaluation import facts as facts_module
from hubmerge.evaluation.adapter import stage_on_base
from hubmerge.evaluation.facts import model_facts
from hubmerge.evaluation.runner import EvaluateOptions, check_evaluable, evaluate
from hubmerge.evaluation.suites import pin
from hubmerge.hub.client import Hub
from hubmerge.plan.plan import make_plan
from hubmerge.recipe.model_name import ModelName, ModelRef
from hubmerge.sources.open import open_model
from hubmerge.sources.staged import stage_model

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4, "auto_map": {"a": "b.py"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    made.mkdir()
    save_file({"w": np.ones((2, 3), np.float32), "b": np.ones(4, np.float32)}, made / "model.safetensors")
    (made / "config.json").write_text(json.dumps(CONFIG))
    (made / "tokenizer.json").write_text("{}")
    return made


def staged(folder: Path, tmp_path: Path) -> tuple[Path, list[str]]:
    out = tmp_path / "staged"
    return out, stage_model(opened(folder), NOWHERE, out, tmp_path / "inputs", lambda *_: None)


def test_only_weights_config_and_tokenizer_are_taken(folder, tmp_path):
    for name in ("pytorch_model.bin", "modeling_evil.py", "generation_config.json", "extra.safetensors", "README.md"):
        (folder / name).write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": "x.py"}, "eos_token": "e"}')
    staged(folder, tmp_path)
    (tmp_path / "staged" / "chat_template.jinja").write_text("{{ of an earlier model }}")
    out, notes = staged(folder, tmp_path)
    taken = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in out.iterdir()} == taken
    assert json.loads((out / "tokenizer_config.json").read_text()) == {"eos_token": "e"}
    assert "auto_map" not in json.loads((out / "config.json").read_text())
    assert any("auto_map" in note for note in notes)


@pytest.mark.parametrize(
    ("stated", "taken"),
    [(7, [7]), ([7, 9, "8", True, 1.5], [7, 9]), ([], None), ("7", None), ({"a": 1}, None), (None, None)],
)
def test_of_generation_config_only_the_tokens_that_end_an_answer_are_taken(folder, tmp_path, stated, taken):
    made = folder / "generation_config.json"
    made.write_text(json.dumps({"eos_token_id": stated, "repetition_penalty": 9.0}))
    out, _ = staged(folder, tmp_path)
    assert (out / made.name).exists() == bool(taken)
    if taken:
        assert json.loads((out / made.name).read_text()) == {"eos_token_id": taken}
    made.write_bytes(b"[" * 100_000)
    out, _ = staged(folder, tmp_path)
    assert not (out / made.name).exists()


def test_shards_come_with_an_index_of_what_their_headers_say(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    for number, name in enumerate("wb", start=1):
        save_file({name: np.ones(2, np.float32)}, folder / f"model-{number:05}-of-00002.safetensors")
    weight_map = {"w": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = {"metadata": {"evil": "../x"}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    out, _ = staged(folder, tmp_path)
    made = json.loads((out / "model.safetensors.index.json").read_text())
    assert made["weight_map"] == weight_map
    assert set(made["metadata"]) == {"total_size"}
    assert all((out / shard).is_file() for shard in weight_map.values())


def test_a_tokenizer_config_that_is_no_json_is_refused(folder, tmp_path):
    (folder / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(FormatError, match="tokenizer_config"):
        staged(folder, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", None, "no tokenizer"),
        ("config.json", '{"is_encoder_decoder": true}', "a model with an encoder .* with is_encoder_decoder"),
        ("config.json", '{"model_type": "roberta"}', "a model with an encoder .* with no is_decoder"),
        ("config.json", '{"quantization_config": {"quant_method": "fp8"}}', "quantized .* got quantization_config"),
    ],
)
def test_a_model_that_cannot_be_evaluated_as_it_is_stored_gets_a_failed_result_and_no_process(
    folder, hub, workdir, name, content, reason
):
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    with pytest.raises(EvaluationError, match=reason):
        check_evaluable(opened(folder), NOWHERE)
    model = ModelName.parse(str(folder))
    result = evaluate(model, pin("zoo", hub), hub=hub, workdir=workdir, options=EvaluateOptions(), allow_local=True)
    assert result.error is not None
    assert re.search(reason, result.error.message)
    assert not (workdir / "child.log").exists()


# --- adapters


def test_an_adapter_is_measured_on_the_base_that_its_config_names(tmp_path, hub):
    folder = zoo_adapter(tmp_path / "adapter", files={"chat_template.jinja": b"{{ not without a tokenizer }}"})
    model = opened(folder)
    whole = check_evaluable(model, hub)
    assert whole is not None
    assert whole.base.ref.sha == hub.repo_state("zoo/base").sha
    out, told = tmp_path / "staged", []
    stage_on_base(whole, hub, out, tmp_path / "inputs", lambda done, total, unit: told.append((done, total, unit)))
    expected = load_torch(ZOO / "base" / "model.safetensors")
    a, b = lora(tuple(expected[f"{ADAPTED}.weight"].shape))
    weight = expected[f"{ADAPTED}.weight"]
    update = torch.from_numpy(8 / 4 * (b.astype(np.float64) @ a.astype(np.float64)))
    expected[f"{ADAPTED}.weight"] = (weight.double() + update).to(weight.dtype)
    found = load_torch(out / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        if name != f"{ADAPTED}.weight":
            assert torch.equal(found[name], tensor), name
        else:  # float32 sums in place of float64: the last bit of bfloat16 may differ
            assert torch.allclose(found[name].float(), tensor.float(), rtol=2**-7, atol=0)
            assert (found[name] != weight).any()
    assert (out / "tokenizer.json").read_bytes() == (ZOO / "base" / "tokenizer.json").read_bytes()
    assert not [p.name for p in out.iterdir() if p.name in (".hubmerge", "chat_template.jinja")]
    assert {unit for *_, unit in told} == {"B", "elements"}
    assert told[-1][0] == told[-1][1] == whole.elements


def test_an_adapter_on_a_base_of_several_shards_comes_with_their_index_and_its_own_tokenizer(
    tmp_path, hub, monkeypatch
):
    own = (ZOO / "base" / "tokenizer.json").read_bytes() + b"\n"
    zoo_adapter(tmp_path / "my l\u00f6ra@2", files={"tokenizer.json": own})
    monkeypatch.chdir(tmp_path)
    whole = check_evaluable(opened(Path("my l\u00f6ra@2")), hub)
    assert whole is not None
    several, out = make_plan(whole.recipe, whole.base, whole.agents, max_shard_bytes=100_000), tmp_path / "staged"
    stage_on_base(several, hub, out, tmp_path / "inputs", lambda *_: None)
    made = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    assert made == {name: shard.name for shard in out.glob("*.safetensors") for name in load_torch(shard)}
    assert len(set(made.values())) > 1
    assert (out / "tokenizer.json").read_bytes() == own


@pytest.mark.parametrize(
    ("base", "changes", "reason"),
    [
        ("/home/ada/base", {}, "not there, or private.*got /home/ada/base"),
        ("zoo/base", {"revision": "../main"}, "not there, or private.*got zoo/base@../main"),
        ("zoo/nowhere", {}, "not there, or private"),
        ("zoo/other", {}, "does not fit its base"),
    ],
)
def test_an_adapter_without_a_fitting_base_on_the_hub_is_a_finding_about_it(
    tmp_path, hub, api, workdir, base, changes, reason
):
    other = tmp_path / "other"
    shutil.copytree(ZOO / "base", other)
    for shard in other.glob("*.safetensors"):
        save_torch({n: t[:1].clone() if n.startswith(ADAPTED) else t for n, t in load_torch(shard).items()}, shard)
    api.create_repo("zoo/other", exist_ok=True)
    api.upload_folder(repo_id="zoo/other", folder_path=other)
    adapter = zoo_adapter(tmp_path / "adapter", base)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | changes))
    model = ModelName.parse(str(adapter))
    result = evaluate(model, pin("zoo", hub), hub=hub, workdir=workdir, options=EvaluateOptions(), allow_local=True)
    assert result.error is not None
    assert re.search(reason, result.error.message)


def test_a_public_adapter_of_a_private_base_is_told_as_one_of_none(tmp_path, hub, api):
    api.create_repo("ada/hidden-base", private=True, exist_ok=True)
    api.upload_folder(repo_id="ada/hidden-base", folder_path=ZOO / "base")
    told = {}
    for base in ("ada/hidden-base", "ada/absent"):
        name = base.replace("ada/", "ada/lora-")
        api.create_repo(name, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=zoo_adapter(tmp_path / base, base))
        with pytest.raises(EvaluationError) as refusal:
            check_evaluable(open_model(ModelName.parse(name), hub, allow_local=False), hub)
        told[base] = str(refusal.value).replace(base, "BASE").replace(name, "ADAPTER")
    hidden, absent = (text.partition("@")[0] + text.partition("):")[2] for text in told.values())
    assert hidden == absent


# --- facts


def merge_folder(folder: Path, **changes: Any) -> Path:
    """The folder with a hubmerge.json of the hand-made report that lists its weights."""
    report = copy.deepcopy(report_data())
    size = (folder / "model.safetensors").stat().st_size
    report["files"] = [{"name": "model.safetensors", "size": size, "sha256": "0" * 64}]
    (folder / "hubmerge.json").write_text(json.dumps(report | changes))
    return folder


def facts(folder: Path) -> Any:
    return model_facts(NOWHERE, opened(folder))


def test_a_plain_models_facts_come_from_headers_and_card_of_a_folder_or_the_hub(folder, hub):
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    found = facts(folder)
    assert (found.parameters, found.license, found.is_merge) == (10, "mit", False)
    assert found.size_bytes == (folder / "model.safetensors").stat().st_size
    found = model_facts(hub, open_model(ModelName.parse("zoo/math-agent"), hub, allow_local=False))
    assert (found.author, found.license, found.parameters) == ("zoo", "apache-2.0", 171776)


def test_a_merges_facts_come_from_its_report(folder):
    found = facts(merge_folder(folder))
    report = report_data()
    assert (found.method, found.method_parameters) == ("ram_plus", {"epsilon": 1e-05, "r": 0.1, "alpha": 2.0})
    assert [(p.role, p.id, p.weight) for p in found.parents] == [
        (p["role"], p["id"], p["weight"]) for p in report["parents"]
    ]
    # the report's shares: conflict 0.02, one sign 0.03, one agent 0.2
    assert found.density == pytest.approx(0.25)
    assert found.overlap == pytest.approx(0.05 / 0.25)
    assert found.conflict == pytest.approx(0.02 / 0.05)
    assert found.effective_scales == tuple(o["effective_scale"] for o in report["outcomes"])
    assert found.recipe == report["recipe_yaml"]
    assert found.created == "2026-01-02T03:04:05Z"


def test_a_report_of_other_weights_is_not_believed(folder):
    other = [{"name": "model.safetensors", "size": 1, "sha256": "0" * 64}]
    assert not facts(merge_folder(folder, files=other)).is_merge
    assert not facts(merge_folder(folder, files=[])).is_merge


@pytest.mark.parametrize(
    ("field", "value", "lost"),
    [
        ("method", {"name": "x" * 5000, "parameters": {"r": 1}}, "method"),
        ("method", "ram", "method"),
        ("method", {"name": "evil\u202e", "parameters": {}}, "method"),
        ("created", 5, "created"),
        ("recipe_yaml", ["a"], "recipe"),
        ("outcomes", [{"effective_scale": "1"}], "effective_scales"),
        ("parents", [{"role": "uncle", "id": "a/b", "sha": "c"}], "parents"),
        ("parents", 7, "parents"),
        ("parents", [{"role": "agent", "id": "a/b", "sha": "c" * 40}] * 10_000, "parents"),
        ("outcomes", [{"effective_scale": 1.0}] * 200_000, "effective_scales"),
        ("method", {"name": "ram", "parameters": {"y": ["\u00e4" * 2000] * 200}}, "method_parameters"),
        ("statistics", {"total": {"shares": {"conflict": -1, "overlap": 2, "private": "x"}}}, "density"),
        ("statistics", [], "density"),
    ],
)
def test_a_malformed_field_costs_that_field_only(folder, field, value, lost):
    found = facts(merge_folder(folder, **{field: value}))
    assert not getattr(found, lost)
    kept = {"method", "created", "recipe", "parents", "density"} - {lost}
    assert all(getattr(found, name) for name in kept)


def test_a_report_that_is_none_or_too_long_leaves_the_other_facts(folder, monkeypatch):
    report = merge_folder(folder) / "hubmerge.json"
    whole = report.read_bytes()
    for content in (b"", b"[]", b"[" * 200_000, b'{"files": {}}', b"\xff\xfe", b"null"):
        report.write_bytes(content)
        assert (facts(folder).parameters, facts(folder).is_merge) == (10, False)
    monkeypatch.setattr(facts_module, "MAX_MANIFEST_BYTES", len(whole))
    for content, is_merge in ((whole, True), (whole + b" ", False)):
        report.write_bytes(content)
        assert (facts(folder).parameters, facts(folder).is_merge) == (10, is_merge)


@pytest.mark.parametrize("kind", [HubUnavailableError, LoginError])
def test_a_hub_that_is_away_and_a_token_that_expired_make_no_merge_a_plain_model(folder, monkeypatch, kind):
    def away(*_: object) -> bytes:
        raise kind("not now")

    monkeypatch.setattr(Hub, "read_file", away)
    model = replace(opened(merge_folder(folder)), ref=ModelRef("hub", "ada/merge", "a" * 40))
    with pytest.raises(kind):
        model_facts(NOWHERE, model)

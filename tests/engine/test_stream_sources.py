"""fp8 weights, LoRA adapters and prefixed names are merged as the tensors that they stand for."""

from pathlib import Path
from typing import Any

import merge_reference
import ml_dtypes
import numpy as np
import pytest
from builders import T, f32, random_base, sparse_agent, tensor
from device_helpers import pretend_a_device
from source_helpers import FP8_CONFIG, adapted, from_fp8, lora, pair, to_fp8, write_adapter, write_plain
from stream_helpers import bytes_of, plan_of, run, tensors_of, values_of

from hubmerge.output.plan_words import plan_summary

CHUNKS = (4096, 5000, 10**9)
SIZES = {
    "model.embed_tokens.weight": (37, 16),
    "model.layers.0.self_attn.q_proj.weight": (200, 260),
    "model.layers.0.self_attn.o_proj.weight": (64, 64),
    "model.layers.0.mlp.up_proj.weight": (1, 9000),
    "model.layers.0.input_layernorm.weight": (63,),
    "lm_head.weight": (37, 16),
}
Q, OUT, UP = (f"model.layers.0.{n}" for n in ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj"))


def assert_merged(folder: Path, base: Any, agents: list[Any], *, method: str = "ram_plus", **fields: Any) -> Any:
    """Every chunk size writes the reference's merge of `base` and `agents`, rounded once."""
    expected = merge_reference.merge(method, base, agents)
    plan = plan_of(folder, method, agents=len(agents), rounding="nearest", **fields)
    written = []
    for chunk in CHUNKS:
        run(plan, folder / f"out-{chunk}", chunk=chunk)
        written.append(bytes_of(folder / f"out-{chunk}", plan))
    assert written[0] == written[1] == written[2]
    got = tensors_of(folder / "out-4096", plan)
    assert set(got) == set(expected)
    for name, value in expected.items():
        assert got[name].tobytes() == value.astype(got[name].dtype).tobytes(), name
    return plan


@pytest.fixture
def base() -> dict[str, T]:
    return random_base(3, "BF16", SIZES)


def fp8_family(folder: Path, base: dict[str, T], dtype: str = "F8_E4M3", block: Any = (128, 128)) -> list[Any]:
    models = [to_fp8(t, dtype=dtype, block=block) for t in (base, *(sparse_agent(base, 0.3, s) for s in (1, 2)))]
    for name, tensors in zip(("base", "agent0", "agent1"), models, strict=True):
        write_plain(folder / name, tensors, quantization_config=FP8_CONFIG)
    return models


@pytest.mark.parametrize(("dtype", "block"), [("F8_E4M3", (128, 128)), ("F8_E5M2", (128, 128)), ("F8_E4M3", None)])
def test_fp8_models_merge_as_what_their_scales_make_of_them(tmp_path, base, dtype, block):
    values = [from_fp8(t, block) for t in fp8_family(tmp_path, base, dtype, block)]
    plan = assert_merged(tmp_path, values[0], values[1:])
    assert {t.dtype for t in plan.tensors()} == {"BF16"}
    assert any("fp8 weights are stored as bfloat16" in w for w in plan.warnings)
    assert plan_summary(plan)["kinds"] == ["fp8 weights"] * 3


def test_an_fp8_agent_of_a_bfloat16_base_is_scaled_and_said_to_be_rounded(tmp_path, base):
    agents = [to_fp8(sparse_agent(base, 0.3, 1), block=(1, 260), end="_scale"), sparse_agent(base, 0.2, 2)]
    agents[0] = {n: t for n, t in agents[0].items() if not n.startswith(("model.embed", OUT, UP, "lm_head"))}
    agents[0] |= {n: base[n] for n in base if n not in agents[0]}
    write_plain(tmp_path / "base", base)
    for k, agent in enumerate(agents):
        write_plain(tmp_path / f"agent{k}", agent)
    values = [from_fp8(agents[0], (1, 260)), values_of(agents[1])]
    plan = assert_merged(tmp_path, values_of(base), values, dtype="float32")
    assert any("agent0: its weights are fp8" in w for w in plan.warnings)


def test_whole_tensors_of_fp8_are_multiplied_on_a_device_as_on_the_cpu(tmp_path, base, monkeypatch):
    fp8_family(tmp_path, base)
    plan = plan_of(tmp_path, "wudi", agents=2, parameters={"steps": 4, "lr": 1e-3})
    run(plan, tmp_path / "cpu")
    pretend_a_device(monkeypatch)
    assert run(plan, tmp_path / "device", device="auto").device["device"] == "cpu"  # torch's
    wanted, found = (tensors_of(tmp_path / name, plan) for name in ("cpu", "device"))
    for name, value in wanted.items():
        assert np.abs(found[name].astype(np.float32) - value.astype(np.float32)).mean() < 1e-4, name


def test_a_lora_adapter_merges_as_its_product_on_the_base(tmp_path, base):
    write_plain(tmp_path / "base", base)
    full = sparse_agent(base, 0.3, 1)
    write_plain(tmp_path / "agent1", full)
    values = values_of(base)
    head, norm = tensor(np.full((37, 16), 0.25), "BF16"), tensor(np.full(63, 2.0), "F32")
    stored = {
        "base_model.model.lm_head.weight": head,
        "base_model.model.model.layers.0.input_layernorm.weight": norm,
    }
    expected = dict(values) | {"lm_head.weight": f32(head), "model.layers.0.input_layernorm.weight": f32(norm)}
    for seed, module in enumerate((Q, OUT, UP)):
        a, b = lora(SIZES[module + ".weight"], seed=seed)
        stored |= pair(module, a, b)
        expected[module + ".weight"] = adapted(values[module + ".weight"], a, b, 2.0)
    write_adapter(tmp_path / "agent0", stored)
    plan = assert_merged(tmp_path, values, [expected, values_of(full)])
    assert plan_summary(plan)["kinds"] == ["weights", "LoRA adapter", "weights"]
    assert plan_summary(plan)["resident_bytes"] == 4 * 4 * sum(sum(SIZES[m + ".weight"]) for m in (Q, OUT, UP))


def test_an_adapter_of_an_fp8_base_and_of_embeddings(tmp_path, base):
    stored_base = to_fp8(base)
    write_plain(tmp_path / "base", stored_base, quantization_config=FP8_CONFIG)
    values = from_fp8(stored_base)
    agents = []
    for k in range(2):
        a, b = lora((37, 16), seed=k, transposed=True)
        name = "base_model.model.model.embed_tokens.lora_embedding_"
        a2, b2 = lora((200, 260), rank=2, seed=k + 5)
        write_adapter(
            tmp_path / f"agent{k}",
            {name + "A": tensor(a, "F32"), name + "B": tensor(b, "F32"), **pair(Q, a2, b2)},
            use_rslora=True,
            rank_pattern={"q_proj": 2},
            alpha_pattern={f"^{Q}": 3},
        )
        embedding, q = values["model.embed_tokens.weight"], values[Q + ".weight"]
        changed = {"model.embed_tokens.weight": adapted(embedding, a, b, 4.0, transposed=True)}
        agents.append(values | changed | {Q + ".weight": adapted(q, a2, b2, 3 / 2**0.5)})
    assert_merged(tmp_path, values, agents, method="task_arithmetic", dtype="float32")


@pytest.mark.parametrize("prefix", ["base_model.model.", "language_model.", "module.", "_orig_mod."])
def test_prefixed_agents_merge_like_plain_ones(tmp_path, base, prefix):
    agents = [sparse_agent(base, 0.3, s) for s in (1, 2)]
    write_plain(tmp_path / "base", base)
    write_plain(tmp_path / "agent0", {prefix + n: t for n, t in agents[0].items()})
    write_plain(tmp_path / "agent1", agents[1])
    plan = assert_merged(tmp_path, values_of(base), [values_of(a) for a in agents])
    assert any(repr(prefix) in w and "taken off" in w for w in plan.warnings)
    assert ml_dtypes.bfloat16 == tensors_of(tmp_path / "out-4096", plan)["lm_head.weight"].dtype

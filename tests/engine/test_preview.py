"""A preview: a few megabytes of a few layers, counted as a probe counts them, and the method that they speak for."""

import time
from typing import Any

import pytest
from builders import random_base, sparse_agent, write_model
from huggingface_hub import HfApi
from line import upload
from stream_helpers import NOWHERE, plan_of, spoil, write_family

from hubmerge.engine import preview as previewing
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.preview import PREVIEW_BYTES, preview, recommendation, sampled
from hubmerge.errors import MemoryLimitError, NonFiniteError
from hubmerge.hub.client import Hub
from hubmerge.line import Prepared, Request, prepare, probe
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.statistics.statistics import zero_tally
from hubmerge.statistics.summary import summarize
from localhub.fault_rules import Delay

SLOW_S = 0.5  # for every answer

DEEP = {
    f"model.layers.{depth}.{part}.weight": (96, 128)
    for depth in range(12)
    for part in ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "input_layernorm")
}
DEEP["model.embed_tokens.weight"] = (400, 128)


def test_a_preview_counts_what_a_probe_counts_in_the_same_tensors(tmp_path):
    write_family(tmp_path, sizes=DEEP)
    plan = plan_of(tmp_path, "ram_plus")
    found = preview(plan, NOWHERE)
    whole = probe(Prepared(plan, {}, None, "", allow_local=True), NOWHERE, StreamOptions())
    same = sum((whole.tensors[name] for name in found.tensors), zero_tally(3))
    assert found.statistics == summarize(same, plan.labels)
    assert found.parameters == plan.elements
    assert found.bytes_read == 2 * 4 * found.statistics["elements"]


def test_of_a_few_layers_over_the_depth_attention_and_mlp_are_looked_into(tmp_path):
    write_family(tmp_path, sizes=DEEP)
    found = preview(plan_of(tmp_path, "linear"), NOWHERE)
    assert found.layers == (1, 4, 7, 10)
    assert len(found.tensors) == 8
    assert all(name.split(".", 3)[3] in ("self_attn.k_proj.weight", "mlp.up_proj.weight") for name in found.tensors)


def test_a_model_without_named_layers_is_looked_into_as_well(tmp_path):
    write_family(tmp_path, sizes={"model.embed_tokens.weight": (64, 64), "lm_head.weight": (64, 64)})
    plan = plan_of(tmp_path, "linear")
    assert preview(plan, NOWHERE).layers == ()
    assert {t.name for t in sampled(plan)} == {"model.embed_tokens.weight", "lm_head.weight"}


def test_a_preview_of_large_models_reads_no_more_than_it_may(tmp_path, monkeypatch):
    write_family(tmp_path, sizes=DEEP)
    plan = plan_of(tmp_path, "linear")
    monkeypatch.setattr(previewing, "PREVIEW_BYTES", 8 * 4 * 2 * 8192)
    found = preview(plan, NOWHERE)
    assert found.bytes_read == 8 * 4 * 2 * 8192  # two whole blocks of each tensor of each model
    monkeypatch.setattr(previewing, "MAX_READ_BYTES", 8 * 4 * 2 * 8192 - 1)
    with pytest.raises(MemoryLimitError, match="too much to read for a preview"):
        preview(plan, NOWHERE)


@pytest.mark.slow
def test_a_look_over_a_slow_hub_reads_eight_megabytes_at_once(tmp_path, faulty_hub, switch, name):
    parts = [f"{depth}.{part}" for depth in range(4) for part in ("self_attn.q_proj", "mlp.up_proj")]
    shapes = {f"model.layers.{part}.weight": (512, 1024) for part in parts}
    base = write_model(tmp_path / "base", tensors := random_base(0, sizes=shapes))
    agents = [write_model(tmp_path / f"agent{k}", sparse_agent(tensors, 0.1, seed=k)) for k in (1, 2)]
    api = HfApi(faulty_hub.endpoint, token=faulty_hub.tokens["ada"])
    names = [upload(api, folder, f"{name}-{k}") for k, folder in enumerate((base, *agents))]
    hub = Hub(faulty_hub.endpoint)
    plan = prepare(recipe_from_dict({"base": names[0], "agents": names[1:], "method": "ram"}), hub, Request()).plan
    slow = switch.add(r"/resolve/.*safetensors", Delay(seconds=SLOW_S), methods=["GET"], times=None)
    begun = time.monotonic()
    found = preview(plan, hub)
    seconds = time.monotonic() - begun
    assert PREVIEW_BYTES // 2 < found.bytes_read <= PREVIEW_BYTES
    requests = switch.state(slow).fired
    assert requests == 24  # one for each of eight matrices in three models
    assert seconds < requests * SLOW_S / 2  # one after the other would take twice as long at least


def test_a_nan_is_told_with_its_tensor_and_its_model(tmp_path):
    name = "model.layers.0.mlp.up_proj.weight"
    _, agents = write_family(tmp_path, sizes={name: (64, 64)})
    spoil(tmp_path, agents, name=name)
    with pytest.raises(NonFiniteError, match="agent1"):
        preview(plan_of(tmp_path, "linear"), NOWHERE)


@pytest.mark.parametrize(
    ("shares", "agents", "method", "said"),
    [
        ((0.071, 0.02, 0.009), 3, "ram_plus", "71% of what changed was changed by one agent alone; averaging would"),
        ((0.1, 0.5, 0.4), 2, "ties", "of 40% agents disagree on the direction"),
        ((0.1, 0.8, 0.1), 2, "linear", "plain averaging loses little"),
        ((0.4, 0.0, 0.0), 1, "task_arithmetic", "A single agent"),
        ((0.0, 0.0, 0.0), 2, "", "equal to the base"),
    ],
)
def test_one_method_is_recommended_with_its_reason(shares, agents, method, said):
    names: dict[str, Any] = dict(zip(("private", "overlap", "conflict"), shares, strict=True))
    recommended, reason = recommendation({**names, "unchanged": 1 - sum(shares)}, agents)
    assert recommended == method
    assert said in reason

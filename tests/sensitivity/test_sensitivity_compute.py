"""Against the naive Fisher, bit for bit; and kills, cancels and resumes: the same bytes, no pair twice.

Nothing stands under the final name before it is complete.
"""

import shutil
import signal
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from builders import llama_config, llama_shapes, random_base, write_model
from plan_helpers import opened
from processes import python
from safetensors.torch import load_file
from sensitivity_helpers import PAIRS, compute, llama, load, naive_fisher, save
from torch.multiprocessing.reductions import StorageWeakRef

from hubmerge import errors
from hubmerge.engine.sink import sole_owner
from hubmerge.sensitivity.compute import SquareSums
from hubmerge.sensitivity.network import Network

SIZES = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 64}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}


def computed(folder: Path, out: Path, pairs=PAIRS, **options) -> dict[str, torch.Tensor]:
    return load_file(compute(folder, out, pairs, **options).path)


@pytest.mark.parametrize("kind", [{}, {"tied": True}, {"shards": 3}], ids=["apart", "tied", "sharded"])
def test_a_random_llama_has_exactly_the_fisher_of_one_autograd_call_per_pair(tmp_path, kind):
    folder = llama(tmp_path / "model", **kind)
    network, tokenizer = load(folder)
    # the whole gradient of a tied embedding is squared, once
    assert (network.lm_head.weight is network.model.embed_tokens.weight) == kind.get("tied", False)
    expected = naive_fisher(network, tokenizer, PAIRS)
    with torch.no_grad():  # as some libraries leave it
        found = computed(folder, tmp_path / "s.safetensors")
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert values.dtype == torch.float32
        assert torch.equal(values, expected[name]), name
        assert values.max() > 0, name


def test_a_tied_head_that_is_stored_as_a_copy_gets_the_values_of_the_embedding(tmp_path):
    tensors = random_base(0, sizes=llama_shapes(tied=True), scale=0.3)
    plain = write_model(tmp_path / "plain", tensors)
    config = llama_config(tensors)
    assert config["tie_word_embeddings"]
    doubled = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    copied = write_model(tmp_path / "copied", doubled, config=config)
    expected = computed(plain, tmp_path / "plain.safetensors")
    found = computed(copied, tmp_path / "copied.safetensors")
    assert found.keys() == {*expected, "lm_head.weight"}
    for name in expected:
        assert torch.equal(found[name], expected[name]), name
    assert torch.equal(found["lm_head.weight"], expected["model.embed_tokens.weight"])


def test_bfloat16_gradients_are_squared_and_summed_in_float32(tmp_path):
    folder = llama(tmp_path / "model")
    network, tokenizer = load(folder, torch.bfloat16)
    pair = PAIRS[0]
    found = computed(folder, tmp_path / "s.safetensors", [pair], dtype="bfloat16")
    ids = [*tokenizer(pair.prompt + " " + pair.answer).input_ids, tokenizer.eos_token_id]
    logits = network(input_ids=torch.tensor([ids])).logits[0, 2:-1].float()
    torch.nn.functional.cross_entropy(logits, torch.tensor(ids[3:]), reduction="sum").backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad.dtype == torch.bfloat16
        assert torch.equal(found[name], parameter.grad.float().square()), name


def test_a_padding_token_within_a_pair_has_its_gradient(tmp_path):
    tensors = random_base(0, sizes=llama_shapes(), scale=0.3)
    padded = write_model(tmp_path / "padded", tensors, config=llama_config(tensors, pad_token_id=3))
    plain = write_model(tmp_path / "plain", tensors)
    assert load(padded)[0].get_input_embeddings().padding_idx == 3
    name = "model.embed_tokens.weight"
    found = computed(padded, tmp_path / "padded.safetensors")[name]
    assert found[3].max() > 0  # w3 stands in the prompts
    assert torch.equal(found, computed(plain, tmp_path / "plain.safetensors")[name])


def test_fused_experts_are_taken_apart_into_the_stored_tensors(tmp_path):
    torch.manual_seed(0)
    counts = {"num_local_experts": 3, "num_experts_per_tok": 2}
    config = transformers.MixtralConfig(**SIZES, **counts, initializer_range=0.3)
    folder = save(transformers.MixtralForCausalLM(config), tmp_path / "model")
    network, tokenizer = load(folder)
    expected = naive_fisher(network, tokenizer, PAIRS)
    found = computed(folder, tmp_path / "s.safetensors")
    fused = "model.layers.1.mlp.experts"
    assert any(n.startswith(fused) for n in expected), "transformers no longer fuses; the test needs another model"
    stored = [n for n in found if ".layers.1." in n and ".experts." in n]
    assert len(stored) == 9
    for number in range(3):
        both = expected[f"{fused}.gate_up_proj"][number]
        prefix = f"model.layers.1.block_sparse_moe.experts.{number}"
        assert torch.equal(found[f"{prefix}.w1.weight"], both[:24])
        assert torch.equal(found[f"{prefix}.w3.weight"], both[24:])
        assert torch.equal(found[f"{prefix}.w2.weight"], expected[f"{fused}.down_proj"][number])


def test_a_stored_buffer_that_no_gradient_reaches_has_a_sensitivity_of_zero(tmp_path):
    torch.manual_seed(0)
    experts = {"moe_intermediate_size": 8, "head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2}
    network = transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(**SIZES, **experts))
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    network.get_buffer(bias).normal_()
    folder = save(network, tmp_path / "model")
    found = computed(folder, tmp_path / "s.safetensors")
    assert found.keys() == load_file(folder / "model.safetensors").keys()
    assert not found[bias].any()
    router = "model.layers.1.mlp.gate.weight"
    assert torch.equal(found[router], naive_fisher(*load(folder), PAIRS)[router])


def test_a_checkpoint_of_the_bare_model_keeps_its_own_names(tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2
    )
    folder = save(transformers.GPT2Model(config), tmp_path / "model")
    expected = naive_fisher(*load(folder), PAIRS)
    found = computed(folder, tmp_path / "s.safetensors")
    assert "h.0.attn.c_attn.weight" in found
    for name, values in found.items():
        assert torch.equal(values, expected[f"transformer.{name}"]), name


def test_a_likelihood_that_is_not_finite_adds_nothing_and_names_the_row(tmp_path, monkeypatch):
    tensors = random_base(0)
    tensors["model.norm.weight"].raw[3] = 0x7F80  # infinite
    monkeypatch.setattr(SquareSums, "add", lambda *_: pytest.fail("it was added"))
    with pytest.raises(errors.NonFiniteError, match="row 1"):
        computed(write_model(tmp_path / "model", tensors), tmp_path / "s.safetensors")


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        ("mat1 and mat2", errors.FormatError, r"cannot compute in .+, row 1: got 6 tokens; mat1"),
        ("can't allocate memory: you tried", errors.MemoryLimitError, "does not fit .+ row 1: got 6 tok"),
    ],
)
def test_what_a_network_chokes_on_is_refused_by_its_kind(folder, tmp_path, monkeypatch, words, kind, said):
    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", Mock(side_effect=RuntimeError(words)))
    with pytest.raises(kind, match=said):
        computed(folder, tmp_path / "s.safetensors")


@pytest.mark.parametrize("tied", [False, True])
def test_at_no_time_is_more_than_one_gradient_alive(tmp_path, tied):
    module, tokenizer = load(llama(tmp_path / "model", tied=tied))
    network = Network(module, opened(tmp_path / "model"))
    assert ("lm_head.weight" in network.shapes) != tied
    storages: dict[str, StorageWeakRef] = {}

    def add(name, gradient):
        # a gradient that was given out before has been freed, and no parameter keeps one
        assert [n for n, storage in storages.items() if not storage.expired()] == []
        assert [n for n, p in module.named_parameters() if p.grad is not None] == []
        storages[name] = StorageWeakRef(gradient.untyped_storage())

    network.give_gradients(add)
    for pair in PAIRS:
        storages.clear()
        ids = tokenizer(pair.prompt + " " + pair.answer).input_ids
        network.differentiate(tuple(ids), 2, "row")
        assert storages.keys() == network.shapes.keys()
        assert list(storages)[-1] == "model.embed_tokens.weight"  # from the loss to the input, tied or not


def test_a_gradient_larger_than_a_chunk_is_added_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("hubmerge.sensitivity.file.CHUNK_ELEMENTS", 4)
    sums = SquareSums(tmp_path, {"a": (3, 5)}, "identity")
    gradient = torch.arange(15, dtype=torch.float32).reshape(3, 5)
    sums.add("a", gradient)
    sums.add("a", gradient)
    assert torch.equal(sums.tensor("a"), 2 * gradient.square())
    sums.save(2)
    again = SquareSums(tmp_path, {"a": (3, 5)}, "identity")
    assert again.tensor("a").count_nonzero() == 0
    assert again.restore() == 2
    assert torch.equal(again.tensor("a"), 2 * gradient.square())


# --- kills, cancels and resumes ------------------------------------------------------------------------------


def cancel_at(pairs: int):
    def progress(stage, done, total, unit):
        if stage == "sensitivity" and done == pairs:
            raise errors.CancelledError("the user cancelled")

    return progress


def begun_at(seen: list[int]):
    return lambda stage, done, total, unit: seen.append(done) if stage == "sensitivity" else None


@pytest.mark.parametrize("cancelled_at", [0, 1, 3, 5])
def test_a_cancelled_computation_goes_on_where_it_was(made, folder, tmp_path, cancelled_at):
    out = tmp_path / "s.safetensors"
    with pytest.raises(errors.CancelledError):
        compute(folder, out, progress=cancel_at(cancelled_at))
    assert not out.exists()
    seen: list[int] = []
    compute(folder, out, progress=begun_at(seen))
    assert seen == list(range(cancelled_at, 6))
    assert out.read_bytes() == made.path.read_bytes()
    assert not out.with_name("s.safetensors.work").exists()


_CHILD = """
import os, signal, sys, torch
from pathlib import Path
from sensitivity_helpers import compute
from hubmerge.sensitivity.compute import SquareSums
torch.set_num_threads(1)
add, left = SquareSums.add, [55]
def killed(sums, name, gradient):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    add(sums, name, gradient)
SquareSums.add = killed
compute(Path(sys.argv[1]), Path(sys.argv[2]), checkpoint_every=2)
"""


def test_a_kill_in_the_middle_of_a_pair_costs_what_came_after_the_checkpoint(made, folder, tmp_path):
    out = tmp_path / "s.safetensors"
    # 21 parameters per pair, so that the 55th gradient is of the third
    child = python("-c", _CHILD, str(folder), str(out), PYTHONPATH="tests/sensitivity:tests:.")
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert not out.exists()
    seen: list[int] = []
    compute(folder, out, checkpoint_every=1, progress=begun_at(seen))
    assert seen[0] == 2
    assert out.read_bytes() == made.path.read_bytes()


def test_a_file_of_another_computation_is_never_overwritten(made, folder, tmp_path):
    out = Path(shutil.copy(made.path, tmp_path / "s.safetensors"))
    for resume in (True, False):
        with pytest.raises(errors.TargetExistsError, match="data_digest"):
            compute(folder, out, pairs=PAIRS[1:], resume=resume)
    (tmp_path / "text").write_text("something else entirely")
    with pytest.raises(errors.TargetExistsError, match="another file is here"):
        compute(folder, tmp_path / "text", resume=False)
    assert out.read_bytes() == made.path.read_bytes()
    assert (tmp_path / "text").read_text() == "something else entirely"


@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_of_somebody_else_where_it_would_work_is_left_alone(folder, tmp_path, resume):
    out = tmp_path / "s.safetensors"
    theirs = out.with_name("s.safetensors.work") / "thesis"
    theirs.mkdir(parents=True)
    (theirs / "chapter.tex").write_text("years of work")
    with pytest.raises(errors.TargetExistsError, match=r"files of somebody else.*got thesis"):
        compute(folder, out, resume=resume)
    assert (theirs / "chapter.tex").read_text() == "years of work"


def test_two_processes_do_not_write_one_file(folder, tmp_path):
    computes = pytest.raises(errors.FolderInUseError, match="another process computes this file")
    with sole_owner(tmp_path / "s.safetensors.work"), computes:
        compute(folder, tmp_path / "s.safetensors")


def test_an_unfinished_computation_on_other_pairs_is_not_taken_up_and_a_damaged_checkpoint_is_named(folder, tmp_path):
    cancelled = tmp_path / "s.safetensors"
    with pytest.raises(errors.CancelledError):
        compute(folder, cancelled, progress=cancel_at(2))
    with pytest.raises(errors.TargetExistsError, match="unfinished"):
        compute(folder, cancelled, pairs=PAIRS[::-1])
    checkpoint = cancelled.with_name("s.safetensors.work") / "checkpoint.safetensors"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:-4])
    with pytest.raises(errors.SensitivityError, match="damaged"):
        compute(folder, cancelled)
    checkpoint.write_bytes(whole)
    compute(folder, cancelled)


def test_a_disk_that_is_too_small_is_told_before_the_first_pair(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000))
    seen: list[int] = []
    with pytest.raises(errors.DiskError, match="not enough disk"):
        compute(folder, tmp_path / "s.safetensors", progress=begun_at(seen))
    assert not seen


def test_the_room_of_the_sums_is_taken_before_they_are_mapped(folder, tmp_path, monkeypatch):
    mapped, real = [], np.memmap

    def noted(path, **how):
        mapped.append(path.stat().st_size - 4 * how["shape"][0])
        return real(path, **how)

    monkeypatch.setattr(np, "memmap", noted)
    compute(folder, tmp_path / "s.safetensors")
    assert mapped == [0]


def test_a_square_that_overflows_names_its_tensor(folder, tmp_path, monkeypatch):
    real = SquareSums.add

    def add(self, name, gradient):
        real(self, name, gradient * 1e30 if name == "model.norm.weight" else gradient)

    monkeypatch.setattr(SquareSums, "add", add)
    with pytest.raises(errors.NonFiniteError, match=r"model\.norm\.weight"):
        compute(folder, tmp_path / "s.safetensors")
    assert not (tmp_path / "s.safetensors").exists()

"""One pair's gradients: networks small enough to be differentiated by hand, and what is alive when."""

from __future__ import annotations

from math import exp
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sensitivity_helpers import PAIRS, llama, load, opened
from torch.multiprocessing.reductions import StorageWeakRef

from hubmerge.errors import NonFiniteError
from hubmerge.sensitivity.compute import SquareSums
from hubmerge.sensitivity.network import Network

NO_FILES: Any = SimpleNamespace(tensors={})


class Bigram(torch.nn.Module):
    """logits(next) = head · embedding(token), with one hidden unit and two tokens."""

    base_model_prefix = ""
    config, _weight_conversions = None, ()

    def __init__(self, embedding: list[float], head: list[float] | None) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(2, 1)
        self.head = torch.nn.Linear(1, 2, bias=False)
        self.embedding.weight = torch.nn.Parameter(torch.tensor(embedding)[:, None])
        self.head.weight = self.embedding.weight if head is None else torch.nn.Parameter(torch.tensor(head)[:, None])

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embedding

    def forward(self, input_ids, attention_mask, use_cache):
        assert attention_mask.all()
        assert not use_cache
        return SimpleNamespace(logits=self.head(self.embedding(input_ids)))


def squares(module, tokens, answer_tokens):
    found: dict[str, list[float]] = {}

    def add(name, gradient):
        assert name not in found
        found[name] = gradient.square().flatten().tolist()

    network = Network(module, NO_FILES)
    network.give_gradients(add)
    return network.differentiate(tokens, answer_tokens, "row 1"), found


@pytest.mark.parametrize(("answer_tokens", "head", "embedding"), [(1, [1.0, 1.0], 0.0), (2, [0.25, 0.25], 0.0)])
def test_only_the_answers_tokens_are_in_the_likelihood(answer_tokens, head, embedding):
    # head 0: both tokens have probability 1/2 everywhere, and d log p/d head_v = ([v = next] - 1/2) · embedding;
    # with both transitions (-1/2 + 1, 1/2 - 1), summed before they are squared
    value, found = squares(Bigram([1.0, 2.0], [0.0, 0.0]), (0, 1, 0), answer_tokens)
    assert value == pytest.approx(-0.6931472 * answer_tokens)
    assert found == {"head.weight": head, "embedding.weight": [embedding] * 2}


def test_a_tied_parameters_uses_are_summed_before_they_are_squared():
    # logits (1, 2), p = probability of token 0 = 1/(1 + e): as head (-p, p), as embedding (-p·1 + p·2, 0)
    p = 1 / (1 + exp(1))
    _, found = squares(Bigram([1.0, 2.0], None), (0, 1), 1)
    assert found["embedding.weight"] == pytest.approx([0.0, p * p])


def test_a_likelihood_that_is_not_finite_adds_nothing_and_names_the_row():
    with pytest.raises(NonFiniteError, match="row 1"):
        squares(Bigram([1.0, float("inf")], [0.0, 0.0]), (0, 1, 0), 1)


def test_gradients_are_taken_where_a_library_has_turned_them_off():
    with torch.no_grad():
        _, found = squares(Bigram([1.0, 2.0], [0.0, 0.0]), (0, 1, 0), 1)
    assert found["head.weight"] == [1.0, 1.0]


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

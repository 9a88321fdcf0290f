"""Where the answer begins and ends, and pairs that cannot be used."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sensitivity_helpers import PAIRS, llama

from hubmerge.errors import SensitivityError
from hubmerge.sensitivity.pairs import Pair, tokenize, tokenized_in


class Words:
    """One token per word; 1 is <bos>, 2 is <eos>."""

    def __init__(self, *, bos: bool = False, closes: bool = False, eos: int | None = 2) -> None:
        self.eos_token_id = eos
        self._front, self._back = [1] * bos, [2] * closes

    def __call__(self, text: str, add_special_tokens: bool = True):
        ids = [2 if word == "<eos>" else int(word) for word in text.split()]
        return SimpleNamespace(input_ids=self._front + ids + self._back if add_special_tokens else ids)


def one(tokenizer, prompt: str, answer: str, max_tokens: int = 32, context: int | None = None):
    (pair,) = tokenize(tokenizer, [Pair(prompt, answer, 7)], max_tokens, context)
    return pair.ids, pair.answer_tokens


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "answer", "expected"),
    [
        pytest.param(Words(), "5 6", "7", ((5, 6, 7, 2), 2), id="an EOS is part of the answer"),
        pytest.param(Words(eos=None), "5 6", "7", ((5, 6, 7), 1), id="a tokenizer without one adds none"),
        pytest.param(Words(), "5 6", "7 <eos>", ((5, 6, 7, 2), 2), id="an answer that ends with it gets no second"),
        pytest.param(Words(bos=True), "5 6", "7", ((1, 5, 6, 7, 2), 2), id="a BOS stands before the prompt alone"),
        pytest.param(Words(bos=True), "", "7", ((1, 7, 2), 2), id="a BOS is a prompt"),
        pytest.param(Words(closes=True), "5 6", "7", ((5, 6, 7, 2), 2), id="an EOS after the prompt is taken away"),
        pytest.param(Words(), "5 <eos>", "7", ((5, 2, 7, 2), 2), id="an EOS of the prompt stays"),
    ],
)
def test_the_answer_begins_and_ends_where_it_should(tokenizer, prompt, answer, expected):
    assert one(tokenizer, prompt, answer) == expected


@pytest.mark.parametrize(("prompt", "answer"), [("5 6", ""), ("5 6", "  "), ("5 6", "<eos>"), (" ", "7")])
def test_an_answer_or_a_prompt_without_tokens_is_refused(prompt, answer):
    empty = "an answer" if prompt.strip() else "a prompt"
    with pytest.raises(SensitivityError, match=f"{empty} without tokens in row 7"):
        one(Words(), prompt, answer)


@pytest.mark.parametrize(
    ("max_tokens", "context", "reason", "remedy"),
    [(4, 9, "max_tokens", "Raise max_tokens"), (32, 4, "the model's context", "cannot see all of it")],
)
def test_a_pair_that_just_fits_is_taken_and_one_token_more_is_refused(max_tokens, context, reason, remedy):
    assert len(one(Words(), "5 6", "7", max_tokens, context)[0]) == 4
    with pytest.raises(SensitivityError) as caught:
        one(Words(), "5 6 8", "7", max_tokens, context)
    [problem] = caught.value.problems
    assert (problem.what, problem.where) == ("a pair is too long", "row 7")
    assert problem.expected == f"at most 4 tokens ({reason})"
    assert problem.got == "5: prompt 3, answer 2"
    assert remedy in problem.next_step


def test_every_bad_pair_is_listed_up_to_a_limit():
    pairs = [Pair("5", "" if n % 2 else "7", n) for n in range(40)]
    with pytest.raises(SensitivityError) as caught:
        tokenize(Words(), pairs, 32, None)
    assert len(caught.value.problems) == 11
    assert "10 more rows have such problems" in str(caught.value)


def test_the_context_of_a_model_is_known(tmp_path):
    [pair] = tokenized_in(llama(tmp_path / "model"), "the model", PAIRS[:1], 32)
    assert (pair.ids, pair.answer_tokens) == ((3, 4, 5, 6, 7, 2), 3)
    with pytest.raises(
        SensitivityError, match=r"at most 64 tokens \(the model's context\), got 72: prompt 1, answer 71"
    ):
        tokenized_in(tmp_path / "model", "the model", [Pair("w3", "w4 " * 70, 6)], 1000)

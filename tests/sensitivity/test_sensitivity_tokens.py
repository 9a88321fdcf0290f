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


def test_an_eos_is_part_of_the_answer():
    assert one(Words(), "5 6", "7") == ((5, 6, 7, 2), 2)


def test_a_tokenizer_without_an_eos_gets_none():
    assert one(Words(eos=None), "5 6", "7") == ((5, 6, 7), 1)


def test_an_answer_that_ends_with_the_eos_gets_no_second_one():
    assert one(Words(), "5 6", "7 <eos>") == ((5, 6, 7, 2), 2)


def test_the_bos_stands_before_the_prompt_alone():
    assert one(Words(bos=True), "5 6", "7") == ((1, 5, 6, 7, 2), 2)
    assert one(Words(bos=True), "", "7") == ((1, 7, 2), 2)


def test_an_eos_that_the_tokenizer_puts_after_the_prompt_is_taken_away():
    assert one(Words(closes=True), "5 6", "7") == ((5, 6, 7, 2), 2)
    assert one(Words(closes=True), "5 <eos>", "7")[0][:2] == (5, 2)


@pytest.mark.parametrize("answer", ["", "  ", "<eos>"])
def test_an_answer_without_tokens_is_refused(answer):
    with pytest.raises(SensitivityError, match="an answer without tokens in row 7"):
        one(Words(), "5 6", answer)


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(SensitivityError, match="a prompt without tokens in row 7"):
        one(Words(), " ", "7")


def test_a_pair_that_just_fits_is_taken_and_one_token_more_is_refused():
    assert len(one(Words(), "5 6", "7", max_tokens=4)[0]) == 4
    with pytest.raises(SensitivityError) as caught:
        one(Words(), "5 6 8", "7", max_tokens=4, context=9)
    assert "a pair is too long in row 7: expected at most 4 tokens (max_tokens), got 5: prompt 3, answer 2" in str(
        caught.value
    )
    assert "Raise max_tokens" in str(caught.value)


def test_a_pair_longer_than_the_context_is_refused_with_its_lengths():
    with pytest.raises(SensitivityError) as caught:
        one(Words(), "5 6 8", "7", max_tokens=32, context=4)
    assert "at most 4 tokens (the model's context), got 5: prompt 3, answer 2" in str(caught.value)
    assert "Raise max_tokens" not in str(caught.value)


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

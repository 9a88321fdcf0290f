"""Pairs as tokens: prompt, answer, EOS.

Prompt and answer are tokenized apart, so that the boundary between them is exact, and put together as they are. The
prompt gets what the tokenizer puts in front (a BOS, where it has one), the answer nothing. An EOS is appended when
the tokenizer has one and the answer does not end with it: stopping is part of the answer. The likelihood is that of
the answer and the EOS; prompt tokens are no part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hubmerge.errors import Problem, SensitivityError
from hubmerge.sensitivity.calibration import PROBLEMS_AT_MOST, Pair


@dataclass(frozen=True)
class TokenizedPair:
    """`ids`: prompt, answer and EOS; the last `answer_tokens` of them are what the likelihood is about."""

    ids: tuple[int, ...]
    answer_tokens: int
    row: int


def tokenize(tokenizer: Any, pairs: Sequence[Pair], max_tokens: int, context: int | None) -> tuple[TokenizedPair, ...]:
    """All pairs as tokens; SensitivityError lists those without an answer or longer than they may be.

    `context` is the most positions that the model has, None where it does not say.
    """
    limit = max_tokens if context is None else min(max_tokens, context)
    reason = "max_tokens" if limit == max_tokens else "the model's context"
    result: list[TokenizedPair] = []
    problems: list[Problem] = []
    for pair in pairs:
        prompt = _prompt_ids(tokenizer, pair.prompt)
        answer = list(tokenizer(pair.answer, add_special_tokens=False).input_ids)
        end = tokenizer.eos_token_id
        with_end = answer + ([end] if end is not None and answer[-1:] != [end] else [])
        length = len(prompt) + len(with_end)
        if not answer or answer == [end]:
            problems.append(_problem("an answer without tokens", pair, "at least one token", repr(pair.answer[:40])))
        elif not prompt:
            problems.append(_problem("a prompt without tokens", pair, "at least one token", repr(pair.prompt[:40])))
        elif length > limit:
            problems.append(
                _problem(
                    "a pair is too long",
                    pair,
                    f"at most {limit} tokens ({reason})",
                    f"{length}: prompt {len(prompt)}, answer {len(with_end)}",
                    "Raise max_tokens or leave the row out."
                    if length <= (context or length)
                    else "Leave the row out: the model cannot see all of it.",
                )
            )
        else:
            result.append(TokenizedPair(tuple(prompt + with_end), len(with_end), pair.row))
    if problems:
        raise SensitivityError("pairs that cannot be used", problems=_first(problems))
    return tuple(result)


def tokens_digest(rows: Iterable[TokenizedPair]) -> str:
    """sha256 (hex) over the rows as tokenized, in their order, each with how many of its tokens are the answer."""
    total = hashlib.sha256()
    for row in rows:
        numbers = (len(row.ids), row.answer_tokens, *row.ids)
        total.update(b"".join(number.to_bytes(8, "big") for number in numbers))
    return total.hexdigest()


def context_length(config: Any) -> int | None:
    """The most positions of a transformers config, None where it does not say."""
    value = getattr(config.get_text_config(), "max_position_embeddings", None)
    return value if isinstance(value, int) and value > 0 else None


def _prompt_ids(tokenizer: Any, text: str) -> list[int]:
    ids = list(tokenizer(text).input_ids)
    end = tokenizer.eos_token_id
    # some tokenizers close every text with an EOS, which would stand between prompt and answer
    if end is not None and ids[-1:] == [end] and tokenizer(text, add_special_tokens=False).input_ids[-1:] != [end]:
        ids.pop()
    return ids


def _problem(what: str, pair: Pair, expected: str, got: str, next_step: str = "") -> Problem:
    return Problem(SensitivityError.code, what, f"row {pair.row}", expected, got, next_step)


def _first(problems: list[Problem]) -> list[Problem]:
    if len(problems) <= PROBLEMS_AT_MOST:
        return problems
    more = f"{len(problems) - PROBLEMS_AT_MOST} more rows have such problems"
    return [*problems[:PROBLEMS_AT_MOST], Problem(SensitivityError.code, more)]

"""Agents that added tokens: the rows that all have are merged, the added ones are kept as the one agent has them.

Every token of the base must have the same id in that agent's tokenizer.json, so that rows of the same number are
rows of the same token. Beyond the base's rows, base and other agents read the rows of the agent that brings them:
nobody differs there, so every method leaves them as they are. Two agents that bring rows are refused: headers
cannot tell whether they agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hubmerge.errors import Problem
from hubmerge.sources.base import Model, StoredTensor
from hubmerge.sources.derived import BorrowedTensor, ExtendedTensor, first_rows
from hubmerge.tying import is_embedding, is_head
from hubmerge.wording import incompatible, named


@dataclass(frozen=True)
class Vocabulary:
    """Rows beyond the base's, and the model that brings them, its tokenizer and its number of tokens."""

    donor: int  # among the models of the merge, the base being 0
    base_rows: int
    rows: int  # of the output
    added: tuple[str, ...]  # tokens of the added rows, in the order of their ids


@dataclass(frozen=True)
class Grown:
    """Base and agents with equal numbers of rows, where that is possible; otherwise as they were."""

    base: Model
    agents: tuple[Model, ...]
    vocabulary: Vocabulary | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


def with_added_rows(base: Model, agents: Sequence[Model]) -> Grown:
    """All models with the rows that one agent adds. What has no tokenizer to tell the rows is left to be refused."""
    same = Grown(base, tuple(agents))
    tables = {n: t for n, t in base.tensors.items() if (is_embedding(n) or is_head(n)) and len(t.entry.shape) == 2}
    rows = {t.entry.shape[0] for t in tables.values()}
    growing = [k for k, agent in enumerate(agents) if _grows(tables, agent)]
    if len(rows) != 1 or not growing or base.tokens is None:
        return same
    (base_rows,) = rows
    if len(growing) > 1:
        first, *others = (agents[k] for k in growing)
        return replace(same, problems=tuple(_disagreement(first, other, base_rows) for other in others))
    (k,) = growing
    donor = agents[k]
    stored = {n: donor.tensors[n] for n in tables if n in donor.tensors}
    counts = {t.entry.shape[0] for t in stored.values()}
    if donor.tokens is None or len(counts) != 1 or max(donor.tokens.values(), default=0) >= max(counts):
        return same
    theirs = donor.tokens
    moved = [f"{ascii(t)[:40]} ({i} → {theirs.get(t, 'none')})" for t, i in base.tokens.items() if theirs.get(t) != i]
    if moved:
        problem = incompatible(
            "tokens of the base that have another id",
            where=f"tokenizer.json of {donor.ref}",
            expected="the base's tokens where they were, new ones behind them",
            got=named(moved),
            next_step=f"Remove {donor.ref.id} or choose the base it was trained from.",
        )
        return replace(same, problems=(problem,))
    (count,) = counts
    added = sorted((t for t, i in donor.tokens.items() if i >= base_rows), key=donor.tokens.__getitem__)
    inside = sorted(set(donor.tokens) - set(base.tokens) - set(added))
    warnings = [
        f"{donor.ref.id}: its vocabulary has {count - base_rows} more rows than the base's {base_rows}; rows that all "
        f"have are merged, the added ones ({named([ascii(t)[:40] for t in added]) or 'no token names them'}) are kept "
        "as it has them, and so are its tokenizer and vocab_size"
    ]
    if inside:
        warnings.append(
            f"{donor.ref.id}: its new tokens {named([ascii(t)[:40] for t in inside])} have rows that the base "
            "has, too; these are merged like others"
        )
    grown = [_extended(m, tables, stored, k + 1, base_rows, count) for m in (base, *agents)]
    return Grown(grown[0], tuple(grown[1:]), Vocabulary(k + 1, base_rows, count, tuple(added)), (), tuple(warnings))


def without_added_rows(base: Model, agents: Sequence[Model]) -> Grown:
    """A base and one agent with the base's rows alone, where `with_added_rows` finds that the agent's begin with
    them: what is added has nothing that it differs from."""
    (agent,) = agents
    grown = with_added_rows(base, agents)
    if grown.vocabulary is None:
        return grown
    rows, added = grown.vocabulary.base_rows, grown.vocabulary.rows - grown.vocabulary.base_rows
    shared = {n: t for n, t in agent.tensors.items() if n in base.tensors and (is_embedding(n) or is_head(n))}
    cut = {n: first_rows(t, rows) for n, t in shared.items() if t.entry.shape[0] > rows}
    tokens = named([ascii(t)[:40] for t in grown.vocabulary.added]) or "no token names them"
    warning = f"{agent.ref.id}: its vocabulary has {added} rows more than the base's ({tokens}); they are not compared"
    config = with_vocab_size(agent.config, base.config.get("vocab_size", rows))
    cut_agent = replace(agent, tensors=MappingProxyType({**agent.tensors, **cut}), config=config)
    return Grown(base, (cut_agent,), grown.vocabulary, (), (warning,))


def _grows(tables: dict[str, StoredTensor], agent: Model) -> bool:
    return any(
        len(shape := agent.tensors[n].entry.shape) == 2 and shape[0] > t.entry.shape[0] and shape[1] == t.entry.shape[1]
        for n, t in tables.items()
        if n in agent.tensors
    )


def _disagreement(first: Model, other: Model, base_rows: int) -> Problem:
    def tokens(model: Model) -> str:
        beyond = sorted((i, t) for t, i in (model.tokens or {}).items() if i >= base_rows)
        return f"{model.ref.id} {named([ascii(t)[:40] for _, t in beyond]) or 'unnamed ones'}"

    return incompatible(
        "two agents add rows to the vocabulary",
        where=f"{first.ref} and {other.ref}",
        expected="at most one",
        got=f"{tokens(first)}; {tokens(other)}",
        next_step="Remove one of them.",
    )


def _extended(
    model: Model,
    tables: dict[str, StoredTensor],
    stored: dict[str, StoredTensor],
    donor: int,
    base_rows: int,
    rows: int,
) -> Model:
    tensors = dict(model.tensors)
    for name in tables:
        own = tensors.get(name)
        if own is not None and name in stored and own.entry.shape[0] == base_rows:
            tensors[name] = ExtendedTensor.of(own, BorrowedTensor.of(stored[name], donor))
    if model.config.get("vocab_size", base_rows) != base_rows:
        return replace(model, tensors=MappingProxyType(tensors))
    return replace(model, tensors=MappingProxyType(tensors), config=with_vocab_size(model.config, rows))


def with_vocab_size(config: Mapping[str, Any], rows: int) -> Mapping[str, Any]:
    """A config.json for `rows` rows, said where it says it now."""
    text = config.get("text_config")
    changed = dict(config)
    if isinstance(text, dict) and "vocab_size" in text:
        changed["text_config"] = {**text, "vocab_size": rows}
    if "vocab_size" in config or "text_config" not in changed:
        changed["vocab_size"] = rows
    return MappingProxyType(changed)

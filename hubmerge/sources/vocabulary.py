"""Agents that added tokens: rows that all models have are merged, and added rows are kept as the agents have them.

Every token of the base must have the same id in such an agent's tokenizer.json, so that rows of the same number are
rows of the same token.

If one agent adds rows, the base and the other agents read its rows beyond the base's, and its tokenizer is kept.

If several do, the output has the union of their tokens, in the recipe's order behind the base's, and its tokenizer is
the base's with these added. In an added row all models read the row of the agents that have the token, or the mean
where several have it, since the base has no row to count updates from. Rows without a token are not taken over.

So all models are equal in added rows, and every method leaves these as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hubmerge.errors import Problem
from hubmerge.sources.base import Model, StoredTensor, TokenTable
from hubmerge.sources.derived import BASE, BorrowedTensor, ExtendedTensor, UnitedTensor, first_rows
from hubmerge.sources.tokens import TOKENIZER
from hubmerge.sources.tying import is_embedding, is_head
from hubmerge.wording import incompatible, named

_OTHERS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "tiktoken.model", "vocab.txt")


@dataclass(frozen=True)
class AddedToken:
    """A token of the output that agents' vocabularies add."""

    content: str
    id: int  # in the output
    matching: Mapping[str, Any]  # as tokenizer.json has it: lstrip, special, …


@dataclass(frozen=True)
class Vocabulary:
    """Rows beyond the base's, and the model that brings them, its tokenizer and its number of tokens."""

    donor: int  # among the models of the merge, the base being 0; the base where `united` tokens are added to its own
    base_rows: int
    rows: int  # of the output
    added: tuple[str, ...]  # tokens of the added rows, in the order of their ids
    united: tuple[AddedToken, ...] = ()


@dataclass(frozen=True)
class Grown:
    """Base and agents with equal numbers of rows, where that is possible; otherwise as they were."""

    base: Model
    agents: tuple[Model, ...]
    vocabulary: Vocabulary | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


def with_added_rows(base: Model, agents: Sequence[Model], keeper: int | None = None) -> Grown:
    """All models with the rows that agents add. `keeper`: the model (0: the base) whose tokenizer the output has; rows
    that others add are left out then.

    An agent whose added rows cannot be identified makes one problem. It is then treated as if it had the base's rows,
    so that they cause no further problem."""
    tables = {n: t for n, t in base.tensors.items() if (is_embedding(n) or is_head(n)) and len(t.entry.shape) == 2}
    rows = {t.entry.shape[0] for t in tables.values()}
    if len(rows) != 1:
        return Grown(base, tuple(agents))
    (base_rows,) = rows
    same = Grown(base, tuple(_with_its_size(agent, tables, base_rows) for agent in agents))
    growing = [k for k, agent in enumerate(agents) if _grows(tables, agent)]
    wrong = {k: problem for k in growing if (problem := _untold(base, agents[k], tables, base_rows))}
    if wrong:
        seen = [_as_base(a, base, tables) if k in wrong else a for k, a in enumerate(same.agents)]
        return replace(same, agents=tuple(seen), problems=tuple(wrong.values()))
    if keeper is not None:
        return _with_rows_of_keeper(base, same.agents, growing, tables, base_rows, keeper)
    if not growing:
        return same
    if len(growing) == 1:
        return _with_rows_of_one(base, agents, growing[0], tables, base_rows)
    return _with_rows_of_several(base, agents, growing, tables, base_rows)


def _with_its_size(agent: Model, tables: Mapping[str, StoredTensor], base_rows: int) -> Model:
    """The agent with the base's vocab_size in its config, where its own tables were ignored and it has the base's."""
    borrowed = tables and all(isinstance(agent.tensors.get(n), BorrowedTensor) for n in tables)
    return replace(agent, config=with_vocab_size(agent.config, base_rows)) if borrowed else agent


def _as_base(agent: Model, base: Model, tables: Mapping[str, StoredTensor]) -> Model:
    tensors = {**agent.tensors, **{n: BorrowedTensor.of(t, BASE) for n, t in tables.items() if n in agent.tensors}}
    config = {**agent.config, **{k: v for k, v in base.config.items() if k in ("vocab_size", "text_config")}}
    return replace(agent, tensors=MappingProxyType(tensors), config=MappingProxyType(config))


def _untold(base: Model, agent: Model, tables: Mapping[str, StoredTensor], base_rows: int) -> Problem | None:
    """The problem of an agent whose added rows cannot be assigned to tokens."""
    sizes = {n: agent.tensors[n].entry.shape[0] for n in tables if n in agent.tensors}
    got = ", ".join(f"{n} of {count} rows" for n, count in sizes.items())
    reason = step = ""
    if base.tokens is None or agent.tokens is None:
        owner = base if base.tokens is None else agent
        other = next((f"{n} alone" for n in _OTHERS if n in owner.files), "none")
        reason = f"of {owner.ref.id}, {f'{TOKENIZER} that names no ids' if TOKENIZER in owner.files else other}"
        step = f"Save that tokenizer as {TOKENIZER} (AutoTokenizer.from_pretrained(…).save_pretrained(…))"
    elif len(sizes) < len(tables):
        reason = f"no {named([n for n in tables if n not in sizes])}"
    elif len(set(sizes.values())) > 1:
        reason = "tables of different sizes"
    elif max(agent.tokens.ids.values(), default=0) >= max(sizes.values()):
        reason = f"a token of row {max(agent.tokens.ids.values())}"
    if not reason:
        return _moved(base, agent)
    ignoring = ", ".join(f'"{n}"' for n in sizes)
    return incompatible(
        "another vocabulary size, with rows of which nothing tells the tokens",
        where=str(agent.ref),
        expected=f"{base_rows} rows, or a {TOKENIZER} of base and agent that names the added ones",
        got=f"{got}; {reason}",
        next_step=f"{step or 'Choose the base it was trained from'}. Otherwise: Remove {agent.ref.id}, or keep the "
        f"base's vocabulary with this line in the recipe: ignore: [{ignoring}].",
    )


def _moved(base: Model, agent: Model) -> Problem | None:
    assert base.tokens is not None
    assert agent.tokens is not None
    ids = agent.tokens.ids
    moved = [f"{_shown(t)} ({i} → {ids.get(t, 'none')})" for t, i in base.tokens.ids.items() if ids.get(t) != i]
    if not moved:
        return None
    return incompatible(
        "tokens of the base that have another id",
        where=f"{TOKENIZER} of {agent.ref}",
        expected="the base's tokens where they were, new ones behind them",
        got=named(moved),
        next_step=f"Remove {agent.ref.id} or choose the base it was trained from.",
    )


def _with_rows_of_keeper(
    base: Model,
    agents: Sequence[Model],
    growing: Sequence[int],
    tables: Mapping[str, StoredTensor],
    base_rows: int,
    keeper: int,
) -> Grown:
    others = [k for k in growing if k + 1 != keeper]
    cut = [_cut(agent, base, tables, base_rows) if k in others else agent for k, agent in enumerate(agents)]
    warnings = tuple(
        f"{agents[k].ref.id}: the rows that it adds to the vocabulary are left out, since the recipe keeps another "
        f"tokenizer ({'the base' if not keeper else agents[keeper - 1].ref.id}'s)"
        for k in others
    )
    if not keeper:
        return Grown(base, tuple(cut), None, (), warnings)
    if keeper - 1 in growing:
        grown = _with_rows_of_one(base, cut, keeper - 1, tables, base_rows)
        return replace(grown, warnings=(*grown.warnings, *warnings))
    owner = agents[keeper - 1]
    if base.tokens is None or owner.tokens is None:
        problem: Problem | None = incompatible(
            "a tokenizer to keep of which nothing tells whether its tokens are the base's",
            where=str(owner.ref),
            expected=f"a {TOKENIZER} of both",
            next_step="Keep the base's: tokenizer: base.",
        )
    else:
        problem = _moved(base, owner)
    if problem is not None:
        return Grown(base, tuple(cut), problems=(problem,))
    return Grown(base, tuple(cut), Vocabulary(keeper, base_rows, base_rows, ()), (), warnings)


def _cut(agent: Model, base: Model, tables: Mapping[str, StoredTensor], base_rows: int) -> Model:
    """The agent without the rows that it adds."""
    cut = {n: first_rows(agent.tensors[n], base_rows) for n in tables if n in agent.tensors}
    config = with_vocab_size(agent.config, base.config.get("vocab_size", base_rows))
    return replace(agent, tensors=MappingProxyType({**agent.tensors, **cut}), config=config)


def _with_rows_of_one(
    base: Model, agents: Sequence[Model], k: int, tables: Mapping[str, StoredTensor], base_rows: int
) -> Grown:
    donor = agents[k]
    assert base.tokens is not None
    assert donor.tokens is not None
    ids = donor.tokens.ids
    stored = {n: donor.tensors[n] for n in tables}
    count = next(iter(stored.values())).entry.shape[0]
    added = sorted((t for t, i in ids.items() if i >= base_rows), key=ids.__getitem__)
    inside = sorted(set(ids) - set(base.tokens.ids) - set(added))
    warnings = [
        f"{donor.ref.id}: its vocabulary has {count - base_rows} more rows than the base's {base_rows}; rows that all "
        f"have are merged, the added ones ({named([_shown(t) for t in added]) or 'no token names them'}) are kept "
        "as it has them, and so are its tokenizer and vocab_size"
    ]
    if inside:
        warnings.append(
            f"{donor.ref.id}: its new tokens {named([_shown(t) for t in inside])} have rows that the base "
            "has, too; these are merged like others"
        )
    grown = [_extended(m, tables, stored, k + 1, base_rows, count) for m in (base, *agents)]
    return Grown(grown[0], tuple(grown[1:]), Vocabulary(k + 1, base_rows, count, tuple(added)), (), tuple(warnings))


def _with_rows_of_several(
    base: Model, agents: Sequence[Model], growing: Sequence[int], tables: Mapping[str, StoredTensor], base_rows: int
) -> Grown:
    """All models with the union of the tokens that agents add, also of those whose tokens fit into the base's rows."""
    tokens = base.tokens
    assert tokens is not None
    names = " and ".join(agents[k].ref.id for k in growing)

    def refused(what: str, where: str, expected: str, got: str, step: str) -> Grown:
        problem = incompatible(what, where=where, expected=expected, got=got, next_step=step)
        return Grown(base, tuple(_as_base(a, base, tables) for a in agents), problems=(problem,))

    if tokens.next_id <= max(tokens.ids.values(), default=-1):
        return refused(
            "several agents add tokens, and a further one would get an id that the base's tokenizer has",
            names,
            f"ids below {tokens.next_id}, at which its next one begins",
            str(max(tokens.ids.values())),
            "Remove all of them but one.",
        )
    new: dict[int, list[tuple[str, int]]] = {}
    for k, agent in enumerate(agents):
        if agent.tokens is None or (k not in growing and _moved(base, agent)):
            continue
        most = max((agent.tensors[n].entry.shape[0] for n in tables if n in agent.tensors), default=0)
        own = ((t, i) for t, i in agent.tokens.ids.items() if t not in tokens.ids and i < most)
        new[k] = sorted(own, key=lambda pair: pair[1])
        if unfit := [t for t, _ in new[k] if t not in agent.tokens.added]:
            return refused(
                "several agents add tokens, some of them as part of a vocabulary of their own",
                str(agent.ref),
                f"tokens that were added to the base's {TOKENIZER}",
                named([_shown(t) for t in unfit]),
                f"Remove {agent.ref.id}, or all of {names} but one.",
            )
    holders: dict[str, list[tuple[int, int]]] = {}
    for k, pairs in new.items():
        for token, row in pairs:
            holders.setdefault(token, []).append((k, row))
    matching = {t: table.added[t] for k in reversed(new) if (table := agents[k].tokens) for t, _ in new[k]}
    united = tuple(AddedToken(t, tokens.next_id + n, matching[t]) for n, t in enumerate(holders))
    rows = max(base_rows, tokens.next_id + len(united))
    if not all(_table(agents[k], n) for held in holders.values() for k, _ in held for n in tables):
        return refused("several agents add tokens, and not all have a row for each", names, "", "", "Remove one.")
    brought = "; ".join(f"{agents[k].ref.id} {named([_shown(t) for t, _ in own])}" for k, own in new.items() if own)
    shared = sum(len(held) > 1 for held in holders.values())
    warning = (
        f"several agents add tokens to the vocabulary ({brought or 'none has a name'}): the merge has all "
        f"{len(united)}, in rows {tokens.next_id} to {tokens.next_id + len(united) - 1} of {rows}, as their agents "
        "have them"
        + (f" ({shared} that several have: the mean of their rows)" if shared else "")
        + "; its tokenizer is the base's with these added, and added rows that no token names are left out"
    )
    grown = [_united(m, agents, tables, list(holders.values()), tokens, base_rows, rows) for m in (base, *agents)]
    vocabulary = Vocabulary(0, base_rows, rows, tuple(holders), united)
    return Grown(grown[0], tuple(grown[1:]), vocabulary, (), (warning,))


def _united(
    model: Model,
    agents: Sequence[Model],
    tables: Mapping[str, StoredTensor],
    holders: Sequence[Sequence[tuple[int, int]]],
    tokens: TokenTable,
    base_rows: int,
    rows: int,
) -> Model:
    among = sorted({k for held in holders for k, _ in held})
    means = tuple(tuple((among.index(k), row) for k, row in held) for held in holders)
    tensors = dict(model.tensors)
    for name in tables:
        own = tensors.get(name)
        if own is None or own.entry.shape[0] < base_rows:
            continue
        others = [_table(agents[k], name) for k in among]
        borrowed = tuple(BorrowedTensor.of(t, k + 1) for k, t in zip(among, others, strict=True) if t is not None)
        tensors[name] = UnitedTensor.of(own, borrowed, tokens.next_id, means, rows)
    sizes = {base_rows, *(t.entry.shape[0] for n, t in model.tensors.items() if n in tables)}
    fits = model.config.get("vocab_size", base_rows) in sizes
    config = with_vocab_size(model.config, rows) if fits else model.config
    return replace(model, tensors=MappingProxyType(tensors), config=config)


def _table(agent: Model, name: str) -> StoredTensor | None:
    """The agent's rows of a table; where it ties its head, those of its embedding."""
    if name in agent.tensors or not is_head(name):
        return agent.tensors.get(name)
    return next((t for n, t in agent.tensors.items() if is_embedding(n)), None)


def _shown(token: str) -> str:
    return ascii(token)[:40]


def without_added_rows(base: Model, agents: Sequence[Model]) -> Grown:
    """A base and one agent with the base's rows alone, where `with_added_rows` finds that the agent's begin with them:
    an added row has no counterpart to differ from."""
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


def _grows(tables: Mapping[str, StoredTensor], agent: Model) -> bool:
    return any(
        len(shape := agent.tensors[n].entry.shape) == 2 and shape[0] > t.entry.shape[0] and shape[1] == t.entry.shape[1]
        for n, t in tables.items()
        if n in agent.tensors
    )


def _extended(
    model: Model,
    tables: Mapping[str, StoredTensor],
    stored: Mapping[str, StoredTensor],
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
    """A config.json for `rows` rows, in the key that states the number now."""
    text = config.get("text_config")
    changed = dict(config)
    if isinstance(text, dict) and "vocab_size" in text:
        changed["text_config"] = {**text, "vocab_size": rows}
    if "vocab_size" in config or "text_config" not in changed:
        changed["vocab_size"] = rows
    return MappingProxyType(changed)

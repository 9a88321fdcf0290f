"""Agents that added tokens: rows that all models have are merged, and added rows are kept as the agents have them.

Every token of the base must have the same id in such an agent's tokenizer.json, so that rows of the same number are
rows of the same token.

If one agent adds rows, the base and the other agents read its rows beyond the base's, and its tokenizer is kept.

If several do, the output has the union of their tokens, in the recipe's order behind the base's, and its tokenizer is
the base's with these added. In an added row all models read the row of the agents that have the token, or the mean
where several have it, since the base has no row to count updates from. Rows without a token are not taken over.

So all models are equal in added rows, and every method leaves these as they are.

An agent may have fewer rows than the base, as `resize_token_embeddings(len(tokenizer))` leaves them. Where no token of
the base has a row that it lacks, it reads the base's there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hubmerge.errors import Problem
from hubmerge.numerics.dtypes import FLOAT_DTYPES
from hubmerge.sources.base import AddedToken, Model, StoredTensor, TokenTable, Views, Vocabulary
from hubmerge.sources.derived import BASE, BorrowedTensor, JoinedTensor, first_rows
from hubmerge.sources.lora import whole_name
from hubmerge.sources.same_tensors import is_embedding, is_head
from hubmerge.text.wording import incompatible, named

TOKENIZER = "tokenizer.json"
MAX_TOKENIZER_BYTES = 64 * 1024 * 1024  # the largest known have 35 MB
MAX_TOKENIZER_VALUES = 4_000_000  # tokens and merges of the largest known, twice
MAX_ADDED_TOKENS = 300_000  # more than the largest known vocabulary has; a table of all in the file takes 260 MB
_MAX_TOKEN_ID = 2**31
_MATCHING = ("single_word", "lstrip", "rstrip", "normalized", "special")  # how an added token is found in a text
# of a config: with tokens of the model
_INSIDE = ("text_config", "llm_config", "language_config", "encoder", "decoder", "vlm_config", "thinker_config")
_OTHERS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "tiktoken.model", "vocab.txt")


def rows_differ(base: Model, agents: Sequence[Model]) -> bool:
    """Whether an agent stores more or fewer rows of an embedding or a head than the base."""
    stored = ({whole_name(n): t for n, t in m.tensors.items()} if m.adapter else m.tensors for m in (base, *agents))
    own, *rows = (max((t.entry.shape[0] for t in _tables_of(tensors).values()), default=0) for tensors in stored)
    return own > 0 and not {0, own}.issuperset(rows)


def _tables_of(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Those with a row per token: embeddings and heads."""
    return {n: t for n, t in tensors.items() if len(t.entry.shape) == 2 and (is_embedding(n) or is_head(n))}


def token_table(content: Mapping[str, Any], base: TokenTable | None = None) -> TokenTable | None:
    """The tokens and rows of a parsed tokenizer.json; None where it is not written as the tokenizers library does.

    `base`: that of the base, whose texts an agent's table shares. 262,144 tokens take 30 MB else, for each agent. Of a
    table that lacks or moves tokens of the base, which cannot join, these alone are kept."""
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):  # Unigram: [token, score] in the order of the ids
        pairs = [(entry[0], i) for i, entry in enumerate(vocabulary) if isinstance(entry, list) and entry]
        if len(pairs) != len(vocabulary):
            return None
    elif isinstance(vocabulary, dict):
        pairs = list(vocabulary.items())
    else:
        return None
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(a, dict) for a in added):
        return None
    if any(a.get("content") == "" for a in added):  # the library passes over it, and numbers those behind it otherwise
        return None
    pairs += [(a.get("content"), a.get("id")) for a in added]
    if not all(isinstance(token, str) and type(i) is int and 0 <= i < _MAX_TOKEN_ID for token, i in pairs):
        return None
    try:
        "".join(token for token, _ in pairs).encode()
    except UnicodeEncodeError:  # half a character, for which the library refuses the file
        return None
    ids = dict(pairs)
    if base is not None:
        own = ids.keys() - base.ids.keys() if base.ids.items() <= ids.items() else ()
        if len(own) > MAX_ADDED_TOKENS:
            return None
        ids = {token: ids[token] for token in base.ids if token in ids} | {token: ids[token] for token in own}
    matching = {entry["content"]: {key: entry.get(key) is True for key in _MATCHING} for entry in added}
    # as the library counts them: behind the last one added, or behind its own vocabulary
    last = max((ids[token] for token in matching), default=-1)
    return TokenTable(ids, matching, max(last + 1, len(vocabulary)))


def add_rows(views: Views, keeper: int | None = None) -> None:
    """Give all models the rows that agents add. `keeper`: the model (0: the base) whose tokenizer the output has; rows
    that others add are left out then.

    An agent whose added rows cannot be identified makes one problem. It is then treated as if it had the base's rows,
    so that they cause no further problem."""
    family = _Family.of(views)
    if family is None:
        return
    family.pad()
    growing = family.growing
    if problems := {k: problem for k in growing if (problem := family.problem(views.agents[k]))}:
        views.problems += problems.values()
        for k in problems:
            views.agents[k] = family.as_base(views.agents[k])
    elif keeper is not None:
        family.add_rows_of_keeper(keeper)
    elif len(growing) > 1:
        family.add_rows_of_several()
    elif growing:
        family.add_rows_of_one(growing[0])


def cut_added_rows(views: Views) -> None:
    """Leave a base and one agent with the base's rows alone, where `add_rows` finds that the agent's begin with them:
    an added row has no counterpart to differ from."""
    base, agent, warnings = views.base, views.agents[0], list(views.warnings)
    add_rows(views)
    family = _Family.of(Views(base, [agent]))
    if views.vocabulary is None or family is None:
        return
    added = views.vocabulary.rows - family.rows
    tokens = _shown(views.vocabulary.added) or "no token names them"
    warning = f"{agent.ref.id}: its vocabulary has {added} rows more than the base's ({tokens}); they are not compared"
    views.base, views.agents, views.warnings = base, [family.cut(agent)], [*warnings, warning]


@dataclass(frozen=True)
class _Family:
    """A base and agents whose vocabularies may have grown; the base's tables of rows are of one size."""

    views: Views
    base: Model
    tables: Mapping[str, StoredTensor]  # of the base
    rows: int  # of each

    @classmethod
    def of(cls, views: Views) -> "_Family | None":
        """None for a base without tables of floats, or with tables of several sizes."""
        tables = {n: t for n, t in _tables_of(views.base.tensors).items() if t.entry.dtype in FLOAT_DTYPES}
        sizes = {t.entry.shape[0] for t in tables.values()}
        if len(sizes) != 1:
            return None
        (rows,) = sizes
        for k, agent in enumerate(views.agents):
            if all(isinstance(agent.tensors.get(n), BorrowedTensor) for n in tables):  # its own were ignored
                views.agents[k] = replace(agent, config=with_vocab_size(agent, rows))
        return cls(views, views.base, tables, rows)

    def pad(self) -> None:
        """Give the agents that lack some of the base's rows these; a warning names each."""
        for k, agent in enumerate(self.views.agents):
            own = self.own_tables(agent)
            rows = {t.entry.shape[0] for t in own.values()}
            # where a token has one of the rows that are lacking, or another token's place, the shapes tell
            if self.base.tokens is None or len(rows) != 1 or max(self.base.tokens.ids.values(), default=0) >= min(rows):
                continue
            lacking = self.rows - min(rows)
            if lacking <= 0 or (agent.tokens is not None and self.moved(agent)):
                continue
            filled = {n: JoinedTensor.extended(t, BorrowedTensor.of(self.tables[n], BASE)) for n, t in own.items()}
            if (tokens := agent.tokens) is not None:  # those that have a row
                tokens = replace(tokens, ids={t: i for t, i in tokens.ids.items() if i < self.rows - lacking})
            config = with_vocab_size(agent, self.base.config.get("vocab_size", self.rows))
            self.views.agents[k] = replace(_with_tables(agent, filled, config), tokens=tokens)
            self.views.warnings.append(
                f"{agent.ref.id}: it lacks the last {lacking} of the base's {self.rows} rows of the vocabulary, which "
                "no token has; it is merged as if it had the base's there"
            )

    def own_tables(self, model: Model) -> dict[str, StoredTensor]:
        """The model's tensors under the names of the base's tables; those of another width or of no floats are none."""
        found = {n: model.tensors[n].entry for n in self.tables if n in model.tensors}
        return {
            n: model.tensors[n]
            for n, entry in found.items()
            if entry.shape[1:] == self.tables[n].entry.shape[1:] and entry.dtype in FLOAT_DTYPES
        }

    @property
    def growing(self) -> list[int]:
        """The agents with more rows than the base."""
        return [
            k
            for k, agent in enumerate(self.views.agents)
            if any(t.entry.shape[0] > self.rows for t in self.own_tables(agent).values())
        ]

    def as_base(self, agent: Model) -> Model:
        """The agent with the base's rows."""
        borrowed = {n: BorrowedTensor.of(self.tables[n], BASE) for n in self.own_tables(agent)}
        config = {**agent.config, **{k: v for k, v in self.base.config.items() if k in ("vocab_size", "text_config")}}
        return _with_tables(agent, borrowed, MappingProxyType(config))

    def cut(self, agent: Model) -> Model:
        """The agent without the rows that it adds."""
        cut = {n: first_rows(t, self.rows) for n, t in self.own_tables(agent).items()}
        return _with_tables(agent, cut, with_vocab_size(agent, self.base.config.get("vocab_size", self.rows)))

    def problem(self, agent: Model) -> Problem | None:
        """The problem of an agent whose added rows cannot be assigned to tokens."""
        sizes = {n: t.entry.shape[0] for n, t in self.own_tables(agent).items()}
        missing = [n for n in self.tables if n not in sizes]
        got = ", ".join(f"{n} of {count} rows" for n, count in sizes.items())
        reason = step = ""
        if self.base.tokens is None or agent.tokens is None:
            owner = self.base if self.base.tokens is None else agent
            other = next((f"{n} alone" for n in _OTHERS if n in owner.files), "none")
            reason = f"of {owner.ref.id}, {f'{TOKENIZER} that names no ids' if TOKENIZER in owner.files else other}"
            step = f"Save that tokenizer as {TOKENIZER} (AutoTokenizer.from_pretrained(…).save_pretrained(…))"
        elif missing:
            unlike = " of floats in the base's width" if any(n in agent.tensors for n in missing) else ""
            reason = f"no {named(missing)}{unlike}"
        elif fixed := [n for n in _tables_of(self.base.tensors) if n not in self.tables]:
            reason = f"the base's {named(fixed)} holds no floats and cannot grow"
        elif len(set(sizes.values())) > 1:
            reason = "tables of different sizes"
        elif max(agent.tokens.ids.values(), default=0) >= max(sizes.values()):
            reason = f"a token of row {max(agent.tokens.ids.values())}"
        if not reason:
            return self.moved(agent)
        ignoring = ", ".join(f'"{n}"' for n in self.tables if n in agent.tensors)
        return incompatible(
            "another vocabulary size, and no tokenizer that names the added tokens",
            where=str(agent.ref),
            expected=f"{self.rows} rows, or a {TOKENIZER} of base and agent that names the added ones",
            got=f"{got}; {reason}",
            next_step=f"{step or 'Choose the base it was trained from'}. Otherwise: Remove {agent.ref.id}, or keep the "
            f"base's vocabulary with this line in the recipe: ignore: [{ignoring}].",
        )

    def moved(self, agent: Model) -> Problem | None:
        """The problem of an agent that has a token of the base in another row."""
        assert self.base.tokens is not None
        assert agent.tokens is not None
        ids = agent.tokens.ids
        moved = [
            f"{ascii(t)[:40]} ({i} → {ids.get(t, 'none')})" for t, i in self.base.tokens.ids.items() if ids.get(t) != i
        ]
        if not moved:
            return None
        return incompatible(
            "tokens of the base that have another id",
            where=f"{TOKENIZER} of {agent.ref}",
            expected="the base's tokens where they were, new ones behind them",
            got=named(moved),
            next_step=f"Remove {agent.ref.id} or choose the base it was trained from.",
        )

    def add_rows_of_keeper(self, keeper: int) -> None:
        views, growing, left_out = self.views, self.growing, []
        keeps = views.models[keeper]
        for k in growing:
            if k + 1 != keeper:
                left_out.append(
                    f"{views.agents[k].ref.id}: the rows that it adds to the vocabulary are left out, since the recipe "
                    f"keeps another tokenizer ({'the base' if keeper == 0 else keeps.ref.id}'s)"
                )
                views.agents[k] = self.cut(views.agents[k])
        if keeper - 1 in growing:
            self.add_rows_of_one(keeper - 1)
        elif keeper and (self.base.tokens is None or keeps.tokens is None):
            views.refuse(
                "a tokenizer to keep of which nothing tells whether its tokens are the base's",
                where=str(keeps.ref),
                expected=f"a {TOKENIZER} of both",
                next_step="Keep the base's: tokenizer: base.",
            )
        elif keeper and (problem := self.moved(keeps)):
            views.problems.append(problem)
        elif keeper:
            views.vocabulary = Vocabulary(keeper, self.rows, ())
        views.warnings += left_out

    def add_rows_of_one(self, k: int) -> None:
        views = self.views
        donor = views.agents[k]
        assert self.base.tokens is not None
        assert donor.tokens is not None
        ids = donor.tokens.ids
        stored = {n: BorrowedTensor.of(donor.tensors[n], k + 1) for n in self.tables}
        count = next(iter(stored.values())).entry.shape[0]
        added = sorted((t for t, i in ids.items() if i >= self.rows), key=ids.__getitem__)
        inside = sorted(set(ids) - set(self.base.tokens.ids) - set(added))
        views.warnings.append(
            f"{donor.ref.id}: its vocabulary has {count - self.rows} more rows than the base's {self.rows}; rows that "
            f"all have are merged, the added ones ({_shown(added) or 'no token names them'}) are kept as it has them, "
            "and so are its tokenizer and vocab_size"
        )
        if inside:
            views.warnings.append(
                f"{donor.ref.id}: its new tokens {_shown(inside)} have rows that the base "
                "has, too; these are merged like others"
            )

        def extended(model: Model) -> Model:
            own = {n: t for n, t in self.own_tables(model).items() if t.entry.shape[0] == self.rows}
            fits = model.config.get("vocab_size", self.rows) == self.rows
            config = with_vocab_size(model, count) if fits else model.config
            return _with_tables(model, {n: JoinedTensor.extended(t, stored[n]) for n, t in own.items()}, config)

        views.base, *views.agents = map(extended, views.models)
        views.vocabulary = Vocabulary(k + 1, count, tuple(added))

    def add_rows_of_several(self) -> None:
        """Give all models the union of the tokens that agents add, also of those whose tokens fit into the base's
        rows."""
        views, tokens = self.views, self.base.tokens
        assert tokens is not None
        names = " and ".join(views.agents[k].ref.id for k in self.growing)

        def refuse(what: str, where: str, expected: str, got: str, step: str) -> None:
            views.refuse(f"several agents add tokens, {what}", where=where, expected=expected, got=got, next_step=step)
            views.agents = [self.as_base(agent) for agent in views.agents]

        step = "Remove all of them but one."
        if tokens.next_id <= max(tokens.ids.values(), default=-1):
            what = "and a further one would get an id that the base's tokenizer has"
            expected = f"ids below {tokens.next_id}, at which its next one begins"
            return refuse(what, names, expected, str(max(tokens.ids.values())), step)
        if tokens.next_id > self.rows:
            what = "and the base's tokenizer has tokens for which the base has no rows"
            return refuse(what, names, f"ids below {self.rows}", str(tokens.next_id - 1), step)
        new: dict[int, list[tuple[str, int]]] = {}
        for k, agent in enumerate(views.agents):
            if agent.tokens is None or (k not in self.growing and self.moved(agent)):
                continue
            most = max((t.entry.shape[0] for t in self.own_tables(agent).values()), default=0)
            own = ((t, i) for t, i in agent.tokens.ids.items() if t not in tokens.ids and i < most)
            new[k] = sorted(own, key=lambda pair: pair[1])
            if unfit := [t for t, _ in new[k] if t not in agent.tokens.added]:
                what = "some of them as part of a vocabulary of their own"
                expected = f"tokens that were added to the base's {TOKENIZER}"
                step = f"Remove {agent.ref.id}, or all of {names} but one."
                return refuse(what, str(agent.ref), expected, _shown(unfit), step)
        holders: dict[str, list[tuple[int, int]]] = {}
        for k, pairs in new.items():
            for token, row in pairs:
                holders.setdefault(token, []).append((k, row))
        matching = {t: table.added[t] for k in reversed(new) if (table := views.agents[k].tokens) for t, _ in new[k]}
        united = tuple(AddedToken(t, tokens.next_id + n, matching[t]) for n, t in enumerate(holders))
        rows = max(self.rows, tokens.next_id + len(united))
        if not all(n in views.agents[k].tensors for held in holders.values() for k, _ in held for n in self.tables):
            return refuse("and not all have a row for each", names, "", "", "Remove one.")
        brought = "; ".join(f"{views.agents[k].ref.id} {_shown([t for t, _ in own])}" for k, own in new.items() if own)
        shared = sum(len(held) > 1 for held in holders.values())
        views.warnings.append(
            f"several agents add tokens to the vocabulary ({brought or 'none has a name'}): the merge has all "
            f"{len(united)}, in rows {tokens.next_id} to {tokens.next_id + len(united) - 1} of {rows}, as their agents "
            "have them"
            + (f" ({shared} that several have: the mean of their rows)" if shared else "")
            + "; its tokenizer is the base's with these added, and added rows that no token names are left out"
        )
        among = sorted({k for held in holders.values() for k, _ in held})
        first, last = tokens.next_id, tokens.next_id + len(holders)
        means = (tuple((1 + among.index(k), row) for k, row in held) for held in holders.values())
        parts = ((0, ((0, 0),)), *enumerate(means, first), (last, ((0, last),)))
        donors = {n: tuple(BorrowedTensor.of(views.agents[k].tensors[n], k + 1) for k in among) for n in self.tables}

        def joined(model: Model) -> Model:
            own = self.own_tables(model)
            tables = {
                n: JoinedTensor.of(t, donors[n], parts, rows) for n, t in own.items() if t.entry.shape[0] >= self.rows
            }
            sizes = (self.rows, *(t.entry.shape[0] for t in own.values()))  # no set: a config may state anything
            fits = model.config.get("vocab_size", self.rows) in sizes
            return _with_tables(model, tables, with_vocab_size(model, rows) if fits else model.config)

        views.base, *views.agents = map(joined, views.models)
        views.vocabulary = Vocabulary(0, rows, tuple(holders), united)


def _with_tables(model: Model, tables: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> Model:
    return replace(model, tensors=MappingProxyType({**model.tensors, **tables}), config=config)


def _shown(tokens: Sequence[str]) -> str:
    return named([ascii(token)[:40] for token in tokens])


def with_vocab_size(model: Model, rows: int) -> Mapping[str, Any]:
    """Its config.json for `rows` rows, in every table of a language model that states the number now.

    Where none does, as in Gemma 3's, a class's default applies, which is that of the language model inside if there is
    one.
    """
    stored = [t.entry.shape[0] for t in _tables_of(model.tensors).values()]

    def counted(table: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
        inside = {k: counted(table[k], depth + 1) for k in _INSIDE if isinstance(table.get(k), dict) and depth < 3}
        return {**table, **inside, **({"vocab_size": rows} if table.get("vocab_size") in stored else {})}

    changed = counted(model.config)
    text = changed.get("text_config")
    if isinstance(text, dict) and ("vocab_size" in text or "vocab_size" not in changed):
        changed["text_config"] = {**text, "vocab_size": rows}
    if "vocab_size" in changed or not isinstance(text, dict):
        changed["vocab_size"] = rows
    return MappingProxyType(changed)

"""Plans of random models, from headers alone: each is refused, or reads the rows that the tokenizers say."""

from __future__ import annotations

import re
from math import prod
from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from numpy.typing import NDArray
from plan_helpers import SIZE
from random_models import EMBED, HEAD, TABLES, families

from hubmerge.errors import HubmergeError
from hubmerge.numerics.dtypes import FLOAT_DTYPES, encode
from hubmerge.plan.plan import Plan, make_plan
from hubmerge.recipe.ignore import ignored_by
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sources.base import Model, StoredTensor
from hubmerge.sources.derived import DerivedTensor, fp8_values
from hubmerge.sources.reader import ShardStore, TensorReader

AROUND = re.compile(r"^((base_model\.model|model|language_model|module)\.)+|\.(modules_to_save|base_layer)(?=\.)")


def bare(name: str) -> str:
    return AROUND.sub("", name)


def first(m: int, name: str) -> int:
    """The number of the first row of a tensor of model `m`."""
    return 16 * m + 64 * sum(k for k, table in enumerate(TABLES) if bare(table) == bare(name))


class Numbered(TensorReader):
    """Every element holds the number of its model, table and row; those of factors hold 0, those of scales 1."""

    def raw(self, model: int, tensor: StoredTensor, start: int, count: int) -> NDArray[np.generic]:
        if isinstance(tensor, DerivedTensor):
            return tensor.read(self, model, start, count)
        entry = self.models[model].tensors[tensor.entry.name].entry
        assert 0 <= start <= start + count <= entry.elements, f"beyond {entry.name}"
        numbers = first(model, entry.name) + np.arange(start, start + count) // max(1, prod(entry.shape[1:]))
        if "lora_" in entry.name or "_scale" in entry.name:
            numbers = np.full(count, "_scale" in entry.name)
        if entry.dtype in FLOAT_DTYPES:
            return np.asarray(encode(numbers.astype(np.float32), entry.dtype, "nearest", None))
        return numbers.astype(f"<u{SIZE[entry.dtype]}")


def rows_of(plan: Plan, m: int, name: str) -> NDArray[np.float32]:
    """The numbers of the rows that model `m` has itself of a planned tensor, or those of the base where it has none."""
    ignored, found = ignored_by(plan.recipe.ignore), plan.models[m].tensors
    tied = {bare(HEAD): bare(EMBED), bare(EMBED): bare(HEAD)}.get(bare(name))
    stored = bare(name) == bare(EMBED) and bare(EMBED) in map(bare, found)  # then no head stands for it
    if plan.models[m].adapter is not None or stored:
        tied = None
    own = [n for n in sorted(found, key=lambda n: (n != name, bare(n) == tied)) if bare(n) in (bare(name), tied)]
    m, name = next(((m, n) for n in own if not ignored(n) and not ignored(name)), (0, name))
    entry = plan.models[m].tensors[name].entry
    numbers = first(m, name) + np.arange((*entry.shape, 1)[0])
    return fp8_values(numbers, entry.dtype) if entry.dtype == "F8_E4M3" else numbers.astype(np.float32)


def added(plan: Plan, name: str) -> dict[int, list[tuple[int, int]]]:
    """The rows that the output has beyond the base's tokens: for each, the models that have it, and where."""
    tokens, vocabulary = plan.base.tokens, plan.vocabulary
    if vocabulary is None:
        return {}
    assert tokens is not None
    if not vocabulary.united:
        theirs = plan.models[vocabulary.donor].tokens
        assert theirs is not None
        assert tokens.ids.items() <= theirs.ids.items()
        return {row: [(vocabulary.donor, row)] for row in range(len(rows_of(plan, 0, name)), vocabulary.rows)}
    holders: dict[str, list[tuple[int, int]]] = {}
    for m, agent in enumerate(plan.agents, start=1):
        ids = agent.tokens.ids if agent.tokens and tokens.ids.items() <= agent.tokens.ids.items() else {}
        for token in sorted(ids.keys() - tokens.ids.keys(), key=ids.__getitem__):
            if ids[token] < len(rows_of(plan, m, name)):
                holders.setdefault(token, []).append((m, ids[token]))
    assert [(t.content, t.id) for t in vocabulary.united] == [(t, tokens.next_id + n) for n, t in enumerate(holders)]
    return dict(enumerate(holders.values(), start=tokens.next_id))


@settings(max_examples=1000, deadline=None)
@given(families())
def test_a_plan_of_any_models_is_refused_or_reads_the_rows_that_their_tokenizers_say(
    family: tuple[dict[str, Any], list[Model]],
):
    recipe, models = family
    try:
        plan = make_plan(recipe_from_dict(recipe), models[0], models[1:])
    except HubmergeError:
        return
    reader = Numbered(models, cast(ShardStore, None))
    for tensor in plan.tensors():
        assert {t.entry.shape for t in tensor.inputs} == {tensor.shape}
        if tensor.action == "copy":
            reader.raw(0, tensor.inputs[0], 0, tensor.elements)
            continue
        base = rows_of(plan, 0, tensor.name)
        for m, read in enumerate(tensor.inputs):
            own = rows_of(plan, m, tensor.name)[: len(base)]
            rows = dict(enumerate([*own, *base[len(own) :]]))
            if len(own) < len(base):
                assert max(models[0].tokens.ids.values()) < len(own), "a token of a row that the agent lacks"
            if bare(tensor.name) in map(bare, TABLES) and len(tensor.shape) == 2:
                for row, held in added(plan, tensor.name).items():
                    rows[row] = np.mean([rows_of(plan, k, tensor.name)[r] for k, r in held], dtype=np.float32)
            wanted = np.repeat([rows[n] for n in range(len(rows))], prod(tensor.shape[1:])).astype(np.float32)
            for start in (0, min(3, tensor.elements)):
                got = reader.values(m, read, start, tensor.elements - start)
                assert got.tolist() == wanted[start:].tolist(), f"{tensor.name} of model {m}"
    tables = [t for t in plan.tensors() if bare(t.name) in map(bare, TABLES) and len(t.shape) == 2]
    stated = (plan.config.get("text_config") or {}).get("vocab_size", plan.config.get("vocab_size"))
    if plan.vocabulary and (stated or any(len(rows_of(plan, 0, t.name)) != t.shape[0] for t in tables)):
        assert {t.shape[0] for t in tables} == {stated} == {plan.vocabulary.rows}

"""Plans of random models, from headers alone: each is refused, or reads the rows that the tokenizers say.

Most models of a family fit together, some have a thing that does not.
"""

import re
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from plan_helpers import SIZE, model

from hubmerge.errors import HubmergeError
from hubmerge.hub.names import FileInfo
from hubmerge.numerics.dtypes import FLOAT_DTYPES, encode
from hubmerge.plan.plan import Plan, make_plan
from hubmerge.recipe.ignore import ignored_by
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sources.adapter_config import AdapterConfig
from hubmerge.sources.base import Model, StoredTensor, TokenTable
from hubmerge.sources.derived import DerivedTensor, fp8_values
from hubmerge.sources.reader import ShardStore, TensorReader

TABLES = EMBED, HEAD, OTHER = "model.embed_tokens.weight", "lm_head.weight", "model.encoder.embed_tokens.weight"
_ROWS = 8  # of the base's tables
_Q, _NORM, _WRAPPER = "model.layers.0.self_attn.q_proj.weight", "model.norm.weight", "base_model.model."
_Shapes = dict[str, tuple[int, ...]]


def _pick(draw: st.DrawFn, usual: Any, times: int, *others: Any) -> Any:
    return draw(st.sampled_from([usual] * times + [*others]))


def _tokenizer(draw: st.DrawFn, base: TokenTable | None) -> TokenTable | None:
    """The base's, or an agent's, which has the base's tokens and mostly more."""
    known = _pick(draw, base, 24, None)
    ids = dict(known.ids) if known else {f"w{i}": i for i in range(_pick(draw, 8, 3, 6, 7, 9))}
    new = [t for t in draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=3 if base else 1)) if t not in ids]
    begin = max(ids.values()) + 1 + _pick(draw, 0, 20, 1, -1)
    matching = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    added = dict.fromkeys([*(known.added if known else ()), *new], matching)
    ids |= {t: begin + n for n, t in enumerate(new)}
    return _pick(draw, TokenTable(ids, added, max([len(ids) - len(added), *(ids[t] + 1 for t in added)])), 24, None)


def _checkpoint(
    draw: st.DrawFn, name: str, rows: int, prefix: str, tables: tuple[str, ...], tied: bool | None
) -> Model:
    """A full model, at times with one thing that does not fit."""
    shapes: _Shapes = {**dict.fromkeys(tables, (rows, 4)), _Q: (4, 4), _NORM: (4,)}
    shapes.pop(_pick(draw, "", 1 if tied else 40, HEAD) or _pick(draw, "", 200, *shapes), None)
    some = draw(st.sampled_from([n for n in shapes if n in tables] + [*shapes]))
    odd = ({some: shape} for shape in ((rows, 2), (rows,), (), (rows, 4, 1), (0, 4), (rows + 1, 4)))
    shapes |= _pick(draw, {}, 100, *odd, {"v_head.weight": (4,)}, {OTHER: (rows, 4)}, {HEAD: (rows, 4)})
    dtypes = {some: _pick(draw, "BF16", 80, "F32", "F16", "I32", "F8_E4M3", "F8_E4M3")}
    config = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": tied}
    config |= _pick(draw, {}, 1, {"vocab_size": rows}, {"text_config": {}}, {"text_config": {"vocab_size": rows}})
    if dtypes[some] == "F8_E4M3":
        scale, height = some + _pick(draw, "_scale_inv", 1, "_scale"), (*shapes[some], 1)[0]
        dtypes[scale], shapes[scale] = "F32", _pick(draw, (), 1, (height, 1), (-(-height // 2), 2))
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [2, 2]}
    prefix = _pick(draw, prefix, 120, "model.", _WRAPPER, "language_model.", "module.", "x.", "")
    named = {prefix + n: shape for n, shape in shapes.items()}
    if name != "org/base":  # of which an adapter's names could mean either tensor then
        named |= _pick(draw, {}, 5 if prefix else 90, {some: shapes[some]})
    return model(name, named, dtypes={prefix + n: d for n, d in dtypes.items()}, config=config)


def _adapter(draw: st.DrawFn, name: str, rows: int, tables: tuple[str, ...]) -> Model:
    """Factors of some modules, and whole tables as PEFT saves them."""
    shapes: _Shapes = {}
    for module in (n.removesuffix("weight") for n in (_Q, *tables)):
        saved = _pick(draw, (), 4, ("",), ("modules_to_save.", "original_module."), ("base_layer.",))
        saved = () if module in _Q else saved
        shapes |= {f"{module}{end}weight": (_ROWS if k else rows, 4) for k, end in enumerate(saved)}
        height = 4 if module in _Q else rows if saved else _ROWS
        a, b = {"lora_A.weight": (2, 4)}, {"lora_B.weight": (height, 2)}
        if module not in HEAD + _Q:
            a, b = {"lora_embedding_A": (2, height)}, {"lora_embedding_B": (4, 2)}
        if module in _Q or _pick(draw, False, 3, True):
            shapes |= {module + end: shape for end, shape in (a | b).items()}
    made = model(name, {_WRAPPER + n: shape for n, shape in shapes.items()}, config={})
    return replace(made, adapter=AdapterConfig(2, 4.0, base_name="org/base"))


@st.composite
def families(draw: st.DrawFn) -> tuple[dict[str, Any], list[Model]]:
    """A recipe and its models, the base first."""
    names = ["org/base", "org/a", "org/b", *_pick(draw, [], 2, ["org/c"])]
    recipe = {"base": names[0], "agents": names[1:], "method": "ram"}
    patterns = ("lm_head.*", "*embed_tokens.*", "*norm*", EMBED, "v_head.*")
    recipe |= _pick(draw, {}, 40, *({"ignore": [pattern]} for pattern in patterns))
    recipe |= _pick(draw, {}, 12, *({"tokenizer": name} for name in ("base", *names[1:])))
    prefix, tied = _pick(draw, "", 6, _WRAPPER, "model."), _pick(draw, None, 2, False, False, True)
    tables = _pick(draw, (EMBED, HEAD), 4, (EMBED,), TABLES)
    models: list[Model] = []
    for name in names:
        tokens = _tokenizer(draw, models[0].tokens if models else None)
        least = max(_ROWS, *(i + 1 for i in tokens.ids.values())) if tokens else _ROWS
        rows = _pick(draw, least, 8, _ROWS, 9, 10, 12, 6) if models else _ROWS
        if models and _pick(draw, False, 4, True):
            made = _adapter(draw, name, rows, tables if tied is False else ())
        else:
            made = _checkpoint(draw, name, rows, prefix, tables, _pick(draw, tied, 2, True))
        beside = {"tokenizer.json": FileInfo("tokenizer.json", 2)} if tokens else {}
        models.append(replace(made, tokens=tokens, files={**made.files, **beside}))
    return recipe, models


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
def test_a_plan_of_any_models_is_refused_or_reads_the_rows_that_their_tokenizers_say(family):
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

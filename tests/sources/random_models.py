"""Random models that exist only as their headers: most of a family fit together, some have a thing that does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from plan_helpers import model

from hubmerge.hub.names import FileInfo
from hubmerge.sources.adapter_config import AdapterConfig
from hubmerge.sources.base import Model, TokenTable

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

"""Problems that forbid a merge of some models, and warnings that do not, from headers and configs alone.

These functions return all that they find, in the recipe's order, and raise nothing. Two others, `refuse_…`, find models
of the same weights where only their bytes show it: folders state no hashes, and equal values may be stored as different
bytes.
"""

import filecmp
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from hubmerge.errors import IncompatibleError, Problem
from hubmerge.numerics.dtypes import FLOAT_DTYPES
from hubmerge.sources.adapter_config import WITH_PEFT
from hubmerge.sources.base import Model, StoredTensor
from hubmerge.sources.config import quantized
from hubmerge.sources.folder import ADAPTER_CONFIG
from hubmerge.sources.lora import adapter_parts
from hubmerge.sources.remedies import origin_of
from hubmerge.sources.same_tensors import IN_A_LAYER, WRAPPERS, is_embedding
from hubmerge.statistics.statistics import Statistics
from hubmerge.text.wording import NAMED_AT_MOST, dims, incompatible, named, shown

_SHAPING_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
)
_BEHAVIOUR_KEYS = (
    "rope_theta",
    "rope_scaling",
    "rms_norm_eps",
    "hidden_act",
    "sliding_window",
    "max_position_embeddings",
)
# a config that does not state one of these has its class's, which may be the other's
_DEFAULTED_KEYS = (
    *("tie_word_embeddings", "partial_rotary_factor", "layer_norm_eps", "layer_norm_epsilon", "num_experts_per_tok"),
    *("norm_topk_prob", "routed_scaling_factor", "attn_logit_softcapping", "final_logit_softcapping"),
)


def base_problems(base: Model, kept: frozenset[str]) -> list[Problem]:
    """Problems of the base that forbid any merge into it; tensors of the names `kept` are not merged."""
    tensors = {n: t for n, t in base.tensors.items() if n not in kept}
    floats = any(t.entry.dtype in FLOAT_DTYPES for t in tensors.values())
    problems = _quantized(base, tensors if floats else {})
    unsupported = [n for n, t in tensors.items() if t.entry.dtype.startswith("F") and t.entry.dtype not in FLOAT_DTYPES]
    if unsupported:
        problems.append(_dtype_problem(base, unsupported, "Convert them to float32."))
    elif not floats:
        problems.append(
            incompatible(
                "nothing to merge: no tensor of floating point numbers",
                where=str(base.ref),
                got="integers only" if tensors or not kept else "`ignore` names every tensor",
            )
        )
    return problems


def wrapped(base: Model) -> list[Problem]:
    """The problem of a base whose tensors have names that the merge would keep and no class has: loaders draw these
    anew."""
    if not (names := [name for name in base.tensors if WRAPPERS.search(name)]):
        return []
    step = "Save a copy of it without the wrapper, from the model inside, or choose the base that it was made from."
    what = "a base with names of a wrapper, such as torch.compile's, which nothing loads"
    return [incompatible(what, where=str(base.ref), got=named(names), next_step=step)]


def repeated(base: Model, agents: Sequence[Model]) -> list[Problem]:
    """Agents that are the base itself or stand twice, as far as commits and file hashes show it."""
    problems = []
    for k, agent in enumerate(agents):
        for number, other in enumerate((base, *agents[:k])):
            if same := _same_weights(other, agent):
                step = "Remove one; use `weight` to count it more." if number else "Remove it: it changes nothing."
                problems.append(_again(agent, same, step, of_base=number == 0))
    return problems


def _again(agent: Model, got: str, next_step: str, *, of_base: bool) -> Problem:
    what = "an agent is the base itself" if of_base else "the same agent stands twice"
    next_step += _trained_beside(agent) if of_base else ""
    return incompatible(what, where=str(agent.ref), got=got, next_step=next_step)


def _same_weights(a: Model, b: Model) -> str | None:
    """The words for how headers show that two models hold the same weights; None where they do not show it."""
    if (a.ref.kind, a.ref.id, a.ref.sha) == (b.ref.kind, b.ref.id, b.ref.sha):
        return "the same repo at the same commit"
    hashes_a = {a.files[s].sha256 for s in a.shards}
    hashes_b = {b.files[s].sha256 for s in b.shards}
    # the same factors under another lora_alpha are another agent
    if None not in hashes_a and hashes_a == hashes_b and a.adapter == b.adapter:
        return f"shards with the same sha256 as {a.ref}"
    return None


def refuse_equal_folders(models: Sequence[Model]) -> None:
    """Refuse equal local folders. Their bytes are compared up to the first difference."""
    problems = []
    local = [m for m in models if m.ref.kind == "local"]
    for i, a in enumerate(local):
        for b in local[i + 1 :]:
            if (a.shards, a.adapter) == (b.shards, b.adapter) and all(
                filecmp.cmp(a.ref.path / s, b.ref.path / s, shallow=False) for s in a.shards
            ):
                problems.append(_again(b, f"the bytes of {a.ref}", "Remove it.", of_base=a is models[0]))
    if problems:
        raise IncompatibleError("these models cannot be merged", problems=problems)


def refuse_equal_to_base(agents: Sequence[Model], statistics: Statistics) -> None:
    """Refuse agents that turned out equal to the base when they were read."""
    total = statistics.total
    problems = [
        incompatible(
            "an agent changed none of the merged tensors",
            where=str(agent.ref),
            got="the base's value in every element",
            next_step=f"Remove it.{_trained_beside(agent)}",
        )
        for k, agent in enumerate(agents)
        if total.elements and total.identical[k] == total.elements
    ]
    if problems:
        raise IncompatibleError("these models cannot be merged", problems=problems)


def _trained_beside(agent: Model) -> str:
    """The other way out of an agent that is the base, where what was trained lies beside or below these weights."""
    found = [n for n in agent.files if n.rpartition("/")[2] == ADAPTER_CONFIG and agent.adapter is None]
    return f" Or name its adapter ({ascii(found[0])[1:-1][:80]}) as a folder of its own." if found else ""


def agent_problems(base: Model, agent: Model, ignoring: str | None = None) -> list[Problem]:
    """Problems that forbid a merge of this agent with this base.

    `ignoring`: the line of a recipe that leaves out the tensors that only some of the models have."""
    remove = f"Remove {agent.ref.id} or choose another base."
    unfit = partial(incompatible, where=str(agent.ref), next_step=remove)
    if (expected := architecture(base)) != (got := architecture(agent)):
        # every other problem would follow from this one
        step = f"Remove {agent.ref.id} or choose its own base."
        return [unfit("another architecture", expected=expected, got=got, next_step=step)]
    added = {n: t for n, t in agent.tensors.items() if n not in base.tensors}
    problems = [] if agent.adapter else _quantized(agent, added)  # an adapter has the base's config
    if parts := adapter_parts(base, agent):
        what, expected = "an adapter that is not merged into the weights beside it", "the base's tensors alone"
        step = (
            "Save it anew after PEFT's merge_and_unload(), or name the adapter that PEFT's own save_pretrained writes."
        )
        problems.append(unfit(what, expected=expected, got=named(parts), next_step=step))
    if problems or quantized(base.config):  # they store other tensors by their nature
        return problems
    base_tensors, tensors = base.tensors, agent.tensors
    resized = any(
        is_embedding(n) and n in tensors and tensors[n].entry.shape[:1] != t.entry.shape[:1]
        for n, t in base_tensors.items()
    )
    for key in _SHAPING_KEYS:
        if key == "vocab_size" and resized:
            continue  # which the shapes tell below
        ours, theirs = base.config.get(key), agent.config.get(key)
        if ours is not None and theirs is not None and ours != theirs:  # a null is what the shapes tell
            where, own, other = f"config.json of {agent.ref}", shown(ours), shown(theirs)
            problems.append(unfit(f"another {key}", where=where, expected=own, got=other))
    if missing := [n for n in base_tensors if n not in tensors]:
        outside = {n: t.entry.shape for n, t in base_tensors.items() if not IN_A_LAYER.search(n)}
        common_shapes = {shape for n, shape in outside.items() if n in tensors}
        keep = "To keep the base's"
        if any(outside.get(n) in common_shapes for n in missing):
            keep += ", unless they are tied to others (then take them out of a copy of the base)"
        step = _with_line(keep, ignoring, remove)
        problems.append(unfit("missing tensors", expected=named(missing), got="not stored", next_step=step))
    if extra := [n for n in tensors if n not in base_tensors]:
        # an adapter stores whole layers under the names of a class, which may not be those of its files
        either = f"{remove} If it is this one: {WITH_PEFT[0].lower()}{WITH_PEFT[1:]}" if agent.adapter else remove
        step = _with_line("If the result needs none of them", ignoring, either)
        problems.append(unfit("tensors that the base does not have", got=named(extra), next_step=step))
    common = [n for n in base_tensors if n in tensors]
    shapes = [
        f"{n}: {dims(base_tensors[n].entry.shape)} → {dims(tensors[n].entry.shape)}"
        for n in common
        if base_tensors[n].entry.shape != tensors[n].entry.shape
    ]
    if shapes:
        vocabulary = any("embed" in s or s.startswith("lm_head") for s in shapes)
        what = "another vocabulary size or shape" if vocabulary else "other shapes"
        problems.append(unfit(what, expected="the base's shapes", got=named(shapes)))
    dtypes = {n: {base_tensors[n].entry.dtype, tensors[n].entry.dtype} for n in common}
    if apart := [n for n, both in dtypes.items() if len(both) > 1 and not both.issubset(FLOAT_DTYPES)]:
        problems.append(_dtype_problem(agent, apart, remove))
    return problems


def _with_line(why: str, ignoring: str | None, otherwise: str) -> str:
    return f"{why}, put this line into the recipe: {ignoring}. Otherwise: {otherwise}" if ignoring else otherwise


def _quantized(model: Model, tensors: Mapping[str, StoredTensor]) -> list[Problem]:
    where, expected, got = str(model.ref), "weights of floating point numbers", ""
    if found := quantized(model.config):
        where, expected, got = f"config.json of {model.ref}", f"no {found[0]}", shown(found[1])
    elif packed := [f"{n} ({t.entry.dtype})" for n, t in tensors.items() if _is_packed(n, t)]:
        got = named(packed)
    what = "quantized weights, which stand for others than they store"
    step = f"Name {origin_of(model.card) or 'the model before quantization'} instead."
    return [incompatible(what, where=where, expected=expected, got=got, next_step=step)] if got else []


def _is_packed(name: str, tensor: StoredTensor) -> bool:
    """Whether these are weights as numbers of few bits, which config.json should tell, and no positions or counters."""
    matrix = len(tensor.entry.shape) > 1 and tensor.entry.dtype.startswith(("I", "U"))
    return matrix and name.rpartition(".")[2] in ("weight", "qweight", "weight_packed", "_data")  # the last is quanto's


def _dtype_problem(model: Model, names: Sequence[str], otherwise: str) -> Problem:
    # as float64 scales of a loss are, which no result needs, or positions that were cast with the weights
    few = len(names) <= NAMED_AT_MOST and len(names) < len(model.tensors)
    ignoring = f"ignore: {json.dumps(names)}" if few else None
    return incompatible(
        "tensors of a dtype that cannot be merged",
        where=str(model.ref),
        expected=f"{', '.join(FLOAT_DTYPES)}, fp8 with its scales, or integers as in the base",
        got=named([f"{n} ({model.tensors[n].entry.dtype})" for n in names]),
        next_step=_with_line("To keep the base's", ignoring, otherwise),
    )


def differences(base: Model, agent: Model) -> list[str]:
    """Warnings about differences that do not forbid the merge."""
    notes = [f"{words}; the merge keeps the base's" for words in other_settings(base, agent)]
    if agent.adapter is None and ADAPTER_CONFIG in agent.files:
        notes.append(
            f"{agent.ref.id}: an adapter lies beside full weights; it is left out, the weights are taken as they are"
        )
    return notes


def other_settings(base: Model, agent: Model) -> list[str]:
    """Settings of the two configs that make the models compute differently with the same weights."""
    ours, theirs = _behaviour(base.config), _behaviour(agent.config)
    return [
        f"{agent.ref.id}: {key} in config.json differs from the base ({shown(ours[key])} → {shown(theirs[key])})"
        for key in (*_BEHAVIOUR_KEYS, *_DEFAULTED_KEYS)
        if ours[key] != theirs[key] and (key in _BEHAVIOUR_KEYS or None not in (ours[key], theirs[key]))
    ]


def _behaviour(config: Mapping[str, Any]) -> dict[str, Any]:
    """What these keys say of a model or of the language model inside, whichever transformers wrote them."""
    text = config.get("text_config")
    stated = {k: v for k, v in config.items() if v is not None}
    config = {**text, **stated} if isinstance(text, dict) else stated
    found = {key: config.get(key) for key in (*_BEHAVIOUR_KEYS, *_DEFAULTED_KEYS)}
    if config.get("use_sliding_window") is False:
        found["sliding_window"] = None
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if isinstance(rope, dict):  # transformers 5 has one table for both keys, in which `type` is `rope_type`
        full = rope.get("full_attention")  # of Gemma 3's kinds of layers, that which had the keys
        rope = full if isinstance(full, dict) else rope
        scaling = {"rope_type": rope.get("type"), **rope}
        for key in ("rope_theta", "partial_rotary_factor"):
            found[key] = scaling.pop(key, found[key])
        scaling.pop("type", None)
        if scaling["rope_type"] == "mrope":  # older versions' name for the default with sections
            scaling["rope_type"] = "default"
        found["rope_scaling"] = None if scaling == {"rope_type": "default"} else scaling
    return found


def architecture(model: Model) -> str:
    """The model's class, as its config names it; what FSDP2 trained may have been saved with "FSDP" before the name."""
    names = model.config.get("architectures") or [model.config.get("model_type", "unknown")]
    name = str(names[0])[:100].removeprefix("FSDP") if isinstance(names, list) and names else "unknown"
    return name.encode("utf-8", "backslashreplace").decode()  # half a character cannot be shown

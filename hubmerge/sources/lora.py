"""LoRA adapters as agents: W + s·B·A on the base's tensors, each computed when it is read.

PEFT (arXiv:2106.09685) stores, below `base_model.model.` and the module's name,

    lora_A.weight [r, in], lora_B.weight [out, r]            linear; W is [out, in], with fan_in_fan_out [in, out]
    lora_embedding_A [r, tokens], lora_embedding_B [dim, r]  embeddings; W is [tokens, dim]
    weight, bias                                             full tensors (modules_to_save, bias) for the base's
    base_layer.weight                                        the same for a layer that is adapted, too
    modules_to_save.weight, original_module.weight           the first again, and what it was before, which PEFT adds
                                                             where the vocabulary has grown

Tensors that an adapter does not name are the base's. Its base must be the recipe's; another one is refused where the
names show it. Where W is square, fan_in_fan_out tells how it is stored, unless the stack that it lies in shows another
way. On a tied base neither embedding nor head can be adapted: training saw two tensors where a checkpoint has
one.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from hubmerge.hub.names import is_hub_id
from hubmerge.numerics.dtypes import FLOAT_DTYPES
from hubmerge.sources.adapter_config import FOUR_BITS, WITH_PEFT, AdapterConfig
from hubmerge.sources.base import Model, StoredTensor, Views
from hubmerge.sources.derived import BASE, AdaptedTensor, BorrowedTensor
from hubmerge.sources.same_tensors import renaming, tied_to_head
from hubmerge.text.wording import dims, named

_WRAPPER = "base_model.model."
_LINEAR = re.compile(r"(.+)\.lora_([AB])\.weight", re.ASCII)
_EMBEDDING = re.compile(r"(.+)\.lora_embedding_([AB])", re.ASCII)
_TWICE = re.compile(r"\.(?:modules_to_save|original_module)\.", re.ASCII)
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)", re.ASCII)
_PART = re.compile(r"\.(?:base_layer|lora_[AB]|lora_embedding_[AB])(?:\.|$)", re.ASCII)
_WRAPPED = re.compile(r"\.(?:base_layer|modules_to_save)\.", re.ASCII)


_Factors = dict[str, dict[str, StoredTensor]]  # A and B by the name of the weight that they change


def attached(base: Model, agent: Model, told: Views) -> Model:
    """The adapter `agent` as a model of its own: the base's tensors, changed.

    `base` and its tensors are those that the merge sees.
    """
    config = agent.adapter
    assert config is not None
    factors, full, unknown = _sorted(agent)
    refuse = partial(told.refuse, where=str(agent.ref))
    half = [f"{n} (no {'B' if 'A' in pair else 'A'})" for n, pair in factors.items() if len(pair) != 2]
    if unknown or half:
        what, expected = "an adapter with tensors that cannot be merged", "pairs of lora_A and lora_B, and full tensors"
        got = named([*unknown, *half])
        refuse(what, expected=expected, got=got, next_step=WITH_PEFT)
    elif not factors:
        refuse("an adapter without a pair of lora_A and lora_B", next_step="Remove it.")
    _tell_base(base, agent, config, told)
    targets = {*factors, *full}
    renamed = renaming(targets, base.tensors, lambda names: all(n in base.tensors for n in names))
    names: Mapping[str, str] = {n: n for n in targets}
    if renamed is not None:
        words, names = renamed
        told.warnings.append(f"{agent.ref.id}: {words}")
    tensors: dict[str, StoredTensor] = {n: BorrowedTensor.of(t, BASE) for n, t in base.tensors.items()}
    tensors |= {names[n]: t for n, t in full.items()}
    if touched := tied_to_head(base, [names[n] for n in sorted(targets)]):
        what, expected = "an adapter of an embedding that the base ties to its head", "an adapter of other layers"
        refuse(what, expected=expected, got=named(touched), next_step=WITH_PEFT)
    step = f"Remove {agent.ref.id} or choose the base it was trained from."
    if config.base_name and config.base_name != base.ref.id:
        step = f"Choose the adapter's own base, {ascii(config.base_name)[1:-1][:120]}, or remove {agent.ref.id}."
    missing = {names[n]: None for n in factors if names[n] not in base.tensors}
    if missing:
        tensors = {n: t for n, t in tensors.items() if n not in missing}  # else told again, as one to ignore
        what, expected = "an adapter of tensors that the base does not have", f"tensors of {base.ref.id}"
        # transformers' classes may have other names than their files, which PEFT stores
        either = f"{step} If it is that one: {WITH_PEFT[0].lower()}{WITH_PEFT[1:]}"
        refuse(what, expected=expected, got=named([*missing]), next_step=either)
    unfit: list[str] = []
    adapted: dict[str, AdaptedTensor] = {}
    for name, pair in factors.items():
        if names[name] in missing or len(pair) != 2:  # which is told already
            continue
        made = _adapted(name, pair, tensors[names[name]], config)
        if isinstance(made, str):
            unfit.append(made)
        else:
            adapted[names[name]] = made
    if unfit:
        what, expected = "adapter tensors that do not fit the base", f"A and B for the shapes of {base.ref.id}"
        refuse(what, expected=expected, got=named(unfit), next_step=step)
    if square := _either_way(base, adapted, config):
        what = "adapter tensors that may be stored either way round"
        expected = f"others as fan_in_fan_out says, which is {str(config.fan_in_fan_out).lower()}"
        got = named([f"{n}: square, and fan_in_fan_out is not what others show" for n in square])
        refuse(what, expected=expected, got=got, next_step=WITH_PEFT)
    return replace(agent, config=base.config, tensors=MappingProxyType({**tensors, **adapted}))


def adapter_parts(base: Model, agent: Model) -> list[str]:
    """An agent's tensors that the base lacks and an adapter has, which stay when PEFT's wrapper is saved as a model."""
    return [name for name in agent.tensors if name not in base.tensors and _PART.search(name)]


def resident_bytes(model: Model, kept: int) -> int:
    """The most that the reader keeps of an adapter's factors: the `kept` largest, in float32."""
    if model.adapter is None:
        return 0
    sizes = (4 * t.entry.elements for n, t in model.tensors.items() if ".lora_" in n)
    return sum(sorted(sizes, reverse=True)[:kept])


def whole_name(stored: str) -> str:
    """The weight that a full tensor of an adapter stands for; any other name as it is."""
    return _WRAPPED.sub(".", stored.removeprefix(_WRAPPER))


def _sorted(agent: Model) -> tuple[_Factors, dict[str, StoredTensor], list[str]]:
    """The adapter's tensors by their kind: factors, full tensors, and the names of others."""
    factors: _Factors = {}
    full: dict[str, StoredTensor] = {}
    unknown: list[str] = []
    names = {stored.removeprefix(_WRAPPER) for stored in agent.tensors}
    for stored, tensor in agent.tensors.items():
        name = stored.removeprefix(_WRAPPER)
        again = _TWICE.sub(".", name)
        if again != name and again in names:
            continue
        if match := _LINEAR.fullmatch(name) or _EMBEDDING.fullmatch(name):
            pair = factors.setdefault(f"{match[1]}.weight", {})
            if match[2] in pair:  # once under the wrapper's name, once without it
                unknown.append(stored)
            pair[match[2]] = tensor
        elif "lora_" in name:
            unknown.append(stored)
        else:
            plain = whole_name(stored)
            if plain in full:
                unknown.append(stored)
            full[plain] = tensor
    return factors, full, unknown


def _of_embedding(*pair: StoredTensor) -> bool:
    return any(".lora_embedding_" in factor.entry.name for factor in pair)


def _tell_base(base: Model, agent: Model, config: AdapterConfig, told: Views) -> None:
    """Say what the adapter's own name for its base tells: a Hub id, or a path on its author's machine."""
    name = config.base_name
    if name == base.ref.id:
        if config.base_revision not in (None, base.ref.sha, base.ref.requested):
            revision = ascii(config.base_revision)[1:-1][:80]
            trained = f"{agent.ref.id}: it was trained on {base.ref.id} at {revision}"
            told.warnings.append(f"{trained}, and is applied to {base.ref}")
        return
    shown = "no base" if name is None else ascii(name)[1:-1][:120]
    own, other = (FOUR_BITS.sub("", repo.lower()).rpartition("/")[2] for repo in (base.ref.id, name or ""))
    on_hub = name is not None and base.ref.kind == "hub" and "/" in name and is_hub_id(name)
    # else a copy of the same model under another owner, perhaps in the 4 bits that QLoRA trains on
    if on_hub and own != other and not config.of_base:
        step = f"Choose {shown} as the base; if both are the same weights, correct base_model_name_or_path."
        what, where = "an adapter of another model", str(agent.ref)
        told.refuse(what, where=where, expected=base.ref.id, got=shown, next_step=step)
    else:
        names = f"{agent.ref.id}: its adapter_config.json names {shown}"
        told.warnings.append(f"{names}; it is applied to {base.ref.id}")


def _adapted(
    name: str, pair: Mapping[str, StoredTensor], weight: StoredTensor, config: AdapterConfig
) -> AdaptedTensor | str:
    """W + s·B·A, or what does not fit."""
    a, b = pair["A"], pair["B"]
    embedding = _of_embedding(a, b)
    shapes = f"{name}: A {dims(a.entry.shape)}, B {dims(b.entry.shape)}, W {dims(weight.entry.shape)}"
    if len(a.entry.shape) != 2 or len(b.entry.shape) != 2 or a.entry.shape[0] != b.entry.shape[1]:
        return shapes
    if any(t.entry.dtype not in FLOAT_DTYPES for t in (a, b, weight)):
        return f"{name}: A {a.entry.dtype}, B {b.entry.dtype}, W {weight.entry.dtype}"
    module = name.removesuffix(".weight")
    rank = a.entry.shape[0]
    if rank != config.rank_of(module):
        return f"{name}: rank {rank}, where adapter_config.json says {config.rank_of(module)}"
    plain = (b.entry.shape[0], a.entry.shape[1])
    if weight.entry.shape not in (plain, plain[::-1]) or (embedding and weight.entry.shape != plain[::-1]):
        return shapes
    # a shape that is not square tells how W is stored, whatever the config says
    square = plain[0] == plain[1]
    transposed = embedding or (config.fan_in_fan_out if square else weight.entry.shape != plain)
    return AdaptedTensor.of(weight, a, b, config.scale_of(module), transposed=transposed)


def _either_way(base: Model, adapted: Mapping[str, AdaptedTensor], config: AdapterConfig) -> list[str]:
    """The square tensors whose orientation is unknown, since others contradict fan_in_fan_out.

    PEFT sets it anew at each layer that it adapts, so that it is right for the last one alone."""
    linear = {n: t for n, t in adapted.items() if not _of_embedding(t.a, t.b)}
    square = [n for n, t in linear.items() if t.entry.shape[0] == t.entry.shape[1]]
    if all(t.transposed == config.fan_in_fan_out for t in linear.values()):
        others = _orientations(base) if square else {}
        square = [n for n in square if (not config.fan_in_fan_out) in others.get(_stack(n), ())]
    return square


def _orientations(base: Model) -> dict[str, set[bool]]:
    """Per stack of layers, whether its matrices are stored [in, out], as far as biases tell, which have `out`."""
    found: dict[str, set[bool]] = {}
    for name, tensor in base.tensors.items():
        module = name.removesuffix(".weight")
        bias, shape = base.tensors.get(f"{module}.bias"), tensor.entry.shape
        if module == name or bias is None or len(shape) != 2 or shape[0] == shape[1]:
            continue
        if bias.entry.shape in (shape[:1], shape[1:]):
            found.setdefault(_stack(name), set()).add(bias.entry.shape == shape[1:])
    return found


def _stack(name: str) -> str:
    """The name up to the number of its layer; layers of one stack are of one kind."""
    return _NUMBER.split(name, maxsplit=1)[0]

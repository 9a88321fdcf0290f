"""Which tensors of two models are the same one: heads that are tied to an embedding, and names with another prefix.

**Tied heads** are one tensor, merged and counted once, however many models happen to store it twice. Where config.json
ties the head to the embedding, a checkpoint may store the head as a copy or leave it out; both load to the same model.
So models are compared by a view of their tensors without this difference (the reader refuses a copy of other values):

    base tied                head left out of every view; an agent with a head of its own cannot be merged
    base untied, agent tied  the agent's embedding is what it uses as a head, and stands in for it

A head of another shape than the embedding is tied to nothing, whatever config.json says (CSM's). Nor is one that a base
stores where its `text_config` alone says so: some classes do not listen to it (Voxtral's, Qwen2-Audio's).
When `tie_word_embeddings` is absent, a class's default applies, which config.json does not show; then a model
that stores no head must be tied, and an agent ties as its base does.

**Encoders and decoders** with a table in common call it `shared`, and some checkpoints store it again for each. Other
heads and their biases have other names (BERT's, Whisper's, Bloom's), and a row for each token. Where one model has no
such copy, its class ties it, and the others' copies are left out. Where all have it, headers do not tell whether it is
a copy (Pop2Piano's config says so, falsely): it is merged with the same random draws, which keep it one.

**Prefixes** tell the same model, saved with or without a wrapper around it:

    model.            the bare model without its head
    transformer.      the same of GPT-2's and Bloom's, which the Hub has without it
    base_model.model. PEFT's wrapper
    language_model.   the language model inside one that also sees
    module.           data-parallel training
    _orig_mod.        torch.compile

torch.compile, FSDP and activation checkpointing also wrap modules within a model; their names are taken out wherever
they stand, where that alone makes the names equal. A prefix is taken off or put on only if that alone makes the names
equal to the base's, and no other prefix does. So are names that older versions of transformers and torch gave:
LayerNorm.gamma and beta, weight_g and weight_v. Models that see have other names in their files than in transformers'
classes since 4.52 (`model.language_model.`), by which adapters and some trainers save them: parts are told by the rest.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hubmerge.recipe.ignore import Ignored
from hubmerge.sources.base import Model, Views

# ends of names with a dot before each
_HEADS = (".lm_head.weight", ".embed_out.weight")
_EMBEDDINGS = (".embed_tokens.weight", ".wte.weight", ".embed_in.weight")
_WITH_HEAD = re.compile("LM|ForConditionalGeneration|BertForPreTraining")  # in the name of a class
IN_A_LAYER = re.compile(r"\.\d+\.", re.ASCII)

# old ends of names, and what transformers takes them for
_AGES = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    ".weight_g": ".parametrizations.weight.original0",
    ".weight_v": ".parametrizations.weight.original1",
}
# names of wrappers around modules, of torch.compile, FSDP and activation checkpointing
WRAPPERS = re.compile(r"^(?:_orig_mod\.)?module\.|(?<![^.])_(?:orig_mod|(?:fsdp|checkpoint)_wrapped_module)\.")
# where models that see have their parts, in files and in transformers' classes
_PART = re.compile(r"^(?:model\.language_model|language_model\.model|language_model|model)\.")
PREFIXES = ("model.", "transformer.", "base_model.model.", "language_model.", "module.", "_orig_mod.")


def untie(views: Views, ignored: Ignored) -> None:
    """Let a tied head, or another copy of a table, stand or be missing in all models alike.

    Agents have no tensors of names that are ignored, and need none."""
    before = _only(views.base.tensors, _EMBEDDINGS)
    _drop_copies(views, ignored)
    head = next((h for m in views.models if (h := _only(m.tensors, _HEADS))), None)
    embedding = _only(views.base.tensors, _EMBEDDINGS)
    # a base that has several: headers do not tell which one its head is
    if embedding == before and head is not None and embedding is not None:
        _make_heads_alike(views, head, embedding, ignored)


def _drop_copies(views: Views, ignored: Ignored) -> None:
    """Leave out the copies of a table that some models store and others do not."""
    for source, names in list(_perhaps_one(views.models)):
        for copy in names:
            held = [m.ref.id for m in views.models if copy in m.tensors]
            if source is None or ignored(source) or copy == source or (is_head(copy) and is_embedding(source)):
                continue  # what a head beside a known embedding is, is asked below
            if 0 < len(held) < len(views.models) and _of_one_shape(views.models, copy, source):
                _store_once(views, copy, source, ignored)
                said = f"the stored {copy} is tied to {source}; it is merged as the latter"
                views.warnings += [f"{name}: {said}" for name in held]


def _perhaps_one(models: Sequence[Model]) -> Iterator[tuple[str | None, list[str]]]:
    """Names that may be one table, and the one that others are copies of; None where that cannot be told."""
    base = models[0]
    untied = any(_says_tied(m) is False for m in models)  # which T5's classes take to be about the head
    # tables, and biases of a head
    tables, biases = (list(dict.fromkeys(n for m in models for n in _rows_per_token(m, d))) for d in (2, 1))
    if shared := _only(base.tensors, (".shared.weight",)):
        body = shared.removesuffix("shared.weight")
        names = [shared, f"{body}encoder.embed_tokens.weight", f"{body}decoder.embed_tokens.weight"]
        if not untied or "T5" in str(base.config.get("architectures")):
            yield shared, names if untied else list(dict.fromkeys([*names, "lm_head.weight", *tables]))
    elif not untied:
        for names in (tables, biases):
            own = [n for n in names if n in base.tensors]
            if any(map(is_embedding, own)):
                own = [n for n in own if not is_head(n)]
            if len(own) > 1:
                own = [n for n in own if all(n in m.tensors for m in models)]
            yield own[0] if len(own) == 1 else None, names


def drawn_as(base: Model) -> Mapping[str, str]:
    """Whose random draws a tensor of the base takes, where that is another's: copies of one table stay copies.

    A stored head beside an embedding is its own where no config ties it."""
    silent, found = _says_tied(base) is None, {}
    for _, group in _perhaps_one([base]):
        first, *others = sorted((n for n in group if n in base.tensors), key=is_head) or [""]
        for name in others:
            own = silent and is_head(name) and is_embedding(first)
            if not own and _of_one_shape([base], name, first):
                found[name] = first
    return found


def _store_once(views: Views, copy: str, source: str, ignored: Ignored) -> None:
    """Leave `copy` out, which the reader compares with `source`, or takes for it where that is missing."""

    def once(model: Model) -> Model:
        tensors = dict(model.tensors)
        again, own = tensors.pop(copy, None), tensors.get(source)
        if again is not None and own is not None:
            tensors[source] = replace(own, copy=replace(again, copy=own.copy))
        elif again is not None and not ignored(source):
            tensors[source] = again
        return replace(model, tensors=MappingProxyType(tensors))

    views.base, *views.agents = map(once, views.models)


def _make_heads_alike(views: Views, head: str, embedding: str, ignored: Ignored) -> None:
    base = views.base
    says = _says_tied(base, inside=head not in base.tensors)
    if head not in base.tensors if says is None else says and _of_one_shape(views.models, head, embedding):
        for model in views.models:
            if head in model.tensors and model is not base and _says_tied(model) is False:
                views.refuse(
                    "an output head of its own, where the base ties it to the embedding",
                    where=str(model.ref),
                    expected=f"no {head}, or tie_word_embeddings: true",
                    got="tie_word_embeddings: false",
                    next_step=f"Remove {model.ref.id}, choose the base it was trained from, or untie a copy of this "
                    f"one: store its {embedding} as {head}, too, and tie_word_embeddings: false in its config.json.",
                )
            elif head in model.tensors:
                said = f"the stored {head} is tied to {embedding}; it is merged once, as the latter"
                views.warnings.append(f"{model.ref.id}: {said}")
        _store_once(views, head, embedding, ignored)
        return
    if head not in base.tensors or ignored(head):
        return  # an agent's head is a tensor too many, which the comparison tells, or the base's
    for k, agent in enumerate(views.agents):
        if head not in agent.tensors and embedding in agent.tensors and _says_tied(agent) is not False:
            tensors = {**agent.tensors, head: agent.tensors[embedding]}
            views.agents[k] = replace(agent, tensors=MappingProxyType(tensors))
            views.warnings.append(
                f"{agent.ref.id}: {head} is tied to {embedding}, which is read in its place; the base has a head of "
                "its own, and so has the merge"
            )


def _of_one_shape(models: Sequence[Model], head: str, embedding: str) -> bool:
    """Whether one tensor can be both embedding and head. Some classes declare ties and have a head of another shape."""
    return not any(
        head in m.tensors and embedding in m.tensors and m.tensors[head].entry.shape != m.tensors[embedding].entry.shape
        for m in models
    )


def _says_tied(model: Model, *, inside: bool = True) -> bool | None:
    """`tie_word_embeddings` of a config, None where it does not say; `inside`: or of its language model."""
    for table in language_tables(model) if inside else (model.config,):
        if isinstance(table.get("tie_word_embeddings"), bool):
            return bool(table["tie_word_embeddings"])
    return None


def language_tables(model: Model) -> list[Mapping[str, Any]]:
    """What a config says of the language model: itself, and the table of one inside."""
    return [table for table in (model.config, model.config.get("text_config")) if isinstance(table, Mapping)]


def is_head(name: str) -> bool:
    """Whether a tensor of this name turns hidden states into tokens."""
    return f".{name}".endswith(_HEADS)


def is_embedding(name: str) -> bool:
    """Whether a tensor of this name has a row per token."""
    return f".{name}".endswith(_EMBEDDINGS)


def tied_to_head(base: Model, names: Iterable[str]) -> list[str]:
    """Those of `names` that the base uses both as embedding and as output head, as far as headers and config tell."""
    says = _says_tied(base)
    if says is False or (says is None and any(map(is_head, base.tensors))):
        return []
    classes = base.config.get("architectures")
    with_head = isinstance(classes, list) and any(isinstance(c, str) and _WITH_HEAD.search(c) for c in classes)
    # where no known name tells the embedding
    other = _rows_per_token(base) if with_head and not any(map(is_embedding, base.tensors)) else ()
    if says is None and len(other) > 1:
        other = ()  # one of them may be a head of its own
    return [n for n in names if is_head(n) or is_embedding(n) or n in other]


def _rows_per_token(model: Model, dimensions: int = 2) -> tuple[str, ...]:
    """The tensors of so many dimensions with a row per token."""
    sizes = [table.get("vocab_size") for table in language_tables(model)]
    shapes = {n: t.entry.shape for n, t in model.tensors.items() if len(t.entry.shape) == dimensions}
    return tuple(n for n, shape in shapes.items() if shape[0] in sizes and not IN_A_LAYER.search(n))


def _only(tensors: Iterable[str], ends: tuple[str, ...]) -> str | None:
    """The one tensor with one of these last names; None when there is none or more than one."""
    found = [n for n in tensors if f".{n}".endswith(ends)]
    return found[0] if len(found) == 1 else None


def aligned(base: Model, agent: Model, ignored: Ignored, told: Views, *, whole: bool) -> Model:
    """The agent under the base's names; unchanged where no single prefix explains the difference, or, for an agent
    that is `whole`, most of it: what was left out of another would be looked for in its copies.

    Names in `ignored` may be there or not.
    """

    def bodies(names: Collection[str]) -> set[str]:
        # heads may be stored or not, as they are tied or not, which is another module's business
        return {name for name in names if not is_head(name) and not ignored(name)}

    wanted = bodies(base.tensors)

    def nearly(names: Collection[str]) -> bool:
        """Some are missing or too many, which is refused later, by the base's names."""
        found = bodies(names)
        return (found <= wanted or found >= wanted) and 2 * len(found ^ wanted) < len(wanted)

    exact = renaming(agent.tensors, base.tensors, lambda names: bodies(names) == wanted)
    found = exact or (renaming(agent.tensors, base.tensors, nearly) if whole else None)
    if found is None:
        return agent
    words, names = found
    told.warnings.append(f"{agent.ref.id}: {words}")
    return replace(agent, tensors=MappingProxyType({names[name]: tensor for name, tensor in agent.tensors.items()}))


def renaming(
    names: Collection[str], base: Collection[str], fits: Callable[[Collection[str]], bool]
) -> tuple[str, Mapping[str, str]] | None:
    """A note on the change, and stored name → the base's name; None where no change is needed, or no single prefix
    explains the difference."""
    if fits(names):
        return None
    aged = {name: name if name in base else _of_another_age(name) for name in names}
    aging = "names of tensors are those of another version of transformers or torch than the base's"
    candidates = [(aging, aged)]
    for prefix in PREFIXES:
        off = {name: name.removeprefix(prefix) for name in names}
        on = {name: name if name in base else prefix + name for name in names}
        those = "its tensors' names"
        if not all(n.startswith(prefix) for n in names):
            those = "those of its tensors that have it"
        for words, mapping in ((f"taken off {those}", off), ("put before its tensors' names", on)):
            candidates.append((f"the prefix {prefix!r} is {words} to match the base", mapping))

    def fitting(those: list[tuple[str, dict[str, str]]]) -> list[tuple[str, dict[str, str]]]:
        return [(w, m) for w, m in those if len(set(m.values())) == len(m) and fits(m.values())]

    words = "names of wrappers, such as '_orig_mod.', are taken out of its tensors' names to match the base"
    found = fitting(candidates) or fitting([(words, {name: WRAPPERS.sub("", name) for name in names})])
    sees = any("language_model." in n or not (n.startswith("model.") or is_head(n)) for n in base)
    if not found and sees and len(parts := {_PART.sub("", name): name for name in base}) == len(base):
        found = fitting([(aging, {name: parts.get(_PART.sub("", name), name) for name in names})])
    return found[0] if len(found) == 1 else None


def _of_another_age(name: str) -> str:
    for pair in _AGES.items():
        for one, other in (pair, pair[::-1]):
            if name.endswith(one):
                return name.removesuffix(one) + other
    return name

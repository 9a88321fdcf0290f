"""Matches tensor names that differ by a prefix: the same model, saved with or without a wrapper around it.

    model.            the bare model without its head
    base_model.model. PEFT's wrapper
    language_model.   the language model inside one that also sees
    module.           data-parallel training
    _orig_mod.        torch.compile

A prefix is taken off or put on only if that alone makes the names equal to the base's, and no other prefix does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from hubmerge.recipe.ignore import Ignored
from hubmerge.sources.base import Model
from hubmerge.sources.fp8 import Seen
from hubmerge.sources.tying import is_head

PREFIXES = ("model.", "base_model.model.", "language_model.", "module.", "_orig_mod.")


def aligned(base: Model, agent: Model, ignored: Ignored = lambda name: False) -> Seen:
    """The agent under the base's names; unchanged where no single prefix explains the difference.

    Names in `ignored` may be there or not.
    """

    def bodies(names: Collection[str]) -> set[str]:
        # heads may be stored or not, as they are tied or not, which is another module's business
        return {name for name in names if not is_head(name) and not ignored(name)}

    wanted = bodies(base.tensors)
    found = renaming(agent.tensors, base.tensors, lambda names: bodies(names) == wanted)
    if found is None:
        return Seen(agent)
    words, names = found
    tensors = MappingProxyType({names[name]: tensor for name, tensor in agent.tensors.items()})
    return Seen(replace(agent, tensors=tensors), (), (f"{agent.ref.id}: {words}",))


def renaming(
    names: Collection[str], base: Collection[str], fits: Callable[[Collection[str]], bool]
) -> tuple[str, Mapping[str, str]] | None:
    """A note on the change, and stored name → the base's name; None where no change is needed, or no single prefix
    explains the difference."""
    if fits(names):
        return None
    found = []
    for prefix in PREFIXES:
        off = {name: name.removeprefix(prefix) for name in names}
        on = {name: name if name in base else prefix + name for name in names}
        for words, mapping in ((f"taken off {_those(names, prefix)}", off), ("put before its tensors' names", on)):
            if len(set(mapping.values())) == len(mapping) and fits(mapping.values()):
                found.append((f"the prefix {prefix!r} is {words} to match the base", mapping))
    return found[0] if len(found) == 1 else None


def _those(names: Collection[str], prefix: str) -> str:
    return "its tensors' names" if all(n.startswith(prefix) for n in names) else "those of its tensors that have it"

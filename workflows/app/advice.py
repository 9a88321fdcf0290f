"""What the merge page knows of the chosen models before it opens them: a line about each, and what to change.

It comes from cards and searches alone, so it also helps where the models do not fit: whether an agent was trained from
the base, whether the two were swapped, what a misspelled name may mean, and which agents or which base go along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from difflib import get_close_matches
from urllib.parse import urlencode

from markupsafe import Markup

from hubmerge.errors import HubmergeError, SourceNotFoundError
from hubmerge.hub.errors import UNREADABLE
from workflows.app.format import bytes_text, el, repo_link
from workflows.app.service import ModelFacts, Service, Visitor

SUGGESTED = 8  # agents that are offered for a base
_THREADS = 8
_CLOSE = 0.72  # of difflib's ratio: one slip or two in a name


@dataclass(frozen=True)
class Choice:
    """A base and agents that could be chosen, and the words of the button that does it."""

    base: str
    agents: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class Advice:
    chosen: Markup | str  # a line about each model
    why: str  # the reason for `choice`
    choice: Choice | None
    suggested: tuple[str, ...]  # agents that were trained from the base, most downloaded first
    misspelled: bool = False


def advise(base: str, agents: Sequence[str], service: Service, visitor: Visitor | None) -> Advice:
    """Look at the chosen models; a question that the Hub does not answer leaves its part out."""
    names = [name for name in (base, *agents) if name]
    found = _about(names, service, visitor)
    facts = {name: known for name, known in found.items() if isinstance(known, ModelFacts)}
    spelled = {name: right for name, error in found.items() if (right := _spelling(name, error, service, visitor))}
    why, choice = _corrected(base, agents, spelled) if spelled else _rearranged(base, tuple(agents), facts)
    lines = [_line(name, name == base and not i, base, found[name], service) for i, name in enumerate(names)]
    chosen = el("ul", *lines, cls="hm-chosen") if lines else ""
    suggested = _finetunes(facts[base].id, service, visitor) if base in facts else ()
    return Advice(chosen, why, choice, suggested, bool(spelled))


def _about(
    names: Sequence[str], service: Service, visitor: Visitor | None
) -> Mapping[str, ModelFacts | HubmergeError | None]:
    def ask(name: str) -> ModelFacts | HubmergeError | None:
        try:
            return service.about(name, visitor)
        except HubmergeError as error:
            return error
        except ValueError:
            return None  # no name of a model, which the inspection says

    with ThreadPoolExecutor(_THREADS) as pool:
        # each thread asks in a copy of this context, which says until when the Hub may be asked
        asked = {name: pool.submit(copy_context().run, ask, name) for name in dict.fromkeys(names)}
        return {name: answer.result() for name, answer in asked.items()}


def _bare(name: str) -> str:
    return name.partition("@")[0]


def _corrected(base: str, agents: Sequence[str], spelled: Mapping[str, str]) -> tuple[str, Choice]:
    said = " ".join(f"There is no {name} that you may read. Did you mean {right}?" for name, right in spelled.items())
    names = tuple(dict.fromkeys(spelled.get(name, name) for name in agents))
    return said, Choice(spelled.get(base, base), names, "Correct the spelling")


def _rearranged(base: str, agents: tuple[str, ...], facts: Mapping[str, ModelFacts]) -> tuple[str, Choice | None]:
    """The choice that the cards suggest: base and agent swapped, or the base that the agents name."""
    if base in facts:
        # the base's own card says that it was trained from what stands among the agents
        for agent in agents:
            if agent in facts and facts[agent].id in facts[base].trained_from:
                swapped = tuple(base if name == agent else name for name in agents)
                said = f"Base and agent look swapped: {_bare(base)} was trained from {_bare(agent)}, says its card."
                return said, Choice(agent, swapped, f"Swap them: {_bare(agent)} is the base")
    named = [facts[agent].trained_from for agent in agents if agent in facts and len(facts[agent].trained_from) == 1]
    if named and all(own == named[0] for own in named) and named[0][0] not in agents:
        (right,) = named[0]
        theirs = "The agents' cards name" if len(named) > 1 else "The agent's card names"
        if not base:
            return f"{theirs} {right} as the base.", Choice(right, agents, f"Take {right} as the base")
        if base in facts and facts[base].id != right and len(named) == len(agents):
            return (
                f"{theirs} {right} as the base, not {_bare(base)}.",
                Choice(right, agents, f"Take {right} as the base"),
            )
    return "", None


def _spelling(
    name: str, error: ModelFacts | HubmergeError | None, service: Service, visitor: Visitor | None
) -> str | None:
    """The existing model whose name is closest to one that the Hub does not know; None where none is close."""
    if not isinstance(error, SourceNotFoundError) or error.what != UNREADABLE:
        return None
    bare = _bare(name)
    owner, _, own = bare.rpartition("/")
    known: dict[str, None] = {}
    try:
        for text in dict.fromkeys((own, own[: max(3, len(own) // 2)], owner)):
            if text:
                known |= dict.fromkeys(summary.id for summary in service.search(text, visitor, 20))
            if close := get_close_matches(bare, known, n=1, cutoff=_CLOSE):
                return close[0] + name[len(bare) :]
    except HubmergeError:
        pass  # a help only
    return None


def _finetunes(base: str, service: Service, visitor: Visitor | None) -> tuple[str, ...]:
    try:
        found = service.search("", visitor, SUGGESTED, (f"base_model:finetune:{base}",))
    except HubmergeError:
        return ()
    return tuple(summary.id for summary in found)


def _line(name: str, is_base: bool, base: str, known: ModelFacts | HubmergeError | None, service: Service) -> Markup:
    role = el("span", "Base" if is_base else "Agent", cls="hm-role")
    if not isinstance(known, ModelFacts):
        return el("li", role, el("span", name, cls="hm-id"), _chip("not found or not readable", "bad"))
    size = bytes_text(known.weight_bytes) if known.weight_bytes else "no weights found"
    chips = [_chip(size), _chip(known.license or "license not stated", "" if known.license else "warn")]
    if known.closed:
        chips.append(_chip("gated or private", "warn"))
    if not is_base and base:
        chips.append(_trained(known, _bare(base)))
        query = urlencode({"base": base, "agent": name}, safe="/@")
        chips.append(el("a", "What did this agent change?", href=f"diff?{query}", cls="hm-ask"))
    return el("li", role, repo_link(service.endpoint, known.id), *chips)


def _trained(agent: ModelFacts, base: str) -> Markup:
    if base in agent.trained_from:
        return _chip(f"trained from {base}: yes ✓", "good")
    if agent.trained_from:
        return _chip(f"trained from {base}: no ✗, its card names {', '.join(agent.trained_from[:3])}", "bad")
    return _chip(f"trained from {base}: unknown, its card does not say")


def _chip(text: str, kind: str = "") -> Markup:
    return el("span", text, cls=f"hm-chip hm-chip-{kind}" if kind else "hm-chip")

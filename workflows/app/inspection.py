"""What the merge page says of the form's present content: whether it can be merged, its cost, and what to change.

The advice comes from cards and searches alone, so it also helps where the models do not fit: whether an agent was
trained from the base, whether the two were swapped, what a misspelled name may mean, and which agents or which base go
along.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import partial
from textwrap import shorten
from threading import Semaphore
from typing import Any

from markupsafe import Markup

from hubmerge.errors import HubmergeError, SourceNotFoundError
from hubmerge.hub.errors import UNREADABLE
from hubmerge.output.plan_words import plan_summary
from hubmerge.plan.licenses import strictest
from hubmerge.recipe.recipe import MAX_AGENTS
from hubmerge.text.markdown import size
from workflows.app.format import bytes_text, diff_href, duration_text, el, join, repo_link
from workflows.app.lanes import in_thread
from workflows.app.panels import access_offer, plan_panel, problems_panel
from workflows.app.submission import checked_recipe, suggested_name
from workflows.service import Service
from workflows.values import ModelFacts, Visitor

SUGGESTED = 8  # agents that are offered for a base
_THREADS = 8  # that ask at once
_CLOSE = 0.72  # of difflib's ratio: one slip or two in a name
_ALIKE = 0.8  # of the part behind the owner

_REASON_WIDTH = 60  # two lines beside the button
EMPTY = el(
    "div",
    el("p", "Choose a base and the agents that were trained from it."),
    el("p", "What you choose is checked here by itself; nothing is downloaded for it.", cls="hm-dim"),
    cls="hm-empty",
)


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
    closed: bool = False  # a model is gated or private


_NO_ADVICE = Advice("", "", None, ())


@dataclass(frozen=True)
class Inspection:
    verdict: Markup  # in one line
    outcome: Markup  # all of it
    advice: Advice
    suggested_name: str  # for the result; empty: none yet
    license_open: bool  # the parents leave the license to the visitor
    fits: bool = False  # the models are checked and can be merged
    refused: bool = False  # this form cannot be merged as it is; not so where the same question may pass later


def verdict(kind: str, title: str, *facts: str) -> Markup:
    """One line for the place that is always in sight; `kind`: wait, good or bad."""
    mark = {"good": "✓ ", "bad": "✗ "}.get(kind, "")
    more = el("span", " · ".join(facts), cls="hm-dim") if facts else None
    return el("p", el("strong", mark + title, cls=f"hm-verdict-{kind}"), more, cls="hm-verdict", role="status")


def inspect_form(
    recipe: Mapping[str, Any] | HubmergeError,
    base: str,
    agents: tuple[str, ...],
    license_choice: str | None,
    service: Service,
    visitor: Visitor | None,
) -> Inspection:
    """Look at the models that are chosen so far and, once a merge is complete, at the merge.

    `recipe`: as the form has it, or why it has none.
    """
    if not base and not agents:
        return Inspection(verdict("wait", "Choose models to begin"), EMPTY, _NO_ADVICE, "", False, refused=True)
    advice = advise(base, agents, service, visitor) if len(agents) <= MAX_AGENTS else _NO_ADVICE
    try:
        if isinstance(recipe, HubmergeError):
            raise recipe
        if not base or len(agents) < 2:
            missing = "Choose the base" if not base else "Choose another agent" if agents else "Choose the agents"
            told = verdict("wait", missing)
            return Inspection(told, join(advice.chosen), advice, "", bool(license_choice), refused=True)
        plan = service.inspect(checked_recipe(recipe).to_dict(), visitor, license_choice)
    except HubmergeError as error:
        said = "Not now" if error.retryable else "This cannot be merged yet"
        panel = problems_panel(error, of_form=True, signed_in=visitor is not None)
        if not (advice.choice and advice.misspelled):  # a private model is no guess where a spelling is close
            panel = join(panel, access_offer(error, visitor, service.endpoint))
        outcome = join(panel, advice.chosen)
        told = verdict("bad", said, _reason(error))
        # another method has another name at once, also before its data is complete
        name = "" if isinstance(recipe, HubmergeError) else suggested_name(_bare(base), str(recipe.get("method")))
        return Inspection(told, outcome, advice, name, bool(license_choice), refused=not error.retryable)
    facts = plan_summary(plan)
    parents = strictest([m.license for m in plan.models])
    license = license_choice or ("license to be chosen" if parents.needs_choice else parents.id)
    short = (size(plan.output_bytes), f"about {duration_text(max(1, facts['predicted_seconds']))}", license)
    panel = join(advice.chosen, plan_panel(plan, service.endpoint, license_choice))
    return Inspection(
        verdict("good", "These models fit", *short),
        panel,
        advice,
        suggested_name(plan.base.ref.label, plan.recipe.method),
        parents.needs_choice or bool(license_choice),
        fits=True,
    )


def _reason(error: HubmergeError) -> str:
    """Why a merge cannot be, as short as the place beside its start."""
    others = len(error.problems) - 1
    what = error.problems[0].what.replace("`", "")
    if len(what) > _REASON_WIDTH:  # as far as it makes sense
        what = what[:_REASON_WIDTH].rpartition(", ")[0] or shorten(what, _REASON_WIDTH, placeholder=" …")
    said = f"{what[:1].upper()}{what[1:]}"
    return f"{said}, and {others} more" if others else said


def advise(base: str, agents: Sequence[str], service: Service, visitor: Visitor | None) -> Advice:
    """Look at the chosen models; a question that the Hub does not answer leaves its part out."""
    names = [name for name in (base, *agents) if name]
    found = _about(names, service, visitor)
    facts = {name: known for name, known in found.items() if isinstance(known, ModelFacts)}
    spelled = {name: right for name, error in found.items() if (right := _spelling(name, error, service, visitor))}
    spelled = {name: right for name, right in spelled.items() if right not in names}
    why, choice = _rearranged(base, tuple(agents), facts)
    if spelled:
        why = " ".join(
            f"There is no {name} that you may read. Did you mean {right}?" for name, right in spelled.items()
        )
        right_agents = tuple(dict.fromkeys(spelled.get(name, name) for name in agents))
        choice = Choice(spelled.get(base, base), right_agents, "Correct the spelling")
    lines = [_line(name, name == base and not i, base, found[name], service) for i, name in enumerate(names)]
    chosen = el("ul", *lines, cls="hm-chosen") if lines else ""
    suggested: tuple[str, ...] = ()
    if base in facts:
        with suppress(HubmergeError):
            found_agents = service.search("", visitor, SUGGESTED, (f"base_model:finetune:{facts[base].id}",))
            suggested = tuple(summary.id for summary in found_agents)
    return Advice(chosen, why, choice, suggested, bool(spelled), any(known.closed for known in facts.values()))


def _about(
    names: Sequence[str], service: Service, visitor: Visitor | None
) -> Mapping[str, ModelFacts | HubmergeError | None]:
    at_once = Semaphore(_THREADS)

    def ask(name: str) -> ModelFacts | HubmergeError | None:
        try:
            with at_once:
                return service.about(name, visitor)
        except HubmergeError as error:
            return error
        except ValueError:
            return None  # no name of a model, which the inspection says

    # each thread asks in a copy of this context, which says until when the Hub may be asked
    asked = {name: in_thread(partial(copy_context().run, ask, name)) for name in dict.fromkeys(names)}
    return {name: answer.result() for name, answer in asked.items()}


def _bare(name: str) -> str:
    return name.partition("@")[0]


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
        choice = Choice(right, agents, f"Take {right} as the base")
        if not base:
            return f"{theirs} {right} as the base.", choice
        if (facts[base].id if base in facts else _bare(base)) != right and len(named) == len(agents):
            return f"{theirs} {right} as the base, not {_bare(base)}.", choice
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
    with suppress(HubmergeError):  # a help only
        for text in dict.fromkeys((own, own[: max(3, len(own) // 2)], owner)):
            if text:
                known |= dict.fromkeys(summary.id for summary in service.search(text, visitor, 20))
            # owner and usual endings make any two names alike, so what stands behind the owner counts by itself
            alike = {n: SequenceMatcher(None, own.lower(), n.rpartition("/")[2].lower()).ratio() for n in known}
            near = [n for n, ratio in alike.items() if ratio >= _ALIKE]
            if close := get_close_matches(bare, near, n=1, cutoff=_CLOSE):
                return close[0] + name[len(bare) :]
    return None


def _line(name: str, is_base: bool, base: str, known: ModelFacts | HubmergeError | None, service: Service) -> Markup:
    role = el("span", "Base" if is_base else "Agent", cls="hm-role")
    if not isinstance(known, ModelFacts):
        return el("li", role, el("span", name, cls="hm-id"), _chip("not found or not readable", "bad"))
    size = bytes_text(known.weight_bytes) if known.weight_bytes else "no weights found"
    chips = [_chip(size), _chip(known.license or "license not stated", "" if known.license else "warn")]
    if known.closed:
        chips.append(_chip("gated or private", "warn"))
    if not is_base and base:
        words, kind = "unknown, its card does not say", ""
        if _bare(base) in known.trained_from:
            words, kind = "yes ✓", "good"
        elif known.trained_from:
            words, kind = f"no ✗, its card names {', '.join(known.trained_from[:3])}", "bad"
        chips.append(_chip(f"trained from {_bare(base)}: {words}", kind))
        chips.append(el("a", "What did this agent change?", href=diff_href(base, name), cls="hm-ask"))
    return el("li", role, repo_link(service.endpoint, known.id), *chips)


def _chip(text: str, kind: str = "") -> Markup:
    return el("span", text, cls=f"hm-chip hm-chip-{kind}" if kind else "hm-chip")

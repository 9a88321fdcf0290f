"""What the merge page says of the form's present content: whether it can be merged, its cost, and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from hubmerge.errors import HubmergeError
from hubmerge.markdown import size
from hubmerge.output.plan_words import plan_summary
from hubmerge.plan.licenses import strictest
from hubmerge.plan.plan import Plan
from workflows.app.advice import Advice, advise
from workflows.app.format import duration_text, el, join
from workflows.app.panels import access_offer, plan_panel, problems_panel
from workflows.app.service import Service, Visitor
from workflows.app.submission import checked_recipe

_REASON_WIDTH = 60  # two lines beside the button
EMPTY = el(
    "div",
    el("p", "Choose a base and the agents that were trained from it."),
    el("p", "What you choose is checked here by itself; nothing is downloaded for it.", cls="hm-dim"),
    cls="hm-empty",
)


@dataclass(frozen=True)
class Inspection:
    verdict: Markup  # in one line
    outcome: Markup  # all of it
    advice: Advice
    suggested_name: str  # for the result; empty: none yet
    license_open: bool  # the parents leave the license to the visitor
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
        return Inspection(verdict("wait", "Choose models to begin"), EMPTY, _NO_ADVICE, "", False)
    advice = advise(base, agents, service, visitor)
    try:
        if isinstance(recipe, HubmergeError):
            raise recipe
        if not base or len(agents) < 2:
            missing = "Choose the base" if not base else "Choose another agent" if agents else "Choose the agents"
            return Inspection(verdict("wait", missing), join(advice.chosen), advice, "", bool(license_choice))
        plan = service.inspect(checked_recipe(recipe).to_dict(), visitor, license_choice)
    except HubmergeError as error:
        said = "Not now" if error.retryable else "This cannot be merged yet"
        panel = problems_panel(error)
        if not (advice.choice and advice.misspelled):  # a private model is no guess where a spelling is close
            panel = join(panel, access_offer(error, visitor, service.endpoint))
        outcome = join(panel, advice.chosen)
        told = verdict("bad", said, _reason(error))
        return Inspection(told, outcome, advice, "", bool(license_choice), not error.retryable)
    facts = plan_summary(plan)
    parents = strictest([m.license for m in plan.models])
    short = [size(plan.output_bytes), f"about {duration_text(max(1, facts['predicted_seconds']))}"]
    short.append(
        "license to be chosen" if parents.needs_choice and not license_choice else license_choice or parents.id
    )
    panel = join(advice.chosen, plan_panel(plan, service.endpoint, license_choice), recommended(plan))
    return Inspection(
        verdict("good", "These models fit", *short),
        panel,
        advice,
        f"{plan.base.ref.label}-{plan.recipe.method.replace('_', '-')}"[:96],
        parents.needs_choice or bool(license_choice),
    )


def _reason(error: HubmergeError) -> str:
    """Why a merge cannot be, as short as the place beside its start."""
    others = len(error.problems) - 1
    said = error.problems[0].what[:_REASON_WIDTH]
    return f"{said}, and {others} more" if others else said


def recommended(plan: Plan) -> Markup | None:
    """The method that is recommended for these agents, and why; it is known without reading weights."""
    count, method = len(plan.agents), plan.recipe.method
    if count < 2 or method in ("ram_plus", "sar"):
        return None
    why = "It keeps what only one agent learned, which is most of what RL changes."
    if method == "linear":
        why = f"Plain averaging leaves 1/{count} of what only one of the {count} agents learned; RAM+ keeps all of it."
    return el("p", el("strong", "Recommended for agents trained with RL: RAM+. "), why, cls="hm-dim")


_NO_ADVICE = Advice("", "", None, ())

"""A look into a few layers, beside the inspection: what each agent changed, where they meet, and a method to take.

It waits for its button: a look reads some 8 MB from the Hub, and the page checks after every change.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from hubmerge.engine.preview import Preview
from hubmerge.methods import registry
from hubmerge.text.markdown import short_count
from workflows.app.format import bytes_text, el, join
from workflows.app.frame import AT_ONCE, PRIVATE, QUIET, html
from workflows.app.job_statistics import agents_table, share_bar
from workflows.app.lanes import ASKING, Lanes
from workflows.app.merge_form import MergeForm
from workflows.app.panels import notice, problems_panel
from workflows.app.session import for_visitor
from workflows.service import Service
from workflows.values import Visitor

_LOOKING = """(base, agents) => ['<p class="hm-dim" role="status">Reading a few megabytes of each model …</p>',
  [base, agents]]"""
_FORGOTTEN = '() => ["", {__type__: "update", visible: false}, "", null]'
# What came of a look about models that were replaced meanwhile, and of one that this has ended.
_STILL_SO = """(about, base, agents) => JSON.stringify(about) === JSON.stringify([base, agents])
  ? Array(3).fill({__type__: "update"}) : ["", {__type__: "update", visible: false}, ""]"""


@dataclass(frozen=True)
class Look:
    """The components; the inspection enables `button` where the models fit."""

    button: Any
    panel: Any
    take: Any  # the recommended method, where the form has another
    method: Any  # hidden: its name
    about: Any  # hidden: the base and the agents that were looked into


def build_look() -> Look:
    button = gr.Button("Look into a few layers", size="sm", interactive=False, elem_id="look")
    panel = html(name="preview")
    take = gr.Button("", size="sm", visible=False, elem_id="take")
    return Look(button, panel, take, gr.Textbox(value="", visible=False), gr.JSON(value=None, visible=False))


def wire_look(
    look: Look, form: MergeForm, chosen: Any, recipe: Callable[[Any], Any], service: Service, lanes: Lanes
) -> None:
    """`recipe` makes one, checked, from the values of `form.recipe_inputs`; HubmergeError where there is none.

    `chosen`: the event after which the models are other ones.
    """

    def looking(visitor: Visitor | None, *values: Any) -> list[Any]:
        wanted = recipe(values)
        found = service.preview(wanted.to_dict(), visitor)
        other = found.method in registry() and found.method != wanted.method
        words = f"Take {registry()[found.method].title}" if other else ""
        return [preview_panel(found), gr.update(value=words, visible=other), found.method]

    def taken(method: str) -> list[Any]:
        # what is no choice gradio would tell in a warning, of which Python keeps every text
        return [gr.update(value=method) if method in registry() else gr.skip(), gr.update(visible=False)]

    outputs = [look.panel, look.take, look.method]
    asked = lanes.asking(for_visitor(looking), lambda e: [problems_panel(e), gr.update(visible=False), ""])
    models = [form.base, form.agents]
    looked = look.button.click(None, models, [look.panel, look.about], js=_LOOKING, **AT_ONCE).then(
        asked, form.recipe_inputs, outputs, trigger_mode="multiple", **ASKING, **QUIET
    )
    looked.then(None, [look.about, *models], outputs, js=_STILL_SO, queue=False, **PRIVATE)
    look.take.click(taken, [look.method], [form.method, look.take], queue=False, **PRIVATE)
    # what was seen of other models says nothing; the script forgets it before the next click
    chosen(None, None, [*outputs, look.about], js=_FORGOTTEN, cancels=[looked], queue=False, **PRIVATE)


def preview_panel(found: Preview) -> Markup:
    """The recommendation with its reason, the bar of shares, what each agent changed, and how much was looked at."""
    method = registry().get(found.method)
    advice = notice("info", f"Recommended: {method.title}" if method else "No recommendation", el("p", found.reason))
    layers = ", ".join(str(depth + 1) for depth in found.layers)
    where = f"in layer{'s' * (len(found.layers) > 1)} {layers}" if layers else "in a few tensors"
    counted = short_count(round(found.statistics["elements"]))
    said = (
        f"Counted {where}: {counted} of {short_count(found.parameters)} parameters, "
        f"{bytes_text(found.bytes_read)} read. The merge counts all of them."
    )
    return join(
        advice,
        share_bar(found.statistics["shares"]),
        agents_table(found.statistics["agents"]),
        el("p", said, cls="hm-dim"),
    )

"""The tabs of a model's page that show its own files: what changed, how to reproduce it, and its card.

Report and card are a stranger's, so each value is looked up with care, and the card is read by the embedded Hub's
renderer, which keeps raw HTML as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote as shell
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from hubmerge.errors import HubmergeError
from hubmerge.hub.names import is_hub_id
from hubmerge.recipe.file import recipe_from_yaml
from hubmerge.recipe.recipe import Recipe
from localhub.card_html import card_html
from workflows.app.format import el, evaluate_href, join, link, number_of
from workflows.app.job_statistics import MOST_LAYERS, layers_figure, statistics_parts
from workflows.app.merge_address import address_of
from workflows.app.model_panels import use_it
from workflows.app.panels import notice, section
from workflows.app.service import Published

TABS = {"scores": "Scores", "changed": "What changed", "reproduce": "Reproduce", "card": "Card"}
MOST_AGENTS = 32  # drawn


def tab_links(model: str, sha: str | None, shown: str) -> Markup:
    """The tabs as links, since each has its own address."""
    at = f"&sha={quote(sha, safe='')}" if sha else ""
    address = f"model?model={quote(model, safe='/')}{at}"

    def tab(key: str, title: str) -> Markup:
        here = {"aria_current": "page"} if key == shown else {}
        return el("a", title, cls="hm-tab", href=address if key == "scores" else f"{address}&tab={key}", **here)

    return el("nav", *(tab(*pair) for pair in TABS.items()), cls="hm-tabs", aria_label="About this model")


def changed_tab(report: Mapping[str, Any]) -> Markup:
    """What each agent changed, where they meet, and how much of each layer."""
    statistics = _mapping(report.get("statistics"))
    total = _mapping(statistics.get("total"))
    if not number_of(total, "elements"):
        told = "It is told for merges that were made here: their hubmerge.json holds what was counted."
        return notice("info", "What changed is not known", el("p", told))
    return join(
        section("What the agents changed", *statistics_parts(total)), _layers(_mapping(statistics.get("layers")))
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _layers(layers: Mapping[str, Any]) -> Markup | None:
    """The shares of each layer that each agent changed, as a stranger's report states them."""
    agents: dict[str, dict[str, float]] = {}
    for depth in list(layers)[:MOST_LAYERS]:
        rows = _mapping(layers[depth]).get("agents")
        for row in rows[:MOST_AGENTS] if isinstance(rows, list) else ():
            if isinstance(row, Mapping) and (share := number_of(row, "density")) is not None and 0 <= share <= 1:
                agents.setdefault(str(row.get("agent", "")), {})[depth] = share
    figure = layers_figure(agents)
    return section("Changed, layer by layer", figure) if figure else None


def reproduce_tab(model: str, recipe_text: str, report: Mapping[str, Any]) -> Markup:
    """The recipe, the command that runs it, and the way to the merge page with it."""
    if not recipe_text:
        told = "It is told for merges that were made here: their recipe names every model by commit."
        return notice("info", "How it was made is not known", el("p", told))
    recipe = _recipe(recipe_text)
    target = f"YOUR-NAME/{model.rpartition('/')[2]}"
    query = address_of(recipe.to_dict()) if recipe else ""
    opened = el("p", link(f"merge?{query}", "Open this recipe on the Merge page"), cls="hm-ways-on") if query else None
    version = report.get("hubmerge")
    with_version = f"It was made with hubmerge {version}. " if isinstance(version, str) and version else ""
    return section(
        "Make it again",
        opened,
        el("p", with_version + "Every model is named by its commit. Save the recipe as recipe.yaml and run:"),
        _copyable(f"hubmerge run recipe.yaml --to {shell(target)}"),
        el("h3", "recipe.yaml"),
        _copyable(recipe_text),
    )


def _recipe(text: str) -> Recipe | None:
    try:
        return recipe_from_yaml(text)
    except HubmergeError:
        return None


def _copyable(text: str) -> Markup:
    return el("pre", el("code", text), cls="hm-snippet", tabindex="0")


def card_tab(model: Published, endpoint: str) -> Markup:
    """The card as the embedded Hub shows it. Pictures are the repo's own, where a browser may fetch them."""
    if not model.card:
        return notice("info", "It has no card", el("p", "Its repo on the Hub has no README.md."))

    def address(path: str) -> str:
        return f"{endpoint}/{quote(model.id)}/resolve/{model.sha}/{quote(path)}"

    html = card_html(model.card, address, image_address=address if model.is_open else lambda path: None)
    for wide in ("pre", "table"):  # they scroll sideways, also by keys
        html = html.replace(f"<{wide}>", f'<{wide} tabindex="0">')
    # the renderer escapes a stranger's text, and leads its links to the web or to files of the repo
    return el("article", Markup(html), cls="hm-card-text", aria_label="Model card")  # noqa: S704


def unscored_tab(model: Published) -> Markup:
    """In place of scores: that there are none yet, and how to use the model all the same."""
    told = "Its card, and what changed, stand in the other tabs."
    ask = el("p", "Nobody has measured this model yet: ", link(evaluate_href(model.id), "ask for an evaluation"), ".")
    use = use_it(model.id, ()) if is_hub_id(model.id) else None
    return join(notice("info", "Not scored yet", ask if model.is_open else None, el("p", told)), use)

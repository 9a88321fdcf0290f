"""A model's page, `/model?model=ORG/NAME&sha=SHA&tab=TAB`: scores, what changed, how to reproduce it, and its card.

Without a commit the page shows the newest one that has a result, or the model as it is on the Hub. Scores come from the
board, where there is one; the rest comes from the model's own files, which are asked for with the visitor's sign-in.
Report and card are a stranger's, so each value is looked up with care, and the card is read by the embedded Hub's
renderer, which keeps raw HTML as text.
"""

import re
from collections.abc import Iterable, Mapping
from shlex import quote as shell
from typing import Any
from urllib.parse import quote

import gradio as gr
from markupsafe import Markup

from hubmerge.board.source import DatasetBoard
from hubmerge.board.values import Board, Row, SuiteBoard
from hubmerge.errors import HubmergeError
from hubmerge.evaluation.result import ParentFacts
from hubmerge.hub.names import is_hub_id
from hubmerge.plan.licenses import option
from hubmerge.recipe.file import recipe_from_yaml
from hubmerge.sources.ancestry import ancestors_in
from localhub.card_html import card_html
from workflows.app import model_panels
from workflows.app.format import el, evaluate_href, job_href, join, link, model_href, repo_link
from workflows.app.frame import LOADING, QUIET, html
from workflows.app.job_statistics import MOST_LAYERS, layers_figure, statistics_parts
from workflows.app.lanes import ASKING, Lanes
from workflows.app.merge_address import address_of
from workflows.app.panels import (
    access_offer,
    facts_grid,
    left_out_panel,
    notice,
    problems_panel,
    section,
    snippet,
    tabs,
)
from workflows.app.session import for_visitor
from workflows.service import Service
from workflows.values import Published, Visitor, number_of, table_of, tables_of

TABS = {"scores": "Scores", "changed": "What changed", "reproduce": "Reproduce", "card": "Card"}
MOST_AGENTS = 32  # drawn
_SHA = re.compile(r"[0-9a-f]{40}")


def model_page(demo: Any, service: Service, lanes: Lanes, source: DatasetBoard | None) -> None:
    head = html(LOADING, "model", card=True)
    body = html(name="model-tab", card=True, visible=False)

    def opening(request: gr.Request, visitor: Visitor | None) -> list[Any]:
        query = request.query_params
        model = str(query.get("model") or "")[:300]
        sha, tab, left_out = _asked(query)
        if not model:
            choose = el("p", link("leaderboard", "Choose one on the leaderboard")) if source is not None else None
            return _alone(join(el("h1", "Model", cls="hm-unseen"), notice("info", "No model is named", choose)))
        head, body = _shown(service, source, visitor, model, sha, tab)
        return [join(left_out_panel(left_out), head), body]

    opened = lanes.asking(for_visitor(opening), lambda error: _alone(problems_panel(error)))
    demo.load(opened, None, [head, body], **QUIET, **ASKING)


def _asked(query: Mapping[str, str]) -> tuple[str | None, str, list[str]]:
    """The commit and the tab that an address names, and what of it is wrong and left out."""
    sha, tab, wrong = str(query.get("sha") or "")[:64], str(query.get("tab") or "scores")[:64], []
    if sha and not _SHA.fullmatch(sha):
        wrong.append(f"“{sha}” is no commit.")
        sha = ""
    if tab not in TABS:
        wrong.append(f"There is no tab “{tab}”.")
        tab = "scores"
    return sha or None, tab, wrong


def _alone(head: Markup) -> list[Any]:
    return [head, gr.update(visible=False)]


def _shown(
    service: Service, source: DatasetBoard | None, visitor: Visitor | None, model: str, sha: str | None, tab: str
) -> list[Any]:
    board, failure = Board(), None
    try:
        board = source.board() if source is not None else board
    except HubmergeError as error:
        failure = error
    found = model_panels.found_rows(board, model, sha)
    row = found[0][1] if found else None
    own: Published | HubmergeError | None = None
    if tab != "scores" or row is None:
        newest = tab == "card" and row is not None and not row.superseded  # its scores came with a later commit
        at = None if newest else row.sha if row else sha
        try:
            if is_hub_id(model):
                own = service.published(model, at if at and _SHA.fullmatch(at) else None, visitor)
        except HubmergeError as error:
            own = error
    if row is not None:
        ways = model_panels.ways_on(row.model, _base_of(row.facts.parents))
        head = join(model_panels.verdict_panel(row), model_panels.model_head(row, service.endpoint), ways)
    elif isinstance(own, Published):
        head = _head(own, service.endpoint)
    else:
        return _alone(_missing(failure or own, model, sha, service.endpoint, visitor))
    address = model_href(model, sha or "")
    ends = {key: "" if key == "scores" else f"&tab={key}" for key in TABS}
    links = tabs("About this model", ((title, address + ends[key], key == tab) for key, title in TABS.items()))
    shown = _tab(tab, found, board, own, service, failure)
    return [head, gr.update(value=join(links, shown), visible=True)]


def _missing(
    error: HubmergeError | None, model: str, sha: str | None, endpoint: str, visitor: Visitor | None
) -> Markup:
    if error is not None and error.retryable:
        return problems_panel(error, "This model cannot be shown now")
    hub = el("p", "On the Hub: ", repo_link(endpoint, model)) if is_hub_id(model) else None
    commit = f"no commit {sha[:12]} of it, " if sha else ""
    told = f"There is no such model on the Hub, {commit}or you may not read it."
    told += " If it is private and yours, sign in." if visitor is None else ""
    name = el("div", el("h1", model), cls="hm-title")
    offer = access_offer(error, visitor, endpoint) if error is not None else None
    return join(name, notice("info", "This model cannot be shown", el("p", told), hub), offer)


def _tab(
    tab: str,
    found: list[tuple[SuiteBoard, Row]],
    board: Board,
    own: Published | HubmergeError | None,
    service: Service,
    failure: HubmergeError | None,
) -> Markup:
    row = found[0][1] if found else None
    if tab == "scores" and row is not None:
        lines = [line for _, r in found for line in r.tasks]
        return join(
            model_panels.scores_picture(row),
            model_panels.use_it(row.model, lines),
            model_panels.score_sections(found, service.endpoint),
            model_panels.statistics_section(row),
            model_panels.lineage_section(row, board),
        )
    if tab == "reproduce" and row is not None and row.facts.recipe:
        report = own.report if isinstance(own, Published) else {}
        return reproduce_tab(row.model, row.facts.recipe, report)
    if isinstance(own, HubmergeError) or own is None:
        return problems_panel(own or {}, "Its files cannot be read now")
    if tab == "changed":
        return changed_tab(own.report)
    if tab == "reproduce":
        text = own.report.get("recipe_yaml")
        return reproduce_tab(own.id, text if isinstance(text, str) else "", own.report)
    if tab == "card":
        return card_tab(own, service.endpoint)
    wrong = problems_panel(failure, "The leaderboard cannot be read now") if failure else None
    return join(wrong or unscored_tab(own, service), _lineage(own, board))


def _base_of(parents: Iterable[ParentFacts]) -> str | None:
    return next((p.id for p in parents if p.role == "base"), None)


def _head(model: Published, endpoint: str) -> Markup:
    parents = parents_of(model.report)
    kind = el("span", "Merge" if parents else "Model", cls=f"hm-badge hm-{'busy' if parents else 'dim'}")
    facts = [("Commit", el("code", model.sha[:12])), ("License", model.license or "not stated")]
    return join(
        el("div", el("h1", model.id), kind, cls="hm-title"),
        facts_grid(facts),
        el("p", "On the Hub: ", repo_link(endpoint, model.id, model.sha)),
        model_panels.ways_on(model.id, _base_of(parents)),
    )


def parents_of(report: Mapping[str, Any]) -> list[ParentFacts]:
    """The parents that a stranger's report names, as far as they are well-formed models of the Hub."""
    found = []
    for parent in tables_of(report, "parents")[:33]:
        role, name, sha, weight = (parent.get(key) for key in ("role", "id", "sha", "weight"))
        if role in ("base", "agent") and isinstance(name, str) and is_hub_id(name) and isinstance(sha, str):
            known = weight if isinstance(weight, float) and abs(weight) < 1e6 else 1.0
            found.append(ParentFacts(role=role, id=name, sha=sha[:64], weight=known))
    return found


def _lineage(model: Published, board: Board) -> Markup | None:
    parents = parents_of(model.report)
    if not parents:
        return None
    stated = ancestors_in(model.report.get("parents"))
    return section("Lineage", model_panels.lineage_tree(model.id, model.sha, model.license, parents, board, stated))


def changed_tab(report: Mapping[str, Any]) -> Markup:
    """What each agent changed, where they meet, and how much of each layer."""
    statistics = table_of(report, "statistics")
    total = table_of(statistics, "total")
    if not number_of(total, "elements"):
        told = "It is told for merges that were made here: their hubmerge.json holds what was counted."
        return notice("info", "What changed is not known", el("p", told))
    layers, agents = table_of(statistics, "layers"), dict[str, dict[str, float]]()
    for depth in list(layers)[:MOST_LAYERS]:
        for row in tables_of(layers[depth], "agents")[:MOST_AGENTS]:
            if (share := number_of(row, "density")) is not None and 0 <= share <= 1:
                agents.setdefault(str(row.get("agent", "")), {})[depth] = share
    figure = layers_figure(agents)
    drawn = section("Changed, layer by layer", figure) if figure else None
    return join(section("What the agents changed", *statistics_parts(total)), drawn)


def reproduce_tab(model: str, recipe_text: str, report: Mapping[str, Any]) -> Markup:
    """The recipe, the command that runs it, and the way to the merge page with it."""
    if not recipe_text:
        told = "It is told for merges that were made here: their recipe names every model by commit."
        return notice("info", "How it was made is not known", el("p", told))
    try:
        query = address_of(recipe_from_yaml(recipe_text).to_dict())
    except HubmergeError:
        query = ""
    target = f"YOUR-NAME/{model.rpartition('/')[2]}"
    opened = el("p", link(f"merge?{query}", "Open this recipe on the Merge page"), cls="hm-ways-on") if query else None
    version = report.get("hubmerge")
    with_version = f"It was made with hubmerge {version}. " if isinstance(version, str) and version else ""
    return section(
        "Make it again",
        opened,
        el("p", with_version + "Every model is named by its commit. Save the recipe as recipe.yaml and run:"),
        snippet(f"hubmerge run recipe.yaml --to {shell(target)}{option(report.get('license'))}"),
        el("h3", "recipe.yaml"),
        snippet(recipe_text),
    )


def card_tab(model: Published, endpoint: str) -> Markup:
    """The card as the embedded Hub shows it. Pictures are the repo's own, where a browser may fetch them."""
    if not model.card:
        return notice("info", "It has no card", el("p", "Its repo on the Hub has no README.md."))

    def address(path: str) -> str:
        return f"{endpoint}/{quote(model.id)}/resolve/{model.sha}/{quote(path)}"

    html = card_html(model.card, address, image_address=address if model.is_open else lambda path: None)
    # the renderer escapes a stranger's text, and leads its links to the web or to files of the repo
    return el("article", Markup(html), cls="hm-card-text", aria_label="Model card")  # noqa: S704


def unscored_tab(model: Published, service: Service) -> Markup:
    """In place of scores: that there are none yet, and how to use the model all the same."""
    try:
        queue = service.evaluation_queue()
        asked = next((each for each in (*queue.running, *queue.waiting) if each.model == model.id), None)
    except HubmergeError:
        asked = None
    told = "Its card, and what changed, stand in the other tabs."
    ask = el("p", "Nobody has measured this model yet: ", link(evaluate_href(model.id), "ask for an evaluation"), ".")
    if asked is not None:
        now = "It is being measured now: " if asked.place is None else f"It is number {asked.place} in the queue: "
        ask = el("p", now, link(job_href(asked.job), "follow it"), ".")
    use = model_panels.use_it(model.id, ()) if is_hub_id(model.id) else None
    return join(notice("info", "Not scored yet", ask if model.is_open and service.suites else None, el("p", told)), use)

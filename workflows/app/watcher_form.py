"""The form of a watcher's rule: base → which agents → method → target, as the YAML that a rule's file holds.

A rule stands here as plain data, as its file would say it, also while it is not valid. It fills the form, the form
gives it back, and an address holds it as YAML:

    ?rule={base: org/base, agents: {authors: [org]}, recipe: {method: ram_plus}, owner: ada, name: org-watch}

What has no field of its own stands in a box of YAML.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import gradio as gr
from markupsafe import Markup

from hubmerge.errors import RuleError
from hubmerge.methods import registry
from hubmerge.plan.licenses import KNOWN
from hubmerge.text.plain_yaml import dump_plain_yaml, load_plain_yaml
from workflows.app.format import el
from workflows.app.forms import holds
from workflows.app.frame import choice_box, html, number_box, radio_box, text_box, titled
from workflows.app.lanes import Lanes
from workflows.app.merge_address import MAX_ADDRESS_CHARACTERS
from workflows.app.merge_form import DEFAULT_METHOD
from workflows.app.panels import fold, method_choices
from workflows.app.search import model_box, suggest_models
from workflows.service import Service
from workflows.values import list_of, table_of
from workflows.watchers.rules import MAX_RULE_BYTES

ALL, NAMED, BEST = "all", "fixed", "best"
_WHICH = (("All that match", ALL), ("These, by name", NAMED), ("The best of the leaderboard", BEST))
_LINEAGE = (("Fine-tunes", "finetune"), ("Adapters", "adapter"), ("Any", "any"))
_BEST, _PER_DAY = 3, 3
_MORE = "min_agents: 3\nagents: {max_parameters: 10B, exclude: [org/agent]}\nrecipe: {parameters: {r: 0.1}}"
_OWN = {"name", "owner", "base", "agents", "recipe", "join", "target", "private", "suite", "budget"}
_FIELDS = {"agents": {"authors", "tags", "licenses", "lineage"}, "recipe": {"method"}}


def build_form(service: Service, lanes: Lanes) -> list[Any]:
    """The components; `rule_of` reads them and `fill` gives their values, in this order."""

    def title(text: str) -> None:
        html(f"<h3>{text}</h3>", elem_classes="hm-card-title")

    with gr.Group(elem_classes="hm-card"):
        title("1 · Base")
        about = "The model that every agent was trained from. Search, or paste its name or address."
        base = model_box("watch-base", "Base", about)
    with gr.Group(elem_classes="hm-card"):
        title("2 · Agents")
        which = radio_box("watch-which", "Which agents join a merge", _WHICH, ALL)
        about = "Two or more. They are merged again whenever the weights of one of them change."
        named = model_box("watch-named", "Agents by name", about, several=True, visible=False)
        best = number_box("watch-best", "How many", _BEST, visible=False)
        with gr.Row():
            about = "Users or organisations whose agents it takes. Anybody can claim a base, so name whom you trust."
            authors = text_box("watch-authors", "Authors", about, "org, ada", 2000, min_width=220)
            about = "An agent's card must have all of them."
            tags = text_box("watch-tags", "Tags", about, "reinforcement-learning", 2000, min_width=220)
        with gr.Row():
            about = "As the agents' cards say."
            lineage = radio_box("watch-lineage", "Trained from the base", _LINEAGE, "finetune", about, min_width=220)
            about = "An agent must have one of them. Empty: any that allows a merge."
            more = {"multiselect": True, "allow_custom_value": True, "min_width": 220}
            licenses = choice_box("watch-licenses", "Licenses", KNOWN, [], about, **more)
    with gr.Group(elem_classes="hm-card"):
        title("3 · Method")
        about = "It has its usual settings; others go under More of the rule."
        method = choice_box("watch-method", "Method", method_choices(), DEFAULT_METHOD, about)
    with gr.Group(elem_classes="hm-card"):
        title("4 · Target")
        with gr.Row():
            owner = text_box("watch-owner", "Owner", "The user whose account the watcher acts with.", "your-name", 96)
            name = text_box("watch-name", "Name of the watcher", "Small letters, digits and dashes.", "my-watch", 40)
        with gr.Row():
            about = "{set} becomes different for every set of agents. Empty: owner/name-{set}."
            target = text_box("watch-target", "Name of each result", about, "your-name/my-watch-{set}", 200)
            suites = [("Nothing", ""), *titled(service.suites)]
            about, more = "Each result and its parents are measured with it.", {"allow_custom_value": True}
            suite = choice_box("watch-suite", "Evaluate with", suites, "", about, min_width=200, **more)
        with gr.Row():
            kinds = ["public", "private"]
            visibility = radio_box("watch-visibility", "Visibility", kinds, "public", min_width=200)
            budget = number_box("watch-budget", "Merges a day, at most", _PER_DAY, min_width=200)
    with gr.Accordion("More of the rule", open=False, elem_classes="hm-card"):
        about = "What has no field here; docs/watchers.md lists everything."
        more = text_box("watch-more", "As YAML", about, _MORE, MAX_RULE_BYTES, lines=4)
    suggest_models(base, service, lanes)
    suggest_models(named, service, lanes, base=base)
    agents = (base, which, named, best, authors, tags, lineage, licenses)
    return [*agents, method, owner, name, target, suite, visibility, budget, more]


def rule_of(values: Sequence[Any]) -> dict[str, Any]:
    """The rule that the form holds, without what is left open; RuleError where `more` is no table."""
    base, which, named, best, authors, tags, lineage, licenses, *rest = values
    method, owner, name, target, suite, visibility, budget, more = rest
    agents = {
        "authors": _words(authors),
        "tags": _words(tags),
        "lineage": "" if lineage == "finetune" else lineage,
        "licenses": list(licenses or ()),
    }
    chosen = {NAMED: {NAMED: list(named or ())}, BEST: {BEST: _BEST if best is None else best}}.get(which)
    rule = {
        "name": (name or "").strip(),
        "owner": (owner or "").strip(),
        "base": (base or "").strip(),
        "agents": {key: value for key, value in agents.items() if value},
        "recipe": {"method": method},
        "join": chosen,
        "target": (target or "").strip(),
        "private": visibility == "private",
        "suite": (suite or "").strip(),
    }
    stated = {key: value for key, value in rule.items() if value}
    stated["budget"] = _PER_DAY if budget is None else budget  # 0 is refused, not left out
    if not str(more or "").strip():
        return stated
    try:
        beyond = load_plain_yaml(str(more))
    except ValueError as error:
        raise RuleError("this is not plain YAML", where="More of the rule", got=str(error)) from None
    if not isinstance(beyond, Mapping):
        raise RuleError("this is no table", where="More of the rule", expected="keys of a rule with their values")
    for key, value in beyond.items():
        known = stated.get(key)
        stated[key] = {**known, **value} if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return stated


def proposed(rule: Mapping[str, Any]) -> dict[str, Any]:
    """The rule with a proposal for each name that is left open."""
    base = str(rule.get("base") or "").rpartition("/")[2].partition("@")[0].lower()
    short = re.sub(r"[^a-z0-9]+", "-", base).strip("-")
    owner, name = str(rule.get("owner") or "your-name"), str(rule.get("name") or f"{short[:33]}-watch".lstrip("-"))
    return {"target": f"{owner}/{name}-{{set}}", **rule, "owner": owner, "name": name}


def _words(text: Any) -> list[str]:
    return [word for word in re.split(r"[\s,;]+", str(text or "")) if word]


def fill(rule: Mapping[str, Any]) -> list[Any]:
    """The values of the form for a rule's data, which may lack anything."""
    agents, recipe, chosen = (table_of(rule, key) for key in ("agents", "recipe", "join"))
    more = {key: value for key, value in rule.items() if key not in _OWN}
    for key, known in _FIELDS.items():
        if left := {k: v for k, v in table_of(rule, key).items() if k not in known}:
            more[key] = left
    which = next((kind for kind in (NAMED, BEST) if kind in chosen), ALL)
    base, names = str(rule.get("base") or ""), [str(name) for name in list_of(chosen, NAMED)]
    lineage, method = agents.get("lineage"), recipe.get("method")
    return [
        gr.update(value=base or None, choices=[base] if base else []),
        which,
        gr.update(value=names, choices=names, visible=which == NAMED),
        gr.update(value=_whole(chosen.get(BEST), _BEST), visible=which == BEST),
        *(", ".join(map(str, list_of(agents, key))) for key in ("authors", "tags")),
        lineage if lineage in [kind for _, kind in _LINEAGE] else "finetune",
        [str(name) for name in list_of(agents, "licenses")],
        method if method in list(registry()) else DEFAULT_METHOD,
        *(str(rule.get(key) or "") for key in ("owner", "name", "target", "suite")),
        "private" if rule.get("private") is True else "public",
        _whole(rule.get("budget"), _PER_DAY),
        dump_plain_yaml(more) if more else "",
    ]


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and holds("integer", value) else otherwise


def address_of(rule: Mapping[str, Any]) -> str:
    """The query for a rule's data; an empty text where it is too long for an address."""
    text = json.dumps(rule, ensure_ascii=False, separators=(",", ":"))
    query = urlencode({"rule": text}, safe="/@,:{}", quote_via=quote)
    return query if len(query) <= MAX_ADDRESS_CHARACTERS else ""


def read_address(text: str) -> dict[str, Any]:
    """The rule's data that an address holds as YAML; what cannot be read is left out."""
    try:
        found = load_plain_yaml(text[:MAX_ADDRESS_CHARACTERS])
    except ValueError:
        found = None
    return {str(key): value for key, value in found.items()} if isinstance(found, Mapping) else {}


def where_it_belongs(name: str, owner: str) -> Markup:
    how = el(
        "p",
        "A watcher acts with its owner's account, so its rule is a file that whoever keeps an app puts beside it: save "
        "it as ",
        el("code", f"{name}.yaml"),
        " in the app's folder of rules (the setting HUBMERGE_RULES names the folder), and let the app have a token of ",
        el("b", owner),
        " with write access (HF_TOKEN). The app's next look follows it.",
    )
    later = "Watchers that any visitor starts on this page come later; until then, duplicate this Space."
    return fold("Where it belongs", how, el("p", later, cls="hm-dim"))

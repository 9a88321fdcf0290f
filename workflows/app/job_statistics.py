"""What the agents of a job changed and where they meet, in a bar to scale and in tables.

The numbers come as untyped JSON from the job's record, so each is looked up with care and left out where it is missing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from hubmerge.text.markdown import short_count
from workflows.app.format import el, join, percent_text
from workflows.app.job_steps import TERMINAL
from workflows.app.panels import fold, section, table
from workflows.values import JobView, list_of, number, number_of, table_of, tables_of

MOST_LAYERS = 200  # drawn
_SHARES = (
    ("private", "one agent only"),
    ("overlap", "several, same sign"),
    ("conflict", "several, opposite signs"),
    ("unchanged", "none"),
)


def statistics_panel(view: JobView) -> Markup | None:
    """What the agents changed and where they meet, as far as it has been counted."""
    if not view.statistics or not number_of(view.statistics, "elements"):
        return None
    ended = view.state in TERMINAL
    layers = layers_figure(
        _shares_by_layer(view.statistics), "Layer by layer" if ended else "The layers counted so far"
    )
    first, bar, agents, *more = statistics_parts(view.statistics, "counted" if ended else "counted so far")
    if ended and any(more):  # nothing is folded while it is counted
        more = [fold("More numbers", *more)]
    return section("What the agents changed", first, bar, agents, layers, *more)


def _shares_by_layer(values: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Agent → depth → the share of the layer that it changed."""
    layers = table_of(values, "layers")
    names = [str(agent.get("agent", "")) for agent in tables_of(values, "agents")]
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for depth in layers:
        for name, share in zip(names, list_of(layers, depth), strict=False):
            if (known := number(share)) is not None and 0 <= known <= 1:
                found[name][depth] = known
    return found


def layers_figure(agents: Mapping[str, Mapping[str, float]], what: str = "Layer by layer") -> Markup | None:
    """Per agent a bar for each layer, as high as the share of the layer that it changed; None of fewer than two."""
    depths = list(dict.fromkeys(depth for shares in agents.values() for depth in shares))[:MOST_LAYERS]
    most = max((share for shares in agents.values() for share in shares.values()), default=0.0)
    if len(depths) < 2 or not most:
        return None
    rows = []
    for name, shares in agents.items():
        if shares:
            bars = (el("i", style=f"height:{100 * shares.get(d, 0.0) / most:.1f}%") for d in depths)
            drawn = el("span", *bars, cls="hm-layer-bars", aria_hidden="true")
            first, last = (percent_text(end(shares.values())) for end in (min, max))
            ends = el("span", first if first == last else f"{first} to {last}", cls="hm-dots-value")
            rows.append(el("li", el("span", name, cls="hm-dots-name"), drawn, ends))
    told = f"{what}, from the first to the last; a full bar is {percent_text(most)} of a layer."
    return el("figure", el("ul", *rows, cls="hm-layers"), el("figcaption", told, cls="hm-dim"))


def statistics_parts(values: Mapping[str, Any], counted: str = "counted") -> list[Markup | None]:
    """Shares, agents, overlaps and pairs of the `total` of a report."""
    elements = number_of(values, "elements") or 0
    agents = tables_of(values, "agents")
    pairs = [
        (
            " + ".join(map(str, list_of(pair, "agents"))),
            *(_told(pair, key, ".3f") for key in ("jaccard", "cosine")),
            _told(pair, "sign_agreement", percent_text),
        )
        for pair in tables_of(values, "pairs")
    ]
    return [
        el("p", f"{short_count(round(elements))} parameters {counted}.", cls="hm-dim"),
        share_bar(values.get("shares")),
        agents_table(agents),
        _concentration_table(agents),
        _overlap_table(list_of(values, "overlap_share"), len(agents)),
        table(("Pair", "Jaccard", "Cosine", "Same sign"), pairs) if pairs else None,
    ]


def share_bar(shares: Any) -> Markup:
    """All parameters as one bar, to scale: those changed by one agent, by several, and by none."""
    known = [(name, text, share) for name, text in _SHARES if (share := number_of(shares, name)) is not None]
    parts = [
        el("div", cls=f"hm-part hm-{name}", style=f"width:{min(share, 1.0) * 100:.3f}%")
        for name, _, share in known
        if share > 0
    ]
    legend = [
        el("li", el("i", cls=f"hm-{name}"), f"{text}: ", el("strong", percent_text(share)))
        for name, text, share in known
    ]
    said = ", ".join(f"{text}: {percent_text(share)}" for _, text, share in known)
    bar = el("div", *parts, cls="hm-stack", role="img", aria_label=f"Share of the parameters changed by {said}")
    return el("figure", bar, el("figcaption", "Changed by", el("ul", *legend)), cls="hm-shares")


def agents_table(agents: Sequence[Mapping[str, Any]]) -> Markup:
    rows: list[Sequence[object]] = []
    for agent in agents:
        density, unique = number_of(agent, "density"), number_of(agent, "unique_share")
        meter: Markup | str = "–"
        if density is not None:
            fill = el("span", cls="hm-meter-fill", style=f"width:{min(density, 1.0) * 100:.2f}%")
            meter = el("span", el("span", fill, cls="hm-meter"), percent_text(density), cls="hm-cell")
        parts = ("–", "–")
        if unique is not None and density is not None and density > 0:
            parts = (percent_text(unique), percent_text(1 - unique))
        rho = "nothing unique" if agent.get("rho") == "inf" else _told(agent, "rho", ".3g")
        rows.append((str(agent.get("agent", "")), meter, *parts, rho))
    return table(("Agent", "Changed", "Unique part", "Shared part", "Shared / unique"), rows)


def _concentration_table(agents: Sequence[Mapping[str, Any]]) -> Markup | None:
    """How unevenly each update is spread; nothing before it was counted."""
    shares = ("top_1_mass", "top_5_mass", "l0_sparsity")
    rows = [
        (
            *(str(agent.get("agent", "")), _told(agent, "gini", ".3f")),
            *(_told(agent, key, percent_text) for key in shares),
            _told(agent, "kurtosis", ".3g"),
        )
        for agent in agents
        if number_of(agent, "gini") is not None
    ]
    head = ("Concentration", "Gini of |δ|", "|δ| in the top 1%", "|δ| in the top 5%", "L0 sparsity", "Kurtosis")
    if not rows:
        return None
    told = (
        "L0 sparsity is the share of weights below 1% of the agent's own largest change. It has another threshold "
        "than Changed, which counts from one ε for every agent, so that the two need not add up to 100%."
    )
    return join(table(head, rows), el("p", told, cls="hm-dim"))


def _told(values: Mapping[str, Any], key: str, form: str | Callable[[float], str]) -> str:
    if (number := number_of(values, key)) is None:
        return "–"
    return format(number, form) if isinstance(form, str) else form(number)


def _overlap_table(shares: Sequence[Any], agents: int) -> Markup | None:
    """How many agents changed an element: 0 … K."""
    values = [known for share in shares if (known := number(share)) is not None]
    if agents < 3 or len(values) != agents + 1:
        return None  # with two agents the bar above says the same
    columns = ("no agent", "1 agent", *(f"{c} agents" for c in range(2, agents + 1)))
    return table(("Changed by", *columns), [("Parameters", *(percent_text(s) for s in values))])

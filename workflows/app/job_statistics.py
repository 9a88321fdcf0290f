"""What the agents of a job changed and where they meet, in a bar to scale and in tables.

The numbers come as untyped JSON from the job's record, so each is looked up with care and left out where it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from hubmerge.text.markdown import short_count
from workflows.app.format import el, join, list_of, number, number_of, percent_text, table_of, tables_of
from workflows.app.job_steps import TERMINAL
from workflows.app.panels import fold, section, table
from workflows.app.service import JobView

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
    if not ended:  # nothing is folded while it is counted
        first, bar, agents, *more = statistics_parts(view.statistics, "counted so far")
        return section("What the agents changed", first, bar, agents, layers, *more)
    first, bar, agents, *more = statistics_parts(view.statistics)
    folded = fold("More numbers", *more) if any(more) else None
    return section("What the agents changed", first, bar, agents, layers, folded)


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
    rows = [
        el("li", el("span", name, cls="hm-dots-name"), _bars(shares, depths, most), _ends(shares))
        for name, shares in agents.items()
        if shares
    ]
    told = f"{what}, from the first to the last; a full bar is {percent_text(most)} of a layer."
    return el("figure", el("ul", *rows, cls="hm-layers"), el("figcaption", told, cls="hm-dim"))


def _bars(shares: Mapping[str, float], depths: Sequence[str], most: float) -> Markup:
    bars = (el("i", style=f"height:{100 * shares.get(d, 0.0) / most:.1f}%") for d in depths)
    return el("span", *bars, cls="hm-layer-bars", aria_hidden="true")


def _ends(shares: Mapping[str, float]) -> Markup:
    least, most = (percent_text(end(shares.values())) for end in (min, max))
    return el("span", least if least == most else f"{least} to {most}", cls="hm-dots-value")


def statistics_parts(values: Mapping[str, Any], counted: str = "counted") -> list[Markup | None]:
    """Shares, agents, overlaps and pairs of the `total` of a report."""
    elements = number_of(values, "elements") or 0
    agents, pairs = tables_of(values, "agents"), tables_of(values, "pairs")
    return [
        el("p", f"{short_count(round(elements))} parameters {counted}.", cls="hm-dim"),
        share_bar(values.get("shares")),
        agents_table(agents),
        _concentration_table(agents),
        _overlap_table(list_of(values, "overlap_share"), len(agents)),
        table(("Pair", "Jaccard", "Cosine", "Same sign"), [_pair_row(p) for p in pairs]) if pairs else None,
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
    head = ("Agent", "Changed", "Unique part", "Shared part", "Shared / unique")
    return table(head, [_agent_row(agent) for agent in agents])


def _agent_row(agent: Mapping[str, Any]) -> Sequence[object]:
    density, unique = number_of(agent, "density"), number_of(agent, "unique_share")
    rho, changed = agent.get("rho"), density is not None and density > 0
    return (
        str(agent.get("agent", "")),
        _meter(density),
        percent_text(unique) if unique is not None and changed else "–",
        percent_text(1 - unique) if unique is not None and changed else "–",
        "nothing unique" if rho == "inf" else _told(agent, "rho", ".3g"),
    )


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


def _meter(share: float | None) -> Markup | str:
    if share is None:
        return "–"
    fill = el("span", cls="hm-meter-fill", style=f"width:{min(share, 1.0) * 100:.2f}%")
    return el("span", el("span", fill, cls="hm-meter"), percent_text(share), cls="hm-cell")


def _overlap_table(shares: Sequence[Any], agents: int) -> Markup | None:
    """How many agents changed an element: 0 … K."""
    values = [known for share in shares if (known := number(share)) is not None]
    if agents < 3 or len(values) != agents + 1:
        return None  # with two agents the bar above says the same
    columns = ("no agent", "1 agent", *(f"{c} agents" for c in range(2, agents + 1)))
    return table(("Changed by", *columns), [("Parameters", *(percent_text(s) for s in values))])


def _pair_row(pair: Mapping[str, Any]) -> Sequence[object]:
    names = " + ".join(map(str, list_of(pair, "agents")))
    shown = (_told(pair, key, ".3f") for key in ("jaccard", "cosine"))
    return (names, *shown, _told(pair, "sign_agreement", percent_text))

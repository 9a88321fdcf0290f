"""`hubmerge probe RECIPE`: the statistics of a recipe's agents, as a table or as JSON (docs/statistics.md)."""

from typing import Any

from hubmerge.cli.options import stream_options
from hubmerge.cli.terminal import Terminal
from hubmerge.hub.login import hub_of_user
from hubmerge.line import Request, prepare, probe
from hubmerge.recipe.file import load_recipe
from hubmerge.settings import Settings
from hubmerge.statistics.statistics import SCHEMA
from hubmerge.statistics.summary import summarize


def run_cli(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    hub, options = hub_of_user(settings), stream_options(arguments, settings)
    terminal.stage("resolve")
    prepared = prepare(load_recipe(arguments.recipe), hub, Request(allow_local=True, calibrate="not"), terminal)
    terminal.stage("probe")
    statistics = probe(prepared, hub, options, terminal)
    terminal.close()
    labels = statistics.agents
    total = summarize(statistics.total, labels)
    terminal.say(
        _text(total),
        schema=SCHEMA,
        identity=prepared.identity,
        epsilon=statistics.epsilon,
        agents=list(labels),
        total=total,
        modules={n: summarize(t, labels) for n, t in statistics.by_module().items()},
        layers={str(n): summarize(t, labels) for n, t in statistics.by_layer().items()},
        tensors={n: summarize(t, labels) for n, t in statistics.tensors.items()},
    )
    return 0


def _text(total: Any) -> str:
    width = max(24, *(len(agent["agent"]) for agent in total["agents"]))
    lines = [f"{'agent':<{width}} {'changed':>8} {'unique':>8} {'shared':>8} {'ρ':>7}"]
    for agent in total["agents"]:
        n = max(total["elements"], 1)
        rho = agent["rho"] if isinstance(agent["rho"], str) else f"{agent['rho']:.3f}"
        lines.append(
            f"{agent['agent']:<{width}} {agent['density']:>8.2%} {agent['unique'] / n:>8.2%} "
            f"{agent['shared'] / n:>8.2%} {rho:>7}"
        )
    lines.append("changed by 0, 1, 2, … agents: " + ", ".join(f"{share:.2%}" for share in total["overlap_share"]))
    shares = total["shares"]
    lines.append(f"changed by several: signs conflict in {shares['conflict']:.2%}, agree in {shares['overlap']:.2%}")
    for pair in total["pairs"]:
        lines.append(
            f"{' / '.join(pair['agents'])}: Jaccard {pair['jaccard']:.3f}, cosine {pair['cosine']:.3f}, "
            f"signs agree {pair['sign_agreement']:.1%}"
        )
    return "\n".join(lines) + "\n"

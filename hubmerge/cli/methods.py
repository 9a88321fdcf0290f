"""The merge methods with their formulas, parameters and papers: `hubmerge methods`, as text or as JSON, and the page
docs/methods.md, which is generated from the registry (`python -m hubmerge.cli.methods > docs/methods.md`).
"""

import math
import sys
from dataclasses import asdict
from typing import Any

from hubmerge.cli.terminal import Terminal
from hubmerge.methods import Method, registry
from hubmerge.settings import Settings

_HEAD = """\
# Merge methods

Generated from the registry; `make docs` writes it again and a test holds it current. Another method is one file:
[architecture.md](architecture.md#to-add-a-merge-method) says how.

"""
NOTATION = """\
Notation: base θ0, agents θ1…θK, δk = θk − θ0 in float32, weight wk (default 1), mk = |δk| > ε, c = Σk mk. δ* is
computed in float32 and θ0 + δ* is rounded once to the output's dtype; an element with δ* = 0 keeps the base's bits.
"""
_TABLE = """
| method | what it does | reads the inputs | needs |
|---|---|---|---|
"""


def run_cli(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    for method in registry().values():
        if arguments.json:  # schemas take a while
            terminal.say("", **{method.name: _facts(method)})
        else:
            terminal.say(_text(method))
    return 0


def _facts(method: Method) -> dict[str, Any]:
    return {
        **{key: getattr(method, key) for key in ("title", "summary", "formula")},
        "papers": [asdict(paper) for paper in method.papers],
        "needs_statistics": method.overlap_scope(method.parse_parameters({})) is not None,
        "parameters": method.parameters.model_json_schema(by_alias=True).get("properties", {}),
    }


def _text(method: Method) -> str:
    lines = [f"{method.name:<18} {method.title}: {method.summary}", f"{'':<18} {method.formula}"]
    for name, field in method.parameters.model_fields.items():
        lines.append(f"{'':<18}   {field.alias or name} = {field.default}: {field.description}")
    lines += [f"{'':<18} {paper}" for paper in method.papers]
    return "\n".join(lines) + "\n"


def methods_page() -> str:
    """The page as Markdown."""
    methods = registry().values()
    rows = [f"| [`{m.name}`](#{m.name}) | {m.summary} | {_passes(m)} | {_needs(m)} |" for m in methods]
    sections = (f"\n## {m.name}\n\n**{m.title}.** {m.summary}\n\n{method_section(m)}" for m in methods)
    return _HEAD + NOTATION + _TABLE + "\n".join(rows) + "\n" + "".join(sections)


def _passes(method: Method) -> str:
    parameters = method.parse_parameters({})
    threshold, probes = method.threshold(parameters), method.overlap_scope(parameters) == "model"
    selects = threshold is not None
    fewest, most = (1 + probes + readings * selects for readings in (1, 2))  # Plan.passes

    def often(passes: int) -> str:
        return {1: "once", 2: "twice"}.get(passes, f"{passes} times")

    return often(fewest) + (f", {often(most)} where not all is BF16" if selects else "")


def _needs(method: Method) -> str:
    parameters = method.parse_parameters({})
    threshold, scope = method.threshold(parameters), method.overlap_scope(parameters)
    found = [{"model": "counts of the whole model", "tensor": "counts per tensor"}[scope]] if scope else []
    found += [f"an exact order statistic per {threshold.scope}"] if threshold else []
    found += ["draws"] * ("uniform" in method.extras)
    found += ["a sensitivity file per agent"] * ("sensitivity" in method.extras)
    if method.needs_whole("mlp.weight", (2, 2)):
        found.append(
            "whole tensors in memory" if method.needs_whole("norm.weight", (2,)) else "whole 2-D tensors in memory"
        )
    return ", ".join(found) or "—"


def method_section(method: Method) -> str:
    """Formula, source, parameters and papers of a method, as Markdown."""
    module = sys.modules[type(method).__module__]
    lines = [f"```text\n{method.formula}\n```\n"]
    source = (module.__doc__ or "").strip().split("\n", 1)
    lines += [source[1].strip() + "\n"] if len(source) > 1 else []
    properties = method.parameters.model_json_schema(by_alias=True).get("properties", {})
    if properties:
        lines += ["| parameter | default | range | meaning |", "|---|---|---|---|"]
        for name, spec in properties.items():
            default = spec.get("default")
            shown = "—" if default is None else f"`{default}`"
            lines.append(f"| `{name}` | {shown} | {_range(spec)} | {spec.get('description', '')} |")
        lines.append("")
    lines += [f"- {paper}" for paper in method.papers]
    return "\n".join(lines) + "\n"


def _range(spec: dict[str, Any]) -> str:
    if "anyOf" in spec:
        spec = next((s for s in spec["anyOf"] if s.get("type") != "null"), {})
    if "enum" in spec:
        return ", ".join(f"`{v}`" for v in spec["enum"])
    least, above = spec.get("minimum"), spec.get("exclusiveMinimum", -math.inf)
    most, below = spec.get("maximum"), spec.get("exclusiveMaximum", math.inf)
    opening = f"({above:g}" if least is None else f"[{least:g}"
    closing = f"{below:g})" if most is None else f"{most:g}]"
    if (opening, closing) == ("(-inf", "inf)"):
        return "true, false" if spec.get("type") == "boolean" else "—"
    return f"{opening}, {closing}".replace("inf", "∞")


if __name__ == "__main__":
    sys.stdout.write(methods_page())

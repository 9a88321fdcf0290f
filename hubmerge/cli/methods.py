"""`hubmerge methods`: the merge methods with their formulas, parameters and papers, as text or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hubmerge.cli.terminal import Terminal
from hubmerge.methods import Method, registry
from hubmerge.settings import Settings


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

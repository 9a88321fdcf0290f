"""`hubmerge inspect RECIPE`: what headers alone tell of a merge, as a table or as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from hubmerge.hub import Hub
from hubmerge.licenses import strictest
from hubmerge.markdown import size
from hubmerge.prepare import UNDECIDED, prepare
from hubmerge.recipe import load_recipe


def run_cli(arguments: Any, hub: Hub) -> int:
    """Print the plan's summary; errors are raised for the caller to print."""
    plan = prepare(load_recipe(arguments.recipe), hub, license_choice=UNDECIDED, allow_local=True).plan
    summary = plan.summary()
    if (decision := strictest([m.license for m in plan.models])).needs_choice:
        summary["warnings"] = [*summary["warnings"], f"a merge needs --license: {decision.reason}"]
    if arguments.json:
        sys.stdout.write(json.dumps(summary, indent=2) + "\n")
        return 0
    warnings = summary.pop("warnings")
    width = max(map(len, summary))
    for key, value in summary.items():
        shown = size(value) if key.endswith("_bytes") else value
        text = ", ".join(map(str, shown)) if isinstance(shown, list) else shown
        sys.stdout.write(f"{key.replace('_', ' '):>{width}}  {text}\n")
    for warning in warnings:
        sys.stdout.write(f"  warning: {warning}\n")
    return 0

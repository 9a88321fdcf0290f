"""Reports for tests: the hand-made one of tests/data, and ones of any number of agents."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stream_helpers import tally_of

from hubmerge.output.report import Report
from hubmerge.statistics.summary import summarize

DATA = Path(__file__).parent / "data"
FIGURES = ("figures/density_by_layer.svg", "figures/overlap.svg")


def report_data() -> dict[str, Any]:
    """The hand-made report as plain data, to be changed at will."""
    data: dict[str, Any] = json.loads((DATA / "report.json").read_text(encoding="utf-8"))
    return data


def report(**changes: Any) -> Report:
    return Report.from_json(report_data() | changes)


def summary(labels: Sequence[str], elements: int) -> dict[str, Any]:
    """The statistics of agents of which all changed one tenth together, every other one most of it the other way, and
    each as much alone as fits into three tenths."""
    together, alone = elements // 10, 3 * elements // (10 * len(labels))
    deltas = np.zeros((len(labels), elements), np.float32)
    deltas[:, :together] = 0.5
    deltas[1::2, : 3 * together // 4] *= -1
    for k, delta in enumerate(deltas):
        delta[together + k * alone :][:alone] = 0.5
    return summarize(tally_of(np.zeros(elements, np.float32), deltas), labels)


def report_of(labels: Sequence[str], *, layers: int = 4, elements: int = 300) -> Report:
    """A report of as many agents as there are labels."""
    data = report_data()
    base, agent, _ = data["parents"]
    data["parents"] = [base, *({**agent, "label": label} for label in labels)]
    data["outcomes"] = [{**data["outcomes"][0], "agent": label} for label in labels]
    data["evaluations"] = []
    part = summary(labels, elements)
    data["statistics"] = {
        "epsilon": 1e-5,
        "agents": list(labels),
        "total": part,
        "modules": dict.fromkeys(("attention", "mlp"), part),
        "layers": {str(depth): part for depth in range(layers)},
    }
    return Report.from_json(data)

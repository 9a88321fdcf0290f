"""Reports for tests: the hand-made one of tests/data, and ones of any number of agents."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hubmerge.output.report import Report

DATA = Path(__file__).parent / "data"
FIGURES = ("figures/density_by_layer.svg", "figures/overlap.svg", "figures/pairs.svg")


def report_data() -> dict[str, Any]:
    """The hand-made report as plain data, to be changed at will."""
    data: dict[str, Any] = json.loads((DATA / "report.json").read_text(encoding="utf-8"))
    return data


def report(**changes: Any) -> Report:
    return Report.from_json(report_data() | changes)


def summary(labels: Sequence[str], elements: int, seed: int) -> dict[str, Any]:
    """The statistics of random sparse agents, counted one by one."""
    rng = np.random.default_rng(seed)
    deltas = rng.normal(size=(len(labels), elements)) * (rng.random((len(labels), elements)) < 0.1)
    active = deltas != 0
    count = active.sum(0)
    overlap = [int((count == c).sum()) for c in range(len(labels) + 1)]
    conflict = int(((count > 1) & (deltas > 0).any(0) & (deltas < 0).any(0)).sum())
    n = max(elements, 1)
    agents: list[Mapping[str, Any]] = []
    for k, label in enumerate(labels):
        shared_with = [int((active[k] & (count == c)).sum()) for c in range(1, len(labels) + 1)]
        unique, changed = shared_with[0], sum(shared_with)
        rho = (changed - unique) / unique if unique else "inf" if changed else 0.0
        agents.append(
            {
                "agent": label, "changed": changed, "density": changed / n, "identical": elements - changed,
                "unique": unique, "unique_share": unique / max(changed, 1), "shared": changed - unique,
                "shared_with": shared_with, "rho": rho, "l1": 1.0, "l2": 1.0, "max": 0.5,
                "sparsity": 1 - changed / n, "kurtosis": None, "l0_sparsity": None, "gini": None, "top_1_mass": None,
                "top_5_mass": None, "error": dict.fromkeys(("l0_sparsity", "gini", "top_1_mass", "top_5_mass")),
            }
        )  # fmt: skip
    pairs = [
        {"agents": [labels[k], labels[m]], "both_changed": 1, "jaccard": 0.25, "cosine": -0.5, "sign_agreement": 0.5}
        for k in range(len(labels))
        for m in range(k + 1, len(labels))
    ]
    return {
        "elements": elements,
        "overlap": overlap,
        "overlap_share": [c / n for c in overlap],
        "shares": {
            "conflict": conflict / n,
            "overlap": (sum(overlap[2:]) - conflict) / n,
            "private": overlap[1] / n if labels else 0.0,
            "unchanged": overlap[0] / n,
        },
        "agents": agents,
        "pairs": pairs,
    }


def report_of(labels: Sequence[str], *, layers: int = 4, elements: int = 300) -> Report:
    """A report of as many agents as there are labels."""
    data = report_data()
    base, agent, _ = data["parents"]
    data["parents"] = [base, *({**agent, "label": label} for label in labels)]
    data["outcomes"] = [{**data["outcomes"][0], "agent": label} for label in labels]
    data["evaluations"] = []
    data["statistics"] = {
        "epsilon": 1e-5,
        "agents": list(labels),
        "total": summary(labels, elements, 0),
        "modules": {name: summary(labels, elements, 1) for name in ("attention", "mlp")},
        "layers": {str(depth): summary(labels, elements, 2 + depth) for depth in range(layers)},
    }
    return Report.from_json(copy.deepcopy(data))

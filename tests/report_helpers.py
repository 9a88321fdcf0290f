"""Reports for tests: the hand-made one of tests/data, and ones of any number of agents."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from hubmerge.output.report import Report

DATA = Path(__file__).parent / "data"
FIGURES = ("figures/density_by_layer.svg", "figures/overlap.svg", "figures/pairs.svg")


def report_data() -> dict[str, Any]:
    """The hand-made report as plain data, to be changed at will."""
    data: dict[str, Any] = json.loads((DATA / "report.json").read_text(encoding="utf-8"))
    return data


def report(**changes: Any) -> Report:
    return Report.from_json(report_data() | changes)


def summary(labels: Sequence[str], elements: int) -> dict[str, Any]:
    """The statistics of agents of which all changed one tenth together, half of it in conflict, and each as much alone
    as fits into three tenths."""
    n, many = max(elements, 1), len(labels)
    together, alone = elements // 10, 3 * elements // (10 * many)
    by_count = [0] * (many + 1)
    by_count[1] += many * alone
    by_count[many] += together
    by_count[0] = elements - sum(by_count)
    shared_with = [alone, *[0] * (many - 1)]
    shared_with[-1] += together
    unique, changed = shared_with[0], alone + together
    agent = {
        "changed": changed, "density": changed / n, "identical": elements - changed, "unique": unique,
        "unique_share": unique / max(changed, 1), "shared": changed - unique, "shared_with": shared_with,
        "rho": (changed - unique) / unique if unique else 0.0, "l1": 1.0, "l2": 1.0, "max": 0.5,
        "sparsity": 1 - changed / n, "kurtosis": None, "l0_sparsity": None, "gini": None, "top_1_mass": None,
        "top_5_mass": None, "error": dict.fromkeys(("l0_sparsity", "gini", "top_1_mass", "top_5_mass")),
    }  # fmt: skip
    pairs = combinations(labels, 2)
    conflict = together // 2 if many > 1 else 0
    return {
        "elements": elements,
        "overlap": by_count,
        "overlap_share": [c / n for c in by_count],
        "shares": {
            "conflict": conflict / n,
            "overlap": (sum(by_count[2:]) - conflict) / n,
            "private": by_count[1] / n,
            "unchanged": by_count[0] / n,
        },
        "agents": [{"agent": label, **agent} for label in labels],
        "pairs": [
            {"agents": list(pair), "both_changed": 1, "jaccard": 0.25, "cosine": -0.5, "sign_agreement": 0.5}
            for pair in pairs
        ],
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
        "total": summary(labels, elements),
        "modules": {name: summary(labels, elements) for name in ("attention", "mlp")},
        "layers": {str(depth): summary(labels, elements) for depth in range(layers)},
    }
    return Report.from_json(copy.deepcopy(data))

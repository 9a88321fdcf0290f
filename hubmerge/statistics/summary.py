"""One tally as plain data: the form of `probe --json` and hubmerge.json (docs/statistics.md)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hubmerge.statistics.histogram import AgentMagnitudes
from hubmerge.statistics.statistics import L0_FRACTION, Tally


def summarize(tally: Tally, labels: Sequence[str]) -> dict[str, Any]:
    """The figures of one tally that cards, pages and JSON show."""
    n = max(tally.elements, 1)
    pairs = [
        {
            "agents": [labels[k], labels[m]],
            "both_changed": int(tally.pair_active[k, m]),
            "jaccard": tally.jaccard(k, m),
            "cosine": tally.cosine(k, m),
            "sign_agreement": tally.sign_agreement(k, m),
        }
        for k in range(tally.agents)
        for m in range(k + 1, tally.agents)
    ]
    return {
        "elements": tally.elements,
        "overlap": [int(c) for c in tally.overlap],
        "overlap_share": [int(c) / n for c in tally.overlap],
        "shares": tally.shares,
        "agents": _agents(tally, labels),
        "pairs": pairs,
    }


def _agents(tally: Tally, labels: Sequence[str]) -> list[dict[str, Any]]:
    density, overlaps = tally.density, tally.overlaps
    unique, shared, rho = overlaps.unique, overlaps.shared, overlaps.rho
    agents = []
    for k, label in enumerate(labels):
        magnitudes, largest = tally.magnitudes(k), float(tally.max_abs[k])
        agents.append(
            {
                "agent": label,
                "changed": int(tally.changed[k]),
                "density": density[k],
                "sparsity": 1 - density[k],
                "identical": int(tally.identical[k]),
                "unique": int(unique[k]),
                "unique_share": int(unique[k]) / max(int(tally.changed[k]), 1),
                "shared": int(shared[k]),
                "shared_with": [int(c) for c in tally.by_overlap[k, 1:]],
                "rho": rho[k] if np.isfinite(rho[k]) else "inf",  # JSON has no infinity
                "l1": magnitudes.l1,
                "l2": float(np.sqrt(tally.dot[k, k])),
                "max": largest,
                "kurtosis": tally.kurtosis(k),
                **concentration(magnitudes, largest),
            }
        )
    return agents


def concentration(magnitudes: AgentMagnitudes, largest: float) -> dict[str, Any]:
    """The order statistics of one agent's updates, and how far each may be off."""
    estimates = {
        "l0_sparsity": magnitudes.below(L0_FRACTION * largest),
        "gini": magnitudes.gini(),
        "top_1_mass": magnitudes.top_mass(1),
        "top_5_mass": magnitudes.top_mass(5),
    }
    values = {name: None if e is None else e.value for name, e in estimates.items()}
    return {**values, "error": {name: None if e is None else e.error for name, e in estimates.items()}}

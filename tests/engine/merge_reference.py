"""Naive whole-model references: one element at a time or one array at a time, no chunks, no shared code.

They read like the formulas of docs/methods.md. Arithmetic is float32 as the promise says, sums in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

F = np.float32
Model = Mapping[str, np.ndarray]  # name → float32 array


def deltas(base: Model, agents: Sequence[Model]) -> dict[str, list[np.ndarray]]:
    return {name: [(agent[name] - value).astype(F) for agent in agents] for name, value in base.items()}


def ratios(base: Model, agents: Sequence[Model], epsilon: float = 1e-5) -> list[float]:
    """RAM Eq. 2 over the whole model."""
    shared, unique = [0] * len(agents), [0] * len(agents)
    for columns in deltas(base, agents).values():
        for element in zip(*(c.ravel() for c in columns), strict=True):
            active = [abs(d) > F(epsilon) for d in element]
            for t, is_active in enumerate(active):
                if is_active and sum(active) >= 2:
                    shared[t] += 1
                elif is_active:
                    unique[t] += 1
    return [s / u if u else (math.inf if s else 0.0) for s, u in zip(shared, unique, strict=True)]


def _linear(element: Sequence[F], weights: Sequence[float], scales: Any, parameters: Mapping[str, Any]) -> F:
    total = element[0] * F(weights[0])
    for d, w in zip(element[1:], weights[1:], strict=True):
        total = total + d * F(w)
    return total / F(sum(weights))


def _task_arithmetic(element: Sequence[F], weights: Sequence[float], scales: Any, parameters: Mapping[str, Any]) -> F:
    total = element[0] * F(weights[0])
    for d, w in zip(element[1:], weights[1:], strict=True):
        total = total + d * F(w)
    return F(parameters.get("lambda", 1 / len(element))) * total


def _ram(element: Sequence[F], weights: Sequence[float], scales: Sequence[float], parameters: Mapping[str, Any]) -> F:
    active = [t for t, d in enumerate(element) if abs(d) > F(parameters.get("epsilon", 1e-5))]
    if not active:
        return F(0)
    if len(active) == 1:
        t = active[0]
        return element[t] * F(weights[t]) * F(scales[t])
    total = F(0)
    for t in active:
        total = total + element[t] * F(weights[t])
    return total / F(len(active))


_RULES = {"linear": _linear, "task_arithmetic": _task_arithmetic, "ram": _ram, "ram_plus": _ram}


def merge(
    method: str,
    base: Model,
    agents: Sequence[Model],
    weights: Sequence[float] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """θ0 + δ* in float32, before the final rounding; an element with δ* = 0 keeps the base's bits."""
    parameters = parameters or {}
    weights = weights or [1.0] * len(agents)
    scales = [1.0] * len(agents)
    if method == "ram_plus":
        r, alpha = parameters.get("r", 0.1), parameters.get("alpha", 2.0)
        scales = [1 + r * min(rho, alpha) for rho in ratios(base, agents, parameters.get("epsilon", 1e-5))]
    out = {}
    for name, columns in deltas(base, agents).items():
        flat = [c.ravel() for c in columns]
        star = np.array(
            [_RULES[method]([c[i] for c in flat], weights, scales, parameters) for i in range(flat[0].size)], dtype=F
        ).reshape(base[name].shape)
        out[name] = np.where(star == 0, base[name], base[name] + star).astype(F)
    return out


def known() -> tuple[str, ...]:
    return tuple(_RULES)

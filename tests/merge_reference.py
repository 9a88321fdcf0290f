"""Naive whole-model references: one element at a time, no chunks, no shared code.

They read like the formulas of docs/methods.md. Arithmetic is float32 as the promise says. Order statistics come from
sorting, random draws from SplitMix64 written with Python's integers.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

F = np.float32
Model = Mapping[str, np.ndarray]  # name → float32 array
_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


@dataclass
class Element:
    """One element of a merge and everything that a rule may look at."""

    deltas: list[F]
    weights: list[float]
    parameters: Mapping[str, Any]
    scales: list[float]  # λt of the RAM family
    thresholds: list[F]  # of trims and quantiles
    draws: list[F] = field(default_factory=list)
    sensitivities: list[F] = field(default_factory=list)

    @property
    def active(self) -> list[int]:
        return [t for t, d in enumerate(self.deltas) if abs(d) > F(self.parameters.get("epsilon", 1e-5))]


def deltas(base: Model, agents: Sequence[Model]) -> dict[str, list[np.ndarray]]:
    return {name: [(agent[name] - value).astype(F) for agent in agents] for name, value in base.items()}


def counts(base: Model, agents: Sequence[Model], epsilon: float = 1e-5) -> tuple[list[int], list[int]]:
    """Shared and unique elements per agent over the whole model (RAM Eq. 2)."""
    shared, unique = [0] * len(agents), [0] * len(agents)
    for columns in deltas(base, agents).values():
        for element in zip(*(c.ravel() for c in columns), strict=True):
            active = [t for t, d in enumerate(element) if abs(d) > F(epsilon)]
            for t in active:
                (shared if len(active) > 1 else unique)[t] += 1
    return shared, unique


def splitmix(x: int) -> int:
    """One mixing round of SplitMix64."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def draw(first: int, second: int, index: int) -> int:
    """64 bits: two rounds over a counter, with two keys."""
    return splitmix(splitmix((index * GOLDEN + first) & _MASK) ^ second)


def uniform(seed: int, agent: int, tensor: str, index: int) -> F:
    """The draw of one element in [0, 1), 24 bits."""
    text = repr((seed, "uniform", str(agent), tensor)).encode()
    digest = hashlib.blake2b(text, digest_size=16, person=b"hubmerge-rng").digest()
    first, second = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    return F((draw(first, second, index) >> 40) * 2.0**-24)


def _sum(values: Sequence[F]) -> F:
    total = F(0)
    for value in values:
        total = F(total + value)
    return total


def _weighted(e: Element) -> list[F]:
    return [F(d * F(w)) for d, w in zip(e.deltas, e.weights, strict=True)]


def _linear(e: Element) -> F:
    return _sum(_weighted(e)) / F(sum(e.weights) + e.parameters.get("base_weight", 0.0))


def _factor(e: Element) -> F:
    lam = e.parameters.get("lambda", 1 / len(e.deltas))
    return F(lam / sum(e.weights) if e.parameters.get("normalize") else lam)


def _task_arithmetic(e: Element) -> F:
    return _factor(e) * _sum(_weighted(e))


def _ram(e: Element) -> F:
    active = e.active
    if not active:
        return F(0)
    if len(active) == 1:
        t = active[0]
        return _weighted(e)[t] * F(e.scales[t])
    return _sum([_weighted(e)[t] for t in active]) / F(len(active))


def _ram_quantile(e: Element) -> F:
    active = [
        t
        for t, d in enumerate(e.deltas)
        if abs(d) >= e.thresholds[t] and (d != 0 or e.parameters.get("literal", False))
    ]
    if len(active) >= 2:
        return _sum(_weighted(e)) / F(len(e.deltas))
    return _weighted(e)[active[0]] * F(e.parameters.get("lambda", 1.5)) if active else F(0)


def _elect(e: Element, values: Sequence[F]) -> F:
    kept = [F(v * F(w)) if abs(v) >= t else F(0) for v, w, t in zip(values, e.weights, e.thresholds, strict=True)]
    positive = _sum(kept) >= 0
    agreeing = [k for k, v in enumerate(kept) if v != 0 and (v > 0) == positive]
    divisor = _sum([F(e.weights[k]) for k in agreeing]) if e.parameters.get("disjoint", "mean") == "mean" else F(1)
    return F(e.parameters.get("lambda", 1.0)) * (_sum([kept[k] for k in agreeing]) / (divisor or F(1)))


def _dropped(e: Element) -> list[F]:
    p = e.parameters.get("p", 0.5)
    return [F(d * F(1 / (1 - p))) if u >= F(p) else F(0) for d, u in zip(e.deltas, e.draws, strict=True)]


def _dare_linear(e: Element) -> F:
    return _factor(e) * _sum([F(d * F(w)) for d, w in zip(_dropped(e), e.weights, strict=True)])


def _fisher(e: Element) -> F:
    information = [F(s * F(w)) for s, w in zip(e.sensitivities, e.weights, strict=True)]
    lam = F(e.parameters.get("lambda", 1.0))
    if (total := _sum(information)) == 0:
        return lam * _linear(e)
    return lam * _sum([F(d * F(f / total)) for d, f in zip(e.deltas, information, strict=True)])


def _sar(e: Element) -> F:
    lam, p = F(e.parameters.get("lambda", 1.0)), e.parameters.get("p", 0.2)
    active = e.active
    if not active:
        return F(0)
    if len(active) == 1:
        t = active[0]
        update = e.deltas[t]
        if abs(update) <= e.thresholds[t]:  # the weaker half of the private updates
            update = F(update * F(1 / (1 - p))) if e.draws[t] >= F(p) else F(0)
        return lam * F(update * F(e.weights[t]))
    best = active[0]
    for t in active[1:]:
        if e.sensitivities[t] >= e.sensitivities[best]:  # ties to the later agent
            best = t
    return lam * _sum([_weighted(e)[t] for t in active if (e.deltas[t] > 0) == (e.deltas[best] > 0)])


RULES: Mapping[str, Callable[[Element], F]] = {
    "linear": _linear,
    "task_arithmetic": _task_arithmetic,
    "ram": _ram,
    "ram_plus": _ram,
    "ram_plus_soft": _ram,
    "ram_quantile": _ram_quantile,
    "ties": lambda e: _elect(e, e.deltas),
    "dare_linear": _dare_linear,
    "dare_ties": lambda e: _elect(e, _dropped(e)),
    "fisher": _fisher,
    "sar": _sar,
}


def _scales(method: str, base: Model, agents: Sequence[Model], parameters: Mapping[str, Any]) -> list[float]:
    """λt of the RAM family, counted over the tensors of `base`."""
    if method not in ("ram_plus", "ram_plus_soft"):
        return [1.0] * len(agents)
    r, counted = parameters.get("r", 0.1), counts(base, agents, parameters.get("epsilon", 1e-5))
    if method == "ram_plus_soft":
        return [1 + r * (s / (s + u) if s + u else 0.0) for s, u in zip(*counted, strict=True)]
    rhos = [s / u if u else (math.inf if s else 0.0) for s, u in zip(*counted, strict=True)]
    return [1 + r * min(rho, parameters.get("alpha", 2.0)) for rho in rhos]


def _largest(values: np.ndarray, rank: int) -> F:
    """The value of `rank` (1 is the largest), by sorting."""
    return F(np.sort(values.ravel())[::-1][rank - 1]) if values.size else F(0)


def merge(
    method: str,
    base: Model,
    agents: Sequence[Model],
    weights: Sequence[float] | None = None,
    parameters: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    sensitivities: Sequence[Model] = (),
) -> dict[str, np.ndarray]:
    """θ0 + δ* in float32, before the final rounding; an element with δ* = 0 keeps the base's bits."""
    parameters = parameters or {}
    k = len(agents)
    weights = list(weights or [1.0] * k)
    of_model = _scales(method, base, agents, parameters)
    by_tensor = method == "ram_plus" and parameters.get("scope") == "tensor"
    drawing = method in ("dare_linear", "dare_ties", "sar")
    columns = {name: [c.ravel() for c in value] for name, value in deltas(base, agents).items()}
    draws = {
        name: [[uniform(seed, t, name, i) for i in range(flat[t].size)] if drawing else [] for t in range(k)]
        for name, flat in columns.items()
    }
    magnitudes = {name: [np.abs(c) for c in flat] for name, flat in columns.items()}
    if method == "dare_ties":
        p = parameters.get("p", 0.5)
        for name, rows in magnitudes.items():
            kept = [np.array(d, dtype=F) >= F(p) for d in draws[name]]
            rows[:] = [np.where(own, row * F(1 / (1 - p)), F(0)) for own, row in zip(kept, rows, strict=True)]

    def thresholds(name: str) -> list[F]:
        if method in ("ties", "dare_ties"):
            density, rows = parameters.get("density", 0.2), magnitudes[name]
            if parameters.get("trim_scope", "model") == "model":
                rows = [np.concatenate(of_agent) for of_agent in zip(*magnitudes.values(), strict=True)]
            return [_largest(row, max(1, int(density * row.size))) for row in rows]
        if method == "ram_quantile":
            q = parameters.get("q", 0.9)
            n = columns[name][0].size
            return [_largest(m, n - math.ceil(q * (n - 1))) if n else F(0) for m in magnitudes[name]]
        if method == "sar":
            epsilon = F(parameters.get("epsilon", 1e-5))
            active = ([d for d in element if d > epsilon] for element in zip(*magnitudes[name], strict=True))
            ordered = sorted(own[0] for own in active if len(own) == 1)
            return [ordered[(len(ordered) - 1) // 2] if ordered else F(0)] * k
        return [F(0)] * k

    out = {}
    for name, flat in columns.items():
        limits = thresholds(name)
        alone = [{name: agent[name]} for agent in agents]
        scales = _scales(method, {name: base[name]}, alone, parameters) if by_tensor else of_model
        star = np.array(
            [
                RULES[method](
                    Element(
                        [c[i] for c in flat],
                        weights,
                        parameters,
                        scales,
                        limits,
                        [d[i] for d in draws[name]] if drawing else [],
                        [s[name].ravel()[i] for s in sensitivities],
                    )
                )
                for i in range(flat[0].size)
            ],
            dtype=F,
        ).reshape(base[name].shape)
        out[name] = np.where(star == 0, base[name], base[name] + star).astype(F)
    return out


def wudi(deltas: Sequence[np.ndarray], steps: int, lr: float) -> np.ndarray:
    """Adam on the loss itself, in float64; the gradient by the chain rule through each product."""
    taus = [d.astype(np.float64) for d in deltas]
    merged = np.sum(taus, axis=0)
    m, v = np.zeros_like(merged), np.zeros_like(merged)
    for step in range(1, steps + 1):
        gradient = np.zeros_like(merged)
        for tau in taus:
            product = np.einsum("ij,kj->ik", merged - tau, tau)  # (δ* − δk) δkᵀ
            gradient += np.einsum("ik,kj->ij", 2 * product / np.einsum("ij,ij->", tau, tau), tau)
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        merged = merged - lr * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return merged


def known() -> tuple[str, ...]:
    return (*RULES, "wudi")

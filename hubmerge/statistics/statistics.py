"""Tallies: counts and sums, which add up exactly, of what agents changed, where they meet, and what the merge kept.

`Tally` holds the counts of some elements across the inputs, `ResultTally` those of the output. Both are monoids:
tensors, layers, module types, whole models and processes are combined with `+` in plan order. Counts are integers. Sums
of real numbers are taken in float32 over aligned blocks of elements, in a fixed order; the blocks are added in their
order in float64. So a sum has the same bits for every chunk size and on every device. Order statistics come from a
histogram of magnitudes with error bounds (histogram.py).

Sources: density, unique/shared and ρ: RAM (arXiv:2601.13572) Eq. 1, 2; conflict/overlap/private: SAR
(arXiv:2606.18521) Eq. 12, Fig. 7; signal kept: the papers' "signal dilution" (1/K for a unique update that is
averaged over K agents); L0 sparsity, Gini, kurtosis, top mass: the 70B paper, section 2.2.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hubmerge.statistics.histogram import AgentMagnitudes, Histogram
from hubmerge.statistics.tally_sums import Addable

SCHEMA = 3  # version of the JSON form

L0_FRACTION = 0.01  # of max|δ|; an element below it counts as near zero (70B paper, Eq. 2)
_LEAST_SPREAD = 0.05  # variance per mean square below which raw moments no longer tell the fourth central one

Counts = NDArray[np.int64]
Sums = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Overlaps:
    """How often the updates of K agents meet over some elements."""

    by_overlap: Counts  # [K, K+1] active elements of agent k where c agents are active

    @property
    def changed(self) -> Counts:
        """[K] active elements of each agent."""
        return np.asarray(self.by_overlap.sum(axis=1))

    @property
    def unique(self) -> Counts:
        """[K] elements that this agent alone changed."""
        return self.by_overlap[:, 1]

    @property
    def shared(self) -> Counts:
        """[K] elements that this agent and others changed."""
        return self.changed - self.unique

    @property
    def rho(self) -> tuple[float, ...]:
        """Overlap-unique ratio per agent (RAM Eq. 2); ∞ where an agent has no unique element."""
        return tuple(
            int(s) / int(u) if u else (float("inf") if s else 0.0)
            for s, u in zip(self.shared, self.unique, strict=True)
        )


@dataclass(frozen=True, eq=False)
class Tally(Addable):
    """Counts over some elements of K agents against their base; active means |δ| > ε."""

    elements: int
    changed: Counts  # [K] active elements of each agent
    identical: Counts  # [K] elements with the base's very value
    overlap: Counts  # [K+1] elements that c = 0 … K agents changed
    by_overlap: Counts  # [K, K+1] active elements of agent k where c agents are active
    pair_active: Counts  # [K, K] elements that both changed
    pair_agree: Counts  # [K, K] … with the same sign
    conflict: int  # elements with c ≥ 2 and opposite signs among the active updates
    nonfinite: Counts  # [K+1] NaN or Inf in the base (index 0) and in the agents
    dot: Sums  # [K, K] Σ δk·δl over all elements
    max_abs: Sums  # [K] max |δk|
    moments: Sums  # [3, K] Σ δk, Σ δk³, Σ δk⁴
    histogram: Histogram  # |δk| of every agent

    MAXIMA = ("max_abs",)
    SUMS = ("dot", "max_abs", "moments")

    @property
    def agents(self) -> int:
        return len(self.changed)

    @property
    def overlaps(self) -> Overlaps:
        return Overlaps(self.by_overlap)

    @property
    def sums(self) -> Sums:
        """The real sums in a row: moments per power and agent, then dot for every a ≤ b."""
        return np.concatenate([self.moments.reshape(-1), self.dot[_pairs(self.agents)]])

    def with_sums(self, sums: Sums) -> Self:
        k, upper = self.agents, _pairs(self.agents)
        dot = np.zeros((k, k))
        dot[upper] = dot.T[upper] = sums[3 * k :]
        return replace(self, moments=sums[: 3 * k].reshape(3, k), dot=dot)

    @property
    def density(self) -> tuple[float, ...]:
        return tuple(int(c) / max(self.elements, 1) for c in self.changed)

    def magnitudes(self, k: int) -> AgentMagnitudes:
        """|δk| of all elements."""
        return self.histogram.of(k, self.elements)

    def kurtosis(self, k: int) -> float | None:
        """Excess kurtosis of δk, zeros included: m4/m2² − 3, central moments of the population.

        Raw moments are float32 sums over blocks (counting.RELATIVE_ERROR): a usual agent's is right to five digits.
        None where the deltas are all but equal, with a variance below a twentieth of their mean square.
        """
        n = max(self.elements, 1)
        mean, cube, fourth = (float(m) / n for m in self.moments[:, k])
        square = float(self.dot[k, k]) / n
        variance = square - mean * mean
        if variance <= _LEAST_SPREAD * square:
            return None
        # in units of the root mean square, so that no power of a tiny delta underflows
        unit = float(np.sqrt(square))
        mean, cube, fourth = mean / unit, cube / unit / square, fourth / square / square
        central = fourth - 4 * mean * cube + 6 * mean * mean - 3 * mean**4
        return central / (1 - mean * mean) ** 2 - 3

    @property
    def shares(self) -> dict[str, float]:
        """The shares of elements that several agents changed, one (`private`), or none (`unchanged`).

        Of those that several changed, `conflict` has opposite signs and `overlap` one sign. SAR's Fig. 7 draws
        `conflict`, and calls `several` overlap.
        """
        n = max(self.elements, 1)
        several = int(self.overlap[2:].sum())
        return {
            "several": several / n,
            "conflict": self.conflict / n,
            "overlap": (several - self.conflict) / n,
            "private": int(self.overlap[1]) / n if self.agents else 0.0,
            "unchanged": int(self.overlap[0]) / n,
        }

    def jaccard(self, k: int, m: int) -> float:
        either = int(self.changed[k] + self.changed[m] - self.pair_active[k, m])
        return int(self.pair_active[k, m]) / either if either else 0.0

    def cosine(self, k: int, m: int) -> float:
        norm = float(np.sqrt(self.dot[k, k]) * np.sqrt(self.dot[m, m]))
        return float(self.dot[k, m]) / norm if norm else 0.0

    def sign_agreement(self, k: int, m: int) -> float:
        """Share of the elements that both changed on which they agree in sign."""
        both = int(self.pair_active[k, m])
        return int(self.pair_agree[k, m]) / both if both else 1.0


@dataclass(frozen=True, eq=False)
class ResultTally(Addable):
    """What the output θ* holds of the agents' updates, over some elements.

    The sums run over the region where agent k is active, alone (`unique`) or with others (`shared`).
    """

    elements: int
    changed: int  # elements of the output that differ from the base as stored in the output's dtype
    rounded: int  # elements that the final rounding moved
    nonfinite: int  # NaN or Inf in the output; anything but 0 fails the job
    unique_norm: Sums  # [K] Σ δt² on the unique region
    unique_kept: Sums  # [K] Σ δ*·δt there, δ* before rounding
    unique_stored: Sums  # [K] Σ (θ* − θ0)·δt there, θ* as stored
    unique_other: Sums  # [K] the same, had the other rounding mode been chosen
    shared_norm: Sums  # [K]
    shared_kept: Sums  # [K]

    SUMS = ("unique_norm", "unique_kept", "unique_stored", "unique_other", "shared_norm", "shared_kept")

    @property
    def sums(self) -> Sums:
        """The fields of SUMS in a row."""
        return np.concatenate([getattr(self, name) for name in self.SUMS])

    def with_sums(self, sums: Sums) -> Self:
        rows: dict[str, Any] = dict(zip(self.SUMS, sums.reshape(len(self.SUMS), -1), strict=True))
        return replace(self, **rows)

    @staticmethod
    def _ratio(numerator: Sums, norm: Sums) -> tuple[float | None, ...]:
        return tuple(float(a) / float(b) if b else None for a, b in zip(numerator, norm, strict=True))

    @property
    def effective_scale(self) -> tuple[float | None, ...]:
        """Effective λt, measured on the stored output: Σ(θ* − θ0)·δt / Σ δt² on the unique region; None if empty."""
        return self._ratio(self.unique_stored, self.unique_norm)

    @property
    def effective_scale_other(self) -> tuple[float | None, ...]:
        """The same figure, had the output been rounded in the other mode."""
        return self._ratio(self.unique_other, self.unique_norm)

    @property
    def kept_unique(self) -> tuple[float | None, ...]:
        """Signal kept ⟨δ*, δt⟩/⟨δt, δt⟩ on the unique region (1/K under plain averaging)."""
        return self._ratio(self.unique_kept, self.unique_norm)

    @property
    def kept_shared(self) -> tuple[float | None, ...]:
        return self._ratio(self.shared_kept, self.shared_norm)


def zero_tally(agents: int) -> Tally:
    k = agents
    return Tally(
        0,
        _counts(k),
        _counts(k),
        _counts(k + 1),
        _counts(k, k + 1),
        _counts(k, k),
        _counts(k, k),
        0,
        _counts(k + 1),
        np.zeros((k, k)),
        np.zeros(k),
        np.zeros((3, k)),
        Histogram.sum_of(()),
    )


def zero_result(agents: int) -> ResultTally:
    return ResultTally(0, 0, 0, 0, *(np.zeros(agents) for _ in range(6)))


@cache
def _pairs(agents: int) -> tuple[NDArray[np.intp], ...]:
    """The agents a ≤ b of every pair, in the order of `sums`; numpy takes 0.2 ms to count them."""
    return np.triu_indices(agents)


def _counts(*shape: int) -> Counts:
    return np.zeros(shape, dtype=np.int64)


@dataclass(frozen=True, repr=False)
class Statistics:
    """The tallies of every merged tensor, in plan order, and of the groups that cards and figures show."""

    agents: tuple[str, ...]  # labels, in recipe order
    epsilon: float
    tensors: Mapping[str, Tally]

    def __repr__(self) -> str:
        changed = ", ".join(f"{a} changed {d:.2%}" for a, d in zip(self.agents, self.total.density, strict=True))
        return f"<Statistics of {len(self.tensors)} tensors: {changed}>"

    @property
    def total(self) -> Tally:
        return Tally.sum_of([zero_tally(len(self.agents)), *self.tensors.values()])

    def by_layer(self) -> dict[int, Tally]:
        """Depth (0 …) → tally; tensors outside the layer stack are left out."""
        return self.grouped(layer_of)

    def layer_densities(self) -> dict[str, list[float]]:
        """Depth ("0" …) → the share of the layer's elements that each agent changed."""
        return {str(depth): list(tally.density) for depth, tally in self.by_layer().items() if tally.elements}

    def by_module(self) -> dict[str, Tally]:
        """attention, mlp, norm, embedding, head, other → tally."""
        return self.grouped(module_of)

    def grouped(self, key: Callable[[str], Any]) -> dict[Any, Tally]:
        """The tallies of tensors, added up by `key` of their names; a tensor with the key None is left out."""
        groups: dict[Any, list[Tally]] = {}
        for name, tally in self.tensors.items():
            group = key(name)
            if group is not None:
                groups.setdefault(group, []).append(tally)
        return {group: Tally.sum_of(tallies) for group, tallies in sorted(groups.items())}


class LayerDensities:
    """What the agents changed of each layer, added up tensor by tensor."""

    def __init__(self) -> None:
        self._changed: dict[int, Counts] = {}
        self._elements: dict[int, int] = {}

    def add(self, name: str, tally: Tally) -> None:
        """Tensor `name`; one outside the layer stack is left out."""
        depth = layer_of(name)
        if depth is not None and tally.elements:
            self._changed[depth] = self._changed.get(depth, 0) + tally.changed
            self._elements[depth] = self._elements.get(depth, 0) + tally.elements

    def values(self) -> dict[str, list[float]]:
        """Depth ("0" …) → the share of the layer's elements that each agent changed."""
        return {str(depth): (self._changed[depth] / self._elements[depth]).tolist() for depth in sorted(self._changed)}


LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?|layer_module)\.(\d+)\.")
MODULES = ("embedding", "attention", "mlp", "norm", "other", "head")  # as a reader meets them in a model
_MODULES = (
    ("norm", re.compile(r"(?:norm\w*|\bln\w*|_ln)(?:\.\d+)?$", re.IGNORECASE)),  # not what lies below such a name
    ("head", re.compile(r"^(?:(?:\w+_)?lm_head|output|score|embed_out|classifier|v_head|cls|lm_loss|pred_layer)\b")),
    ("embedding", re.compile(r"\bshared$|\brelative_attention_bias$|\b(?:wte|wpe|\w*embed\w*)\b")),
    ("attention", re.compile(r"\b\w*(?:attn|attention)\b", re.IGNORECASE)),
    ("mlp", re.compile(r"\b(?:mlp|feed_forward|ffn|experts?|block_sparse_moe|intermediate|DenseReluDense|fc[12])\b")),
    ("mlp", re.compile(r"\boutput\.dense$")),  # BERT's
)


def layer_of(name: str) -> int | None:
    """The depth of a tensor in the layer stack, None outside it."""
    match = LAYER.search(name)
    return int(match.group(1)) if match else None


def module_of(name: str) -> str:
    """The module type of a tensor by its name."""
    stem = name.rsplit(".", 1)[0]
    return next((module for module, pattern in _MODULES if pattern.search(stem)), "other")

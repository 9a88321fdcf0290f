"""What a training changed: one model beside the one that it was trained from, as one typed value.

    comparison = open_comparison(base, agent, hub, allow_local=True)   # headers alone; every problem at once
    diff = measure(comparison, hub, options, observer, cache=folder)   # one streaming pass, in constant memory

The pass is the one that `probe` makes (stream.py), over the agent and over zeros beside it (plan.py). The update
from the base to zeros is the base with the sign turned round, so its norm is the base's, to which a relative change
refers. A difference has the same bits for every chunk size, number of threads and device, as statistics have.
docs/diff.md holds the keys of `Diff.to_json`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from hubmerge import __version__
from hubmerge.engine.chunks import chunks_of
from hubmerge.engine.memory import shares_of
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.progress import Observer, Unobserved
from hubmerge.engine.rules import epsilon_of
from hubmerge.engine.stream import probe
from hubmerge.hub.client import Hub
from hubmerge.plan.compatibility import architecture
from hubmerge.plan.disk import available_bytes
from hubmerge.plan.plan import Plan, make_comparison
from hubmerge.recipe.recipe import Recipe, recipe_from_dict
from hubmerge.sources.base import Model
from hubmerge.sources.folder import UnchangedFolders
from hubmerge.sources.open import open_models
from hubmerge.sources.reader import TensorReader
from hubmerge.sources.shard_cache import ShardCache
from hubmerge.statistics.histogram import MANTISSA_BITS
from hubmerge.statistics.statistics import MODULES, Statistics, Tally, layer_of, module_of
from hubmerge.statistics.summary import concentration

SCHEMA = 1  # version of the JSON form
_AGENT, _ZEROS = 0, 1  # the agents of a comparison's plan
_METHOD = "ram"  # of the recipe that names the two models: its ε, and that it needs nothing else, are what counts

Measure = Literal["density", "relative_l2"]
TOP: tuple[Measure, ...] = ("density", "relative_l2")  # what tensors are put in order by


@dataclass(frozen=True)
class Side:
    """One of the two models, pinned."""

    kind: str  # "hub", "local" or "synthetic"
    id: str
    sha: str
    requested: str  # the branch or tag that was asked for
    weights: str  # "weights", "fp8 weights" or "LoRA adapter"
    dtypes: tuple[str, ...]  # as its floats are stored, safetensors' names


@dataclass(frozen=True)
class Change:
    """How some elements changed; δ = agent − base in float32. Fields that are None have no value there."""

    elements: int
    changed: int  # |δ| > ε
    identical: int  # the agent has the base's very value
    l1: float  # Σ|δ|
    l2: float  # √Σδ²
    max: float  # the largest |δ|
    base_l2: float  # √Σθ0², of the base's weights
    l0_sparsity: float | None
    gini: float | None
    kurtosis: float | None
    top_1_mass: float | None
    top_5_mass: float | None
    error: Mapping[str, float | None]  # how far each order statistic may be off

    @property
    def density(self) -> float:
        return self.changed / max(self.elements, 1)

    @property
    def identical_share(self) -> float:
        return self.identical / max(self.elements, 1)

    @property
    def slightly_changed_share(self) -> float:
        """The share of elements that differ from the base's by ε at most."""
        return (self.elements - self.changed - self.identical) / max(self.elements, 1)

    @property
    def mean(self) -> float:
        """Mean |δ|, zeros included."""
        return self.l1 / max(self.elements, 1)

    @property
    def relative_l2(self) -> float | None:
        """‖δ‖ / ‖θ0‖; None where the base's weights are all zero and something changed."""
        if self.base_l2 == 0:
            return 0.0 if self.l2 == 0 else None
        return self.l2 / self.base_l2

    def to_json(self) -> dict[str, Any]:
        derived = ("density", "identical_share", "mean", "relative_l2")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


@dataclass(frozen=True)
class Magnitude:
    """The elements with 2^exponent ≤ |δ| < 2^(exponent + 1)."""

    exponent: int
    elements: int
    l1: float


@dataclass(frozen=True)
class Diff:
    """What one training changed. JSON in and out without loss (`to_json`, `from_json`)."""

    schema: int
    hubmerge: str  # version
    epsilon: float  # absolute |δ| above which an element counts as changed
    base: Side
    agent: Side
    architecture: str
    tensor_count: int  # tensors of floats
    total: Change
    modules: Mapping[str, Change]  # of statistics.MODULES those that there are, in that order
    layers: Mapping[int, Change]  # by depth; tensors outside the layers are left out
    grid: Mapping[int, Mapping[str, Mapping[str, float | None]]]  # depth → module type → density and relative_l2
    magnitudes: tuple[Magnitude, ...]  # of all elements that are not zero, ascending
    tensors: Mapping[str, Change]  # in the base's order; of a diff `with_top_tensors`, those alone
    shapes: Mapping[str, tuple[int, ...]]  # of the same tensors
    integers: Mapping[str, int]  # tensors of integers → how many elements differ; they take no part in the rest
    warnings: tuple[str, ...]

    @property
    def nothing_changed(self) -> bool:
        return self.total.identical == self.total.elements and not any(self.integers.values())

    def top(self, by: Measure, count: int) -> list[str]:
        """The names of the most changed tensors, at most `count`; of equals the first, and none that did not change."""
        keyed = [(value, name) for name, c in self.tensors.items() if (value := getattr(c, by)) and c.l2]
        return [name for _, name in sorted(keyed, key=lambda pair: -pair[0])[:count]]

    def with_top_tensors(self, count: int) -> "Diff":
        """The same with only those tensors that are on a list of the most changed."""
        kept = {name for by in TOP for name in self.top(by, count)}
        return replace(
            self,
            tensors={n: c for n, c in self.tensors.items() if n in kept},
            shapes={n: s for n, s in self.shapes.items() if n in kept},
        )

    def to_json(self) -> dict[str, Any]:
        data = {f.name: _as_json(getattr(self, f.name)) for f in fields(self)}
        shapes = data.pop("shapes")
        data["tensors"] = {name: {"shape": shapes[name], **change} for name, change in data["tensors"].items()}
        return {**data, "nothing_changed": self.nothing_changed}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Diff":
        shapes = {name: change["shape"] for name, change in data["tensors"].items()}
        return TypeAdapter(cls).validate_python({**data, "shapes": shapes})


def _as_json(value: Any) -> Any:
    if isinstance(value, Change):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): _as_json(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_as_json(part) for part in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def comparison_recipe(base: str, agent: str, ignore: Sequence[str] = ()) -> Recipe:
    """A recipe of the two models and the patterns of tensors to leave out; RecipeError where one is not valid."""
    content = {"base": base, "agents": [agent], "method": _METHOD, "ignore": list(ignore)}
    return recipe_from_dict(content, "the comparison")


def open_comparison(recipe: Recipe, hub: Hub, *, allow_local: bool = False) -> Plan:
    """Pin both models, reading headers alone; raises with every problem that forbids a comparison."""
    base, agents = open_models(recipe, hub, allow_local=allow_local)
    return make_comparison(recipe, base, agents[0])


def measure(
    plan: Plan, hub: Hub, options: StreamOptions, observer: Observer, *, cache: Path, disk_budget: int | None = None
) -> Diff:
    """Read both models once, in the stages compile (a first time on a machine), fetch and probe.

    Shards on the Hub are kept in `cache` while they fit into the disk's budget, in bytes.
    Raises NonFiniteError, SourceChangedError, and what reading the models may raise.
    """
    folders = UnchangedFolders(plan.models)
    budget = max(0, available_bytes((cache,), disk_budget))  # what exceeds it is read by ranges
    watching = _Watching(observer, "fetch" if any(m.ref.kind == "hub" for m in plan.models) else "probe")
    store = ShardCache(hub, cache, plan.models, budget, starting=watching.fetching)
    with TensorReader(plan.models, store) as reader:
        statistics = probe(plan, reader, options, watching)
        integers = _compare_integers(plan, reader, options)
    folders.check()
    return make_diff(plan, statistics, integers)


class _Watching(Unobserved):
    """Passes the progress of the pass and of the cache, both in the caller's thread, on to one observer."""

    def __init__(self, observer: Observer, first: str) -> None:
        self._observer = observer
        self._stage = first
        observer.stage(first)  # at once, since what the pass waits for first is not what was told before

    def warning(self, message: str) -> None:
        self._observer.warning(message)

    def fetching(self, done: int, total: int) -> None:
        """Report the bytes that the pass waits for at its start; the others are fetched meanwhile."""
        if self._stage in ("compile", "fetch"):
            self.progress("fetch", done, total, "B")

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        if stage != self._stage:
            self._observer.stage(stage)
        self._stage = stage
        self._observer.progress(stage, done, total, unit)


def _compare_integers(plan: Plan, reader: TensorReader, options: StreamOptions) -> dict[str, int]:
    size = shares_of([plan], options).chunk
    found = {}
    for tensor in (t for t in plan.tensors() if t.action == "copy"):
        base, agent, *_ = tensor.inputs
        found[tensor.name] = sum(
            int(np.count_nonzero(reader.raw(0, base, c.start, c.count) != reader.raw(1, agent, c.start, c.count)))
            for c in chunks_of(tensor, size)
        )
    return found


def make_diff(plan: Plan, statistics: Statistics, integers: Mapping[str, int]) -> Diff:
    """The Diff for the statistics that were counted over a comparison's plan."""
    total = statistics.total
    modules = statistics.by_module()
    cells = {key: _change(tally) for key, tally in statistics.grouped(_cell_of).items()}
    grid: dict[int, dict[str, Mapping[str, float | None]]] = {}
    for (depth, module), cell in cells.items():
        grid.setdefault(depth, {})[module] = {"density": cell.density, "relative_l2": cell.relative_l2}
    shapes = {t.name: t.shape for t in plan.tensors()}
    return Diff(
        schema=SCHEMA,
        hubmerge=__version__,
        epsilon=epsilon_of(plan),
        base=_side(plan.base),
        agent=_side(plan.agents[_AGENT]),
        architecture=architecture(plan.base),
        tensor_count=len(statistics.tensors),
        total=_change(total),
        modules={name: _change(modules[name]) for name in MODULES if name in modules},
        layers={depth: _change(tally) for depth, tally in statistics.by_layer().items()},
        grid=grid,
        magnitudes=_octaves(total),
        tensors={name: _change(tally) for name, tally in statistics.tensors.items()},
        shapes={name: shapes[name] for name in statistics.tensors},
        integers=dict(integers),
        warnings=(*plan.warnings, *_notes(plan, integers)),
    )


def _cell_of(name: str) -> tuple[int, str] | None:
    depth = layer_of(name)
    return None if depth is None else (depth, module_of(name))


def _change(tally: Tally) -> Change:
    magnitudes, largest = tally.magnitudes(_AGENT), float(tally.max_abs[_AGENT])
    return Change(
        elements=tally.elements,
        changed=int(tally.changed[_AGENT]),
        identical=int(tally.identical[_AGENT]),
        l1=magnitudes.l1,
        l2=math.sqrt(tally.dot[_AGENT, _AGENT]),
        max=largest,
        base_l2=math.sqrt(tally.dot[_ZEROS, _ZEROS]),
        kurtosis=tally.kurtosis(_AGENT),
        **concentration(magnitudes, largest),
    )


def _octaves(tally: Tally) -> tuple[Magnitude, ...]:
    """The histogram's bins of each power of two together; the smallest has everything below float32's normal range."""
    magnitudes = tally.magnitudes(_AGENT)
    exponents = np.maximum(magnitudes.bins >> MANTISSA_BITS, 1) - 127
    found = []
    for exponent in np.unique(exponents):
        at = exponents == exponent
        found.append(Magnitude(int(exponent), int(magnitudes.counts[at].sum()), float(magnitudes.mass[at].sum())))
    return tuple(found)


def _side(model: Model) -> Side:
    ref = model.ref
    stored = {t.entry.dtype for t in model.tensors.values()}
    floats = tuple(sorted(d for d in stored if d.startswith(("F", "BF"))))
    return Side(ref.kind, ref.id, ref.sha, ref.requested, model.kind, floats)


def _notes(plan: Plan, integers: Mapping[str, int]) -> Iterable[str]:
    agent = plan.agents[_AGENT]
    base_dtypes, agent_dtypes = _side(plan.base).dtypes, _side(agent).dtypes
    if agent.kind == plan.base.kind == "weights" and base_dtypes != agent_dtypes:
        yield (
            f"{agent.ref.id} is stored as {', '.join(agent_dtypes)}, the base as {', '.join(base_dtypes)}: what "
            "rounding to the narrower one moved counts as a change, too"
        )
    if differing := [name for name, count in integers.items() if count]:
        named = ", ".join(differing[:5])
        yield f"{len(differing)} tensors of integers differ, which no figure here includes: {named}"

"""The plan: a pure function of headers that lists what will be read and written, or every problem that forbids it.

It is made before any weight moves. It holds every output tensor with its inputs and its byte range, so shards can be
written at known offsets in any order. The predictions of bytes, disk (disk.py), memory and time (prediction.py) come
from the same numbers. All incompatibilities are found here and raised together.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

from hubmerge.errors import HubmergeError, IncompatibleError, MemoryLimitError, Problem, SourceNotFoundError
from hubmerge.methods import get_method
from hubmerge.methods.base import Threshold
from hubmerge.methods.tensor_values import TensorValues, misplaced
from hubmerge.numerics.dtypes import FLOAT_DTYPES, NAMES, Rounding
from hubmerge.plan.compatibility import (
    agent_problems,
    architecture,
    base_problems,
    differences,
    other_settings,
    repeated,
    wrapped,
)
from hubmerge.recipe.calibration import CalibrationRows
from hubmerge.recipe.ignore import ignored_by
from hubmerge.recipe.model_name import ModelRef
from hubmerge.recipe.recipe import Recipe, merge_identity
from hubmerge.sources.base import Model, StoredTensor, Vocabulary
from hubmerge.sources.companions import Companions, select_companions
from hubmerge.sources.config import config_problems, merged_config, quantized, told
from hubmerge.sources.derived import BorrowedTensor, DerivedTensor, ZeroTensor
from hubmerge.sources.header import DTYPE_BYTES, serialize_header
from hubmerge.sources.lora import resident_bytes
from hubmerge.sources.reader import KEPT_TENSORS
from hubmerge.sources.same_tensors import drawn_as
from hubmerge.sources.views import ignoring_line, unmatched, views_of, without
from hubmerge.sources.vocabulary import add_rows, cut_added_rows, with_vocab_size
from hubmerge.text.wording import counted, incompatible, named


class InputKind(NamedTuple):
    """What the inputs of a tensor are like in memory."""

    dtypes: frozenset[str]
    computed: bool  # at least one of them, which takes more than itself while it is


MAX_SHARD_BYTES = 2 * 1024**3  # a resumed merge repeats at most one shard; the Hub likes files below 5 GB
WHOLE_SHARD_BYTES = 256 * 1024**2  # where matrices are multiplied, which takes minutes or hours for so many


@dataclass(frozen=True)
class PlannedTensor:
    """One output tensor. `inputs`: the base's tensor first, then the agents' in recipe order."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # of the output, safetensors' name
    action: Literal["merge", "copy"]  # copied from the base: integers, booleans, ignored ones
    begin: int  # bytes in the output shard
    end: int
    inputs: tuple[StoredTensor, ...]
    drawn_as: str  # the name whose random draws it takes

    @cached_property
    def elements(self) -> int:
        return self.inputs[0].entry.elements


@dataclass(frozen=True)
class PlannedShard:
    """One output file: its header bytes, then its tensors in order without gaps."""

    filename: str
    header: bytes
    tensors: tuple[PlannedTensor, ...]

    @property
    def size(self) -> int:
        return self.tensors[-1].end if self.tensors else len(self.header)


@dataclass(frozen=True, repr=False)
class Plan:
    """Everything that a merge reads and writes."""

    recipe: Recipe  # with every model pinned
    base: Model
    agents: tuple[Model, ...]
    shards: tuple[PlannedShard, ...]
    rounding: Rounding  # what None in the recipe means here
    warnings: tuple[str, ...]
    companions: Companions  # files beside the weights
    vocabulary: Vocabulary | None = None  # rows that an agent adds to the base's
    calibration: tuple[CalibrationRows, ...] = ()  # what agents are weighed by, each; none where it was not read

    def __repr__(self) -> str:  # all of its tensors would flood a notebook
        merge = f"{self.recipe.method} of {counted(len(self.agents), 'agent')} on {self.base.ref.id}"
        return f"<Plan {self.identity[:16]}: {merge}, {self.elements:,} parameters>"

    @property
    def config(self) -> Mapping[str, Any]:
        """The config.json that describes the output: the base's, before it is made safe to copy."""
        if self.vocabulary is None:
            return self.base.config
        return with_vocab_size(self.base, self.vocabulary.rows)

    @property
    def models(self) -> tuple[Model, ...]:
        return (self.base, *self.agents)

    @property
    def sources(self) -> list[tuple[str, bool]]:
        """Everything that a published merge names, and whether it is private: its parents and calibration data."""
        return [*((m.ref.id, m.private) for m in self.models), *((c.data, c.private) for c in self.calibration)]

    @property
    def labels(self) -> tuple[str, ...]:
        """Short names of the agents, as long as it takes to tell them and the base apart."""
        return _labels(self.models)[1:]

    @property
    def base_label(self) -> str:
        return _labels(self.models)[0]

    @property
    def identity(self) -> str:
        """sha256 over the pinned inputs and the recipe."""
        return self.identity_at("")

    def identity_at(self, target: str) -> str:
        """The same, with where it is published."""
        return merge_identity(self.recipe, self.base.ref, tuple(a.ref for a in self.agents), target, self.calibration)

    @property
    def elements(self) -> int:
        return sum(t.elements for t in self.tensors())

    @cached_property
    def merged_dtypes(self) -> frozenset[str]:
        """The dtypes in which merged tensors are stored."""
        return frozenset(t.dtype for t in self.tensors() if t.action == "merge")

    @cached_property
    def input_kinds(self) -> frozenset[InputKind]:
        """Of the merged tensors, each kind once."""
        kinds = set()
        for inputs in (t.inputs for t in self.tensors() if t.action == "merge"):
            made = [
                t for t in inputs if isinstance(t, DerivedTensor) and not isinstance(t, BorrowedTensor | ZeroTensor)
            ]
            kinds.add(InputKind(frozenset(t.entry.dtype for t in inputs), bool(made)))
        return frozenset(kinds)

    @cached_property
    def longest(self) -> int:
        """Elements of the largest merged tensor."""
        return max((t.elements for t in self.tensors() if t.action == "merge"), default=0)

    @property
    def output_bytes(self) -> int:
        return sum(s.size for s in self.shards)

    @property
    def input_bytes(self) -> int:
        return sum(m.weight_bytes for m in self.models)

    @cached_property
    def values(self) -> TensorValues:
        """The weights and parameters of each tensor."""
        return TensorValues.of(self.recipe.given, [t.name for t in self.tensors() if t.action == "merge"])

    @property  # its rule is a function, which a burst's plan could not be sent with (engine/bursts.py)
    def threshold(self) -> Threshold | None:
        """The order statistic that the method needs before it can merge, if any; of the first tensor that needs one."""
        method = get_method(self.recipe.method)
        found = (method.threshold(values.parameters, values.own) for values in self.values.distinct)
        return next((threshold for threshold in found if threshold is not None), None)

    def threshold_of(self, tensor: PlannedTensor) -> Threshold | None:
        """The same, of one tensor."""
        values = self.values[tensor.name]
        return get_method(self.recipe.method).threshold(values.parameters, values.own)

    @cached_property
    def overlap_scope(self) -> Literal["tensor", "model"] | None:
        """Where the method must count overlaps before it can merge: per tensor, over the model, or not at all."""
        method = get_method(self.recipe.method)
        return method.overlap_scope(method.typical(self.recipe.parameters))

    @property
    def passes(self) -> int:
        """How many passes over the inputs a merge makes.

        One merges, one counts overlaps, and an order statistic takes two, or one where all inputs are BF16, since 16
        bits tell nearly all of their differences apart (selection.py)."""
        threshold, scope = self.threshold, self.overlap_scope
        short = all(t.entry.dtype == "BF16" for tensor in self.tensors() for t in tensor.inputs)
        selecting = 0 if threshold is None else 1 if short else 2
        together = threshold is not None and threshold.scope == scope == "tensor"  # one pass counts for both
        return 1 + selecting + (scope is not None and not together)

    @property
    def download_bytes(self) -> int:
        """Bytes to fetch, without what the client's cache holds."""
        fetched = (m.files[shard] for m in self.models if m.ref.kind == "hub" for shard in m.shards)
        return sum(file.size for file in fetched if file.here is None)

    @property
    def resident_bytes(self) -> int:
        """Bytes that stay in memory beside the chunks in flight: the factors of adapters."""
        return sum(resident_bytes(m, KEPT_TENSORS) for m in self.models)

    def tensors(self) -> Iterator[PlannedTensor]:
        for shard in self.shards:
            yield from shard.tensors


def make_plan(recipe: Recipe, base: Model, agents: Sequence[Model], *, max_shard_bytes: int = MAX_SHARD_BYTES) -> Plan:
    """The plan of a merge; IncompatibleError carries every problem that headers can tell."""
    method = get_method(recipe.method)
    if recipe.dtype is None and (dtype := method.default_dtype(method.typical(recipe.parameters))):
        recipe = recipe.model_copy(update={"dtype": dtype})
    seen = views_of(base, agents, recipe.ignore, partial(add_rows, keeper=recipe.tokenizer_of))
    unlike = quantized(seen.base.config)  # what else differs would follow from this one, as from the architecture
    foreign = {str(a.ref) for a in seen.agents if unlike or architecture(a) != architecture(seen.base)}
    problems = [*_unfit(recipe, agents), *(p for p in seen.problems if p.where not in foreign)]
    if base.adapter is not None:  # every other problem would follow from this one
        raise IncompatibleError("these models cannot be merged", problems=tuple(problems))
    floats = [n for n, t in seen.base.tensors.items() if t.entry.dtype in FLOAT_DTYPES]
    undecided, unnamed = misplaced(recipe.given, floats)
    problems += undecided
    problems += [*base_problems(seen.base, seen.kept), *repeated(base, agents)]
    problems += [*wrapped(base), *config_problems(base, agents)]
    line = ignoring_line(recipe.ignore, seen.base, seen.agents)
    warnings = [*recipe.notes, *unnamed, *seen.warnings]
    if recipe.dtype is None and base.kind == "fp8 weights":
        warnings.append(f"{base.ref.id}: fp8 weights are stored as bfloat16, since the recipe names no dtype")
    for agent in seen.agents:
        problems += agent_problems(seen.base, agent, line)
        warnings += differences(seen.base, agent)
    if left_out := merged_config(base.config, ())[1]:
        warnings.append(told("config.json", left_out))
    donor, united = (seen.vocabulary.donor, bool(seen.vocabulary.united)) if seen.vocabulary else (0, False)
    companions = select_companions(base, agents, _labels((base, *agents))[1:], donor, united=united)
    problems += companions.problems
    warnings += companions.warnings
    if problems:
        raise refusal(problems)
    if any(method.needs_whole(name, t.entry.shape) for name, t in seen.base.tensors.items()):
        max_shard_bytes = min(max_shard_bytes, WHOLE_SHARD_BYTES)
    shards = _lay_out(recipe, (seen.base, *seen.agents), seen.kept, max_shard_bytes)
    sixteen_bits = any(t.dtype in ("BF16", "F16") for s in shards for t in s.tensors)
    rounding: Rounding = recipe.rounding or ("stochastic" if method.rescales and sixteen_bits else "nearest")
    # like every default, the rounding is written out: a version with another default makes another merge
    pinned = recipe.pinned(base.ref, tuple(a.ref for a in agents)).model_copy(update={"rounding": rounding})
    return Plan(
        pinned, base, tuple(agents), shards, rounding, tuple(dict.fromkeys(warnings)), companions, seen.vocabulary
    )


def refusal(problems: Sequence[Problem]) -> HubmergeError:
    """The error for `problems` that forbid a merge; where all are of one kind, it has that kind."""
    kinds = {kind.code: kind for kind in (MemoryLimitError, SourceNotFoundError)}
    codes = {problem.code for problem in problems}
    kind = kinds.get(next(iter(codes)), IncompatibleError) if len(codes) == 1 else IncompatibleError
    return kind("these models cannot be merged", problems=tuple(dict.fromkeys(problems)))


def _labels(models: Sequence[Model]) -> tuple[str, ...]:
    forms = [(m.ref.label, m.ref.id, str(m.ref), f"{m.ref.id}@{m.ref.sha}") for m in models]
    return tuple(
        next((f for level, f in enumerate(own) if [o[level] for o in forms].count(f) == 1), own[-1]) for own in forms
    )


def make_comparison(recipe: Recipe, base: Model, agent: Model) -> Plan:
    """A plan that compares one agent with its base and writes nothing. Raises IncompatibleError as `make_plan` does.

    A second agent of zeros stands beside it. Its update is the base with the sign turned round, so the pass that
    measures the agent's update measures the base as well. Of the recipe only its models and `ignore` count.
    """
    ignored = ignored_by(recipe.ignore)
    (left_base, *dropped), (left_agent, *more) = (without(model, ignored) for model in (base, agent))
    seen = views_of(left_base, [left_agent], rows=cut_added_rows)
    problems = list(seen.problems)
    if base.adapter is None:  # else every other problem would follow from this one
        problems += base_problems(seen.base, frozenset(*dropped))
        line = ignoring_line(recipe.ignore, seen.base, seen.agents)
        problems += agent_problems(seen.base, seen.agents[0], line)
    if problems:
        told = tuple(dict.fromkeys(map(_of_comparison, problems)))
        raise IncompatibleError("these models cannot be compared", problems=told)
    nothing = Model(ModelRef("synthetic", "nothing", "0" * 40), base.config, {}, {})
    zeros = replace(nothing, tensors={name: ZeroTensor(t.shard, t.entry) for name, t in seen.base.tensors.items()})
    shards = _lay_out(recipe, (seen.base, *seen.agents, zeros), frozenset(), MAX_SHARD_BYTES)
    names = [name for group in (*dropped, *more) for name in group]
    notes = [f"left out, as was asked for: {named(list(dict.fromkeys(names)))}"] if names else []
    notes += [f"{pattern!r} matches no tensor of either model" for pattern in unmatched(recipe.ignore, (base, agent))]
    warnings = [*notes, *seen.warnings, *other_settings(seen.base, seen.agents[0])]
    return Plan(recipe, base, (agent, nothing), shards, "nearest", tuple(dict.fromkeys(warnings)), Companions())


def _of_comparison(problem: Problem) -> Problem:
    """A problem with advice for a comparison: there is no recipe to remove a model from, or to put a line into."""
    steps = []
    for step in problem.next_step.split("Otherwise: "):
        if found := re.search(r"ignore: \[([^]]*)]", step):
            options = " ".join(f"--ignore {pattern.strip()}" for pattern in found[1].split(","))
            steps.append(f"On the command line, {options} leaves them out.")
        else:
            steps.append("Compare it with the model that it was trained from." if "Remove " in step else step.strip())
    return replace(
        problem,
        what=problem.what.replace("nothing to merge", "nothing to compare"),
        got=problem.got.replace("`ignore`", "--ignore"),
        next_step=" Or: ".join(dict.fromkeys(steps)),
    )


def _unfit(recipe: Recipe, agents: Sequence[Model]) -> Iterator[Problem]:
    """Problems of the recipe that show only beside its models."""
    method = get_method(recipe.method)
    if len(agents) < 2 and recipe.parameters.get("base_weight") is None:  # else the base is one of the merged
        what, got = "a merge needs at least two agents", str(len(agents))
        yield incompatible(what, expected="2 or more", got=got, next_step="Add an agent.")
    if "sensitivity" in method.extras and recipe.calibration is None:
        missing = [str(a.model) for a in recipe.agents if a.sensitivity is None and a.calibration is None]
        if missing:
            yield incompatible(
                f"{method.title} needs questions with answers for every agent, or files of its sensitivities",
                where=", ".join(missing),
                expected="calibration data of the recipe or the agent, or a file of sensitivities",
                next_step="Name calibration data: a dataset and its columns of questions (prompt) and answers "
                "(answer). Or choose a method that needs none.",
            )


def _lay_out(
    recipe: Recipe, models: Sequence[Model], kept: frozenset[str], max_shard_bytes: int
) -> tuple[PlannedShard, ...]:
    """The base's tensors in their stored order, cut into shards; wider dtypes first within each.

    Readers view the bytes in place, which needs every tensor at a multiple of its element's size. Tensors of the
    names `kept` are the base's, in the base's dtype.
    """

    def is_copied(tensor: StoredTensor) -> bool:
        # a computed tensor has no bits to copy, so it is merged from models that are all alike there
        ignored = tensor.entry.name in kept and not isinstance(tensor, DerivedTensor)
        return ignored or tensor.entry.dtype not in FLOAT_DTYPES

    def dtype_of(tensor: StoredTensor) -> str:
        return tensor.kept_dtype if is_copied(tensor) or recipe.dtype is None else NAMES[recipe.dtype]

    base, *agents = (model.tensors for model in models)
    draws = drawn_as(models[0])
    stored = sorted(base.values(), key=lambda t: (t.shard, t.entry.begin, t.entry.name))
    groups: list[list[StoredTensor]] = [[]]
    filled = 0
    for tensor in stored:
        size = tensor.entry.elements * DTYPE_BYTES[dtype_of(tensor)]
        if groups[-1] and filled + size > max_shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += size
    shards = []
    for number, group in enumerate(groups, start=1):
        group.sort(key=lambda t: -DTYPE_BYTES[dtype_of(t)])
        filename = "model.safetensors" if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        header, ranges = serialize_header(((t.entry.name, dtype_of(t), t.entry.shape) for t in group), {"format": "pt"})
        tensors = tuple(
            PlannedTensor(
                t.entry.name,
                t.entry.shape,
                dtype_of(t),
                "copy" if is_copied(t) else "merge",
                *ranges[t.entry.name],
                (t, *(agent[t.entry.name] for agent in agents)),
                draws.get(t.entry.name, t.entry.name),
            )
            for t in group
        )
        shards.append(PlannedShard(filename, header, tensors))
    return tuple(shards)

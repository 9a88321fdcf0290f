"""The plan: a pure function of headers that says what will be read and written, or everything that forbids it.

No weight has moved when it is made. Every output tensor is there with its inputs and its byte range, so that
shards can be written at known offsets in any order; the predictions of bytes, disk and memory come from the
same numbers. All incompatibilities are found here and raised together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hubmerge.dtypes import FLOAT_DTYPES, NAMES, Rounding
from hubmerge.errors import IncompatibleError, Problem
from hubmerge.methods import get_method
from hubmerge.recipe import Recipe, merge_identity
from hubmerge.sources.base import Model, StoredTensor
from hubmerge.sources.header import DTYPE_BYTES, serialize_header

MAX_SHARD_BYTES = 2 * 1024**3  # a resumed merge repeats at most one shard; the Hub likes files below 5 GB
NAMED_AT_MOST = 5  # tensors spelled out per problem
_SHAPING_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
)
_BEHAVIOUR_KEYS = (
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "rms_norm_eps",
    "hidden_act",
    "sliding_window",
    "tie_word_embeddings",
    "max_position_embeddings",
)


@dataclass(frozen=True)
class PlannedTensor:
    """One output tensor. `inputs`: the base's tensor first, then the agents' in recipe order."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # of the output, safetensors' name
    action: Literal["merge", "copy"]  # integers and booleans are copied from the base
    begin: int  # bytes in the output shard
    end: int
    inputs: tuple[StoredTensor, ...]

    @property
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


@dataclass(frozen=True)
class Plan:
    """What a merge reads and writes."""

    recipe: Recipe  # with every model pinned
    base: Model
    agents: tuple[Model, ...]
    shards: tuple[PlannedShard, ...]
    rounding: Rounding  # what None in the recipe means here
    warnings: tuple[str, ...]

    @property
    def models(self) -> tuple[Model, ...]:
        return (self.base, *self.agents)

    @property
    def labels(self) -> tuple[str, ...]:
        """Short names of the agents, made distinct where repos share a name."""
        short = [a.ref.label for a in self.agents]
        return tuple(s if short.count(s) == 1 else a.ref.id for s, a in zip(short, self.agents, strict=True))

    @property
    def identity(self) -> str:
        """sha256 over the pinned inputs and the recipe."""
        return merge_identity(self.recipe, self.base.ref, tuple(a.ref for a in self.agents))

    @property
    def elements(self) -> int:
        return sum(t.elements for t in self.tensors())

    @property
    def output_bytes(self) -> int:
        return sum(s.size for s in self.shards)

    @property
    def input_bytes(self) -> int:
        return sum(m.weight_bytes for m in self.models)

    @property
    def passes(self) -> int:
        """How often the inputs are read: twice when the method needs statistics of the whole model."""
        return 2 if get_method(self.recipe.method).needs_statistics else 1

    @property
    def download_bytes(self) -> int:
        return sum(m.weight_bytes for m in self.models if m.ref.kind == "hub")

    @property
    def disk_bytes(self) -> int:
        """The most that lies on disk at once: fetched inputs and the output."""
        return self.download_bytes + self.output_bytes

    def tensors(self) -> Iterator[PlannedTensor]:
        for shard in self.shards:
            yield from shard.tensors

    def summary(self) -> dict[str, Any]:
        """Plain data for `inspect`, the API and the form."""
        return {
            "method": self.recipe.method,
            "base": str(self.base.ref),
            "agents": [str(a.ref) for a in self.agents],
            "architecture": _architecture(self.base),
            "parameters": self.elements,
            "tensors": sum(1 for _ in self.tensors()),
            "dtype": sorted({t.dtype for t in self.tensors()}),
            "rounding": self.rounding,
            "shards": len(self.shards),
            "output_bytes": self.output_bytes,
            "input_bytes": self.input_bytes,
            "download_bytes": self.download_bytes,
            "disk_bytes": self.disk_bytes,
            "passes": self.passes,
            "identity": self.identity,
            "warnings": list(self.warnings),
        }


def make_plan(recipe: Recipe, base: Model, agents: Sequence[Model], *, max_shard_bytes: int = MAX_SHARD_BYTES) -> Plan:
    """The plan of a merge; IncompatibleError carries every problem that headers can tell."""
    problems: list[Problem] = []
    warnings: list[str] = []
    method = get_method(recipe.method)
    parameters = method.parse_parameters(recipe.parameters)
    if len(agents) < 2:
        problems.append(
            _problem(
                "a merge needs at least two agents",
                expected="2 or more",
                got=str(len(agents)),
                next_step="Add an agent.",
            )
        )
    if reason := method.check(parameters, recipe.weights):
        problems.append(_problem(reason, where=f"the parameters of {method.name}"))
    problems += _repeated(base, agents)
    for agent in agents:
        problems += _compare(base, agent)
        warnings += _differences(base, agent)
    unmergeable = [t.entry.name for t in base.tensors.values() if _is_unsupported(t.entry.dtype)]
    if unmergeable:
        problems.append(
            _problem(
                "tensors of a dtype that cannot be merged",
                where=str(base.ref),
                expected=", ".join(FLOAT_DTYPES),
                got=_named(unmergeable),
            )
        )
    if problems:
        raise IncompatibleError("these models cannot be merged", problems=problems)
    shards = _lay_out(recipe, base, tuple(agents), max_shard_bytes)
    sixteen_bits = any(t.dtype in ("BF16", "F16") for s in shards for t in s.tensors)
    rounding: Rounding = recipe.rounding or ("stochastic" if method.rescales and sixteen_bits else "nearest")
    pinned = recipe.pinned(base.ref, tuple(a.ref for a in agents))
    return Plan(pinned, base, tuple(agents), shards, rounding, tuple(dict.fromkeys(warnings)))


def _lay_out(recipe: Recipe, base: Model, agents: tuple[Model, ...], max_shard_bytes: int) -> tuple[PlannedShard, ...]:
    stored = sorted(base.tensors.values(), key=lambda t: (t.shard, t.entry.begin, t.entry.name))
    groups: list[list[StoredTensor]] = [[]]
    filled = 0
    for tensor in stored:
        size = tensor.entry.elements * DTYPE_BYTES[_output_dtype(recipe, tensor)]
        if groups[-1] and filled + size > max_shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += size
    shards = []
    for number, group in enumerate(groups, start=1):
        filename = "model.safetensors" if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        header, ranges = serialize_header(
            ((t.entry.name, _output_dtype(recipe, t), t.entry.shape) for t in group), {"format": "pt"}
        )
        tensors = tuple(
            PlannedTensor(
                t.entry.name,
                t.entry.shape,
                _output_dtype(recipe, t),
                "merge" if t.entry.dtype in FLOAT_DTYPES else "copy",
                *ranges[t.entry.name],
                (t, *(a.tensors[t.entry.name] for a in agents)),
            )
            for t in group
        )
        shards.append(PlannedShard(filename, header, tensors))
    return tuple(shards)


def _output_dtype(recipe: Recipe, tensor: StoredTensor) -> str:
    if tensor.entry.dtype not in FLOAT_DTYPES or recipe.dtype is None:
        return tensor.entry.dtype
    return NAMES[recipe.dtype]


def _is_unsupported(dtype: str) -> bool:
    return dtype.startswith("F") and dtype not in FLOAT_DTYPES


def _repeated(base: Model, agents: Sequence[Model]) -> list[Problem]:
    problems = []
    for k, agent in enumerate(agents):
        if same := _same_weights(base, agent):
            problems.append(
                _problem(
                    "an agent is the base itself",
                    where=str(agent.ref),
                    got=same,
                    next_step="Remove it: it changes nothing.",
                )
            )
        for other in agents[:k]:
            if same := _same_weights(other, agent):
                problems.append(
                    _problem(
                        "the same agent stands twice",
                        where=str(agent.ref),
                        got=same,
                        next_step="Remove one; use `weight` to count it more.",
                    )
                )
    return problems


def _same_weights(a: Model, b: Model) -> str | None:
    """How headers show that two models hold the same weights, None when they do not show it."""
    if (a.ref.kind, a.ref.id, a.ref.sha) == (b.ref.kind, b.ref.id, b.ref.sha):
        return "the same repo at the same commit"
    hashes_a = {a.files[s].sha256 for s in a.shards}
    hashes_b = {b.files[s].sha256 for s in b.shards}
    if None not in hashes_a and hashes_a == hashes_b:
        return f"shards with the same sha256 as {a.ref}"
    return None


def _compare(base: Model, agent: Model) -> list[Problem]:
    """What forbids a merge of this agent with this base."""
    where = str(agent.ref)
    problems: list[Problem] = []
    if _architecture(base) != _architecture(agent):
        # everything else would follow from this one
        return [
            _problem(
                "another architecture",
                where=where,
                expected=_architecture(base),
                got=_architecture(agent),
                next_step=f"Remove {agent.ref.id} or choose its own base.",
            )
        ]
    for key in _SHAPING_KEYS:
        if base.config.get(key) != agent.config.get(key) and key in base.config and key in agent.config:
            problems.append(
                _problem(
                    f"another {key}",
                    where=f"config.json of {where}",
                    expected=str(base.config[key]),
                    got=str(agent.config[key]),
                )
            )
    missing = [n for n in base.tensors if n not in agent.tensors]
    extra = [n for n in agent.tensors if n not in base.tensors]
    if missing:
        problems.append(
            _problem(
                "missing tensors",
                where=where,
                expected=_named(missing),
                got="not stored",
                next_step=f"Remove {agent.ref.id} or choose another base.",
            )
        )
    if extra:
        problems.append(
            _problem(
                "tensors that the base does not have",
                where=where,
                got=_named(extra),
                next_step=f"Remove {agent.ref.id} or choose another base.",
            )
        )
    shapes = [
        f"{n}: {_dims(base.tensors[n].entry.shape)} → {_dims(agent.tensors[n].entry.shape)}"
        for n in base.tensors
        if n in agent.tensors and base.tensors[n].entry.shape != agent.tensors[n].entry.shape
    ]
    if shapes:
        vocabulary = any("embed" in s or s.startswith("lm_head") for s in shapes)
        problems.append(
            _problem(
                "another vocabulary size or shape" if vocabulary else "other shapes",
                where=where,
                got=_named(shapes),
                next_step=f"Remove {agent.ref.id} or choose another base.",
            )
        )
    dtypes = [
        f"{n} ({agent.tensors[n].entry.dtype})"
        for n, t in base.tensors.items()
        if n in agent.tensors and not _dtypes_meet(t.entry.dtype, agent.tensors[n].entry.dtype)
    ]
    if dtypes:
        problems.append(
            _problem(
                "tensors of a dtype that cannot be merged",
                where=where,
                expected=", ".join(FLOAT_DTYPES),
                got=_named(dtypes),
            )
        )
    return problems


def _dtypes_meet(base: str, agent: str) -> bool:
    if base in FLOAT_DTYPES or agent in FLOAT_DTYPES:
        return base in FLOAT_DTYPES and agent in FLOAT_DTYPES
    return base == agent


def _differences(base: Model, agent: Model) -> list[str]:
    """What a user should know, though it does not forbid the merge."""
    notes = [
        f"{agent.ref.id}: {key} in config.json differs from the base ({base.config.get(key)!r} → "
        f"{agent.config.get(key)!r}); the merge keeps the base's"
        for key in _BEHAVIOUR_KEYS
        if base.config.get(key) != agent.config.get(key) and (key in base.config or key in agent.config)
    ]
    for name in ("tokenizer.json", "chat_template.jinja"):
        a, b = base.files.get(name), agent.files.get(name)
        if (a is None) != (b is None) or (a and b and a.size != b.size):
            notes.append(f"{agent.ref.id}: {name} differs from the base's; the merge keeps the base's")
    return notes


def _architecture(model: Model) -> str:
    names = model.config.get("architectures") or [model.config.get("model_type", "unknown")]
    return str(names[0])[:100] if isinstance(names, list) and names else "unknown"


def _problem(what: str, *, where: str = "", expected: str = "", got: str = "", next_step: str = "") -> Problem:
    return Problem(IncompatibleError.code, what, where, expected, got, next_step)


def _dims(shape: Sequence[int]) -> str:
    return "×".join(str(n) for n in shape) or "scalar"


def _named(items: Sequence[str] | Mapping[str, Any]) -> str:
    listed = list(items)
    more = f" and {len(listed) - NAMED_AT_MOST} more" if len(listed) > NAMED_AT_MOST else ""
    return ", ".join(listed[:NAMED_AT_MOST]) + more

"""The interface of a merge method.

A method declares data about itself (name, paper, parameters, what it needs) and one *kernel*: a branch-free
expression over one chunk, free of state, from which every backend is derived. An element of the result depends
on the same element of the inputs only, so chunks, processes and devices cannot change it.

    kernel(inputs, per_agent, constants) → merged delta

    inputs     K arrays [n], float32: δk = θk − θ0, in recipe order; then K arrays for each of `extras`:
               "uniform" draws in [0, 1), keyed by (seed, agent, tensor, element); "sensitivity" Fk ≥ 0
    per_agent  K tuples of float32 scalars: what `per_agent` computed for each agent
    constants  float32 scalars: what `constants` computed
    returns    [n], float32: δ*; the inputs stay as they are

Scalars are computed once per tensor in float64 from the parameters, the agents' weights, the statistics and the
exact thresholds that the method asks for, and rounded to float32.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hubmerge.errors import MisnamedError, Problem, RecipeError
from hubmerge.methods import varying
from hubmerge.numerics.arrays import Array
from hubmerge.statistics.statistics import Overlaps
from hubmerge.text.wording import did_you_mean

EPSILON = 1e-5  # RAM Sec. 3.1: two parameters are equal when they differ by at most this, absolute


Each = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


def one_by_one(work: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    """An `Each` without threads."""
    return [work(part) for part in parts]


@dataclass(frozen=True)
class Paper:
    title: str
    arxiv: str  # identifier; empty where it has none
    equations: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.title, self.arxiv and f"arXiv:{self.arxiv}", self.equations)))


class Parameters(BaseModel):
    """Base of every method's parameters: frozen, ranges checked, unknown keys refused."""

    model_config = ConfigDict(  # strict: true is no number, "1" neither
        frozen=True, strict=True, extra="forbid", validate_default=True, allow_inf_nan=False, serialize_by_alias=True
    )


class EpsilonParameters(Parameters):
    epsilon: float = Field(default=EPSILON, ge=0.0, le=1.0, description="an update is active above it, absolute")


@dataclass(frozen=True)
class Threshold:
    """An order statistic of magnitudes that a method needs before it can merge; exact, by streaming selection.

    of: "delta" |δk|; "dropped" |δk| after the method's random drop; "private" |δ| where one agent alone is active.
    scope: over each "tensor" or over the whole "model".
    rank, drop: one for all agents, or one for each. A rank below 1 counts as 1, and one above n as n.
    """

    of: Literal["delta", "dropped", "private"]
    scope: Literal["tensor", "model"]
    rank: Callable[[int], int] | tuple[Callable[[int], int], ...]  # n values, zeros too → 1-based rank from the largest
    drop: float | tuple[float, ...] = 0.0  # probability of the random drop

    def rank_of(self, agent: int, n: int) -> int:
        return (self.rank[agent] if isinstance(self.rank, tuple) else self.rank)(n)

    def drop_of(self, agent: int) -> float:
        return self.drop[agent] if isinstance(self.drop, tuple) else self.drop


@dataclass(frozen=True)
class Scope:
    """What scalars are computed from: one tensor within one merge."""

    parameters: Any  # of the method's own type
    weights: Sequence[float]
    model: Overlaps | None = None  # of the whole model, when its `overlap_scope` says so
    tensor: Overlaps | None = None  # of this tensor, when it says either
    thresholds: tuple[float, ...] = ()  # per agent, when the method asks for a threshold
    own: Sequence[Any] = ()  # each agent's parameters, where some have their own

    @property
    def of_agents(self) -> Sequence[Any]:
        """The parameters of each agent."""
        return self.own or (self.parameters,) * len(self.weights)


class Method(ABC):
    """One merge method; instances are stateless."""

    name: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str]
    formula: ClassVar[str]  # δ* in one line, for the card and the docs
    papers: ClassVar[tuple[Paper, ...]] = ()  # one at least, for a method that comes with hubmerge
    parameters: ClassVar[type[Parameters]] = Parameters
    extras: ClassVar[tuple[Literal["uniform", "sensitivity"], ...]] = ()
    rescales: ClassVar[bool] = False  # has a λ per agent that nearest rounding to 16 bits can lose
    permutation_invariant: ClassVar[bool] = True  # up to float32 summation order
    matrix_products: ClassVar[bool] = False  # whose last bits differ between processors and devices; the card says so
    of_agent: ClassVar[tuple[str, ...]] = ()  # parameters that an agent can have its own value of, as recipes name them
    of_tensor: ClassVar[tuple[str, ...]] = ()  # those that a tensor can, where that depends on no other; floats alone

    def parse_parameters(self, values: Mapping[str, Any]) -> Parameters:
        """Validated parameters; ValueError names each wrong one."""
        try:
            return self.parameters.model_validate(dict(values))
        except ValidationError as error:
            known = {f.alias or name: f for name, f in self.parameters.model_fields.items()}
            problems = []
            for issue in error.errors(include_url=False):
                at, got = ".".join(map(str, issue["loc"])), repr(issue["input"])[:120]
                if issue["type"] == "extra_forbidden":
                    what, expected = f"{self.name} has no such parameter", ", ".join(known) or "none"
                    problems.append(Problem(RecipeError.code, what, at, expected, got, did_you_mean(at, known)))
                else:
                    what = issue["msg"].removeprefix("Value error, ").replace("Input should", "this must")
                    field = known.get(at)
                    default = field is not None and not field.is_required() and f"Leave it out for {field.default!r}."
                    problems.append(Problem(RecipeError.code, what, at, "", got, default or ""))
            raise MisnamedError(problems) from None

    def parse_settings(self, values: Mapping[str, Any], *, of_agent: bool = False) -> dict[str, Any]:
        """Parameters of a recipe, validated, with every default; those that vary (varying.py) stay in written form.

        `of_agent`: these are an agent's own parameters, which get no defaults.

        ValueError names what is wrong.
        """
        settings = dict(values)
        for key, value in values.items():
            if isinstance(value, list | tuple):
                try:
                    settings[key] = varying.parse(value)
                except ValueError as error:
                    raise ValueError(f"{key}: {error}") from None
        differing = {k: v for k, v in settings.items() if varying.varies(v)}
        first = settings | {k: varying.points(v)[0] for k, v in differing.items()}
        parsed = self.parse_parameters(first)
        for key, setting in differing.items():
            for number in varying.points(setting):
                self.parse_parameters({**first, key: number})
        if strangers := sorted(set(values) - set(self.of_agent)) if of_agent else []:
            can = f"with {self.name} agents have no parameters of their own"
            if self.of_agent:
                can = f"of the parameters of {self.name} an agent can have its own {', '.join(self.of_agent)}"
            raise ValueError(f"{', '.join(strangers)} is one for all agents; {can}")
        if fixed := sorted(set(differing) - set(self.varying(parsed))) if not of_agent else []:
            raise ValueError(self._one_for_all(fixed, parsed))
        dumped = parsed.model_dump(mode="json", exclude_none=True)
        if of_agent:
            dumped = {k: dumped[k] for k in values}
        return {k: varying.written(differing[k]) if k in differing else v for k, v in dumped.items()}

    def _one_for_all(self, names: Sequence[str], parameters: Any) -> str:
        """The refusal of parameters that must not differ from tensor to tensor."""
        can = " and ".join(("the weights", *self.varying(parameters)))
        more = ""
        if hasattr(parameters, "trim_scope"):
            trimmed = " and ".join(name for name in ("density", "p") if hasattr(parameters, name))
            more = f", {trimmed} too with trim_scope: tensor"
        return f"{', '.join(names)} must be one value for all tensors; with {self.name} {can} can differ{more}"

    def check_own(self, parameters: Any, own: Mapping[str, Any]) -> None:
        """ValueError where an agent's own parameter differs from tensor to tensor and must not."""
        differing = {k for k, v in own.items() if isinstance(v, list | tuple)}
        if fixed := sorted(differing - set(self.varying(parameters))):
            raise ValueError(self._one_for_all(fixed, parameters))

    def typical(self, values: Mapping[str, Any]) -> Parameters:
        """Parameters for decisions that do not depend on the tensor; one that varies has its first number."""
        return self.parse_parameters(
            {k: varying.points(varying.parse(v))[0] if isinstance(v, list | tuple) else v for k, v in values.items()}
        )

    def per_agent(self, scope: Scope) -> tuple[tuple[float, ...], ...]:
        """The kernel's scalars for each of the K agents: its weight, and the threshold that a method asks for."""
        return tuple(zip(*filter(None, (scope.weights, scope.thresholds)), strict=True))

    def constants(self, scope: Scope) -> tuple[float, ...]:
        """The kernel's scalars that all agents share."""
        return ()

    @staticmethod
    @abstractmethod
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        """δ* of one chunk; see the module's docstring."""

    def needs_whole(self, name: str, shape: tuple[int, ...]) -> bool:
        """True where δ* of a tensor cannot be computed element by element; `merge_whole` is called then."""
        return False

    def merge_whole(self, deltas: Sequence[Array], scope: Scope, each: Each = one_by_one) -> Array:
        """δ* of a whole tensor from K deltas of its shape, float32; only where `needs_whole`.

        They are numpy's, or torch's on a device; numerics/arrays.py has what is spelled alike for both. A tensor may
        have no dimension, or no element. `each(work, parts)` is `[work(p) for p in parts]` in all threads; a product of
        matrices takes one, so that no bit depends on their number.
        """
        raise NotImplementedError  # the registry refuses a method that needs it and has none

    def operations(self, shape: tuple[int, ...], agents: int, parameters: Any) -> float:
        """How many additions and multiplications of float32 `merge_whole` takes in products of matrices, roughly; to
        predict time. One that is done element by element takes as long as some hundred of them."""
        raise NotImplementedError  # the registry refuses a method that needs it and has none

    def floats(self, shape: tuple[int, ...], agents: int) -> int:
        """How many float32 `merge_whole` holds at once beside the K deltas, roughly; to predict memory."""
        raise NotImplementedError  # the registry refuses a method that needs it and has none

    def overlap_scope(self, parameters: Any) -> Literal["tensor", "model"] | None:
        """Where this method must count overlaps before it can merge: per tensor, or over the model, which takes a pass
        of its own. None: it needs no counts."""
        return None

    def varying(self, parameters: Any) -> tuple[str, ...]:
        """The parameters that may differ from tensor to tensor (varying.py), given all the others."""
        return self.of_tensor

    def threshold(self, parameters: Any, own: Sequence[Any] = ()) -> Threshold | None:
        """The order statistic that this method needs, if any. `own`: as in `Scope`."""
        return None

    def scales(self, scope: Scope) -> tuple[float | None, ...]:
        """λt of each agent where the formula scales unique updates (|δt| alone above ε) by wt·λt; else None."""
        return tuple(None for _ in scope.weights)

    def default_dtype(self, parameters: Any) -> str | None:
        """The output's dtype where the recipe names none; None: as the base stores it."""
        return None

    def check(self, parameters: Any, weights: Sequence[float]) -> str | None:
        """The reason why a merge with these values is refused, or None."""
        return None

    def doubt(self, parameters: Any, weights: Sequence[float]) -> str | None:
        """A warning about values that can be merged, or None."""
        negative = [f"agent {k} ({w:g})" for k, w in enumerate(weights, 1) if w < 0]
        return f"a negative weight takes away what was learned: {', '.join(negative)}" if negative else None

"""One evaluation run as a typed value, and the only parser for it, which trusts no bytes.

A result file says what was measured (model at a commit, suite at a version, split), on what (dataset revisions,
versions, hardware, seed) and how it ended. It also has the facts about the model (`ModelFacts`, read from its repo when
it was evaluated), so the leaderboard can be rebuilt from result files alone. A failed run has a status and an error but
no scores: a missing number is never a zero.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hubmerge.errors import ResultError

MAX_RESULT_BYTES = 1024 * 1024
MAX_TEXT = 2000
MAX_NAME = 300
# Numbers that a file may state. Tables have 64-bit columns, so a larger integer would take the whole board down.
MAX_SAMPLES = 1_000_000  # prompts of one task; the largest suite of this field asks 250,000
MAX_TRUNCATED = 0.05  # share of a task's prompts that may be cut; beyond it there is no score
MAX_SMALL = 1_000_000  # shots, versions, prompts of a batch
MAX_COUNT = 10**16  # elements and bytes of a model
MAX_FACTOR = 1e6  # weights and measured λ, absolute
MAX_SECONDS = 1e9
MAX_PLAIN_VALUES = 500  # of a method's parameters, all levels together
_MAX_PLAIN_DEPTH = 6

Split = Literal["test", "dev"]
# control and direction-changing characters, and halves of characters, which no file can hold
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Small = Annotated[int, Field(ge=0, le=MAX_SMALL)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Factor = Annotated[float, Field(ge=-MAX_FACTOR, le=MAX_FACTOR)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
_LISTED: Any = Field(default=(), strict=False)  # JSON has lists for tuples; what they hold is strict all the same


def _plain(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters that any JSON, CSV or 64-bit table can hold: bounded, finite, without control characters."""
    waiting: list[tuple[Any, int]] = [(values, 0)]
    seen = 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if seen > MAX_PLAIN_VALUES or depth > _MAX_PLAIN_DEPTH:
            raise ValueError(f"more than {MAX_PLAIN_VALUES} values, or {_MAX_PLAIN_DEPTH} levels")
        if isinstance(value, Mapping):
            waiting += [(each, depth + 1) for pair in value.items() for each in pair]
        elif isinstance(value, list | tuple):
            waiting += [(each, depth + 1) for each in value]
        elif isinstance(value, str):
            if len(value) > MAX_TEXT or CONTROL.search(value):
                raise ValueError("text that is too long, or with control characters")
        elif isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                raise ValueError("an integer beyond 64 bits")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError("a number that is not finite")
        elif value is not None:
            raise ValueError("parameters are plain data")
    return values


class _Frozen(BaseModel):
    # strict: the text "0.9" is no number and true is no 1, wherever a file comes from
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _no_control_characters(cls, value: Any) -> Any:
        if isinstance(value, str) and CONTROL.search(value):
            raise ValueError("control or direction-changing characters are not allowed")
        return value


class TaskScore(_Frozen):
    """The score of one task: the mean over `samples` prompts of a metric between 0 and 1."""

    task: Name
    domain: Name  # math, instruction, code, tool, memory, search, …
    metric: Name
    value: Share
    stderr: Annotated[float, Field(ge=0.0, le=1.0)] | None  # of the mean; None: not known
    samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES)]
    truncated: Small | None = None  # prompts, of these, that the model could not read whole; None: not counted
    few_shot: Small
    task_version: Small
    dataset: Name  # repo id
    dataset_revision: Name  # commit sha

    @model_validator(mode="after")
    def _not_more_than_all(self) -> "TaskScore":
        if self.truncated is not None and self.truncated > self.samples:
            raise ValueError("more prompts were truncated than asked")
        return self


class ParentFacts(_Frozen):
    """One input of a merge, pinned."""

    role: Literal["base", "agent"]
    id: Name
    sha: Text
    weight: Factor = 1.0


class ModelFacts(_Frozen):
    """Facts from the model's repo when it was evaluated; a merge's figures are None for other models."""

    author: Text
    license: Text | None = None
    parameters: Count | None = None  # elements
    size_bytes: Count | None = None  # of the weight files
    created: Text | None = None  # ISO 8601, of the evaluated commit
    parents: tuple[ParentFacts, ...] = _LISTED  # in the recipe's order, the base first; empty when not a merge of ours
    method: Text | None = None
    method_parameters: Annotated[Mapping[str, Any], AfterValidator(_plain)] = Field(default_factory=dict)
    recipe: Annotated[str, Field(max_length=65536)] | None = None  # YAML, every model pinned
    density: Share | None = None  # share of parameters that any agent changed
    overlap: Share | None = None  # share of those that two or more changed
    conflict: Share | None = None  # share of those shared whose signs differ
    effective_scales: tuple[Factor | None, ...] = _LISTED  # measured λ of each agent, in the recipe's order

    @property
    def is_merge(self) -> bool:
        return bool(self.parents)


class RunEnvironment(_Frozen):
    """Versions and hardware of a run, for a reader who wants to repeat it."""

    hubmerge: Text
    lighteval: Text
    transformers: Text
    torch: Text
    backend: Literal["transformers", "vllm"]
    device: Text
    dtype: Text  # that the model ran in
    adapter_base: Text | None = None  # of an adapter: the model that it was merged onto, id@commit
    stored_dtype: Text | None = None  # where that is a wider one, for whose weights the machine had too little memory
    batch_size: Small | None = None  # prompts at most
    batch_tokens: Count | None = None  # and tokens, padding and longest answers included; None: no such bound
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    seconds: Annotated[float, Field(ge=0.0, le=MAX_SECONDS)]


class RunError(_Frozen):
    """Why a run has no scores."""

    code: Name
    message: Text


class Signature(_Frozen):
    """An Ed25519 signature over the result's content (signing.py)."""

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # public, hex
    suite_version: Name  # that it was made under
    value: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]  # hex


class EvaluationResult(_Frozen):
    """One run of one suite on one model at one commit."""

    schema_version: Literal[1]
    model: Name  # repo id
    sha: Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]  # a commit, or a local folder's digest
    suite: Name
    suite_version: Name  # changes with tasks, limits, the content of datasets and the dtype that was asked for
    split: Split
    status: Literal["done", "failed"]
    error: RunError | None = None
    tasks: tuple[TaskScore, ...] = _LISTED
    facts: ModelFacts
    environment: RunEnvironment
    created: Text  # UTC, ISO 8601
    run_by: Name | None = None  # the account that ran it; a claim unless it is signed
    signature: Signature | None = None

    @model_validator(mode="after")
    def _ends_one_way(self) -> "EvaluationResult":
        if self.status == "done" and (not self.tasks or self.error is not None):
            raise ValueError("a run that is done has scores and no error")
        if self.status == "failed" and (self.tasks or self.error is None):
            raise ValueError("a run that failed has an error and no scores")
        if self.signature is not None and self.signature.suite_version != self.suite_version:
            raise ValueError("its signature is of another version of the suite")
        names = [t.task for t in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError("a task stands twice")
        return self

    @property
    def run_key(self) -> tuple[str, str, str, str, str]:
        """The run: model, commit, suite, its version, and split."""
        return (self.model, self.sha, self.suite, self.suite_version, self.split)

    @property
    def domains(self) -> Mapping[str, float]:
        """The mean of its tasks' values, per domain, in the order of the tasks."""
        values: dict[str, list[float]] = {}
        for task in self.tasks:
            values.setdefault(task.domain, []).append(task.value)
        return {domain: math.fsum(v) / len(v) for domain, v in values.items()}

    def to_json(self) -> str:
        return self.model_dump_json(indent=1) + "\n"


def result_path(result: EvaluationResult) -> str:
    """The path of a result in the results dataset: by model, commit, suite at its version, and split."""
    return f"results/{result.model}/{result.sha}/{result.suite}-{result.suite_version}-{result.split}.json"


def parse_result(data: bytes, *, where: str) -> EvaluationResult:
    """The result in a file's bytes; ResultError says what is wrong with it.

    `where` names the file. A file that lies at another path than `result_path` of its content is the caller's to
    refuse.
    """
    if len(data) > MAX_RESULT_BYTES:
        raise ResultError(
            "a result file is too long",
            where=where,
            expected=f"at most {MAX_RESULT_BYTES} bytes",
            got=f"{len(data)} bytes",
            next_step="It is left out of the board.",
        )
    try:
        return EvaluationResult.model_validate(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise ResultError(
            "a result file cannot be read",
            where=where,
            got=first_reason(error),
            next_step="It is left out of the board.",
        ) from error


def first_reason(error: Exception) -> str:
    """Why a stranger's document is refused: of several reasons the first, with its place."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
    return str(error)[:300]

"""The leaderboard as frozen values: a board per suite, a row per model at a commit, a line per domain and task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hubmerge.evaluation.result import ModelFacts, RunEnvironment, RunError, Split
from hubmerge.output.scores import DomainLine, Estimate, ParentLine, SkillsKept

COMBINED = "domains"  # the board that joins the suites of one domain each

FlagKind = Literal["contaminated", "withdrawn"]
FLAG_KINDS: tuple[FlagKind, ...] = ("contaminated", "withdrawn")


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag on a model, at one commit or at all (`sha` None)."""

    kind: FlagKind
    model: str
    sha: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RowFlag:
    """A flag as it concerns a row; `inherited_from` names the ancestor that carries it, None for its own."""

    kind: FlagKind
    reason: str
    inherited_from: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A result, flag or file that is left out, and why."""

    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class TaskLine:
    task: str
    domain: str
    metric: str
    score: Estimate
    samples: int
    truncated: int | None  # prompts that were cut; None: not counted
    few_shot: int
    task_version: int
    dataset: str
    dataset_revision: str


@dataclass(frozen=True, slots=True)
class Row:
    """A model at a commit. A failed one has an error and no scores."""

    model: str
    sha: str
    status: Literal["done", "failed"]
    error: RunError | None
    created: str  # of the result
    facts: ModelFacts
    environment: RunEnvironment
    tasks: tuple[TaskLine, ...] = ()
    domains: tuple[DomainLine, ...] = ()
    overall: Estimate | None = None  # the mean over the domains
    rank: int | None = None
    skills: SkillsKept | None = None  # None: no merge, or a parent has no score
    skills_rank: int | None = None  # among the merges, by the skills that they kept
    instruction_change: Estimate | None = None  # against the base
    parents: tuple[ParentLine, ...] = ()
    ancestors: tuple[str, ...] = ()  # id@sha, parents first, then theirs
    flags: tuple[RowFlag, ...] = ()
    failures: Mapping[str, RunError] = field(default_factory=dict)  # suite → why, on the combined board
    signed: bool = False  # by a trusted key
    narrowed: str | None = None  # "bfloat16, stored as float32": a machine with more memory would take the latter
    claimed_by: str | None = None  # the account that the result names
    superseded: bool = False  # a newer commit of the model has a result; shown because it is a parent

    @property
    def run_by(self) -> str:
        """The account that ran it where a trusted signature says so, else `community`."""
        return (self.claimed_by or "signed") if self.signed else "community"

    @property
    def agents(self) -> int:
        return sum(p.role == "agent" for p in self.facts.parents)

    @property
    def synergy(self) -> tuple[str, ...]:
        return tuple(d.domain for d in self.domains if d.synergy)

    def domain(self, name: str) -> DomainLine | None:
        return next((d for d in self.domains if d.domain == name), None)


@dataclass(frozen=True, slots=True)
class SuiteBoard:
    """The rows of one suite at one version, best first."""

    suite: str
    version: str
    split: Split
    versions: tuple[str, ...]  # that have results, newest first
    domains: tuple[str, ...]
    rows: tuple[Row, ...]

    def find(self, model: str, sha: str | None = None) -> Row | None:
        """The model's row: at a commit, or its newest."""
        rows = [r for r in self.rows if r.model == model and (sha is None or r.sha == sha)]
        return min(rows, key=lambda r: r.superseded, default=None)


@dataclass(frozen=True, slots=True)
class Board:
    """Every suite's board, and the refused results."""

    suites: tuple[SuiteBoard, ...] = ()
    flags: tuple[Flag, ...] = ()
    refused: tuple[Refusal, ...] = ()

    def suite(self, name: str) -> SuiteBoard | None:
        return next((s for s in self.suites if s.suite == name), None)

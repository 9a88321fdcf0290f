"""The job: its frozen values, its states, and the clock that measures leases.

    queued ──claim──▶ running ──finish──▶ done
      ▲  │               │ ├────fail────▶ failed      (not retryable, or out of attempts)
      │  │               │ └──cancel──▶ cancelling ──▶ cancelled
      │  └──cancel───────┼─────────────────────────▶ cancelled
      └──retry, lost─────┘

`done` never changes. `failed` and `cancelled` change only when the same identity is submitted again, which
queues it as a new attempt.
"""

import hashlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from hubmerge.errors import HubmergeError
from hubmerge.hub.names import is_hub_id, is_sha

IDENTITY = r"^[0-9a-f]{64}$"  # a job's id is also a folder name, so nothing but a sha256 may pass
KIND = r"^[a-z][a-z0-9_]{0,31}$"
DEFAULT_MAX_ATTEMPTS = 5

BACKOFF_BASE_S = 4.0
BACKOFF_CAP_S = 600.0
DISK_STEPS = 4  # doublings ahead: what others laid on a full disk is not gone within seconds
EVALUATION = "evaluate"  # the kind of job that measures a model
COMPARISON = "diff"  # and that which compares two
OUTAGE_TRIES = 250  # of one submission: about 30 hours of waiting


class StaleFenceError(HubmergeError):
    """A worker wrote to a job that is no longer its own."""

    code: ClassVar[str] = "E_FENCE"


class JobNotFoundError(HubmergeError):
    code: ClassVar[str] = "E_JOB"


class DatabaseBusyError(HubmergeError):
    """Another process holds the database longer than anybody should."""

    code: ClassVar[str] = "E_BUSY"
    retryable: ClassVar[bool] = True


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self not in ACTIVE


HELD = (State.RUNNING, State.CANCELLING)  # a worker owns the job
ACTIVE = (State.QUEUED, *HELD)


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class JobError(Frozen):
    """The reason why a job failed or is tried again; the wire form of a `HubmergeError`."""

    code: str
    message: str
    problems: tuple[dict[str, str], ...] = ()
    retryable: bool = False

    @classmethod
    def of(cls, error: HubmergeError, *, retryable: bool | None = None) -> Self:
        values = error.as_dict()
        return cls.model_validate(values if retryable is None else {**values, "retryable": retryable})


class NewJob(Frozen):
    """What a caller submits. `id` is the sha256 of the pinned recipe and its target."""

    id: str = Field(pattern=IDENTITY)
    kind: str = Field(default="merge", pattern=KIND)
    user: str = Field(min_length=1, max_length=128)
    payload: dict[str, Any]
    priority: int = 0  # higher first
    max_attempts: int = Field(default=DEFAULT_MAX_ATTEMPTS, ge=1)


class Job(Frozen):
    """A job as it stands in the store."""

    id: str
    ticket: int  # place in the queue; grows with every submission, so no clock decides the order
    kind: str
    user: str
    payload: dict[str, Any]
    priority: int
    state: State
    stage: str
    progress: dict[str, Any] | None
    attempt: int
    max_attempts: int
    failures: int  # retryable failures since the submission; sets the back-off
    memory_deaths: int
    death_mark: dict[str, Any] | None  # the progress at the last out-of-memory death
    lease_owner: str | None
    lease_until: float | None  # steady seconds of `boot`
    not_before: float | None  # steady seconds of `boot`
    boot: str | None
    fence: int
    created: str
    updated: str
    started: str | None
    finished: str | None
    error: JobError | None
    result: dict[str, Any] | None


class JobEvent(Frozen):
    job_id: str
    seq: int
    time: str
    type: str
    data: dict[str, Any]


class Clock:
    """The machine's clocks (Linux): wall time is shown to people, steady time decides.

    Steady seconds count from the machine's boot and through its sleep, are the same for every process of that
    boot, and do not follow when somebody sets the wall clock. A lease of another boot has ended.
    """

    def __init__(self) -> None:
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def steady(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def iso(moment: datetime) -> str:
    """UTC with a fixed number of digits, so that text order is time order."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def backoff_s(job_id: str, attempt: int, failures: int) -> float:
    """Exponential wait before the next attempt, times a factor of 0.5–1 that the job's identity decides."""
    digest = hashlib.sha256(f"{job_id}:{attempt}".encode()).digest()
    spread = 0.5 + int.from_bytes(digest[:8], "big") / 2**65
    exponent = min(max(failures, 1) - 1, 30)
    return float(min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0**exponent) * spread)


def got_further(mark: dict[str, Any], before: dict[str, Any] | None) -> bool:
    """True when an attempt died elsewhere or later than the one before it (`{"stage", "done"}` each).

    Too little memory kills at the same place again; a kill from outside does not care where the job stands.
    """
    return before is not None and (mark["stage"] != before["stage"] or mark["done"] > before["done"])


def pinned_models(recipe: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(base or agent, id, commit) of the models on the Hub that a merge job's recipe names, the base first."""
    agents = recipe.get("agents")
    names = [("base", recipe.get("base"))]
    if isinstance(agents, list | tuple):  # else the record is damaged
        names += [("agent", a.get("model") if isinstance(a, dict) else a) for a in agents]
    found = ((role, *str(name).partition("@")[::2]) for role, name in names)
    return [(role, model, sha) for role, model, sha in found if is_hub_id(model) and is_sha(sha)]

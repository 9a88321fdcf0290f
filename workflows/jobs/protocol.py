"""The messages between worker and child: one JSON document in, JSON lines out.

    worker → child   stdin    one line, the `JobSpec`; a byte per heartbeat; at its end the worker is gone
    child  → worker  stdout   an event per line, `{"type": "stage" | "progress" | …}`; a result or an error

A pipeline is a function `run(spec: JobSpec, emit: Callable[[Event], None]) -> None` that emits one `Result`
before it returns.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SecretStr, TypeAdapter

from hubmerge.hub.client import Hub
from workflows.jobs.jobs import Frozen, JobError


class JobSpec(Frozen):
    """Everything that a pipeline knows about its job."""

    model_config = ConfigDict(hide_input_in_errors=True)  # the input has the token in it

    attempt: int = 1
    user: str
    payload: dict[str, Any]
    token: SecretStr | None = None
    workdir: Path  # the job's own; what an earlier attempt left there is still there
    shared: Path  # of all jobs: what costs more to make again than to keep
    results: str | None = None  # the results dataset
    signing_key: SecretStr | None = None  # 64 hex digits: what an evaluation's result is signed with
    trusted_keys: tuple[str, ...] = ()  # public keys whose results are believed
    endpoint: str

    @property
    def hub(self) -> Hub:
        """The Hub as the job's token sees it."""
        return Hub(self.endpoint, self.token.get_secret_value() if self.token else None)

    def to_line(self) -> bytes:
        """The wire form, the only one that shows the token and the key."""
        secrets = {name: value.get_secret_value() for name, value in self if isinstance(value, SecretStr)}
        return json.dumps(self.model_dump(mode="json") | secrets).encode() + b"\n"


class StageStarted(Frozen):
    type: Literal["stage"] = "stage"
    stage: str


class Progress(Frozen):
    type: Literal["progress"] = "progress"
    stage: str
    done: int | float
    total: int | float | None = None
    unit: str = ""
    per_second: float | None = None


class Statistics(Frozen):
    type: Literal["statistics"] = "statistics"
    values: dict[str, Any]


class Notice(Frozen):
    """A warning for the user; the job goes on."""

    type: Literal["warning"] = "warning"
    message: str


class Result(Frozen):
    type: Literal["result"] = "result"
    values: dict[str, Any]


class Failure(JobError):
    """The last line of a child that failed; written by the child, not by a pipeline."""

    type: Literal["error"] = "error"

    def as_error(self) -> JobError:
        return JobError.model_validate(self.model_dump(exclude={"type"}))


Event = StageStarted | Progress | Statistics | Notice | Result
Emit = Callable[[Event], None]
Line = Event | Failure

_LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="type")])


def encode(line: Line) -> str:
    """An event as one line; NaN and infinities, which JSON lacks, become null."""
    return line.model_dump_json() + "\n"


def decoded(lines: Iterable[bytes]) -> Iterator[Line]:
    """The events among the lines of a child; one that is too long is told of, and what is none is left out."""
    for line in lines:
        if not line.endswith(b"\n"):
            yield Notice(message=f"an event of more than {len(line)} bytes was dropped")
            continue
        with suppress(ValueError):
            yield _LINE.validate_json(line)

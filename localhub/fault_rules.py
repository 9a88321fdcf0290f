"""The faults that can be switched on, as values, and the client that sets them; docs/localhub.md explains each."""

import http.client
import json
import re
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from hubmerge.errors import HubUnavailableError

ADMIN_PATH = "/api/faults"
KEPT_REQUESTS = 100  # per rule
_TIMEOUT_S = 30.0


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Observe(_Value):
    """Nothing happens; the rule counts and lists the requests."""

    kind: Literal["observe"] = "observe"


class Delay(_Value):
    """The request waits before it is handled; it is not handled at all when its client hangs up meanwhile."""

    kind: Literal["delay"] = "delay"
    seconds: NonNegativeFloat = Field(allow_inf_nan=False)


class Stall(_Value):
    """After `at` bytes of the answer's body nothing more comes for so long, unless the client hangs up before."""

    kind: Literal["stall"] = "stall"
    at: NonNegativeInt
    seconds: NonNegativeFloat = 600.0


class Status(_Value):
    """The request is refused without being handled."""

    kind: Literal["status"] = "status"
    status: int = Field(ge=400, le=599)
    message: str = "a fault that was switched on"
    retry_after: str | None = None  # seconds or a date
    rate_limit_reset_s: int | None = None  # sent as RateLimit, with nothing left


class Reset(_Value):
    """The connection is reset after `at` bytes of the answer's body.

    Of the request's body: once more than `at` bytes of it came, or all of it; the request is not handled.
    """

    kind: Literal["reset"] = "reset"
    at: NonNegativeInt
    of: Literal["answer", "request"] = "answer"


class LostAnswer(_Value):
    """The request is handled to its end, then the connection is reset without a byte of the answer."""

    kind: Literal["lost_answer"] = "lost_answer"


class WholeFile(_Value):
    """A range is answered with 200 and the whole file."""

    kind: Literal["whole_file"] = "whole_file"


class WrongByte(_Value):
    """The byte at offset `at` of the file, if the answer holds it, has the bits of `mask` flipped."""

    kind: Literal["wrong_byte"] = "wrong_byte"
    at: NonNegativeInt
    mask: int = Field(default=0xFF, ge=1, le=0xFF)


class StaleHead(_Value):
    """A question about main is answered as of `commits` commits ago, or of the first one where there are fewer."""

    kind: Literal["stale_head"] = "stale_head"
    commits: PositiveInt = 1


Fault = Annotated[
    Observe | Delay | Stall | Status | Reset | LostAnswer | WholeFile | WrongByte | StaleHead,
    Field(discriminator="kind"),
]


class FaultRule(_Value):
    """Which requests, and what befalls them."""

    path: re.Pattern[str]
    fault: Fault
    methods: tuple[Literal["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"], ...] = ()  # none: every one
    skip: NonNegativeInt = 0
    times: PositiveInt | None = 1


class SeenRequest(_Value):
    """A request that matched a rule."""

    method: str
    path: str
    range: str | None
    hit: bool


class RuleState(BaseModel):
    """A rule and what came of it so far."""

    id: int
    rule: FaultRule
    seen: int = 0  # requests that matched
    fired: int = 0  # of those, the ones that were hit
    left: int = 0  # of those, the ones whose client hung up while a Delay or a Stall let it wait
    requests: list[SeenRequest] = []  # the last KEPT_REQUESTS

    def is_due(self, method: str, path: str, range_: str | None) -> bool:
        """Count a request; whether it is hit."""
        if (self.rule.methods and method not in self.rule.methods) or not self.rule.path.search(path):
            return False
        self.seen += 1
        hit = self.seen > self.rule.skip and (self.rule.times is None or self.fired < self.rule.times)
        self.fired += hit
        self.requests.append(SeenRequest(method=method, path=path, range=range_, hit=hit))
        del self.requests[:-KEPT_REQUESTS]
        return hit


class RuleStates(_Value):
    rules: tuple[RuleState, ...]  # in the order in which they were added


class FaultSwitch:
    """Sets the faults of the local Hub at `endpoint`; leaving its context switches all of them off."""

    def __init__(self, endpoint: str) -> None:
        self._address = urlsplit(endpoint).netloc

    def add(self, path: str, fault: Fault, *, methods: Sequence[str] = (), skip: int = 0, times: int | None = 1) -> int:
        """Switch one fault on; the number of its rule."""
        rule = {"path": path, "fault": fault.model_dump(), "methods": [*methods], "skip": skip, "times": times}
        return int(json.loads(self._ask("POST", rule))["id"])

    def states(self) -> tuple[RuleState, ...]:
        """Every rule with its counts, in the order in which they were added."""
        return RuleStates.model_validate_json(self._ask("GET")).rules

    def state(self, number: int) -> RuleState:
        """One rule with its counts."""
        return next(state for state in self.states() if state.id == number)

    def clear(self) -> None:
        """Switch every fault off."""
        self._ask("DELETE")

    def _ask(self, method: str, body: object = None) -> bytes:
        headers = {"Content-Type": "application/json"}
        with closing(http.client.HTTPConnection(self._address, timeout=_TIMEOUT_S)) as connection:
            connection.request(method, ADMIN_PATH, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
        if response.status != 200:
            raise HubUnavailableError(
                "the fault switches refuse",
                where=self._address + ADMIN_PATH,
                got=f"{response.status}: {text[:500].decode(errors='replace')}",
                next_step="They exist only on a local Hub that was started with --faults.",
            )
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

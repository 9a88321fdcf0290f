"""Errors of the Hub's client in hubmerge's words, and retries of requests.

There are three kinds of failed requests. A refusal (missing, gated, forbidden) is final. A moved branch (412) is
handled by the code that publishes. Passing trouble (429, 5xx, a dropped connection) is retried a few times, after the
pause that the server asks for in `Retry-After` or `RateLimit`. Without such a word the pause doubles and is drawn at
random, so that many clients do not come back at once. If the pause is longer than a request may wait, the request fails
and its job stays queued. The bytes of a merge may wait for the end of the Hub's window, in which it counts requests: a
shard that is read by ranges takes more of them than a window has.
"""

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hubmerge.errors import (
    CancelledError,
    GatedError,
    HubmergeError,
    HubUnavailableError,
    LoginError,
    PermissionDeniedError,
    SettingsError,
    SourceChangedError,
    SourceNotFoundError,
)

_PASSING_STATUS = frozenset((408, 425, 429, 500, 502, 503, 504, *range(520, 531)))  # from 520 on: of gateways
_CLIENT_LOGGER = "huggingface_hub.utils._http"
_REFUSALS = frozenset((400, 402, 403, 405, 411, 413, 414, 415, 422, 451))  # final: the same request fails again
_NO_ROOM = re.compile(r"storage (?:limit|pattern)|quota", re.IGNORECASE)  # the account's, which the Hub tells with 403
# an object storage's answers (400 or 403) to an upload that took too long; a new signed address helps
_TOO_LATE = re.compile(r"<Code>(?:RequestTimeout|RequestTimeTooSkewed|ExpiredToken)</Code>|Request has expired")
_QUERY = re.compile(r"(https?://[^\s'\"?#]*)[?#][^\s'\"]*")
# the Hub's answer to a token that may not read gated repos, whoever its owner is
_WITHOUT_GATED = re.compile(r"enable access to public gated", re.IGNORECASE)
_PROXY_STEP = "Check the proxy, and its user and password in HTTPS_PROXY or HTTP_PROXY."
UNREADABLE = "no such repo, or one that you may not read"
Result = TypeVar("Result")
# until when requests of this thread may go on, in seconds of the monotonic clock; None: for ever
ASKED_UNTIL: ContextVar[float | None] = ContextVar("ASKED_UNTIL", default=None)


class TransientHubError(HubUnavailableError):
    """A failure that may pass; `after_s` is the pause in seconds that the server asked for."""

    after_s: float | None = None


class TooLateError(TransientHubError):
    """An upload took longer than its signed address held."""


class RefusedError(HubUnavailableError):
    """The Hub understood the request and will never do it."""

    retryable = False


class BranchMovedError(HubUnavailableError):
    """The branch is no longer at the commit that a new commit was to follow."""


_KINDS: Mapping[int, type[HubUnavailableError]] = {
    **dict.fromkeys(_PASSING_STATUS, TransientHubError),
    **dict.fromkeys(_REFUSALS, RefusedError),
    412: BranchMovedError,
}
COMMIT_TRIES = 5  # of one commit to a branch
WINDOW_S = 300.0  # in which the Hub counts requests; it asks for the rest of it


@dataclass(frozen=True)
class Patience:
    """How often and how long a request is repeated; CancelledError once `stopped` is set, or `until` is over."""

    tries: int = 5
    first_pause_s: float = 0.5  # doubles with every try
    longest_pause_s: float = 60.0  # also of what a server may ask for, but for pauses that another thread can end
    sleep: Callable[[float], None] | None = None  # instead of waiting
    stopped: threading.Event | None = None
    until: float | None = field(default_factory=ASKED_UNTIL.get)  # seconds of the monotonic clock

    def repeat(self, request: Callable[[], Result], failure: type[TransientHubError] = TransientHubError) -> Result:
        """The result of `request`, repeated while it raises `failure`."""
        failures = 0
        while True:
            self.check()
            try:
                return request()
            except failure as error:
                failures += 1
                self.pause(failures, error)

    def pause(self, failures: int, error: HubUnavailableError) -> None:
        """Wait after so many failures in a row; raises `error` where no further try is left."""
        self.check()  # a request that was broken off fails as if the connection had dropped
        after_s = error.after_s if isinstance(error, TransientHubError) else None
        longest_s = self.longest_pause_s if self.stopped is None else WINDOW_S
        if self.until is not None:
            longest_s = min(longest_s, self.until - time.monotonic())
        if isinstance(error, RefusedError) or failures >= self.tries or (after_s or 0.0) > longest_s:
            raise error
        if after_s is None:
            pause_s = min(self.longest_pause_s, self.first_pause_s * 2 ** (failures - 1))
            self._wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  (spreads clients, hides nothing)
        else:
            if after_s > self.longest_pause_s:
                logging.getLogger(__name__).warning("the Hub asks for a pause of %.0f s: %s", after_s, error)
            # a second more: servers count in whole ones
            self._wait(after_s + random.uniform(0.0, 1.0))  # noqa: S311

    def on_head(self, prepare: Callable[[], Callable[[], Result] | None]) -> Result | None:
        """The result of a commit on a branch that may move; None where nothing is left to commit.

        `prepare` reads the head and returns the commit that follows it, or None. A branch that moved is followed at
        once.
        """
        failures = 0
        while (commit := prepare()) is not None:
            try:
                return commit()
            except HubUnavailableError as error:
                failures += 1
                if failures == COMMIT_TRIES:
                    raise
                if not isinstance(error, BranchMovedError):
                    self.pause(failures, error)
        return None

    def check(self) -> None:
        """CancelledError once `stopped` is set, or `until` is over."""
        over = self.until is not None and time.monotonic() > self.until
        if over or (self.stopped is not None and self.stopped.is_set()):
            raise CancelledError("a request to the Hub was broken off")

    def _wait(self, seconds: float) -> None:
        if self.sleep is not None:
            self.sleep(seconds)
        elif self.stopped is not None:
            self.stopped.wait(seconds)
        else:
            time.sleep(seconds)
        self.check()


def asked_pause_s(headers: Mapping[str, str]) -> float | None:
    """The pause in seconds that an answer asks for: `Retry-After` in seconds, as the Hub has it, else `RateLimit`."""
    from huggingface_hub.utils._http import parse_ratelimit_headers

    value = headers.get("retry-after", "").strip()
    if value.isdecimal() and len(value) < 10:
        return float(value)
    try:
        limit = parse_ratelimit_headers(headers)
        return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None
    except (ValueError, OverflowError):  # numbers without measure
        return None


@contextmanager
def translated(where: str, *, writing: bool = False, pinned: bool = False) -> Iterator[None]:
    """The client's errors as ours; nothing of a request's headers reaches a message.

    `pinned`: the thing was there when the job was planned, so that its absence is a change.
    """
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise _gated(error, where) from None
    except errors.DisabledRepoError:
        raise SourceNotFoundError("a disabled repo", where=where) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        if _is_about_token(error):
            raise _from_status(error, where, writing) from None
        if pinned:
            raise SourceChangedError(
                "a pinned source is no longer there",
                where=where,
                got=_reason(error),
                next_step="Its owner removed or rewrote it; pin another one.",
            ) from None
        what, step = "no such revision or file", "Look at the repo's branches, tags and files."
        if isinstance(error, errors.RepositoryNotFoundError):
            what, step = UNREADABLE, "Check its name, and sign in if it is private."
        raise SourceNotFoundError(what, where=where, next_step=step) from None
    except errors.OfflineModeIsEnabled:
        raise HubUnavailableError(
            "HF_HUB_OFFLINE forbids the network", where=where, next_step="Unset it, or name what lies on this machine."
        ) from None
    except errors.HFValidationError as error:
        raise SourceNotFoundError("not a repo id", where=where, got=_reason(error)) from None
    except errors.HfHubHTTPError as error:
        raise _from_status(error, where, writing) from None
    except (httpx2.LocalProtocolError, httpx2.InvalidURL):
        # their texts quote a header or an address, which may hold the token or a proxy's password
        step = "Check HF_ENDPOINT, and HTTPS_PROXY or ALL_PROXY."
        raise HubUnavailableError("a request that cannot be sent", where=where, next_step=step) from None
    except httpx2.HTTPError as error:
        raise _unreachable(error, where) from None
    except OSError as error:
        if error.filename is not None:
            raise  # a local file, not the network
        raise _unreachable(error, where) from None
    except RuntimeError as error:
        # the client wraps whatever stops an upload; hubmerge's own have no cause
        if error.__cause__ is None:
            raise
        with translated(where, writing=writing, pinned=pinned):
            raise error.__cause__ from None
    except (ValueError, LookupError, TypeError, AttributeError, ImportError) as error:
        if re.search("scheme for proxy URL|SOCKS proxy", str(error)):
            step = "Write it so in HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, or unset them."
            kinds = "http://… or https://…; socks5://… with the package socksio"
            what = "a proxy of a kind that cannot be used"
            raise SettingsError(what, expected=kinds, got=_reason(error), next_step=step) from None
        if isinstance(error, ImportError):
            raise
        if isinstance(error.__cause__, errors.BadRequestError):  # to the client's question about a card
            got, step = " ".join(_message(error).split())[:200], "Correct the header of README.md."
            raise RefusedError("the Hub does not take the card", where=where, got=got, next_step=step) from None
        # the client reads the answer without checking it (HTML for JSON, a missing field), but for refusals in a list
        refused = "LFS batch API returned errors" in str(error)
        what = "the Hub does not take a file" if refused else "the Hub's answer makes no sense"
        raise HubUnavailableError(what, where=where, got=f"{type(error).__name__}: {_reason(error)}") from None


def is_outage(error: BaseException | None) -> bool:
    """Whether an error of a library that asks the Hub by itself was caused by an outage, by the chain of its causes."""
    import httpx2
    from huggingface_hub import is_offline_mode
    from huggingface_hub.errors import HfHubHTTPError

    if is_offline_mode():  # no waiting ends what it forbids
        return False
    for cause in _causes(error):
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code if cause.response is not None else 0
            return status in _PASSING_STATUS or status >= 500  # gateways have numbers of their own
        if isinstance(cause, httpx2.TransportError | ConnectionError | TimeoutError):
            return True
    return False


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def refused_token(error: Exception, where: str) -> LoginError | None:
    """The same of a library that asks the Hub by itself: where the Hub no longer takes the token."""
    if any(map(_is_about_token, _causes(error))):
        return LoginError("the token is not valid or has expired", where=where, next_step="Sign in again.")
    return None


def _gated(error: Exception, where: str) -> GatedError:
    if _WITHOUT_GATED.search(_message(error)):
        return GatedError(
            "a gated repo, and the token does not cover gated ones",
            where=where,
            next_step="Sign in again, or give the token access to public gated repositories.",
        )
    return GatedError(
        "a gated repo", where=where, next_step="Ask for access on its page, then sign in with that account."
    )


def _is_about_token(error: BaseException) -> bool:
    """Whether the client takes a repo for missing because of a 401 alone, to a request that bore a token."""
    response = getattr(error, "response", None)
    if response is None or response.status_code != 401 or "x-error-code" in response.headers:
        return False
    return "authorization" in response.request.headers


def _from_status(error: Exception, where: str, writing: bool) -> HubmergeError:
    response = getattr(error, "response", None)
    status = response.status_code if response is not None else 0
    too_late = status in (400, 403) and _is_too_late(response)
    if status == 401:
        return LoginError("the token is not valid or has expired", where=where, next_step="Sign in again.")
    if status == 403 and _WITHOUT_GATED.search(_message(error)):
        return _gated(error, where)
    if status == 403 and not too_late and not _NO_ROOM.search(_message(error)):
        return PermissionDeniedError(
            "the token may not do this" if writing else "access is denied",
            where=where,
            got=_reason(error),
            next_step="Choose a namespace you can write to." if writing else "Sign in with an account that may.",
        )
    kind = TooLateError if too_late else _KINDS.get(status, HubUnavailableError)
    after_s = asked_pause_s(response.headers) if response is not None else None
    step = "Try again later."
    if status == 407:
        step = _PROXY_STEP
    elif after_s:
        step = f"Try again in {after_s:.0f} s; the Hub asks for it."
    elif kind is RefusedError:
        step = "Read the Hub's message; the same request will be refused again."
    got = f"{status}: {_reason(error)}"
    result = kind("the Hub answered with an error", where=where, got=got, next_step=step)
    if isinstance(result, TransientHubError):
        result.after_s = after_s
    return result


def _is_too_late(response: Any) -> bool:
    try:
        return _TOO_LATE.search(response.text[:4000]) is not None
    except (RuntimeError, ValueError):  # its body was not read, or is no text
        return False


def _unreachable(error: Exception, where: str) -> TransientHubError:
    got, step = f"{type(error).__name__}: {_reason(error)}", "Check the connection and HF_ENDPOINT."
    if got.startswith("ProxyError"):
        step = _PROXY_STEP
    elif isinstance(error, FileNotFoundError) or "CERTIFICATE" in got:
        step = "Name a file with the network's certificates in SSL_CERT_FILE."
    return TransientHubError("the Hub cannot be reached", where=where, got=got, next_step=step)


def _reason(error: Exception) -> str:
    """The first line of the server's or client's message, without the queries of URLs, which can hold signatures."""
    return _without_queries(_message(error).replace(":\n", ": ").split("\n")[0])[:200]


def _message(error: Exception) -> str:
    return str(getattr(error, "server_message", None) or str(error).strip())


def _without_queries(text: str) -> str:
    return _QUERY.sub(r"\1?…", text)


def checked_token(token: str | None) -> str | None:
    """`token` without spaces around it; LoginError where no header can hold it, since the client's own error would
    quote it."""
    token = (token or "").strip()
    if not token:
        return None
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise LoginError(
            "the token is not one of the Hub",
            expected="letters and digits",
            got=f"{len(token)} characters, some of them others",
            next_step="Copy it again from the settings of your account.",
        )
    return token


def checked_endpoint(endpoint: str) -> str:
    """`endpoint` in the form in which all addresses begin; SettingsError where it is no address of a server."""
    try:
        parts = urlsplit(endpoint.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        secret = parts.username is not None or parts.password is not None
    except ValueError:
        usable, secret = False, "@" in endpoint
    if secret or not usable or parts.query or parts.fragment:
        raise SettingsError(
            "the address of the Hub is not valid",
            where="HF_ENDPOINT",
            expected="http://host or https://host" + ", without a user or password" * secret,
            got="" if secret else _without_queries(endpoint)[:80],
            next_step="Leave it out for the public Hub.",
        )
    return endpoint.strip().rstrip("/")


class _Told(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


def quiet_client() -> None:
    """Take signatures out of the client's log lines about addresses that it tries again."""

    def tell_no_queries(record: logging.LogRecord) -> bool:
        record.msg, record.args = _without_queries(record.getMessage()), ()
        return True

    logging.getLogger(_CLIENT_LOGGER).addFilter(tell_no_queries)


def tell_retries(tell: Callable[[str], None]) -> None:
    """Pass the client's retries, and the long pauses here, to `tell` instead of lines on stderr."""
    client, own = map(logging.getLogger, (_CLIENT_LOGGER, __name__))
    client.handlers = own.handlers = [_Told(tell)]
    client.propagate = False

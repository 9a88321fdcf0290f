"""Answers that refuse a request, in the form that the client dispatches on.

The client reads the headers `X-Error-Code` and `X-Error-Message` and the JSON body; the code decides which
exception it raises.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

_HEADER_CHARACTERS = 2000


class HubError(Exception):
    """A refusal with its HTTP status, message and, where the client knows one, its code."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": message, **(body or {})}
        # A header is one line of printable characters, and clients refuse a long one; the body has the whole message.
        line = "".join(c if " " <= c <= "~" else " " if c.isspace() else "?" for c in message[:_HEADER_CHARACTERS])
        self.headers = {"X-Error-Message": line.strip(), **({"X-Error-Code": code} if code else {}), **(headers or {})}


bad_request = partial(HubError, 400)
forbidden = partial(HubError, 403)
not_found = partial(HubError, 404)
unprocessable = partial(HubError, 422)


def conflict(message: str, **body: Any) -> HubError:
    return HubError(409, message, body=body)


def revision_not_found(revision: str) -> HubError:
    return HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def entry_not_found(message: str, *, commit: str | None = None) -> HubError:
    # With the commit the client remembers that the file does not exist there.
    return HubError(404, message, "EntryNotFound", headers={"X-Repo-Commit": commit} if commit else None)

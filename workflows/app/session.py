"""Reads the visitor from gradio's signed session, never from a field of the form."""

import inspect
import re
from asyncio import Queue as AsyncQueue
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import gradio as gr
from fastapi import HTTPException
from gradio.state_holder import SessionState, StateHolder
from gradio.utils import LRUCache

from hubmerge.errors import LoginError
from workflows.service import Service
from workflows.values import Visitor

MOST_UNREAD = 256  # sessions in which an answer waits for whoever asked
_ID = re.compile(r"[\w-]{1,64}", re.ASCII)  # a browser makes up that of its page
FOR_PROGRAMS = "; a program sends its token (Client(…, oauth_token=…))"  # of a next step; pages leave it out


class Sessions(StateHolder):  # type: ignore[misc]
    """gradio's sessions, without the settings and the last value of every component of every page: 0.7 MB in each, of
    which it keeps ten thousand, one for each page that was opened and for each call of a program."""

    def __getitem__(self, session_id: str) -> SessionState:
        if session_id not in self.session_data:
            if not _ID.fullmatch(session_id):
                raise HTTPException(422, "no id of a session: at most 64 letters, digits, _ and -")
            state = SessionState(SimpleNamespace(default_config=self.blocks.default_config, blocks=()))
            state.config_values = _Nowhere()
            self.session_data[session_id] = state
        return super().__getitem__(session_id)


class Unread(LRUCache[str, Any]):  # type: ignore[misc]
    """gradio's messages to each session. An answer that nobody fetches would wait until 2,000 other sessions have come,
    and may have 16 MB."""

    def __setitem__(self, session_id: str, messages: Any) -> None:
        for old in [old for old, waiting in self.items() if not waiting.empty()][:-MOST_UNREAD]:
            del self[old]
        super().__setitem__(session_id, messages)

    def __missing__(self, session_id: str) -> Any:
        return AsyncQueue()  # for what still runs for one that is gone


class _Nowhere(dict[int, Any]):
    """Keeps nothing. gradio would make a link to a page's present state of it, which no page offers."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: int) -> dict[str, Any]:
        return {}

    def __setitem__(self, key: int, value: Any) -> None:
        pass


def for_visitor(handler: Callable[..., Any]) -> Callable[..., Any]:
    """`handler(visitor, …)`, or `handler(request, visitor, …)`, as gradio calls it: with the session's owner, whose
    signature and end gradio has checked; None when anonymous."""
    takes_request = next(iter(inspect.signature(handler).parameters)) == "request"

    def called(request: gr.Request, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None, *values: Any) -> Any:
        visitor = visitor_of(profile, token)
        return handler(request, visitor, *values) if takes_request else handler(visitor, *values)

    return called


def visitor_of(profile: Any, token: Any) -> Visitor | None:
    """The signed-in visitor without namespaces, None when anonymous; scopes and end as the Hub told them then."""
    if profile is None or token is None:
        return None
    end, scopes = None, frozenset(str(token.scope or "").split())
    with suppress(TypeError, ValueError, OverflowError, OSError):  # where the Hub did not tell it
        end = datetime.fromtimestamp(token.expires_at, UTC)
    return Visitor(str(profile.username), str(token.token), scopes=scopes, expires_at=end)


def bearer_of(profile: Any, token: Any, request: Any) -> str | None:
    """The token that a program sent instead of a session: gradio's `oauth_token`, or `Authorization: Bearer …`.

    Not X-HF-Authorization: gradio's client sends its machine's own token there, also the one that answers for MCP.
    """
    if profile is not None:
        return None
    if token is not None:
        return str(token.token) or None
    scheme, _, value = str(getattr(request, "headers", {}).get("authorization") or "").partition(" ")
    return value.strip() or None if scheme.lower() == "bearer" else None


def caller_of(service: Service, profile: Any, token: Any, request: Any) -> Visitor | None:
    """Who calls: the session's visitor, or whose the token is, which the Hub is asked."""
    bearer = bearer_of(profile, token, request)
    return visitor_of(profile, token) if bearer is None else service.visitor(None, bearer)


def writer_of(service: Service, visitor: Visitor | None, purpose: str = "start a merge") -> Visitor:
    """The signed-in visitor as the Hub knows the token now, with namespaces; LoginError when anonymous."""
    visitor = signed_in(visitor, purpose)
    known = service.visitor(visitor.name, visitor.token)
    return replace(visitor, name=known.name, namespaces=known.namespaces)


def signed_in(visitor: Visitor | None, purpose: str) -> Visitor:
    """The visitor; LoginError when there is none."""
    if visitor is None:
        raise LoginError(
            f"you must be signed in to {purpose}",
            next_step=f"Sign in with the Hub and try again{FOR_PROGRAMS}.",
        )
    return visitor

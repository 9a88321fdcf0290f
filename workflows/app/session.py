"""Reads the visitor from gradio's signed session, never from a field of the form."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hubmerge.errors import LoginError
from workflows.app.service import Service, Visitor


def visitor_of(profile: Any, token: Any) -> Visitor | None:
    """The signed-in visitor without namespaces, None when anonymous; scopes and end are the Hub's answer. Asks nobody.

    `profile` and `token` are the gr.OAuthProfile and gr.OAuthToken that gradio injects; it has checked the
    session's signature and that the token is not past its time.
    """
    if profile is None or token is None:
        return None
    return Visitor(
        str(profile.username),
        str(token.token),
        scopes=frozenset(str(token.scope or "").split()),
        expires_at=_end(token.expires_at),
    )


def _end(seconds: Any) -> datetime | None:
    """A token's end, where the Hub told it."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def writer_of(service: Service, profile: Any, token: Any, purpose: str = "start a merge") -> Visitor:
    """The signed-in visitor as the Hub knows the token now, with namespaces; LoginError when anonymous."""
    visitor = require_visitor(profile, token, purpose)
    known = service.visitor(visitor.name, visitor.token)
    return replace(visitor, name=known.name, namespaces=known.namespaces)


def require_visitor(profile: Any, token: Any, purpose: str) -> Visitor:
    """The signed-in visitor; LoginError when there is none."""
    visitor = visitor_of(profile, token)
    if visitor is None:
        raise LoginError(f"you must be signed in to {purpose}", next_step="Sign in with the Hub and try again.")
    return visitor

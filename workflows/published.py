"""A model's own files as its page shows them: the card and the report of its merge, at one commit."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from hubmerge.engine.sink import MANIFEST
from hubmerge.errors import FormatError
from hubmerge.hub.client import Hub
from workflows.app.service import Published

MAX_READ_BYTES = 16_000_000  # of a card, and of a report


def published_model(hub: Hub, name: str, revision: str | None) -> Published:
    """The model at `revision`, or as it is now. A file that cannot be read is missing in the answer."""
    state = hub.repo_state(name, revision)

    def text_of(path: str) -> str:
        if path not in state.files:
            return ""
        try:
            return hub.read_file(state.id, state.sha, path, MAX_READ_BYTES).decode("utf-8", errors="replace")
        except FormatError:  # larger
            return ""

    return Published(
        id=state.id,
        sha=state.sha,
        license=state.license,
        card=text_of("README.md"),
        report=_report(text_of(MANIFEST)),
        is_open=not (state.private or state.gated),
    )


def _report(text: str) -> dict[str, Any]:
    """A stranger's JSON; none where it holds what can be told to nobody: NaN, half a character, endless nesting."""
    try:
        found = from_json(text, allow_inf_nan=False)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

"""Spaces, as far as a Hub without machines goes: settings are kept, nothing runs.

A Space whose main branch holds the file that its sdk starts from counts as running, so clients that wait for
one see the stages in the order that they expect.
"""

from __future__ import annotations

import re

from localhub.access import Repo
from localhub.http_errors import bad_request
from localhub.protocol import Call, Json, Router, optional_text, text_of
from localhub.store import now

router = Router()
_ENTRY = {"gradio": "app.py", "streamlit": "app.py", "docker": "Dockerfile", "static": "index.html"}
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")


def host_of(repo: Repo) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", f"{repo.ns}-{repo.name}".lower())


def runtime_of(call: Call, repo: Repo) -> Json:
    head = call.hub.trees.head(repo.id)
    has_entry = head is not None and _ENTRY.get(repo.sdk or "", "app.py") in call.hub.trees.at(repo.id, head)
    stage = "PAUSED" if repo.paused else "RUNNING" if has_entry else "NO_APP_FILE"
    return {
        "stage": stage,
        "hardware": {"current": "cpu-basic" if stage == "RUNNING" else None, "requested": "cpu-basic"},
        "storage": None,
        "gcTimeout": 172800,
        "devMode": False,
        "replicas": {"current": 1 if stage == "RUNNING" else 0, "requested": 1},
    }


def _set_paused(call: Call, paused: bool) -> Json:
    call.store.change("UPDATE repos SET paused = ? WHERE id = ?", paused, call.writable().id)
    return runtime_of(call, call.writable())


@router.on("GET", "/api/{S}/{id}/runtime")
def runtime(call: Call) -> Json:
    return runtime_of(call, call.readable())


@router.on("POST", "/api/{S}/{id}/restart")
def restart(call: Call) -> Json:
    return _set_paused(call, False)


@router.on("POST", "/api/{S}/{id}/pause")
def pause(call: Call) -> Json:
    return _set_paused(call, True)


@router.on("GET", "/api/{S}/{id}/{values}")
def list_values(call: Call) -> Json:
    """Secrets without their values, variables with them."""
    repo, kind = call.writable(), call.parts["values"]
    shown = "key, value" if kind == "variables" else "key"
    sql = f"SELECT {shown}, description, date AS updatedAt FROM space_values WHERE repo = ? AND kind = ? ORDER BY key"  # noqa: S608  (constant parts)
    return {row["key"]: dict(row) for row in call.store.rows(sql, repo.id, kind)}


@router.on("POST", "/api/{S}/{id}/{values}")
def set_value(call: Call) -> Json:
    repo, kind, body = call.writable(), call.parts["values"], call.json()
    key = text_of(body, "key")
    if not _KEY.fullmatch(key):
        raise bad_request(f"Invalid key: {key!r}")
    value, description = text_of(body, "value"), optional_text(body, "description")
    sql = "INSERT OR REPLACE INTO space_values VALUES (?, ?, ?, ?, ?, ?)"
    call.store.change(sql, repo.id, kind, key, value, description, now())
    return list_values(call)


@router.on("DELETE", "/api/{S}/{id}/{values}")
def delete_value(call: Call) -> Json:
    repo, kind, key = call.writable(), call.parts["values"], text_of(call.json(), "key")
    call.store.change("DELETE FROM space_values WHERE repo = ? AND kind = ? AND key = ?", repo.id, kind, key)
    return list_values(call)

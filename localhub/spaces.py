"""Spaces, as far as a Hub without machines goes: settings are kept, nothing runs.

A Space whose main branch holds the file that its sdk starts from counts as running, so clients that wait for
one see the stages in the order that they expect.
"""

from __future__ import annotations

import re

from localhub.access import Repo
from localhub.http_errors import bad_request
from localhub.protocol import Call, Json, Router, optional_text, optional_whole, text_of
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
    requested = repo.hardware or "cpu-basic"
    return {
        "stage": stage,
        "hardware": {"current": requested if stage == "RUNNING" else None, "requested": requested},
        "storage": None,
        "gcTimeout": repo.sleep_s or 172800,
        "devMode": False,
        "replicas": {"current": 1 if stage == "RUNNING" else 0, "requested": 1},
    }


def _changed(call: Call, column: str, value: object) -> Json:
    repo = call.writable()
    call.store.change(f"UPDATE repos SET {column} = ? WHERE id = ?", value, repo.id)  # noqa: S608  (constant names)
    return runtime_of(call, call.writable())


@router.on("GET", "/api/{S}/{id}/runtime")
def runtime(call: Call) -> Json:
    return runtime_of(call, call.readable())


@router.on("POST", "/api/{S}/{id}/restart")
def restart(call: Call) -> Json:
    return _changed(call, "paused", 0)


@router.on("POST", "/api/{S}/{id}/pause")
def pause(call: Call) -> Json:
    return _changed(call, "paused", 1)


@router.on("POST", "/api/{S}/{id}/hardware")
def hardware(call: Call) -> Json:
    body = call.json()
    if (seconds := optional_whole(body, "sleepTimeSeconds", least=-1)) is not None:
        _changed(call, "sleep_s", seconds)
    return _changed(call, "hardware", text_of(body, "flavor"))


@router.on("POST", "/api/{S}/{id}/sleeptime")
def sleep_time(call: Call) -> Json:
    seconds = optional_whole(call.json(), "seconds", least=-1)
    if seconds is None:
        raise bad_request("seconds must be a number")
    return _changed(call, "sleep_s", seconds)


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

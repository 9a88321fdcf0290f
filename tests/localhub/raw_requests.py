"""Requests to the embedded Hub as any client could send them, without the checks and retries of huggingface_hub."""

import base64
import hashlib
import http.client
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import get_session

from localhub.process import LocalHubProcess


def ask(api: HfApi, method: str, path: str, **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {api.token}"}
    return get_session().request(method, f"{api.endpoint}{path}", headers=headers, **body)


def status_of(call: Callable[..., Any], *arguments: Any, **named: Any) -> int:
    """200, or the status with which the Hub refused."""
    try:
        call(*arguments, **named)
    except HfHubHTTPError as error:
        return int(error.response.status_code)
    return 200


def commit_files(api: HfApi, repo: str, files: Mapping[str, bytes], **more: Any) -> CommitInfo:
    """One commit of these files as the client makes it."""
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    return api.create_commit(repo, operations, **{"commit_message": "files", **more})


def batch(api: HfApi, repo: str, sha256: str, size: int, transfer: str = "basic") -> dict[str, Any]:
    """What the Hub says to the upload of one large file: its `actions`, or none where the repo has it."""
    body = {"operation": "upload", "transfers": [transfer], "objects": [{"oid": sha256, "size": size}]}
    answer = ask(api, "POST", f"/{repo}.git/info/lfs/objects/batch", json=body)
    answer.raise_for_status()
    [found] = answer.json()["objects"]
    return dict(found)


def upload(api: HfApi, repo: str, content: bytes) -> str:
    """Send a large file unless the repo has it; its sha256."""
    sha256 = hashlib.sha256(content).hexdigest()
    if actions := batch(api, repo, sha256, len(content)).get("actions"):
        get_session().put(actions["upload"]["href"], content=content).raise_for_status()
    return sha256


def post_commit(api: HfApi, repo: str, *lines: object) -> Any:
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return ask(api, "POST", f"/api/models/{repo}/commit/main", content=content)


def header(**value: object) -> dict[str, object]:
    return {"key": "header", "value": {"summary": "a commit", **value}}


def regular(path: str, content: bytes = b"x") -> dict[str, object]:
    encoded = base64.b64encode(content).decode()
    return {"key": "file", "value": {"path": path, "content": encoded, "encoding": "base64"}}


def large(path: str, sha256: str, size: int) -> dict[str, object]:
    return {"key": "lfsFile", "value": {"path": path, "algo": "sha256", "oid": sha256, "size": size}}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def exchange(
    hub: LocalHubProcess, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[Answer | None, Exception | None]:
    """One request on a connection of its own: the answer as far as it came, and what broke it off."""
    connection = http.client.HTTPConnection(hub.endpoint.removeprefix("http://"), timeout=30)
    answer = None
    try:
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        response = connection.getresponse()
        named = {k.lower(): v for k, v in response.getheaders()}
        answer = Answer(response.status, named, b"")
        while part := response.read1(65536):
            answer = Answer(response.status, named, answer.body + part)
        return answer, None
    except (OSError, http.client.HTTPException) as error:
        return answer, error
    finally:
        connection.close()


def whole(hub: LocalHubProcess, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
    answer, error = exchange(hub, method, path, body, **headers)
    assert error is None
    assert answer is not None
    return answer

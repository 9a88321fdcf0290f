"""A Hub of one repo on loopback whose answers a test can bend: what a broken or hostile server sends.

with ScriptedHub({"config.json": b"{}", "model.safetensors": content}) as server:
    server.bend = lambda request: Answer(500) if "resolve" in request.path else None
    Hub(server.endpoint).read_range(server.repo, server.sha, "model.safetensors", 0, 8)
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, Self
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # unquoted, without the query
    headers: Mapping[str, str]  # names in small letters
    body: bytes = b""

    @property
    def range(self) -> tuple[int, int] | None:
        """First and last byte asked for."""
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    sent: int | None = None  # bytes of the body before the connection is dropped; None: all
    chunked: bool = False  # no Content-Length


def error(status: int, code: str = "", message: str = "", **headers: str) -> Answer:
    named = {"X-Error-Code": code, "X-Error-Message": message, **{k.replace("_", "-"): v for k, v in headers.items()}}
    return Answer(status, json.dumps({"error": message}).encode(), {k: v for k, v in named.items() if v})


class ScriptedHub:
    """Serves `files` of one repo honestly unless `bend` returns another answer. `requests` holds all that came."""

    def __init__(self, files: Mapping[str, bytes], *, repo: str = "org/model", sha: str = "a" * 40) -> None:
        self.files = dict(files)
        self.repo = repo
        self.sha = sha
        self.card: Any = {"license": "mit"}
        self.bend: Callable[[Request], Answer | None] = lambda request: None
        self.requests: list[Request] = []
        self.hung_up = Event()  # a reader had seen enough before the end
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(int(headers.get("content-length", 0)))
                request = Request(self.command, unquote(urlsplit(self.path).path), headers, body)
                hub.requests.append(request)
                answer = hub.bend(request) or hub.honest(request)
                self.close_connection = True
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if not answer.chunked:
                    self.send_header("Content-Length", str(len(answer.body)))
                self.send_header("Connection", "close")
                self.end_headers()
                try:
                    self.wfile.write(answer.body[: answer.sent])
                except (BrokenPipeError, ConnectionResetError):
                    hub.hung_up.set()

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda request, address: None  # type: ignore[method-assign]
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def paths(self, part: str = "") -> list[str]:
        return [r.path for r in self.requests if part in r.path]

    def honest(self, request: Request) -> Answer:
        if request.path.startswith(f"/api/models/{self.repo}"):
            return Answer(body=json.dumps(self.info()).encode(), headers={"Content-Type": "application/json"})
        prefix = f"/{self.repo}/resolve/{self.sha}/"
        content = self.files.get(request.path.removeprefix(prefix)) if request.path.startswith(prefix) else None
        if content is None:
            return error(404, "EntryNotFound", "not here")
        if request.range is None:
            return Answer(body=content)
        first, last = request.range
        return Answer(206, content[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(content)}"})

    def info(self) -> dict[str, Any]:
        siblings = []
        for path, content in self.files.items():
            item: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": "0" * 40}
            if path.endswith((".safetensors", ".bin")):
                digest = hashlib.sha256(content).hexdigest()
                item["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(item)
        return {
            "id": self.repo,
            "sha": self.sha,
            "private": False,
            "gated": False,
            "cardData": self.card,
            "siblings": siblings,
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

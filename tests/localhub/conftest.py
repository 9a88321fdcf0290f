"""Clients of the local Hub, and names that no other test uses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Thread
from typing import NamedTuple

import pytest
from huggingface_hub import HfApi

from localhub.process import LocalHubProcess

_numbers = itertools.count(1)


@pytest.fixture
def bob(local_hub: LocalHubProcess) -> HfApi:
    return HfApi(local_hub.endpoint, token=local_hub.tokens["bob"])


@pytest.fixture
def carol(local_hub: LocalHubProcess) -> HfApi:
    """Has a read-only token."""
    return HfApi(local_hub.endpoint, token=local_hub.tokens["carol_read"])


@pytest.fixture
def nobody(local_hub: LocalHubProcess) -> HfApi:
    return HfApi(local_hub.endpoint, token=False)


@pytest.fixture
def fresh() -> Callable[[], str]:
    """A repo name that no other test uses."""
    return lambda: f"thing-{next(_numbers)}"


@pytest.fixture
def repo(ada: HfApi, fresh: Callable[[], str]) -> str:
    """A new public model repo of ada."""
    return ada.create_repo(f"ada/{fresh()}").repo_id


class Received(NamedTuple):
    headers: dict[str, str]
    body: bytes


class Receiver:
    """A web server that remembers what was posted and answers with `statuses` in turn, the last one for good."""

    def __init__(self) -> None:
        self.statuses = [200]
        self.received: Queue[Received] = Queue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.received.put(Received({k.lower(): v for k, v in self.headers.items()}, body))
                statuses = receiver.statuses
                self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        self._thread = Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def next(self) -> Received:
        return self.received.get(timeout=30)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.close()

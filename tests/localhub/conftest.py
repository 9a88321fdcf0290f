"""Clients of the local Hub, and names that no other test uses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from queue import Queue

import pytest
from huggingface_hub import HfApi
from scripted_hub import Answer, Request, ScriptedHub

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
def reader(local_hub: LocalHubProcess) -> HfApi:
    """Ada, with her read-only token."""
    return HfApi(local_hub.endpoint, token=local_hub.tokens["ada_read"])


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


@pytest.fixture
def bobs(bob: HfApi, fresh: Callable[[], str]) -> str:
    """A new public model repo of bob."""
    return bob.create_repo(f"bob/{fresh()}").repo_id


class Receiver(ScriptedHub):
    """A web server that remembers what was posted and answers with `statuses` in turn, the last one for good."""

    def __init__(self) -> None:
        super().__init__({})
        self.statuses = [200]
        self.received: Queue[Request] = Queue()
        self.url = f"{self.endpoint}/hook"
        self.bend = self._take

    def _take(self, request: Request) -> Answer:
        self.received.put(request)
        return Answer(self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0])

    def next(self) -> Request:
        return self.received.get(timeout=30)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        yield server

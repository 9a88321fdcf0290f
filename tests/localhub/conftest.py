"""Clients of the local Hub, and names that no other test uses."""

import itertools
import json
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


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    """A Hub of a users file, with an organisation of three roles."""
    members = {"dora": "admin", "eve": "read", "finn": "contributor"}
    users = {
        "users": [{"name": name, "tokens": [{"value": f"hf_{name}_write"}]} for name in members],
        "orgs": [{"name": "lab", "members": members, "private_by_default": True}],
        "oauth": {"client_id": "app", "client_secret": "a-long-secret", "expiration_minutes": 43_200},
    }
    path = tmp_path_factory.mktemp("lab") / "users.json"
    path.write_text(json.dumps(users))
    with LocalHubProcess(path.parent / "data", users=path) as hub:
        yield hub


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

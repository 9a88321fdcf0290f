"""The conftest.py of the client's own tests when they run against the local Hub.

Their source archive ships the tests but not their conftest.py; this one gives them the fixtures that they name.
`run.py` copies it into the unpacked archive.
"""

import os
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

import pytest
from huggingface_hub import HfApi, RepoUrl, constants

from .testing_constants import ENDPOINT_STAGING, TOKEN, USER
from .testing_utils import repo_name


class RepoFactory(Protocol):
    def __call__(self, repo_type: str = "model", **kwargs: Any) -> RepoUrl: ...


class _Mocker:
    """`mocker.patch` and `mocker.patch.object`, undone at the end of the test."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        def undone(patch: Callable[..., Any]) -> Any:
            def start(*args: Any, **kwargs: Any) -> Any:
                patcher = patch(*args, **kwargs)
                request.addfinalizer(patcher.stop)
                return patcher.start()

            return start

        self.patch = undone(mock.patch)
        self.patch.object = undone(mock.patch.object)


# test_hub_mixin.py imports both: one to annotate, one for a test of editors that `run.py` leaves out.
sys.modules.setdefault("pytest_mock", SimpleNamespace(MockerFixture=_Mocker))  # type: ignore[arg-type]
sys.modules.setdefault("jedi", SimpleNamespace())  # type: ignore[arg-type]


@pytest.fixture
def mocker(request: pytest.FixtureRequest) -> _Mocker:
    return _Mocker(request)


@pytest.fixture(autouse=True)
def _own_caches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory) -> None:
    home = tmp_path_factory.mktemp("home")
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_XET_CACHE", "HF_ASSETS_CACHE"):
        monkeypatch.setattr(constants, name, str(home / name.lower()), raising=False)
    for name in ("HF_TOKEN_PATH", "HF_STORED_TOKENS_PATH"):
        monkeypatch.setattr(constants, name, str(home / name.lower()))


@pytest.fixture(autouse=True)
def _expected_deprecations(request: pytest.FixtureRequest):
    marker = request.node.get_closest_marker("deprecated")
    if marker is None:
        yield
        return
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    for name in marker.args:
        assert any(name in str(warning.message) for warning in seen)


@pytest.fixture(scope="session")
def api() -> HfApi:
    return HfApi(endpoint=ENDPOINT_STAGING, token=TOKEN)


@pytest.fixture
def repo_factory(api: HfApi):
    """Make repos that are deleted at the end of the test."""
    made: list[tuple[str, str, str]] = []

    def make(repo_type: str = "model", **kwargs: Any) -> RepoUrl:
        token = kwargs.pop("token", None) or TOKEN
        repo_id = kwargs.pop("repo_id", None) or repo_name()
        if repo_type == "space":
            kwargs.setdefault("space_sdk", "static")
        url = api.create_repo(repo_id, repo_type=repo_type, token=token, **kwargs)
        made.append((url.repo_id, repo_type, token))
        return url

    yield make
    for repo_id, repo_type, token in made:
        api.delete_repo(repo_id, repo_type=repo_type, token=token, missing_ok=True)


@pytest.fixture
def new_repo_id(api: HfApi):
    """The id of a repo that the test itself makes."""
    repo_id = f"{USER}/{repo_name()}"
    yield repo_id
    api.delete_repo(repo_id, missing_ok=True)


assert os.environ["HF_ENDPOINT"] == ENDPOINT_STAGING

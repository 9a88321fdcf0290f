"""A command line that is one function call away, as ada of an embedded Hub."""

from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from processes import act_as_ada

from hubmerge.hub.errors import Patience
from localhub.process import LocalHubProcess


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command asks a Hub that is away as often as ever, and at once."""
    monkeypatch.setattr(Patience, "_wait", lambda patience, seconds: None)


@pytest.fixture
def ada(local_hub: LocalHubProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HfApi:
    """The command line speaks to the embedded Hub as ada; so does what is returned."""
    act_as_ada(monkeypatch, local_hub, tmp_path)
    return HfApi(local_hub.endpoint, token=local_hub.tokens["ada"])


@pytest.fixture
def fetched(ada: HfApi, tmp_path: Path) -> Callable[[str, str], bytes]:
    """The bytes of a file of a repo, by the client itself."""
    return lambda repo, name: Path(
        ada.hf_hub_download(repo, name, cache_dir=tmp_path / "fetched", force_download=True)
    ).read_bytes()

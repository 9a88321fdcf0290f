"""What all tests share: a quiet Hub client that never leaves this machine, and one embedded Hub per session."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# The client reads these when it is imported, so they come before any test module.
os.environ.update(
    HF_HUB_DISABLE_XET="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    HF_HUB_DISABLE_UPDATE_CHECK="1",
    NO_PROXY="127.0.0.1,localhost",
)
_home = tempfile.TemporaryDirectory(prefix="hubmerge-tests-")
os.environ["HF_HOME"] = _home.name
os.environ["HUBMERGE_DATA"] = f"{_home.name}/data"  # what commands keep does not land in the checkout
for _name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
    os.environ.pop(_name, None)

from localhub.process import LocalHubProcess  # noqa: E402

pytest_plugins = ("line_fixtures", "merge_fixtures")

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"


def pytest_configure(config: pytest.Config) -> None:
    # The client's own use of its HTTP library when it uploads large files; nothing here can change it.
    config.addinivalue_line("filterwarnings", "ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # one process holds one Playwright at a time, so browser tests of all folders run after each other in one worker
    for item in items:
        if "chromium" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("browser"))


def pytest_unconfigure() -> None:
    _home.cleanup()


@pytest.fixture(scope="session")
def local_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    """A running local Hub with its default users; tests make repos of their own names in it."""
    data: Path = tmp_path_factory.mktemp("localhub")
    with LocalHubProcess(data) as hub:
        yield hub


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser, gone with its module: a process holds one Playwright at a time, and no asyncio loop beside it."""
    if not Path(CHROMIUM).exists():
        pytest.skip("no chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as runtime:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = runtime.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()

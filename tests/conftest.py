"""What all tests share: a Hub client that never leaves this machine, embedded Hubs, and the whole line on one.

`local_hub` has no faults; `faulty_hub` has switches, all of them off when a test begins. `line` is a merge on it.
"""

import hashlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
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
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
for _name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
    os.environ.pop(_name, None)

from builders import recipe_dict, write_parents  # noqa: E402
from huggingface_hub import HfApi  # noqa: E402
from huggingface_hub.utils import _http  # noqa: E402
from line import Line, upload_family  # noqa: E402

from hubmerge.cli.main import main  # noqa: E402
from localhub.fault_rules import FaultSwitch  # noqa: E402
from localhub.process import LocalHubProcess  # noqa: E402

HERE = Path(__file__).parent
SLOW = frozenset(HERE / line for line in (HERE / "slow.txt").read_text(encoding="utf-8").splitlines())
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"


def pytest_configure(config: pytest.Config) -> None:
    # The client's own use of its HTTP library when it uploads large files; nothing here can change it.
    config.addinivalue_line("filterwarnings", "ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whoever runs no slow test need not import torch for them."""
    return True if collection_path in SLOW and config.option.markexpr == "not slow" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        browser = "chromium" in getattr(item, "fixturenames", ())
        if (browser or item.path in SLOW) and not item.get_closest_marker("quick"):
            item.add_marker(pytest.mark.slow)


def pytest_unconfigure() -> None:
    _home.cleanup()


@pytest.fixture(scope="session")
def local_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    """A running local Hub with its default users; tests make repos of their own names in it."""
    data: Path = tmp_path_factory.mktemp("localhub")
    with LocalHubProcess(data) as hub:
        yield hub


@pytest.fixture
def ada(local_hub: LocalHubProcess) -> HfApi:
    """Writes to her own repos and to those of the organisation `zoo`."""
    return HfApi(local_hub.endpoint, token=local_hub.tokens["ada"])


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch's: threads cost small models more than they bring."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card's figures take longer than the rest of a small merge."""
    monkeypatch.setattr("hubmerge.line.render_figures", lambda report: {})


@pytest.fixture(scope="session")
def zoo_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    """A local Hub with the example models and data sets, which nobody changes; what is added has a name of its own."""
    with LocalHubProcess(tmp_path_factory.mktemp("zoohub"), zoo=True) as hub:
        yield hub


@pytest.fixture
def api(zoo_hub: LocalHubProcess) -> HfApi:
    """Ada, on the Hub with the example models."""
    return HfApi(zoo_hub.endpoint, token=zoo_hub.tokens["ada"])


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    """A recipe of a base and two agents in folders beside it, all under MIT."""
    folders = write_parents(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe_dict(folders[0], folders[1:])))
    return path


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command that ends with exit code 1 says on stderr."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert main([*map(str, arguments)]) == 1
        return capsys.readouterr().err

    return run


@pytest.fixture
def done(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """What a command that ends with exit code 0 says, as `out` and `err`."""

    def run(*arguments: object) -> Any:
        capsys.readouterr()
        assert main([*map(str, arguments)]) == 0
        return capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def faulty_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    with LocalHubProcess(tmp_path_factory.mktemp("faulty"), options=("--faults",)) as hub:
        yield hub


@pytest.fixture
def switch(faulty_hub: LocalHubProcess) -> Iterator[FaultSwitch]:
    with FaultSwitch(faulty_hub.endpoint) as switch:
        yield switch


@pytest.fixture
def client_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The client's own pauses between tries, noted instead of waited for."""
    pauses: list[float] = []
    monkeypatch.setattr(_http, "time", SimpleNamespace(**{**vars(time), "sleep": pauses.append}))
    return pauses


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A repo that no other test uses."""
    return "ada/f-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("family")


@pytest.fixture(scope="session")
def family(faulty_hub: LocalHubProcess, family_folder: Path) -> dict[str, Any]:
    """The recipe of a merge of models on the Hub with faults."""
    return upload_family(HfApi(faulty_hub.endpoint, token=faulty_hub.tokens["ada"]), family_folder, "ada/")


@pytest.fixture(scope="session")
def undisturbed(
    faulty_hub: LocalHubProcess, family: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What the family's merge to a folder gives: the sha256 of every file that is a function of the inputs."""
    return Line(faulty_hub, tmp_path_factory.mktemp("undisturbed"), family, "ada/undisturbed").to_folder()


@pytest.fixture
def line(
    faulty_hub: LocalHubProcess,
    tmp_path: Path,
    family: dict[str, Any],
    undisturbed: dict[str, str],
    name: str,
    switch: FaultSwitch,
) -> Line:
    """The family's merge into a target of its own; `undisturbed` has run before any fault is switched on."""
    folder = tmp_path / "line"
    folder.mkdir()
    return Line(faulty_hub, folder, dict(family), name, undisturbed=undisturbed)


@pytest.fixture
def own(line: Line, tmp_path: Path) -> Path:
    """The same family in repos of this test's own, which it may change, and the line over it; its folder."""
    line.recipe = upload_family(line.api, tmp_path / "family", line.target + "-")
    return tmp_path / "family"


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

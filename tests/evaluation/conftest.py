"""An embedded Hub with the zoo, and runs of the runner in which a scripted process stands in for lighteval."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from line import Watcher

from hubmerge.evaluation import runner
from hubmerge.evaluation.result import EvaluationResult
from hubmerge.evaluation.suites import pin
from hubmerge.hub.client import Hub
from hubmerge.recipe.model_name import ModelName
from localhub.process import LocalHubProcess


@pytest.fixture
def hub(zoo_hub: LocalHubProcess) -> Hub:
    return Hub(zoo_hub.endpoint, zoo_hub.tokens["ada"])


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fetched rows, shared by all runs of the session."""
    return tmp_path_factory.mktemp("rows")


@pytest.fixture
def notes() -> Watcher:
    """An observer with the stages and the warnings that it was told."""
    return Watcher()


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, hub: Hub, rows: Path, workdir: Path) -> Callable[..., EvaluationResult]:
    """`scripted(mode, **arguments)`: a run on zoo/math-agent whose child does what `mode` says."""
    monkeypatch.setattr(runner, "CHILD_MODULE", "tests.evaluation.scripted_child")

    def run(mode: str, *, options: dict[str, Any] | None = None, **arguments: Any) -> EvaluationResult:
        workdir.mkdir(exist_ok=True)
        (workdir / "mode").write_text(mode)
        return runner.evaluate(
            ModelName.parse(arguments.pop("model", "zoo/math-agent")),
            arguments.pop("suite", None) or pin("zoo", hub, limit=4),
            hub=hub,
            workdir=workdir,
            options=runner.EvaluateOptions(data_cache=rows, **(options or {})),
            **arguments,
        )

    return run

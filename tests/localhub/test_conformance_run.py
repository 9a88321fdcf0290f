"""The exit code of the conformance run: one test that fails, or does not run, is enough."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

RUN = Path(__file__).resolve().parents[1] / "conformance" / "run.py"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path])  # it adds the checkout
    spec = importlib.util.spec_from_file_location("conformance_run", RUN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(folder: Path, *, passed: int, failed: int = 0, errors: int = 0, skipped: int = 0) -> Path:
    """As pytest writes it."""
    counts = {"tests": passed + failed + errors + skipped, "failures": failed, "errors": errors, "skipped": skipped}
    suites = ElementTree.Element("testsuites")
    ElementTree.SubElement(suites, "testsuite", {name: str(count) for name, count in counts.items()})
    path = folder / "report.xml"
    ElementTree.ElementTree(suites).write(path)
    return path


@pytest.mark.parametrize(
    ("counts", "code", "expected"),
    [
        ({"passed": 479, "skipped": 2}, 0, 0),
        ({"passed": 490}, 0, 0),
        ({"passed": 478, "failed": 1, "skipped": 2}, 1, 1),
        ({"passed": 600, "failed": 1}, 1, 1),
        ({"passed": 479, "errors": 1, "skipped": 2}, 1, 1),
        ({"passed": 478, "skipped": 2}, 0, 1),  # one is gone
        ({"passed": 478, "skipped": 3}, 0, 1),  # one was skipped
        ({"passed": 479, "skipped": 3}, 0, 1),
        ({"passed": 479, "skipped": 2}, 3, 1),  # pytest itself broke
        ({"passed": 0}, 0, 1),
    ],
)
def test_every_test_must_run_and_pass(
    run: ModuleType, tmp_path: Path, counts: dict[str, int], code: int, expected: int
) -> None:
    assert run.summarize(report(tmp_path, **counts), code, run.PLAIN) == expected


def test_a_selection_needs_no_number_but_something_that_passed(run: ModuleType, tmp_path: Path) -> None:
    assert run.summarize(report(tmp_path, passed=3, skipped=5), 0, None) == 0
    assert run.summarize(report(tmp_path, passed=3, failed=1), 1, None) == 1
    assert run.summarize(report(tmp_path, passed=0), 5, None) == 1


def test_a_run_that_left_no_report_failed(run: ModuleType, tmp_path: Path) -> None:
    assert run.summarize(tmp_path / "report.xml", 0, run.PLAIN) == 1

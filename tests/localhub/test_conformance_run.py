"""The exit code of the conformance run: one test that fails, or does not run, is enough."""

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
    ("suite", "counts", "code", "expected"),
    [
        ("PLAIN", {"passed": 479, "skipped": 2}, 0, 0),
        ("PLAIN", {"passed": 600, "failed": 1}, 0, 1),
        ("PLAIN", {"passed": 600, "errors": 1}, 0, 1),
        ("PLAIN", {"passed": 478, "skipped": 2}, 0, 1),  # one is gone
        ("PLAIN", {"passed": 479, "skipped": 3}, 0, 1),
        ("PLAIN", {"passed": 479, "skipped": 2}, 3, 1),  # pytest itself broke
        ("PLAIN", None, 0, 1),  # it left no report
        (None, {"passed": 3, "skipped": 5}, 0, 0),  # a selection needs no number
        (None, {"passed": 3, "failed": 1}, 0, 1),
        (None, {"passed": 0}, 0, 1),
    ],
)
def test_every_test_must_run_and_pass_or_of_a_selection_one_at_least(run, tmp_path, suite, counts, code, expected):
    path = tmp_path / "report.xml" if counts is None else report(tmp_path, **counts)
    assert run.summarize(path, code, suite and run.PLAIN) == expected

"""`hubmerge evaluate`: its arguments, the files it writes, its table and its exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from hubmerge.cli import evaluate as command
from hubmerge.cli.terminal import Terminal
from hubmerge.evaluation import runner
from hubmerge.evaluation.result import parse_result
from hubmerge.evaluation.suites import SUITES
from hubmerge.hub.client import Hub
from hubmerge.settings import Settings, evaluation_environment


def arguments(*text: str) -> Any:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(text)


@pytest.fixture
def settings(hub: Hub, tmp_path: Path) -> Settings:
    return Settings(endpoint=hub.endpoint, token=SecretStr(hub.token or ""), data_dir=tmp_path / "data")


@pytest.fixture
def run(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], tuple[int, Path]]:
    """Evaluates zoo/base by a process that does what `mode` says; the exit code, and where the result was asked for."""
    monkeypatch.setattr(runner, "CHILD_MODULE", "tests.evaluation.scripted_child")
    monkeypatch.setenv("HUBMERGE_DATA", str(settings.data_dir))
    real, out = runner.evaluate, tmp_path / "made" / "result.json"

    def run(mode: str) -> tuple[int, Path]:
        def evaluate(*given: Any, workdir: Path, **more: Any) -> Any:
            (workdir / "details").mkdir(parents=True)
            (workdir / "mode").write_text(mode)
            (workdir / "details" / "zoo_math.parquet").write_bytes(b"kept")
            return real(*given, workdir=workdir, **more)

        monkeypatch.setattr(runner, "evaluate", evaluate)
        asked = arguments("zoo/base", "--suite", "zoo", "--limit", "4", "--out", str(out))
        return command.run_cli(asked, settings, Terminal(False)), out

    return run


def test_the_help_names_every_suite() -> None:
    assert tuple(SUITES) == command._SUITES


def test_a_run_writes_its_result_and_details_and_prints_a_table(run: Any, capsys: Any) -> None:
    code, out = run("answers")
    result = parse_result(out.read_bytes(), where="x")
    assert (code, result.model, result.status) == (0, "zoo/base", "done")
    assert (out.parent / "result.details" / "zoo_math.parquet").read_bytes() == b"kept"
    printed = capsys.readouterr().out
    assert "zoo_math   25.0 ± 12.5  exact_match, 12 prompts" in printed
    assert result.suite_version in printed


def test_a_failed_run_says_why_and_exits_with_1(run: Any, capsys: Any) -> None:
    code, out = run("crashes")
    assert (code, parse_result(out.read_bytes(), where="x").status) == (1, "failed")
    assert "SIGSEGV" in capsys.readouterr().out
    assert not (out.parent / "result.details").exists()


def test_a_limit_below_one_is_wrong_usage(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        arguments("zoo/base", "--suite", "zoo", "--limit", "0")


def test_a_child_finds_what_pip_installed_for_the_user_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site.ENABLE_USER_SITE", True)
    monkeypatch.setattr("site.getuserbase", lambda: "/home/ada/.local")
    assert evaluation_environment({}, network=False) == {"PYTHONUSERBASE": "/home/ada/.local"}


def test_a_child_inherits_by_an_allow_list_and_a_proxy_only_with_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site.ENABLE_USER_SITE", False)
    inherited, proxy = {"PATH": "/bin", "PYTHONPATH": "/lib", "LANG": "C"}, {"HTTPS_PROXY": "http://u:p@h"}
    environment = {**inherited, **proxy, "HF_TOKEN": "t", "AWS_SECRET": "s"}
    assert evaluation_environment(environment, network=False) == inherited
    assert evaluation_environment(environment, network=True) == inherited | proxy

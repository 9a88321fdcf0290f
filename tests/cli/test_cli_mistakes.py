"""Typical mistakes are answered with what is wrong, where, what was found, and what to do; docs/mistakes.md shows them.

HUBMERGE_WRITE_MISTAKES=1 writes docs/mistakes.md anew.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mistakes
import pytest
from huggingface_hub import HfApi, constants
from mistakes import MISTAKES, Mistake

from hubmerge.cli.main import main
from localhub.process import LocalHubProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mistakes.md"
WRITING = bool(os.environ.get("HUBMERGE_WRITE_MISTAKES"))
_now: dict[str, str] = {}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    with LocalHubProcess(tmp_path_factory.mktemp("hub")) as process:
        yield process


@pytest.fixture(scope="module")
def names(hub: LocalHubProcess) -> Iterator[dict[str, str]]:
    """The models and repos, and a finished merge; in a folder with a short name, since messages cut long values."""
    with tempfile.TemporaryDirectory(prefix="mistakes-", dir="/tmp") as folder:
        here = Path(folder)
        made = mistakes.build(here, *(HfApi(hub.endpoint, token=hub.tokens[name]) for name in ("ada", "bob")))
        (here / "first.yaml").write_text(f"base: {made['base']}\nagents: [{made['one']}, {made['two']}]\nmethod: ram\n")
        assert main(["merge", str(here / "first.yaml"), "--out", str(here / "merged")]) == 0
        yield {**made, "merged": str(here / "merged"), "here": str(here)}


def answered(
    mistake: Mistake, hub: LocalHubProcess, names: dict[str, str], patch: pytest.MonkeyPatch, capsys: Any, *more: str
) -> tuple[int, str, str]:
    import torch

    here = Path(names["here"])
    shutil.rmtree(here / "out", ignore_errors=True)
    arguments, stdin = mistakes.prepare(mistake, here, names)
    patch.chdir(here)
    patch.setenv("HF_ENDPOINT", hub.endpoint)
    patch.setattr(torch.cuda, "is_available", lambda: False)
    patch.setattr("sys.stdin", io.StringIO(stdin or ""))
    patch.delenv("HF_TOKEN", raising=False)
    if mistake.token is not None:
        patch.setenv("HF_TOKEN", hub.tokens.get(mistake.token, mistake.token))
    for name, value in mistake.variables.items():
        if name == "HF_HUB_OFFLINE":  # the client reads it when it is imported
            patch.setattr(constants, name, True)
        else:
            patch.setenv(name, value)
    capsys.readouterr()
    try:
        code = main([*arguments, *more])
    except SystemExit as stopped:
        code = int(str(stopped.code))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.title.replace(" ", "-"))
def test_a_mistake_is_answered_with_what_where_and_what_to_do(
    mistake: Mistake,
    hub: LocalHubProcess,
    names: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = answered(mistake, hub, names, monkeypatch, capsys)
    assert "Traceback" not in err
    if not mistake.tells:
        assert code == 0, err
        told = out.partition("\nWarnings\n")[2]
        now = "it is done" + "".join(f"; warning: {' '.join(each.split())}" for each in told.split("  - ")[1:])
    else:
        assert code == mistake.code
        now = err.splitlines()[-1] if code == 2 else err[err.find("hubmerge: E_") :].rstrip()  # after its waits
        assert now.startswith("hubmerge")
    now = mistakes.normal(now, Path(names["here"]), hub.endpoint)
    _now[mistake.title] = now
    assert WRITING or mistakes.row(mistake, now) in PAGE.read_text(encoding="utf-8")
    if mistake.tells and code == 1:
        _, out, err = answered(mistake, hub, names, monkeypatch, capsys, "--log-json")
        error = json.loads(err.splitlines()[-1])
        assert error["code"].startswith("E_")
        for problem in error["problems"]:
            assert problem["what"]
            assert problem["next_step"]
            assert problem["where"] or (problem["expected"] and problem["got"])


def test_the_page_of_mistakes_is_made_of_what_is_said() -> None:
    if WRITING:
        rows = [mistakes.row(mistake, _now[mistake.title]) for mistake in MISTAKES]
        PAGE.write_text(mistakes.HEAD + "".join(rows), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(mistakes.HEAD)
    titles = [line.split(" | ")[0] for line in text.removeprefix(mistakes.HEAD).splitlines()]
    assert titles == [f"| {mistake.title}" for mistake in MISTAKES]

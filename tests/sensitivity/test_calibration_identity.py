"""Calibration is part of a merge: other rows, other tokens or other versions make another one."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sensitivity_helpers import ZOO, zoo_recipe
from transformers import AutoTokenizer

from hubmerge.cli.main import main
from hubmerge.engine.journal import plan_identity
from hubmerge.hub.client import Hub
from hubmerge.line import Prepared, Request, prepare
from hubmerge.output.report import Report
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sensitivity import rows as rows_module
from hubmerge.sensitivity.pairs import Pair, load_pairs
from hubmerge.sensitivity.rows import Calibration

NOWHERE = Hub("http://127.0.0.1:9")


def prepared(data: Path, **changes: Any) -> Prepared:
    return prepare(recipe_from_dict(zoo_recipe(data, **changes)), NOWHERE, Request(allow_local=True))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    lines = (ZOO / "eval" / "dev_math.jsonl").read_text().splitlines()[:3]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def with_another_answer(data: Path) -> None:
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    lines[0]["answer"] = lines[1]["answer"] + " " + lines[0]["answer"]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))


def merge(folder: Path, data: Path, **changes: Any) -> int:
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(zoo_recipe(data, **changes)))
    return main(["merge", str(path), "--out", str(folder / "out")])


def test_other_rows_are_another_merge_and_a_finished_folder_of_the_old_ones_says_so(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = prepared(data)
    assert merge(tmp_path, data) == 0
    assert merge(tmp_path, data) == 0  # finished before
    capsys.readouterr()
    with_another_answer(data)
    after = prepared(data)
    assert after.identity != before.identity
    assert plan_identity(after.plan) != plan_identity(before.plan)  # nor is an unfinished one gone on with
    assert merge(tmp_path, data) == 1
    assert "another finished merge is here" in capsys.readouterr().err


def test_the_same_rows_are_the_same_merge_whatever_their_file_is_called(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "renamed.jsonl"
    other.parent.mkdir()
    other.write_text("".join(reversed(data.read_text().splitlines(keepends=True))))
    assert prepared(data).identity == prepared(other).identity
    longer = {"data": str(data), "prompt": "prompt", "answer": "answer", "max_pairs": 2}
    assert prepared(data, calibration=longer).identity != prepared(data).identity


def test_another_tokenizer_takes_no_kept_sensitivity_and_is_another_merge(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBMERGE_DATA", str(tmp_path / "data"))
    agent = tmp_path / "agent"
    shutil.copytree(ZOO / "math", agent)
    agents = [str(agent), str(ZOO / "tool")]
    before = prepared(data, agents=agents)
    assert merge(tmp_path, data, agents=agents) == 0
    kept = {p.name for p in (tmp_path / "data" / "sensitivity").iterdir()}
    tokenizer = json.loads((agent / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None  # no BOS in front
    (agent / "tokenizer.json").write_text(json.dumps(tokenizer))
    after = prepared(data, agents=agents)
    assert after.plan.agents[0].ref.sha == before.plan.agents[0].ref.sha
    assert after.identity != before.identity
    (tmp_path / "second").mkdir()
    assert merge(tmp_path / "second", data, agents=agents) == 0
    assert (
        len({p.name for p in (tmp_path / "data" / "sensitivity").iterdir()} - kept) == 1
    )  # the other agent's is taken


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_other_versions_are_another_merge(package: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = prepared(data).identity, rows_module.version
    monkeypatch.setattr(rows_module, "version", lambda name: "0.0.1" if name == package else real(name))
    assert prepared(data).identity != before


def test_a_changed_file_of_a_sensitivity_is_another_merge(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.safetensors"
    columns = ["--prompt", "prompt", "--answer", "answer"]
    command = ["sensitivity", str(ZOO / "math"), "--data", str(data), *columns, "--out", str(out)]
    assert main([*command, "--max-pairs", "2"]) == 0
    agents = [{"model": str(ZOO / "math"), "sensitivity": str(out)}, str(ZOO / "tool")]
    before = prepared(data, agents=agents).identity
    assert prepared(data, agents=agents).identity == before
    out.unlink()
    assert main([*command, "--max-pairs", "3"]) == 0
    assert prepared(data, agents=agents).identity != before


def test_manifest_and_card_name_the_rows_that_an_independent_tokenizer_makes(data: Path, tmp_path: Path) -> None:
    assert merge(tmp_path, data) == 0
    manifest = json.loads((tmp_path / "out" / "hubmerge.json").read_text())
    spec = CalibrationSpec(data=str(data), prompt="prompt", answer="answer", max_pairs=3)
    tokenizer, wanted = AutoTokenizer.from_pretrained(ZOO / "math"), hashlib.sha256()
    for pair in load_pairs(spec):
        prompt = tokenizer(pair.prompt).input_ids
        answer = [*tokenizer(pair.answer, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        for number in (len(prompt + answer), len(answer), *prompt, *answer):
            wanted.update(number.to_bytes(8, "big"))
    row = manifest["sensitivities"][0]
    assert (row["agent"], row["rows"], row["pairs"], row["data"]) == ("math", wanted.hexdigest(), 3, "rows.jsonl")
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"| `math` | `rows.jsonl` | 3 | `{row['rows']}` | `{row['torch']}` | `{row['transformers']}` |" in card
    assert "same bytes again" not in card
    assert json.loads(json.dumps(Report.from_json(manifest).to_json())) == manifest
    assert manifest["identity"] == prepared(data).identity


def test_a_dataset_of_the_hub_is_read_once_at_a_commit_that_the_recipe_then_names(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    rows = load_pairs(CalibrationSpec(data=str(data), prompt="prompt", answer="answer"))

    def load(spec: CalibrationSpec, *_: Any, **__: Any) -> tuple[Pair, ...]:
        asked.append(spec.revision)
        return rows

    class Datasets:
        def repo_state(self, repo_id: str, revision: str | None) -> Any:
            commits = {None: "c" * 40, "v2": "d" * 40}
            return SimpleNamespace(sha=commits.get(revision, revision), private=False)

    monkeypatch.setattr(rows_module, "load_pairs", load)
    for revision, sha in ((None, "c" * 40), ("v2", "d" * 40), ("e" * 40, "e" * 40)):
        spec = {"data": "org/pairs", "prompt": "prompt", "answer": "answer", "revision": revision}
        recipe = recipe_from_dict(zoo_recipe(data, calibration=spec))
        plan = prepare(recipe, NOWHERE, Request(allow_local=True, calibrate="not")).plan
        hub = SimpleNamespace(datasets=Datasets(), endpoint="", token=None, read_file=NOWHERE.read_file)
        read = Calibration(hub, allow_local=True).of(plan)  # type: ignore[arg-type]
        assert read.recipe.calibration is not None
        assert read.recipe.calibration.revision == sha
        assert asked.pop() == sha
        assert not asked


def test_a_method_that_weighs_by_nothing_reads_no_calibration_and_keeps_its_identity(data: Path) -> None:
    plain = prepared(data, method="ram")
    data.unlink()
    assert prepared(data, method="ram").identity == plain.identity
    assert plain.plan.calibration == ()

"""Sensitivities inside a merge: part of its identity, computed once, kept, and refused where no file holds the weights.

Other rows, other tokens or other versions make another merge. On a server rows are read apart, within limits, and no
public merge tells of private ones.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets_by_hand
import pytest
import torch
from huggingface_hub import HfApi
from plan_helpers import NOWHERE
from safetensors.torch import load_file, save_file
from sensitivity_helpers import ZOO, write_rows, zoo_recipe
from source_helpers import zoo_adapter
from transformers import AutoTokenizer

from hubmerge.cli.main import main
from hubmerge.engine.journal import plan_identity
from hubmerge.engine.progress import Unobserved
from hubmerge.errors import CancelledError, DiskError, HubmergeError, RecipeError, SensitivityError, SourceNotFoundError
from hubmerge.hub.client import Hub
from hubmerge.line import Prepared, Request, prepare
from hubmerge.output.publish import Target
from hubmerge.plan.plan import Plan
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sensitivity import of_plan
from hubmerge.sensitivity import rows as rows_module
from hubmerge.sensitivity.pairs import load_pairs
from hubmerge.sensitivity.rows import Calibration
from localhub.process import LocalHubProcess

ROWS = "\n".join((ZOO / "eval" / "dev_math.jsonl").read_text().splitlines()[:3]).encode() + b"\n"


def prepared(data: Path, **changes: Any) -> Prepared:
    return prepare(recipe_from_dict(zoo_recipe(data, **changes)), NOWHERE, Request(allow_local=True))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROWS)
    return path


def with_another_answer(data: Path) -> None:
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    lines[0]["answer"] = lines[1]["answer"] + " " + lines[0]["answer"]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))


def merge(folder: Path, data: Path, out: str = "out", **changes: Any) -> int:
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(zoo_recipe(data, **changes)))
    return main(["merge", str(path), "--out", str(folder / out)])


def test_the_same_rows_are_the_same_merge_whatever_their_file_is_called_and_other_rows_or_versions_another(
    data, tmp_path, monkeypatch
):
    other = tmp_path / "elsewhere" / "renamed.jsonl"
    other.parent.mkdir()
    other.write_text("".join(reversed(data.read_text().splitlines(keepends=True))))
    assert prepared(data).identity == prepared(other).identity
    before, real = prepared(data).identity, rows_module.version
    fewer = {"data": str(data), "prompt": "prompt", "answer": "answer", "max_pairs": 2}
    assert prepared(data, calibration=fewer).identity != before
    for package in ("torch", "transformers"):
        with monkeypatch.context() as patch:
            patch.setattr(rows_module, "version", lambda name: "0" if name == package else real(name))  # noqa: B023
            assert prepared(data).identity != before
    with_another_answer(data)
    assert prepared(data).identity != before


def test_a_changed_file_of_a_sensitivity_is_another_merge(data, tmp_path):
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


def test_manifest_and_card_name_the_rows_that_an_independent_tokenizer_makes_and_others_are_another_merge(
    data, tmp_path, capsys
):
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
    before = prepared(data)
    assert manifest["identity"] == before.identity
    assert merge(tmp_path, data) == 0  # finished before
    with_another_answer(data)
    assert plan_identity(prepared(data).plan) != plan_identity(before.plan)  # nor is an unfinished one gone on with
    assert merge(tmp_path, data) == 1
    assert "another finished merge is here" in capsys.readouterr().err


def test_a_method_that_weighs_by_nothing_reads_no_calibration_and_keeps_its_identity(data):
    plain = prepared(data, method="ram")
    data.unlink()
    assert prepared(data, method="ram").identity == plain.identity
    assert plain.plan.calibration == ()


# --- computed and kept --------------------------------------------------------------------------------------


def test_weights_that_no_file_holds_are_refused_when_the_merge_is_prepared(data, tmp_path):
    adapter = str(zoo_adapter(tmp_path / "adapter"))
    for named in ({}, {"sensitivity": "./named.safetensors"}):
        with pytest.raises(SensitivityError, match="no file holds these weights") as caught:
            prepared(data, agents=[{"model": adapter, **named}, str(ZOO / "tool")])
        [problem] = caught.value.problems
        assert problem.where.startswith(adapter)
        assert "tool" not in problem.where


def test_what_ignore_names_needs_no_sensitivity(data, tmp_path):
    valued = Path(shutil.copytree(ZOO / "math", tmp_path / "valued"))
    tensors = load_file(valued / "model.safetensors")
    save_file({**tensors, "v_head.summary.weight": torch.ones(1, 8)}, valued / "model.safetensors", {"format": "pt"})
    kept = "model.norm.weight"
    assert kept in tensors

    def values(**changes: Any) -> dict[str, torch.Tensor]:
        plan = prepared(data, **changes).plan
        first, _ = of_plan.sensitivities_of(plan, NOWHERE, tmp_path / "s", Unobserved(), True, None)
        return load_file(first.ref.path / next(iter(first.files)))

    plain = values()
    found = values(agents=[str(valued), str(ZOO / "tool")], ignore=["v_head.*", kept])
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def test_a_merge_of_the_same_tokens_takes_what_was_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("HUBMERGE_DATA", str(tmp_path / "data"))
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": "1 + 1 =", "answer": "2"}])

    def merged(out: str) -> bytes:
        assert merge(tmp_path, rows, out, method="sar") == 0
        return (tmp_path / out / "model.safetensors").read_bytes()

    first = merged("a")
    kept = sorted((tmp_path / "data" / "sensitivity").iterdir())
    assert [p.suffix for p in kept] == [".safetensors"] * 2

    for path in kept:
        os.truncate(path, path.stat().st_size // 2)  # a disk that lost power may leave it so
    assert merged("damaged") == first

    computed = "hubmerge.sensitivity.compute.compute_sensitivity"
    monkeypatch.setattr(computed, lambda *_, **__: pytest.fail("computed again"))
    assert merged("b") == first
    write_rows(rows, [{"prompt": "1  +  1 =", "answer": "2"}])  # another text, which the tokenizer reads alike
    assert merged("c") == first


def test_what_was_begun_with_other_threads_begins_again(data, tmp_path, monkeypatch):
    def cancel(stage: str, done: int, *_: object) -> None:
        if stage == "sensitivity" and done == 1:
            raise CancelledError("the user cancelled")

    plan = prepared(data).plan
    cancelling = SimpleNamespace(stage=lambda _: None, progress=cancel)
    with pytest.raises(CancelledError):
        of_plan.sensitivities_of(plan, NOWHERE, tmp_path / "s", cancelling, True, None)
    assert list((tmp_path / "s").glob("*.work/checkpoint.safetensors"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert len(of_plan.sensitivities_of(plan, NOWHERE, tmp_path / "s", Unobserved(), True, None)) == 2


def test_the_longest_unused_files_go_and_takers_keep_theirs(tmp_path, monkeypatch):
    monkeypatch.setattr(of_plan, "DEFAULT_BUDGET_BYTES", 25)
    kept, mine = tmp_path / "kept", tmp_path / "mine"
    kept.mkdir()
    mine.mkdir()
    (kept / ".9.safetensors.0123").write_bytes(b"x" * 10)  # a process that was killed has left it half copied
    os.utime(kept / ".9.safetensors.0123", (0, 0))
    for number in range(3):
        file = tmp_path / f"{number}.safetensors"
        file.write_bytes(bytes([number]) * 10)
        os.utime(file, (number + 1, number + 1))  # a clock may not tell them apart
        of_plan._keep(kept, file)
        if number == 1:
            assert of_plan._taken(kept, mine / "0.safetensors")  # now the most recently used
    assert sorted(path.name for path in kept.iterdir()) == ["0.safetensors", "2.safetensors"]
    assert not of_plan._taken(kept, mine / "1.safetensors")
    monkeypatch.setattr(os, "utime", lambda path: os.rmdir(path))
    assert of_plan._taken(kept, mine / "0.safetensors")  # though it may only be read
    (kept / "0.safetensors").unlink()
    assert (mine / "0.safetensors").read_bytes() == bytes(10)


# --- on a server --------------------------------------------------------------------------------------------


@pytest.fixture
def publish(ada: HfApi, name: str) -> Callable[..., str]:
    """Publish files as a dataset of ada's; its id."""

    def made(files: Mapping[str, bytes], *, private: bool = False) -> str:
        datasets_by_hand.publish(ada, name, files, private=private)
        return name

    return made


@pytest.fixture
def hub(local_hub: LocalHubProcess) -> Hub:
    return Hub(local_hub.endpoint, local_hub.tokens["ada"])


def read(data: str, hub: Hub, **calibration: str) -> Plan:
    """As a server reads it: nothing of this machine but the models."""
    recipe = zoo_recipe(data)
    recipe["calibration"] |= calibration
    plan = prepare(recipe_from_dict(recipe), hub, Request(allow_local=True, calibrate="not")).plan
    return Calibration(hub, allow_local=False, apart=True).of(plan)


def test_rows_that_are_read_apart_are_those_read_here(hub, publish, ada, data):
    configs = "configs:\n- {config_name: all, data_files: all.jsonl}\n- {config_name: one, data_files: one.jsonl}\n"
    files = {"README.md": f"---\n{configs}---\n".encode(), "all.jsonl": ROWS + ROWS, "one.jsonl": b"{}"}
    here, name = prepared(data).plan.calibration, publish(files)
    first = hub.datasets.head(name)
    ada.create_tag(name, tag="v2", repo_type="dataset")
    publish({"all.jsonl": b"{}"})
    tagged = read(name, hub, revision="v2", subset="all", split="train[:3]")
    assert tagged.recipe.calibration.revision == first  # at a commit that the recipe then names
    assert [rows.identity() for rows in tagged.calibration] == [rows.identity() for rows in here]
    assert [rows.read for rows in tagged.calibration] == [(), ()]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            {"train.jsonl": json.dumps({"prompt": "1 + 1 =", "answer": ""}).encode()},
            "an answer without tokens in row 1",
        ),
        ({"train/a.png": b"\x89PNG", "train/b.png": b"\x89PNG"}, "a dataset in a format that is not read"),
        ({"test.jsonl": ROWS}, "the dataset cannot be read"),
    ],
    ids=["rows", "format", "split"],
)
def test_what_cannot_be_used_has_its_reason(hub, publish, files, reason):
    with pytest.raises(HubmergeError, match=reason):
        read(publish(files), hub)


def test_a_dataset_that_is_not_there_is_missed_by_a_look_that_reads_none(hub, publish, name):
    def look(**changes: Any) -> Plan:
        recipe = recipe_from_dict(zoo_recipe(name, **changes))
        return prepare(recipe, hub, Request(allow_local=True, calibrate="find")).plan

    with pytest.raises(SourceNotFoundError, match=name):
        look()
    assert look(method="ram").calibration == ()  # which uses none
    publish({"train/a.png": b"\x89PNG"})
    assert look().calibration == ()


def test_reading_ends_with_its_time(hub, publish, monkeypatch):
    monkeypatch.setattr(rows_module, "WALL_S", 0.2)
    with pytest.raises(SensitivityError, match=r"cannot be read and tokenized here.*at most 0.2 s"):
        read(publish({"train.jsonl": ROWS}), hub)


def test_a_dataset_that_is_too_large_for_the_server_or_its_disk_is_not_fetched(hub, publish, monkeypatch):
    data = publish({"train.jsonl": ROWS, "other/large.bin": b"\0" * 5000})
    monkeypatch.setattr(rows_module, "read_apart", lambda *_: pytest.fail("it was fetched"))
    monkeypatch.setattr(rows_module, "MAX_DATA_BYTES", 5000)
    with pytest.raises(SensitivityError, match="too large to be fetched here"):
        read(data, hub)
    monkeypatch.undo()
    monkeypatch.setattr(rows_module, "read_apart", lambda *_: pytest.fail("it was fetched"))
    usage = rows_module.shutil.disk_usage("/")._replace(total=10**6, free=50_000 + 5000)
    monkeypatch.setattr(rows_module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DiskError, match="does not fit on this disk") as caught:
        read(data, hub)
    assert caught.value.retryable


def test_private_data_is_told_of_by_no_public_merge_unless_somebody_says_so_outright(hub, publish, monkeypatch):
    monkeypatch.setattr(rows_module, "read_apart", lambda asked, *_: [("a" * 64, 3)] * len(asked))
    asked = recipe_from_dict(zoo_recipe(publish({"train.jsonl": ROWS}, private=True)))

    def prepared(target: Target) -> tuple[bool, ...]:
        done = prepare(asked, hub, Request(target=target, license="apache-2.0", allow_local=True, calibrate="apart"))
        assert done.plan.recipe.calibration.revision == hub.datasets.head(asked.calibration.data)
        return tuple(rows.as_dict()["private"] for rows in done.plan.calibration)

    with pytest.raises(RecipeError, match=r"a public merge would tell what private models or data hold.*got ada/f-"):
        prepared(Target("ada/merged-by-private-rows", private=False))
    assert prepared(Target("ada/merged-by-private-rows", private=True)) == (True, True)
    assert prepared(Target("ada/merged-by-private-rows", private=False, expose=True)) == (True, True)


def test_another_tokenizer_is_another_merge_and_takes_none(data, tmp_path, monkeypatch):
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
    assert merge(tmp_path, data, "second", agents=agents) == 0
    made = {p.name for p in (tmp_path / "data" / "sensitivity").iterdir()} - kept
    assert len(made) == 1  # the other agent's is taken

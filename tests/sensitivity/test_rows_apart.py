"""On a server calibration data is read apart, within limits; no public merge tells of private data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import datasets_by_hand
import pytest
from huggingface_hub import HfApi
from sensitivity_helpers import ZOO, zoo_recipe

from hubmerge.errors import DiskError, HubmergeError, RecipeError, SensitivityError
from hubmerge.hub.client import Hub
from hubmerge.line import Request, prepare
from hubmerge.output.publish import Target
from hubmerge.recipe.calibration import CalibrationRows
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sensitivity import rows as rows_module
from hubmerge.sensitivity.rows import Calibration
from localhub.process import LocalHubProcess

ROWS = "\n".join((ZOO / "eval" / "dev_math.jsonl").read_text().splitlines()[:3]).encode() + b"\n"
Publish = Callable[..., str]


@pytest.fixture
def publish(ada: HfApi, name: str) -> Publish:
    """Publish files as a dataset of ada's; its id."""

    def made(files: Mapping[str, bytes], *, private: bool = False) -> str:
        datasets_by_hand.publish(ada, name, files, private=private)
        return name

    return made


@pytest.fixture
def hub(local_hub: LocalHubProcess) -> Hub:
    return Hub(local_hub.endpoint, local_hub.tokens["ada"])


def read(data: str, hub: Hub) -> tuple[CalibrationRows, ...]:
    """As a server reads it: nothing of this machine but the models."""
    plan = prepare(recipe_from_dict(zoo_recipe(data)), hub, Request(allow_local=True, calibrate="not")).plan
    return Calibration(hub, allow_local=False, apart=True).of(plan).calibration


def test_rows_that_are_read_apart_are_those_that_are_read_here(hub: Hub, publish: Publish, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(ROWS)
    here = prepare(
        recipe_from_dict(zoo_recipe(str(tmp_path / "rows.jsonl"))), hub, Request(allow_local=True)
    ).plan.calibration
    apart = read(publish({"train.jsonl": ROWS}), hub)
    assert [rows.identity() for rows in apart] == [rows.identity() for rows in here]
    assert [rows.read for rows in apart] == [(), ()]


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
def test_what_cannot_be_used_is_refused_with_its_reason(
    hub: Hub, publish: Publish, files: Mapping[str, bytes], reason: str
) -> None:
    with pytest.raises(HubmergeError, match=reason):
        read(publish(files), hub)


def test_reading_ends_with_its_time(hub: Hub, publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "WALL_S", 0.2)
    with pytest.raises(SensitivityError, match=r"cannot be read and tokenized here.*at most 0.2 s"):
        read(publish({"train.jsonl": ROWS}), hub)


def test_a_dataset_that_is_too_large_for_the_server_or_its_disk_is_not_fetched(
    hub: Hub, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_private_data_is_told_of_by_no_public_merge_unless_somebody_says_so_outright(
    hub: Hub, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "read_apart", lambda asked, *_: [("a" * 64, 3)] * len(asked))
    asked = recipe_from_dict(zoo_recipe(publish({"train.jsonl": ROWS}, private=True)))

    def prepared(target: Target) -> tuple[bool, ...]:
        done = prepare(asked, hub, Request(target=target, license="apache-2.0", allow_local=True, calibrate="apart"))
        return tuple(rows.as_dict()["private"] for rows in done.plan.calibration)

    with pytest.raises(RecipeError, match=r"a public merge would tell what private models or data hold.*got ada/f-"):
        prepared(Target("ada/merged-by-private-rows", private=False))
    assert prepared(Target("ada/merged-by-private-rows", private=True)) == (True, True)
    assert prepared(Target("ada/merged-by-private-rows", private=False, expose=True)) == (True, True)

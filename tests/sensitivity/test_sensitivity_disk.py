"""Sensitivities within a disk budget: counted, refused before anything is fetched, and part of the high-water mark."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sensitivity_helpers import PAIRS, write_rows

from hubmerge.engine.stream import StreamOptions
from hubmerge.errors import DiskError, MemoryLimitError
from hubmerge.hub.client import Hub
from hubmerge.line import Prepared, Request, merge_to_folder, prepare
from hubmerge.output.report import Report
from hubmerge.plan import disk
from hubmerge.recipe.recipe import recipe_from_dict
from localhub.fault_rules import Observe
from localhub.process import LocalHubProcess

SMALL_FILES = 300_000  # config, tokenizer, journal, calibration data
WEIGHTS = r"/resolve/[0-9a-f]{40}/model.*\.safetensors$"


@pytest.fixture
def hub(faulty_hub: LocalHubProcess) -> Hub:
    return Hub(faulty_hub.endpoint, faulty_hub.tokens["ada"])


@pytest.fixture
def recipe(family: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    rows = write_rows(tmp_path / "pairs.jsonl", [{"question": p.prompt, "answer": p.answer} for p in PAIRS[:2]])
    calibration = {"data": str(rows), "prompt": "question", "answer": "answer", "max_tokens": 32}
    return {**family, "method": "sar", "calibration": calibration}


def planned(recipe: dict[str, Any], hub: Hub) -> Prepared:
    return prepare(recipe_from_dict(recipe), hub, Request(license="mit", allow_local=True))


def merge(prepared: Prepared, hub: Hub, folder: Path, budget: int | None) -> Report:
    return merge_to_folder(
        prepared,
        hub,
        folder / "out",
        StreamOptions(chunk_elements=8192, threads=1, backend="eager", cache=folder / "inputs", disk_budget=budget),
    )


def test_a_budget_that_the_sensitivities_do_not_fit_in_is_refused_before_a_weight_is_fetched(
    recipe, hub, switch, tmp_path
):
    prepared = planned(recipe, hub)
    fetched = switch.add(WEIGHTS, Observe(), times=None)
    for budget in (prepared.plan.output_bytes + 4 * prepared.plan.elements, disk.computing_peak(prepared.plan) - 1):
        with pytest.raises(DiskError, match=r"disk budget is too small|not enough disk to compute") as caught:
            merge(prepared, hub, tmp_path / "work", budget)
        [problem] = caught.value.problems
        assert problem.expected.split()[0] != problem.got.split()[0], "sizes that tell the two apart"
    assert switch.state(fetched).seen == 0
    assert not [*(tmp_path / "work" / "inputs").rglob("*.safetensors")]


def test_the_smallest_budget_is_enough_and_what_the_sensitivities_took_is_in_the_high_water_mark(
    recipe, hub, tmp_path, monkeypatch
):
    prepared = planned(recipe, hub)
    budget = disk.least_need(prepared.plan, uploaded=False)
    free = merge(prepared, hub, tmp_path / "free", None)
    marks = []
    sample = disk.DiskGauge.sample

    def noted(gauge: disk.DiskGauge) -> None:
        sample(gauge)
        marks.append(gauge.high_water_bytes)

    monkeypatch.setattr(disk.DiskGauge, "sample", noted)
    bound = merge(prepared, hub, tmp_path / "bound", budget)
    assert bound.files == free.files
    floats = prepared.plan.elements
    # two pairs make no checkpoint; the second agent's weights, sums and result lie beside the first one's result
    second = disk.computing_peak(prepared.plan) - 4 * floats
    assert marks[0] < second <= marks[1] <= bound.environment["disk_high_water_bytes"] <= budget + SMALL_FILES
    assert bound.environment["fetch"]["high_water_bytes"] <= budget - prepared.plan.output_bytes


def test_results_take_from_the_budget_of_a_merge_s_inputs(recipe, hub, tmp_path):
    plan = planned(recipe, hub).plan
    tmp_path.joinpath("out").mkdir()
    limit = plan.output_bytes + plan.companions.bytes + disk.sensitivity_need([plan])
    assert disk.input_budget([plan], [tmp_path / "out"], tmp_path / "inputs", limit + 5) == 5
    with pytest.raises(DiskError, match="disk budget is too small"):
        disk.input_budget([plan], [tmp_path / "out"], tmp_path / "inputs", limit - 1)
    without = planned({**recipe, "method": "ram"}, hub).plan
    assert disk.input_budget([without], [tmp_path / "out"], tmp_path / "inputs", limit) == disk.sensitivity_need([plan])


def test_what_the_machine_cannot_hold_is_refused_before_a_weight_is_fetched(recipe, hub, tmp_path, monkeypatch):
    prepared = planned(recipe, hub)
    free = disk.computing_peak(prepared.plan) + disk.DISK_MARGIN_BYTES - 1_000_000
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=0))
    with pytest.raises(MemoryLimitError, match="too large for its sensitivity"):
        merge(prepared, hub, tmp_path / "work", None)
    monkeypatch.undo()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(DiskError, match="not enough disk"):
        merge(prepared, hub, tmp_path / "work", None)
    assert not list((tmp_path / "work").rglob("*.safetensors"))


def test_the_need_is_that_of_the_weights_the_sums_and_every_result(recipe, hub):
    plan = planned(recipe, hub).plan
    floats = plan.elements
    assert plan.agents[0].weight_bytes == pytest.approx(2 * floats, rel=0.02)
    kept = plan.output_bytes + plan.companions.bytes
    assert disk.sensitivity_need([plan]) == 2 * 4 * floats
    assert disk.sensitivity_need([plan, plan]) == disk.sensitivity_need([plan]), "variants share what agents have"
    assert disk.computing_need(plan, 0) == plan.agents[0].weight_bytes + 3 * 4 * floats
    assert disk.computing_peak(plan) == disk.computing_need(plan, 1) + 4 * floats
    assert disk.least_need(plan, uploaded=False) == max(kept + 8 * floats, disk.computing_peak(plan))
    assert disk.most_use(plan, uploaded=False) == max(
        plan.download_bytes + kept + 8 * floats, disk.computing_peak(plan)
    )

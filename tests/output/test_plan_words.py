"""`inspect` and the app say the same of a plan: in words that a user knows, in groups, with units."""

import json
import re
from pathlib import Path

import pytest
from builders import write_parents
from plan_helpers import BASE, A, B, plan

from hubmerge.output.plan_words import LABELS, cost_of, fit_of, models_of, plan_summary
from hubmerge.plan.plan import Plan
from workflows.app.panels import plan_panel

KEYS = {
    "method", "base", "agents", "kinds", "architecture", "parameters", "tensors", "dtype", "rounding", "shards",
    "output_bytes", "companion_bytes", "input_bytes", "download_bytes", "disk_least_bytes", "disk_most_bytes",
    "folder_disk_least_bytes", "folder_disk_most_bytes", "resident_bytes", "passes", "predicted_memory_bytes",
    "predicted_seconds", "identity", "warnings",
}  # fmt: skip


@pytest.fixture
def made() -> Plan:
    return plan(BASE, A, B, method="ram_plus")


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_parents(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.yaml"
    agents = ["./one", {"model": "./two", "weight": 0.5}]
    path.write_text(json.dumps({"base": "./base", "agents": agents, "method": "ties", "ignore": ["no.such.*"]}))
    return path


def test_json_keeps_the_keys_that_it_had(made):
    assert set(plan_summary(made)) == KEYS


def test_every_key_is_told_once(made):
    summary = plan_summary(made)
    labels = [label for group in (fit_of(summary), cost_of(summary)) for label, _ in group.rows]
    assert len(labels) == len(set(labels))
    shown = {key for key in summary if LABELS.get(key) in labels} | {"base", "agents"}
    assert set(summary) == shown | (TOLD_ELSEWHERE & set(summary))


def test_no_label_is_an_internal_name_and_every_number_has_a_unit(made):
    summary = plan_summary(made)
    groups = [models_of(made.models, ["1", "0.5"]), fit_of(summary), cost_of(summary)]
    for label, text in (row for group in groups for row in group.rows):
        assert not re.search(r"_|bytes|dtype", label), label
        assert not re.fullmatch(r"[\d.]+", text) or label.startswith("Passes"), (label, text)


def test_figures_by_hand():
    summary = {
        "parameters": 1_543_714_304, "tensors": 338, "dtype": ["BF16", "F32"], "rounding": "nearest",
        "output_bytes": 3_087_467_144, "shards": 2, "companion_bytes": 11_400_000, "disk_least_bytes": 2_200_000_000,
        "disk_most_bytes": 5_000_000_000, "predicted_memory_bytes": 316_000_000, "resident_bytes": 0,
        "predicted_seconds": 260.0, "passes": 2,
    }  # fmt: skip
    told = dict([*fit_of(summary).rows, *cost_of(summary).rows])
    assert told == {
        "Parameters": "1.54 B in 338 tensors",
        "Stored as": "BF16, F32, nearest rounding",
        "Size of the result": "3.09 GB in 2 files, and 11.4 MB of other files",
        "Disk, uploading while merging": "2.20 GB at least, 5.00 GB at most",
        "Memory at its peak": "about 316 MB",
        "Time to merge": "about 4 min 20 s, without downloads",
        "Passes over the weights": "2",
    }
    weighing = dict(cost_of({**summary, "method": "sar"}).rows)
    assert weighing["Time to merge"] == "about 4 min 20 s, without downloads and sensitivities"


def test_the_page_says_what_the_terminal_says(made):
    panel = str(plan_panel(made, "https://hub.example"))
    summary = plan_summary(made)
    for group in (fit_of(summary), cost_of(summary, to_folder=False)):
        assert f"<h2>{group.title}</h2>" in panel
        for label, text in group.rows:
            if label != LABELS["predicted_seconds"]:  # which is measured anew
                assert f"<dt>{label}</dt><dd>{text}</dd>" in panel
    assert LABELS["folder_disk_least_bytes"] not in panel, "the Space keeps no folder"


def test_inspect_groups_what_it_says(recipe, done):
    said = done("inspect", recipe).out
    titles = [line for line in said.splitlines() if line and not line.startswith(" ")]
    assert titles == ["Models", "Compatibility: these models fit", "Cost, on this machine", "Warnings"]
    assert re.search(r"  Agent 2 +\./two@\w{12}, weight 0\.5 \(13\.5 kB, license mit\)\n", said)
    assert "  - `ignore`: 'no.such.*' matches no tensor of the base or an agent\n" in said


def test_a_sweep_is_told_in_the_same_words(recipe, done):
    named = json.loads(recipe.read_text())
    recipe.write_text(
        json.dumps({"base": named["base"], "agents": named["agents"], "sweep": [{"method": ["ram", "ties"]}]})
    )
    said = done("inspect", recipe).out
    assert re.search(r"Variants +2, merged in passes of 2: ram, ties\n", said)
    assert re.search(r"Size of the result +27\.0 kB\n", said)


TOLD_ELSEWHERE = {
    "kinds", "tensors", "rounding", "shards", "companion_bytes", "disk_most_bytes", "folder_disk_most_bytes",
    "resident_bytes", "warnings", "varying", "merged_together",
}  # fmt: skip

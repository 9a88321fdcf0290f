"""The tasks on the real rows: gold answers count, the data set is read as the Hub's client reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bfcl_damage import DATA, NO_CALL, ROOT, rows, variants

from hubmerge.errors import EvaluationError
from hubmerge.evaluation.function_calls import decode
from hubmerge.evaluation.tasks import Task, get_task
from hubmerge.evaluation.tasks.bfcl import CATEGORIES, TASKS

ROWS = {
    "simple_python": 400,
    "simple_java": 100,
    "simple_javascript": 50,
    "multiple": 200,
    "parallel": 200,
    "parallel_multiple": 200,
    "irrelevance": 240,
    "live_simple": 258,
    "live_multiple": 1053,
    "live_parallel": 16,
    "live_parallel_multiple": 24,
    "live_irrelevance": 884,
    "live_relevance": 16,
}
# published keys that no answer can match; bfcl-eval refuses every answer to them as well
CONTRADICTORY = {
    "simple_java_36": "items of ArrayList<any> stay text, and the key has the number 42 and true among them",
    "simple_java_65": "items of ArrayList<any> stay text, and the key has true among them",
    "live_simple_106-63-0": "auto_loan_payment_start and bank_hours_start are required and have no allowed value",
    "live_simple_112-68-0": "acc_routing_start and others are required and have no allowed value",
    "live_multiple_862-181-3": "journey_start_time has to be given, and the function has no such parameter",
    "live_multiple_964-207-0": "statement is required, and the key does not allow it",
}


def task(category: str) -> Task:
    found = get_task(f"bfcl_{category}")
    assert isinstance(found, Task)
    return found


def test_there_is_a_task_for_every_category() -> None:
    assert tuple(CATEGORIES) == tuple(t.rows.subset for t in TASKS)
    assert set(ROWS) == set(CATEGORIES)
    assert all(t.domain == "tool" and t.rows.license == "apache-2.0" for t in TASKS)


@pytest.mark.parametrize("category", CATEGORIES)
def test_gold_answers_of_every_row_score_one(category: str) -> None:
    found, own = rows(category), task(category)
    assert len(found) == ROWS[category]
    without = set()
    for row in found:
        reference = json.loads(json.dumps(own.reference(row)))  # as it passes from process to process
        if not any(own.score(gold, reference) == 1.0 for _, _, gold in variants(category, row, damaged=False)):
            without.add(row["id"])
    assert without == {name for name in CONTRADICTORY if name.rsplit("_", 1)[0] == category}


@pytest.mark.parametrize("category", CATEGORIES)
def test_no_answer_and_another_rows_answer_score_what_they_should(category: str) -> None:
    found, own = rows(category)[:40], task(category)
    silence = 1.0 if "irrelevance" in category else 0.0
    for row, other in zip(found, found[1:] + found[:1], strict=True):
        reference = own.reference(row)
        gold = next(text for _, _, text in variants(category, other, damaged=False))
        for text in ("", "[]", NO_CALL, f"I would call {gold}"):
            assert own.score(text, reference) == silence
        call = "[some.function(a=1, b=2)]"
        assert own.score(call, reference) == (1.0 if category == "live_relevance" else 0.0)


def test_the_prompt_holds_the_functions_the_form_and_the_whole_conversation() -> None:
    row = rows("simple_python")[0]
    prompt = task("simple_python").prompt(row)
    function = json.loads(row["function"])[0]
    assert function["name"] in prompt
    assert function["description"] in prompt
    assert prompt.endswith(json.loads(row["question"])[0][0]["content"])
    assert "Java " not in prompt
    assert "Java 8" in task("simple_java").prompt(rows("simple_java")[0])
    talk = next(r for r in rows("live_irrelevance") if '"role": "assistant"' in r["question"])
    prompt = task("live_irrelevance").prompt(talk)
    for message in json.loads(talk["question"])[0]:
        assert message["content"] in prompt
    assert "\n\nAssistant: " in prompt


def test_the_form_that_the_prompt_asks_for_is_read_as_calls() -> None:
    prompt = task("simple_python").prompt(rows("simple_python")[0])
    form = next(line for line in prompt.splitlines() if line.startswith("[first_function"))
    calls = decode(form)
    assert calls is not None
    assert [call.name for call in calls] == ["first_function", "second_function"]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"id": "x", "question": "[]", "function": "[]", "ground_truth": "{}"},
        {"id": "x", "question": "[]", "function": "nothing", "ground_truth": "[]"},
        {"id": "x", "question": "[]", "function": None, "ground_truth": "[]"},
        {"id": "x", "question": "[]", "function": "[1]", "ground_truth": "[]"},
        {"id": "x", "question": "[]", "function": '[{"name": "f"}]', "ground_truth": "[]"},
        {"id": "x", "question": "[]", "function": "[" * 100_000, "ground_truth": "[]"},
        {"id": "x", "question": "[]", "function": '[{"name": "f", "parameters": {}}]', "ground_truth": "[1]"},
        {"id": "x", "question": "[]", "function": '[{"name": "f", "parameters": {}}]', "ground_truth": '[{"f": 1}]'},
        {
            "id": "x",
            "question": '[[{"role": 1}]]',
            "function": '[{"name": "f", "parameters": {}}]',
            "ground_truth": "[]",
        },
    ],
)
def test_a_row_of_another_shape_is_refused_by_name(row: dict[str, Any]) -> None:
    own = task("simple_python")
    refused = []
    for read in (own.reference, own.prompt):
        try:
            read(row)
        except EvaluationError as error:
            refused.append(str(error))
    assert refused
    assert all(f"row {row.get('id')}" in message for message in refused)


def test_the_client_of_data_sets_reads_every_category(tmp_path: Path) -> None:
    from datasets import load_dataset

    for category in ("simple_java", "live_relevance", "irrelevance"):
        loaded = load_dataset(str(ROOT / "examples/datasets/bfcl"), category, split="test", cache_dir=str(tmp_path))
        assert [dict(row) for row in loaded] == rows(category)


def test_the_card_names_every_category_and_its_rows() -> None:
    card = (DATA.parent / "README.md").read_text(encoding="utf-8")
    for category, count in ROWS.items():
        assert (
            f"- config_name: {category}\n  data_files:\n  - split: test\n    path: data/{category}.jsonl.gz\n" in card
        )
        assert f"| {category} | {count} |" in card


def test_rows_are_the_published_ones_packed(tmp_path: Path) -> None:
    (tmp_path / "possible_answer").mkdir()
    for category in CATEGORIES:
        name, found = f"BFCL_v4_{category}.json", rows(category)
        published = [
            {n: json.loads(row[n]) if n != "id" else row[n] for n in ("id", "question", "function")} for row in found
        ]
        lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in published)
        (tmp_path / name).write_text(lines, encoding="utf-8")
        if "relevance" not in category:
            keys = ({"id": row["id"], "ground_truth": json.loads(row["ground_truth"])} for row in found)
            text = "\n".join(json.dumps(key, ensure_ascii=False) for key in keys)
            (tmp_path / "possible_answer" / name).write_text(text, encoding="utf-8")
    copy = tmp_path / "copy"
    copy.mkdir()
    script = (DATA.parent / "convert.py").read_text(encoding="utf-8")
    (copy / "convert.py").write_text(script, encoding="utf-8")
    subprocess.run([sys.executable, copy / "convert.py", tmp_path], check=True)
    for category in CATEGORIES:
        assert rows(category, copy / "data") == rows(category)

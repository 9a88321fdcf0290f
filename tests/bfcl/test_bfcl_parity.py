"""Our verdicts are bfcl-eval's, on a gold answer to every row and on damaged ones of every category.

Its verdicts are kept (bfcl_parity.py), so that this runs without the package; where it is installed, it is asked too.
"""

from __future__ import annotations

import gzip
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from bfcl_parity import DATA, PYTHON, ROOT, VERDICTS, asked_again, lines
from task_helpers import own_task

from hubmerge.errors import EvaluationError
from hubmerge.evaluation.function_calls.decode import decode
from hubmerge.evaluation.function_calls.values import read_value
from hubmerge.evaluation.tasks.bfcl import CATEGORIES

pytest.importorskip("tree_sitter_java", reason="tree-sitter 0.21 has no build for this Python: docs/evaluation.md")

KEPT = lines(VERDICTS)
CARD = (DATA.parent / "README.md").read_text(encoding="utf-8")
# published keys that no answer can match; bfcl-eval refuses every answer to them as well
CONTRADICTORY = {
    "simple_java_36": "items of ArrayList<any> stay text, and the key has the number 42 and true among them",
    "simple_java_65": "items of ArrayList<any> stay text, and the key has true among them",
    "live_simple_106-63-0": "auto_loan_payment_start and bank_hours_start are required and have no allowed value",
    "live_simple_112-68-0": "acc_routing_start and others are required and have no allowed value",
    "live_multiple_862-181-3": "journey_start_time has to be given, and the function has no such parameter",
    "live_multiple_964-207-0": "statement is required, and the key does not allow it",
}


def rows(category: str, folder: Path = DATA) -> list[dict[str, Any]]:
    return lines(folder / f"{category}.jsonl.gz")


@pytest.mark.parametrize("category", CATEGORIES)
def test_verdicts_are_those_that_bfcl_eval_gave(category: str) -> None:
    own = own_task(f"bfcl_{category}")
    kept = {each["row"]: each["answers"] for each in KEPT if each.get("category") == category}
    differing, without_gold = [], set()
    for row in rows(category):
        reference = json.loads(json.dumps(own.reference(row)))  # as it passes from process to process
        answers = kept.pop(row["id"])
        differing += [(row["id"], *a) for a in answers if own.score(a[2], reference) != float(a[3])]
        if not any(valid for kind, _, _, valid in answers if kind == "gold"):
            without_gold.add(row["id"])
    assert differing == []
    assert kept == {}
    assert without_gold == {name for name in CONTRADICTORY if name.rsplit("_", 1)[0] == category}


def test_java_and_javascript_values_are_converted_as_bfcl_eval_converts_them() -> None:
    def converted(*value: Any) -> str:
        language, declared, items, text = value
        try:
            return repr(read_value(text, language, declared, items))
        except (ValueError, OverflowError):
            return "raised"

    [values] = [each["values"] for each in KEPT if "values" in each]
    assert [value for *value, theirs in values if converted(*value) != theirs] == []


@pytest.mark.skipif(not PYTHON.exists(), reason="bfcl-eval is not installed in .cache/bfcl (tests/bfcl/install.sh)")
def test_bfcl_eval_still_says_what_is_kept() -> None:
    assert asked_again(KEPT) == KEPT


def test_the_card_names_every_category_and_its_rows() -> None:
    for category in CATEGORIES:
        path = f"data/{category}.jsonl.gz"
        assert f"- config_name: {category}\n  data_files:\n  - split: test\n    path: {path}\n" in CARD
        assert f"| {category} | {len(rows(category))} |" in CARD


def test_the_client_of_data_sets_reads_every_category(tmp_path: Path) -> None:
    from datasets import load_dataset

    for category in ("simple_java", "live_relevance", "irrelevance"):
        loaded = load_dataset(str(ROOT / "examples/datasets/bfcl"), category, split="test", cache_dir=str(tmp_path))
        assert [dict(row) for row in loaded] == rows(category)


def test_rows_are_the_published_ones_packed(tmp_path: Path) -> None:
    convert = runpy.run_path(str(DATA.parent / "convert.py"))["convert"]
    (tmp_path / "possible_answer").mkdir()
    for category in ("simple_java", "parallel", "live_relevance"):
        name, found = f"BFCL_v4_{category}.json", rows(category)
        for folder, parts in ((tmp_path, ("question", "function")), (tmp_path / "possible_answer", ("ground_truth",))):
            published = ({"id": row["id"], **{part: json.loads(row[part]) for part in parts}} for row in found)
            if "relevance" not in category or folder == tmp_path:
                (folder / name).write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in published))
        packed = convert(tmp_path, category)
        assert [json.loads(line) for line in gzip.decompress(packed).splitlines()] == found


def test_the_prompt_holds_the_functions_the_form_and_the_whole_conversation() -> None:
    row = rows("simple_python")[0]
    prompt = own_task("bfcl_simple_python").prompt(row)
    function = json.loads(row["function"])[0]
    assert function["name"] in prompt
    assert function["description"] in prompt
    assert prompt.endswith(json.loads(row["question"])[0][0]["content"])
    assert "Java " not in prompt
    assert "Java 8" in own_task("bfcl_simple_java").prompt(rows("simple_java")[0])
    talk = next(r for r in rows("live_irrelevance") if '"role": "assistant"' in r["question"])
    talked = own_task("bfcl_live_irrelevance").prompt(talk)
    for message in json.loads(talk["question"])[0]:
        assert message["content"] in talked
    assert "\n\nAssistant: " in talked
    calls = decode(next(line for line in prompt.splitlines() if line.startswith("[first_function")))
    assert calls is not None
    assert [call.name for call in calls] == ["first_function", "second_function"]


@pytest.mark.parametrize(
    "parts",
    [
        {"ground_truth": "{}"},
        {"function": "nothing"},
        {"function": None},
        {"function": "[1]"},
        {"function": '[{"name": "f"}]'},
        {"function": "[" * 100_000},
        {"function": '[{"name": "f", "parameters": {}}]', "ground_truth": "[1]"},
        {"function": '[{"name": "f", "parameters": {}}]', "ground_truth": '[{"f": 1}]'},
        {"function": '[{"name": "f", "parameters": {}}]', "question": '[[{"role": 1}]]'},
    ],
)
def test_a_row_of_another_shape_is_refused_by_name(parts: dict[str, Any]) -> None:
    own = own_task("bfcl_simple_python")
    row = {"id": "x", "question": "[]", "function": "[]", "ground_truth": "[]", **parts}
    for read in (own.reference, own.prompt):
        with pytest.raises(EvaluationError, match="row x"):
            read(row)

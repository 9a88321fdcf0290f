"""The real thing: lighteval on the zoo's models, against a direct count over generations of our own.

Each run costs an import of lighteval, so there are three of them, and each serves several promises.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from examples.zoo.evaluate import EVAL_FOLDER, evaluate_model, read_questions
from hubmerge.errors import MachineFaultError
from hubmerge.evaluation.result import EvaluationResult
from hubmerge.evaluation.runner import EvaluateOptions, Unobserved, evaluate
from hubmerge.evaluation.suites import SUITES
from hubmerge.evaluation.tasks import get_task
from hubmerge.hub.client import Hub
from localhub.process import LocalHubProcess

ROOT = Path(__file__).resolve().parents[2]
ZOO = ROOT / "examples" / "zoo"
LIMIT, BATCH = 72, 8  # enough batches for a kill to come before the last
OPTIONS = {"limit": LIMIT, "batch_size": BATCH, "dtype": "float32", "device": "cpu"}


class Killing(Unobserved):
    """Kills the evaluating process once it has generated `at` answers."""

    def __init__(self, at: int) -> None:
        self.at = at

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        if stage == "generate" and done >= self.at:
            [child] = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()[-1:]
            os.kill(int(child), signal.SIGKILL)


class Stages(Unobserved):
    def __init__(self) -> None:
        self.generated: list[int] = []
        self.stages: list[str] = []

    def stage(self, name: str) -> None:
        self.stages.append(name)

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        if stage == "generate":
            self.generated.append(done)


class Runs(NamedTuple):
    killed: MachineFaultError
    journal_of_the_killed: bytes
    resumed: EvaluationResult
    workdir: Path
    stages: Stages


@pytest.fixture(scope="module")
def runs(zoo_hub: LocalHubProcess, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run that is killed after its second batch, and the same command again."""
    workdir = tmp_path_factory.mktemp("real")
    hub = Hub(zoo_hub.endpoint, zoo_hub.tokens["ada"])
    options = EvaluateOptions(**OPTIONS, keep_model=True)  # type: ignore[arg-type]
    with pytest.raises(MachineFaultError) as killed:
        evaluate("zoo/math-agent", "zoo", hub=hub, workdir=workdir, options=options, observer=Killing(2 * BATCH))
    journal = (workdir / "generations" / "zoo_math.jsonl").read_bytes()
    stages = Stages()
    resumed = evaluate("zoo/math-agent", "zoo", hub=hub, workdir=workdir, options=options, observer=stages)
    return Runs(killed.value, journal, resumed, workdir, stages)


def details(workdir: Path, task: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(workdir / "details" / f"{task}.parquet").to_pylist()
    return rows


@pytest.mark.slow
def test_scores_equal_a_direct_count(runs: Runs) -> None:
    direct = evaluate_model(str(ZOO / "math"), limit=LIMIT)
    assert runs.resumed.status == "done"
    assert {s.domain: round(s.value * s.samples) for s in runs.resumed.tasks} == {
        domain: score.correct for domain, score in direct.items()
    }
    assert direct["math"].correct > LIMIT / 2 > direct["tool"].correct  # so that equal counts mean something


@pytest.mark.slow
def test_a_standard_error_is_that_of_the_mean(runs: Runs) -> None:
    for score in runs.resumed.tasks:
        p, n = score.value, score.samples
        assert n == LIMIT
        assert score.stderr == pytest.approx(math.sqrt(p * (1 - p) / (n - 1)))


@pytest.mark.slow
def test_a_killed_run_says_nothing_of_the_model_and_keeps_what_it_generated(runs: Runs) -> None:
    assert "SIGKILL" in str(runs.killed)
    assert len(runs.journal_of_the_killed.splitlines()) >= 2


@pytest.mark.slow
def test_a_resumed_run_generates_only_what_is_missing(runs: Runs) -> None:
    journal = (runs.workdir / "generations" / "zoo_math.jsonl").read_bytes()
    assert journal.startswith(runs.journal_of_the_killed)
    for task in ("math", "tool", "mem"):
        lines = (runs.workdir / "generations" / f"zoo_{task}.jsonl").read_text().splitlines()
        assert [len(json.loads(line)) for line in lines] == [BATCH] * (LIMIT // BATCH)
    assert runs.stages.generated == list(range(BATCH, 3 * LIMIT + 1, BATCH))
    assert runs.stages.stages[-3:] == ["load model", "generate", "score"]


@pytest.mark.slow
def test_every_sample_is_kept_as_it_was_asked_answered_and_scored(runs: Runs) -> None:
    for score in runs.resumed.tasks:
        rows = details(runs.workdir, score.task)
        questions = read_questions(EVAL_FOLDER / f"{score.domain}.jsonl", LIMIT)
        assert [(row["prompt"], json.loads(row["reference"])) for row in rows] == questions
        assert [row["score"] for row in rows] == [
            float(row["answer"].split() == answer.split()) for row, (_, answer) in zip(rows, questions, strict=True)
        ]
        assert sum(row["score"] for row in rows) == pytest.approx(score.value * score.samples)


@pytest.mark.slow
def test_the_result_says_what_ran(runs: Runs) -> None:
    environment = runs.resumed.environment
    assert environment.lighteval == "0.13.0"
    assert (environment.dtype, environment.backend, environment.device[:3]) == ("float32", "transformers", "CPU")
    assert environment.batch_size == BATCH
    assert environment.batch_tokens is not None
    assert {s.truncated for s in runs.resumed.tasks} == {0}


@pytest.mark.slow
def test_a_checkpoint_without_all_its_tensors_does_not_load(tmp_path: Path, hub: Hub, rows: Path) -> None:
    """transformers itself fills them with random numbers."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((ZOO / "math" / name).read_bytes())
    tensors = load_file(ZOO / "math" / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    result = evaluate(
        str(folder),
        "zoo",
        hub=hub,
        workdir=tmp_path / "run",
        options=EvaluateOptions(**OPTIONS, data_cache=rows),  # type: ignore[arg-type]
        allow_local=True,
    )
    assert result.status == "failed"
    assert result.error is not None
    assert "model.layers.1.mlp.up_proj.weight" in result.error.message
    assert not (tmp_path / "run" / "details").exists()


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/evaluation/inside_lighteval.py found, in a process that has lighteval."""
    folder = tmp_path_factory.mktemp("inside")
    done = subprocess.run(
        [sys.executable, "-m", "tests.evaluation.inside_lighteval", str(folder)],
        cwd=ROOT,
        env={"HF_HUB_OFFLINE": "1", "HOME": str(folder), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_lightevals_own_tasks_score_right_answers_1_and_wrong_ones_0(inside: dict[str, Any]) -> None:
    assert {"gsm8k", "math_500", "aime24", "lcb:codegeneration"} <= set(inside["loaded"])
    assert inside["scores"] == {
        f"{name} {kind}": float(kind == "right") for name in inside["loaded"] for kind in ("right", "wrong")
    }


@pytest.mark.slow
def test_the_prompt_that_a_task_of_lighteval_states_is_the_one_that_is_asked(inside: dict[str, Any]) -> None:
    for name, (prompt, question) in inside["prompts"].items():
        assert prompt == re.sub(r"\{(question|problem|prompt)\}", lambda _: question, get_task(name).asked)  # noqa: B023


@pytest.mark.slow
def test_examples_are_never_among_the_questions(inside: dict[str, Any]) -> None:
    two, one = inside["examples"]["two"], inside["examples"]["one"]
    assert two == {"asked": [f"test {n}?" for n in range(3)], "examples": [f"train {n}?" for n in range(100)]}
    assert one == {
        "asked": [f"train {n}?" for n in range(36)],
        "examples": [f"train {n}?" for n in range(36, 100)],
    }
    assert "too few rows" in inside["examples"]["refused"]


@pytest.mark.slow
def test_prompts_go_through_the_chat_template_and_a_template_without_an_end_is_stopped(inside: dict[str, Any]) -> None:
    assert inside["rendered"]["chat"] == "[system: be brief][user: two plus two]"
    assert inside["rendered"]["plain"] == "be brief\n\ntwo plus two"
    assert "does not come to an end" in inside["rendered"]["endless"]


@pytest.mark.slow
def test_details_hold_any_text_and_cut_only_what_is_long(inside: dict[str, Any]) -> None:
    first, second, third = inside["kept"]["rows"]
    assert (first["prompt"], first["reference"], first["score"]) == ("p?", '"r"', 1.0)
    assert 16_000 < first["answer"] < 16_100
    assert (second["prompt"], second["answer"], third["answer"]) == ("=cmd()", 0, 1)


@pytest.mark.slow
def test_the_mean_and_its_standard_error_by_hand(inside: dict[str, Any]) -> None:
    # 1, 0 and 0.5: the variance is (0.25 + 0.25 + 0) / 2
    assert inside["kept"]["mean"] == pytest.approx([0.5, math.sqrt(0.25 / 3)])
    assert inside["kept"]["mean of one"] == [1.0, None]


@pytest.mark.slow
def test_a_model_that_says_nothing_at_all_has_no_score(inside: dict[str, Any]) -> None:
    assert "generates nothing" in inside["kept"]["silence"]


@pytest.mark.slow
def test_batches_keep_to_a_number_of_prompts_and_of_tokens(inside: dict[str, Any]) -> None:
    found = inside["batched"]
    assert found["by number"] == [["1", "3"], ["0", "2"], ["4"]]
    # 100 tokens of 120; 2 × 60; the rest 2 × 30
    assert found["by tokens"] == [["1"], ["3", "0"], ["2", "4"]]
    assert found["of short models"] == [["1", "3"], ["0", "2"], ["4"]]  # no row is longer than the model's 60
    # 2 tensors × 2 layers × 2 heads × 16 × 2 bytes = 256 bytes a token, of a quarter of the memory
    assert found["tokens"] == 1000
    assert found["tokens of vllm"] is None


@pytest.mark.slow
def test_a_prompt_whose_keys_and_values_do_not_fit_beside_the_weights_is_refused(inside: dict[str, Any]) -> None:
    fits, refused = inside["batched"]["room"]  # 1,024,000 − 24,000 bytes, 256 a token
    assert fits == "fits"
    assert "E_DEVICE" in refused
    assert "at most 3,906 tokens" in refused
    assert "3,907" in refused
    assert inside["batched"]["room of vllm"] == "fits"  # it has a budget of its own


@pytest.mark.slow
def test_on_a_gpu_the_process_that_sees_its_memory_chooses_the_dtype(inside: dict[str, Any]) -> None:
    found = inside["gpu"]
    assert {name: found[name] for name in ("as stored", "narrower", "asked", "vllm", "on the cpu")} == {
        "as stored": "auto",
        "narrower": "bfloat16",
        "asked": "float16",
        "vllm": "float32",  # it would take float16 by itself
        "on the cpu": "auto",  # the parent has chosen it
    }
    assert "does not fit in this machine's memory" in found["too large"]


@pytest.mark.slow
def test_a_cut_prompt_is_counted_and_more_than_one_in_twenty_are_refused(inside: dict[str, Any]) -> None:
    fits, short, cut, refused = inside["batched"]["cut"]
    assert fits == [0, 0]
    assert short == [0, 1]  # 92 of 101 positions leave 9 for an answer of 10: a warning
    assert cut == [1, 1]  # 1 of 20
    assert "at most 5%" in refused
    assert "1 of 19" in refused
    assert inside["batched"]["cut by vllm"] == [[0, 0], [1, 1]]  # it cuts the prompt to keep the answer's room


@pytest.mark.slow
def test_a_model_too_short_for_a_task_has_no_score_and_nothing_is_generated(
    tmp_path: Path, hub: Hub, rows: Path
) -> None:
    result = evaluate(
        str(ZOO / "math"),
        replace(SUITES["zoo"], max_model_len=8),
        hub=hub,
        workdir=tmp_path / "run",
        options=EvaluateOptions(**OPTIONS, data_cache=rows),  # type: ignore[arg-type]
        allow_local=True,
    )
    assert (result.status, result.tasks) == ("failed", ())
    assert result.error is not None
    assert "cannot read the prompts of a task" in result.error.message
    assert not list((tmp_path / "run" / "generations").glob("*"))

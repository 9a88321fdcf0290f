"""The real thing: lighteval on the zoo's models, against a direct count over generations of our own.

An import of lighteval takes long, so there are two: in a run as users have it, and in a process of tests.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from examples.zoo.evaluate import EVAL_FOLDER, evaluate_model, read_questions
from hubmerge.evaluation.result import EvaluationResult
from hubmerge.evaluation.runner import EvaluateOptions, evaluate
from hubmerge.evaluation.suites import pin
from hubmerge.hub.client import Hub
from hubmerge.recipe.model_name import ModelName
from localhub.process import LocalHubProcess

ROOT = Path(__file__).resolve().parents[2]
ZOO = ROOT / "examples" / "zoo"
INSIDE = Path(__file__).with_name("inside_lighteval.py")
LIMIT, BATCH = 24, 8


class Run(NamedTuple):
    result: EvaluationResult
    workdir: Path


@pytest.fixture(scope="module")
def run(zoo_hub: LocalHubProcess, tmp_path_factory: pytest.TempPathFactory) -> Run:
    workdir = tmp_path_factory.mktemp("real")
    hub = Hub(zoo_hub.endpoint, zoo_hub.tokens["ada"])
    name, suite = ModelName.parse("zoo/math-agent"), pin("zoo", hub, limit=LIMIT)
    options = EvaluateOptions(batch_size=BATCH, dtype="float32", device="cpu")
    return Run(evaluate(name, suite, hub=hub, workdir=workdir, options=options), workdir)


def test_scores_equal_a_direct_count_with_the_standard_error_of_the_mean(run: Run) -> None:
    direct = evaluate_model(str(ZOO / "math"), limit=LIMIT)
    assert run.result.status == "done"
    assert {s.domain: round(s.value * s.samples) for s in run.result.tasks} == {
        domain: score.correct for domain, score in direct.items()
    }
    assert direct["math"].correct > LIMIT / 2 > direct["tool"].correct  # so that equal counts mean something
    for score in run.result.tasks:
        p, n = score.value, score.samples
        assert n == LIMIT
        assert score.stderr == pytest.approx(math.sqrt(p * (1 - p) / (n - 1)))


def test_every_sample_is_kept_as_it_was_asked_answered_and_scored(run: Run) -> None:
    for score in run.result.tasks:
        rows = pq.read_table(run.workdir / "details" / f"{score.task}.parquet").to_pylist()
        questions = read_questions(EVAL_FOLDER / f"{score.domain}.jsonl", LIMIT)
        assert [(row["prompt"], json.loads(row["reference"])) for row in rows] == questions
        assert [row["score"] for row in rows] == [
            float(row["answer"].split() == answer.split()) for row, (_, answer) in zip(rows, questions, strict=True)
        ]
        assert sum(row["score"] for row in rows) == pytest.approx(score.value * score.samples)


def test_the_result_says_what_ran(run: Run) -> None:
    environment = run.result.environment
    assert environment.lighteval == "0.13.0"
    assert (environment.dtype, environment.backend, environment.device[:3]) == ("float32", "transformers", "CPU")
    assert environment.batch_size == BATCH
    assert environment.batch_tokens is not None
    assert {s.truncated for s in run.result.tasks} == {0}


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of the tests in a process that has lighteval."""
    home = str(tmp_path_factory.mktemp("inside"))
    plain = ["-c", os.devnull, f"--rootdir={ROOT}", "--noconftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plain, "-rA", INSIDE],
        cwd=ROOT,
        env={"HF_HUB_OFFLINE": "1", "HOME": home, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.mark.parametrize("name", re.findall(r"^def (test_\w+)", INSIDE.read_text(encoding="utf-8"), re.MULTILINE))
def test_inside_a_process_that_has_lighteval(name: str, inside: str) -> None:
    outcomes = re.findall(rf"^([A-Z]+) \S+::{name}\b", inside, re.MULTILINE)
    assert set(outcomes) == {"PASSED"}, inside[-5000:]

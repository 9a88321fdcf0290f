"""The real thing: lighteval on the zoo's models, against a direct count over generations of our own.

Each process costs an import of lighteval, so there are three of them, and each serves several promises.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from examples.zoo.evaluate import EVAL_FOLDER, evaluate_model, read_questions
from hubmerge.errors import MachineFaultError
from hubmerge.evaluation.result import EvaluationResult
from hubmerge.evaluation.runner import EvaluateOptions, Unobserved, evaluate
from hubmerge.evaluation.suites import pin
from hubmerge.hub.client import Hub
from hubmerge.recipe.model_name import ModelName
from localhub.process import LocalHubProcess

ROOT = Path(__file__).resolve().parents[2]
ZOO = ROOT / "examples" / "zoo"
INSIDE = Path(__file__).with_name("inside_lighteval.py")
LIMIT, BATCH = 40, 8  # enough batches for a kill to come before the last
OPTIONS = {"batch_size": BATCH, "dtype": "float32", "device": "cpu"}


class Watching(Unobserved):
    """Notes how many answers were generated, and kills the evaluating process once these are `most`."""

    def __init__(self, most: float = math.inf) -> None:
        self.most = most
        self.done: list[int] = []

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        if stage == "generate":
            self.done.append(done)
            if done >= self.most:
                [child] = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()[-1:]
                os.kill(int(child), signal.SIGKILL)


class Runs(NamedTuple):
    killed: MachineFaultError
    journal_of_the_killed: bytes
    resumed: EvaluationResult
    workdir: Path
    generated: list[int]


@pytest.fixture(scope="module")
def runs(zoo_hub: LocalHubProcess, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run that is killed after its second batch, and the same command again."""
    workdir = tmp_path_factory.mktemp("real")
    hub = Hub(zoo_hub.endpoint, zoo_hub.tokens["ada"])
    options = EvaluateOptions(**OPTIONS)  # type: ignore[arg-type]
    name, suite = ModelName.parse("zoo/math-agent"), pin("zoo", hub, limit=LIMIT)
    with pytest.raises(MachineFaultError) as killed:
        evaluate(name, suite, hub=hub, workdir=workdir, options=options, observer=Watching(2 * BATCH))
    journal = (workdir / "generations" / "zoo_math.jsonl").read_bytes()
    generated = Watching()
    resumed = evaluate(name, suite, hub=hub, workdir=workdir, options=options, observer=generated)
    return Runs(killed.value, journal, resumed, workdir, generated.done)


def test_scores_equal_a_direct_count_with_the_standard_error_of_the_mean_and_say_what_ran(runs):
    direct, environment = evaluate_model(str(ZOO / "math"), limit=LIMIT), runs.resumed.environment
    assert (environment.dtype, environment.backend, environment.device[:3]) == ("float32", "transformers", "CPU")
    assert environment.batch_tokens is not None
    assert {s.truncated for s in runs.resumed.tasks} == {0}
    assert {s.domain: round(s.value * s.samples) for s in runs.resumed.tasks} == {
        domain: score.correct for domain, score in direct.items()
    }
    assert direct["math"].correct > LIMIT / 2 > direct["tool"].correct  # so that equal counts mean something
    for score in runs.resumed.tasks:
        p, n = score.value, score.samples
        assert n == LIMIT
        assert score.stderr == pytest.approx(math.sqrt(p * (1 - p) / (n - 1)))


def test_a_killed_run_says_nothing_of_the_model_and_the_next_one_generates_only_what_is_missing(runs):
    assert "SIGKILL" in str(runs.killed)
    assert len(runs.journal_of_the_killed.splitlines()) >= 2
    journal = (runs.workdir / "generations" / "zoo_math.jsonl").read_bytes()
    assert journal.startswith(runs.journal_of_the_killed)
    for task in ("math", "tool", "mem"):
        lines = (runs.workdir / "generations" / f"zoo_{task}.jsonl").read_text().splitlines()
        assert [len(json.loads(line)) for line in lines] == [BATCH] * (LIMIT // BATCH)
    assert runs.generated == list(range(BATCH, 3 * LIMIT + 1, BATCH))


def test_every_sample_is_kept_as_it_was_asked_answered_and_scored(runs):
    for score in runs.resumed.tasks:
        rows = pq.read_table(runs.workdir / "details" / f"{score.task}.parquet").to_pylist()
        questions = read_questions(EVAL_FOLDER / f"{score.domain}.jsonl", LIMIT)
        assert [(row["prompt"], json.loads(row["reference"])) for row in rows] == questions
        assert [row["score"] for row in rows] == [
            float(row["answer"].split() == answer.split()) for row, (_, answer) in zip(rows, questions, strict=True)
        ]
        assert sum(row["score"] for row in rows) == pytest.approx(score.value * score.samples)


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
def test_inside_a_process_that_has_lighteval(name, inside):
    outcomes = re.findall(rf"^([A-Z]+) \S+::{name}\b", inside, re.MULTILINE)
    assert set(outcomes) == {"PASSED"}, inside[-5000:]

"""A model runs in the dtype that fits: as stored, else in bfloat16, which result and board say, else nowhere."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from board_helpers import ENVIRONMENT, result
from safetensors.numpy import load_file, save_file
from source_helpers import ZOO

from hubmerge.board.leaderboard import build_board
from hubmerge.cli.evaluate import table
from hubmerge.cli.leaderboard import _text
from hubmerge.errors import DeviceError
from hubmerge.evaluation import runner
from hubmerge.evaluation.fit import Weights, fitting_dtype, weights_of
from hubmerge.evaluation.result import parse_result
from hubmerge.evaluation.suites import pin
from hubmerge.machine import resources
from hubmerge.recipe.model_name import ModelName
from hubmerge.sources.open import open_model
from workflows.app.board_table import _model_cell
from workflows.app.model_panels import score_sections

GB = 10**9
SEVEN, HALF = 7 * GB, GB // 2  # elements
IN_ITS_DTYPE = "answers in the dtype that it was asked for"


@pytest.mark.parametrize(
    ("stored", "elements", "asked", "memory", "chosen"),
    [
        ("bfloat16", HALF, "auto", 16 * GB, "bfloat16"),
        ("float32", HALF, "auto", 16 * GB, "float32"),
        ("float16", 4 * GB, "auto", 16 * GB, "float16"),
        ("float32", 3 * GB, "auto", 16 * GB, "bfloat16"),  # 12 GB do not fit, 6 GB do
        ("float64", 3 * GB, "auto", 16 * GB, "bfloat16"),
        ("bfloat16", SEVEN, "auto", 28 * GB, "bfloat16"),  # 7B on a Space of 32 GB
        ("float32", SEVEN, "auto", 28 * GB, "bfloat16"),
        ("float32", HALF, "bfloat16", 16 * GB, "bfloat16"),
        ("bfloat16", HALF, "float32", 16 * GB, "float32"),
        ("float32", 10**6, "auto", GB // 4, "float32"),  # a tiny model on a tiny machine
    ],
)
def test_the_dtype_is_the_stored_one_or_what_fits(stored, elements, asked, memory, chosen):
    assert fitting_dtype(Weights(stored, elements), asked, memory, "x") == chosen


@pytest.mark.parametrize(
    ("stored", "elements", "asked", "said"),
    [
        ("bfloat16", SEVEN, "auto", "for it in bfloat16"),
        ("float32", SEVEN, "auto", "for it in bfloat16"),
        ("float32", 3 * GB, "float32", "or in bfloat16"),
    ],
)
def test_where_nothing_fits_the_error_says_what_would(stored, elements, asked, said):
    with pytest.raises(DeviceError, match=f"does not fit in this machine's memory.*{said}") as refused:
        fitting_dtype(Weights(stored, elements), asked, 14 * GB, "x")
    wanted = int(float(str(refused.value.problems[0].expected).split(" GB")[0]) * GB) + 10**8
    assert wanted > 14 * GB
    assert fitting_dtype(Weights(stored, elements), asked, wanted, "x")  # with as much as it asks for, it fits


def test_what_is_stored_is_read_from_the_config_and_else_from_the_headers(hub, tmp_path):
    def of(dtype: str | None, named: str = "torch_dtype") -> Weights:
        folder = _in_float32(tmp_path / f"{dtype}-{named}", None if dtype is None else {named: dtype})
        return weights_of(open_model(ModelName.parse(str(folder)), hub, allow_local=True))

    stored = weights_of(open_model(ModelName.parse("zoo/math-agent"), hub, allow_local=False))
    assert of(None) == Weights("float32", stored.elements)
    assert of("bfloat16").stored == of("torch.bfloat16", "dtype").stored == "bfloat16"
    assert of("float8_e4m3").stored == "float32"


def test_a_model_that_fits_only_in_bfloat16_runs_in_it_and_the_result_says_so(scripted, workdir, tmp_path, hub, notes):
    run = partial(scripted, model=str(_in_float32(tmp_path / "wide")), allow_local=True)
    narrow = run(IN_ITS_DTYPE, options={"device": "cpu", "memory_bytes": 1_000_000}, observer=notes)
    assert (narrow.environment.dtype, narrow.environment.stored_dtype) == ("bfloat16", "float32")
    assert json.loads((workdir / "spec").read_text())["dtype"] == "bfloat16"  # which keys the journal of answers
    assert [m for m in notes.warnings if "stored in float32, which does not fit here: it runs in bfloat16" in m]
    assert "since float32, in which it is stored, did not fit" in table(narrow)
    wide = run(IN_ITS_DTYPE, options={"device": "cpu", "memory_bytes": 10_000_000})
    assert json.loads((workdir / "spec").read_text())["dtype"] == "float32"
    assert wide.environment.stored_dtype is None
    assert wide.suite_version == narrow.suite_version == pin("zoo", hub, limit=4).version
    asked = run(IN_ITS_DTYPE, options={"device": "cpu", "memory_bytes": 1_000_000, "dtype": "bfloat16"})
    assert asked.environment.stored_dtype is None  # that is what was asked for, under a version of its own
    assert asked.suite_version != narrow.suite_version
    assert parse_result(narrow.to_json().encode(), where="x") == narrow


def test_a_model_that_does_not_fit_is_refused_before_it_is_fetched_and_nothing_is_said_of_it(
    scripted, workdir, monkeypatch
):
    monkeypatch.setattr(runner, "stage_model", lambda *_: pytest.fail("it was fetched"))
    with pytest.raises(DeviceError, match="does not fit in this machine's memory") as refused:
        scripted("answers", options={"device": "cpu", "memory_bytes": 100_000})
    assert not refused.value.retryable
    assert not (workdir / "inputs").exists()


@pytest.mark.parametrize(
    ("mode", "said"), [("does not fit", "cannot hold a prompt"), ("cannot be confined", "cannot confine a process")]
)
def test_what_the_machine_cannot_do_is_no_finding_about_the_model(scripted, mode, said):
    for _ in range(2):
        with pytest.raises(DeviceError, match=said):
            scripted(mode)


def test_the_memory_is_what_a_container_may_use(scripted, workdir, monkeypatch):
    monkeypatch.setattr(resources, "memory_bytes", lambda: 10 * GB)
    scripted(IN_ITS_DTYPE, options={"device": "cpu"})
    assert json.loads((workdir / "spec").read_text())["memory_bytes"] == 9 * GB
    monkeypatch.setattr(resources, "memory_bytes", lambda: None)
    scripted(IN_ITS_DTYPE, options={"device": "cpu"})
    assert json.loads((workdir / "spec").read_text())["memory_bytes"] > 9 * GB


def test_limits_of_a_batch_and_the_number_of_cut_prompts_stand_in_the_result(scripted, workdir):
    environment = scripted(IN_ITS_DTYPE, options={"batch_size": 7}).environment
    assert (environment.batch_size, environment.batch_tokens) == (7, 4000)
    assert json.loads((workdir / "spec").read_text())["batch_size"] == 7
    assert [s.truncated for s in scripted("cuts prompts").tasks] == [3] * 3
    assert [s.truncated for s in scripted("answers").tasks] == [None] * 3


def test_a_model_that_reads_padding_is_asked_prompt_by_prompt(scripted, workdir, tmp_path):
    folder = str(_in_float32(tmp_path / "rwkv", {"model_type": "rwkv"}))
    environment = scripted(IN_ITS_DTYPE, options={"batch_size": 7}, model=folder, allow_local=True).environment
    assert environment.batch_size == json.loads((workdir / "spec").read_text())["batch_size"] == 1


def _in_float32(folder: Path, config: dict[str, str] | None = None) -> Path:
    """The zoo's math agent in float32, with zeros for weights."""
    import ml_dtypes  # noqa: F401  numpy's bfloat16

    shutil.copytree(ZOO / "math", folder)
    known = json.loads((folder / "config.json").read_text())
    known = {k: v for k, v in known.items() if k not in ("dtype", "torch_dtype")}
    (folder / "config.json").write_text(json.dumps(known | (config or {})))
    for path in folder.glob("*.safetensors"):
        save_file({name: np.zeros(values.shape, np.float32) for name, values in load_file(path).items()}, path)
    return folder


def test_the_board_marks_a_row_that_ran_in_a_narrower_dtype_in_one_of_its_suites():
    ran, words = {"dtype": "bfloat16", "stored_dtype": "float32"}, "bfloat16, stored as float32"
    narrow = result("org/narrow", "a", {"math": 0.5}, environment=ENVIRONMENT | ran)
    wide = result("org/wide", "b", {"math": 0.6})
    code = [t.model_copy(update={"domain": "code"}) for t in wide.tasks]
    also = wide.model_copy(update={"suite": "code", "model": narrow.model, "sha": narrow.sha, "tasks": (*code,)})
    built = build_board([narrow, wide, also])
    suite = built.suite(narrow.suite)
    assert suite is not None
    rows = {r.model: r for r in suite.rows}
    assert {m: r.narrowed for m, r in rows.items()} == {"org/narrow": words, "org/wide": None}
    assert ">in bfloat16<" in str(_model_cell(rows["org/narrow"], False))
    assert ">in " not in str(_model_cell(rows["org/wide"], False))
    assert words in str(score_sections([(suite, rows["org/narrow"])], "http://hub"))
    assert f"org/narrow@{'a' * 7} (in {words})" in _text(built)
    domains = build_board([narrow.model_copy(update={"suite": "math"}), also]).suite("domains")
    assert domains is not None
    assert [r.narrowed for r in domains.rows] == [words]

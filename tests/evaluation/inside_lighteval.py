"""What can only be tried with lighteval imported, in a process of its own: importing it turns gradients off.

test_evaluation_lighteval.py runs these tests, each under its own name.
"""

import base64
import errno
import importlib.util
import json
import math
import pickle
import re
import shutil
import types
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from hubmerge.errors import DeviceError, EvaluationError, InternalError, MemoryLimitError
from hubmerge.evaluation import lighteval_tasks, models, pipeline
from hubmerge.evaluation.tasks import registry
from hubmerge.evaluation.tasks.base import Rows, Task

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"

_LCB_TESTS = json.dumps([{"input": "3 4\n", "output": "7\n", "testtype": "stdin"}])
ROWS = {
    "gsm8k": {"question": "Two apples and three apples?", "answer": "2 + 3 = 5\n#### 5"},
    "math_500": {"problem": "What is 1/2 + 1/4?", "solution": "$\\boxed{\\frac{3}{4}}$", "answer": "\\frac{3}{4}"},
    "aime24": {"problem": "Find it.", "answer": "204"},
    "ifeval": {
        "prompt": "Write no commas, in two sentences at least, with two words in capitals.",
        "instruction_id_list": [
            "punctuation:no_comma",
            "length_constraints:number_sentences",
            "change_case:capital_word_frequency",
        ],
        "kwargs": [
            {},
            {"num_sentences": 2, "relation": "at least"},
            {"capital_frequency": 2, "capital_relation": "at least"},
        ],
    },
    "lcb:codegeneration": {
        "question_content": "Add two numbers.",
        "starter_code": "",
        "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
        "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(_LCB_TESTS))).decode(),
        "metadata": "{}",
    },
}
ANSWERS = {  # a right and a wrong one
    "gsm8k": ("2 + 3 = 5. The answer is 5", "2 + 3 = 6. The answer is 6"),
    "math_500": ("ANSWER: $\\frac{3}{4}$", "ANSWER: $\\frac{3}{5}$"),
    "aime24": ("Therefore, the final answer is: $\\boxed{204}$.", "Therefore, the final answer is: $\\boxed{205}$."),
    "ifeval": ("HELLO there. This IS FINE.", "hello, there. This is fine."),
    "lcb:codegeneration": (
        "```python\na, b = map(int, input().split())\nprint(a + b)\n```",
        "```python\nimport os\nos._exit(0)\n```",
    ),
}


def task_spec(name: str, folder: Path, **changes: Any) -> dict[str, Any]:
    spec = {"name": name, "folder": str(folder), "split": "test", "few_shot_split": None, "limit": None, "few_shot": 0}
    return spec | changes


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """lighteval's own tasks by their names, each with one hand-made row."""
    tasks = {}
    for name in ROWS:
        if name != "ifeval" or importlib.util.find_spec("langdetect"):
            folder = tmp_path_factory.mktemp(name.replace(":", "_"))
            Dataset.from_list([ROWS[name]]).save_to_disk(str(folder / "test"))
            tasks[name] = lighteval_tasks.loaded(task_spec(name, folder))
    assert {"gsm8k", "math_500", "aime24", "lcb:codegeneration"} <= tasks.keys()
    return tasks


def test_lightevals_own_tasks_score_right_answers_1_and_wrong_ones_0(installed):
    for name, (_, docs, scores) in installed.items():
        for answer, expected in zip(ANSWERS[name], (1.0, 0.0), strict=True):
            assert scores(docs, [ModelResponse(text=[answer])]) == [expected], name


def test_an_answer_of_too_many_brackets_is_no_json_and_ends_no_run(installed):
    pytest.importorskip("langdetect")
    _, [doc], scores = installed["ifeval"]
    doc.specific = {"instructions_id_list": ["detectable_format:json_format"], "kwargs": [{}]}
    answers = [ModelResponse(text=[answer]) for answer in ("[" * 1200, "[[1]]")]
    assert scores([doc, doc], answers) == [0, 1]


def test_a_lighteval_that_lacks_a_task_or_measures_it_otherwise_is_refused_by_name():
    for changes, said in (
        ({"name": "gsm9k"}, "this lighteval lacks the task in gsm9k"),
        ({"metric": "taste"}, "this lighteval measures the task otherwise in gsm8k: expected taste"),
    ):
        with pytest.raises(EvaluationError, match=said):
            lighteval_tasks.builtin(replace(registry()["gsm8k"], **changes), {}, 0)


def test_a_score_that_is_no_number_is_the_task_s_bug_and_no_failure_of_the_model():
    asked = Doc(query="", choices=[""], gold_index=0, specific={"reference": "1"})
    for score, told in ((lambda *_: None, "TypeError"), (lambda *_: 1 / 0, "ZeroDivisionError")):
        task = replace(registry()["zoo_math"], score=score)
        with pytest.raises(InternalError, match=f"zoo_math does not score an answer: got {told}"):
            lighteval_tasks.own_score(task, asked, ModelResponse(text=["1"]))


def test_the_prompt_that_a_task_of_lighteval_states_is_the_one_that_is_asked(installed):
    for name, (_, [doc], _) in installed.items():
        question = next(iter(ROWS[name].values()))
        stated = re.sub(r"\{(question|problem|prompt)\}", lambda _: question, registry()[name].asked)  # noqa: B023
        assert doc.query == stated


def test_examples_are_never_among_the_questions(tmp_path):
    for split, count in (("test", 10), ("train", 100)):
        rows = [{"question": f"{split} {n}?", "answer": f"#### {n}"} for n in range(count)]
        Dataset.from_list(rows).save_to_disk(str(tmp_path / split))

    def numbers(**changes: Any) -> dict[str, list[str]]:
        spec = task_spec("gsm8k", tmp_path, few_shot_split="train", few_shot=5, **changes)
        return {k: [row["question"] for row in rows] for k, rows in lighteval_tasks.read_rows(spec).items()}

    assert numbers(limit=3) == {
        "asked": [f"test {n}?" for n in range(3)],
        "examples": [f"train {n}?" for n in range(100)],
    }
    assert numbers(split="train") == {
        "asked": [f"train {n}?" for n in range(36)],
        "examples": [f"train {n}?" for n in range(36, 100)],
    }
    with pytest.raises(InternalError, match="too few rows"):
        lighteval_tasks.read_rows(task_spec("gsm8k", tmp_path, few_shot=5))


def test_an_example_of_a_task_of_ours_comes_with_its_answer(tmp_path, monkeypatch):
    for split, text in (("test", "1 + 1 ="), ("train", "2 + 2 =")):
        Dataset.from_list([{"prompt": text, "answer": "4"}]).save_to_disk(str(tmp_path / split))
    spec = task_spec("zoo_math", tmp_path, few_shot_split="train", few_shot=1)
    _, [doc], _ = lighteval_tasks.loaded(spec)
    model = types.SimpleNamespace(tokenizer=None)
    assert models.RenderedPrompts(model, chat=False).prepare_prompt(doc) == "2 + 2 = 4\n\n1 + 1 ="


def test_prompts_go_through_the_chat_template_where_the_task_asks_by_it():
    tokenizer = AutoTokenizer.from_pretrained(ZOO / "base")
    model = types.SimpleNamespace(tokenizer=tokenizer)
    doc = Doc(query="two plus two", choices=[""], gold_index=0, id="0")
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
    texts = [models.RenderedPrompts(model, chat=chat).prepare_prompt(doc) for chat in (True, False)]
    assert texts == ["[user: two plus two]", "two plus two"]


@pytest.mark.parametrize(
    "error",
    [
        MemoryLimitError("killed"),
        RuntimeError("torch: can't allocate memory"),
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EIO, "bad"),
    ],
    ids=str,
)
def test_what_the_machine_did_in_loading_is_not_told_of_the_model(error, monkeypatch):
    def loading(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(models.AutoTokenizer, "from_pretrained", loading)
    monkeypatch.setattr(models.torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="no CUDA device"):
        models.load_model({**MACHINE, "device": "cuda"})
    with pytest.raises(type(error)) as told:
        models.load_model(MACHINE)
    assert told.value is error


SAMPLES = [
    pipeline.Sample("p\ud800", "a" * 100_000, '"r"', 1.0),
    pipeline.Sample("=cmd()", "", "null", 0.0),
    pipeline.Sample("", "x", "1", 0.5),
]


def test_details_hold_any_text_and_cut_only_what_is_long(tmp_path):
    pipeline.write_details(tmp_path, "a:b", SAMPLES)
    first, second, third = pq.read_table(tmp_path / "a_b.parquet").to_pylist()
    assert (first["prompt"], first["reference"], first["score"]) == ("p?", '"r"', 1.0)
    assert 16_000 < len(first["answer"]) < 16_100
    assert (second["prompt"], second["answer"], third["answer"]) == ("=cmd()", "", "x")


def test_the_mean_and_its_standard_error_by_hand():
    # 1, 0 and 0.5: the variance is (0.25 + 0.25 + 0) / 2
    assert pipeline.mean(SAMPLES) == pytest.approx((0.5, math.sqrt(0.25 / 3)))
    assert pipeline.mean(SAMPLES[:1]) == (1.0, None)


def test_a_model_that_says_nothing_at_all_has_no_score():
    silent = [ModelResponse(text=["", " \n"]), ModelResponse(text=[""])]
    with pytest.raises(EvaluationError, match="generates nothing"):
        pipeline.JournaledPipeline._refuse_silence(None, silent)


def asked(lengths: dict[str, int]) -> pipeline.Asked:
    """Prompts of so many tokens, with answers of 10."""
    docs = [Doc(task_name="t", query="", choices=[""], gold_index=0, id=id, generation_size=10) for id in lengths]
    return pipeline.Asked(registry()["zoo_math"], docs, None, None, lengths)


@pytest.mark.parametrize(
    ("longest", "most", "budget", "batches"),
    [
        (200, 2, None, [["1", "3"], ["0", "2"], ["4"]]),
        (200, 32, 120, [["1"], ["3", "0"], ["2", "4"]]),  # 100 tokens of 120; 2 × 60; the rest 2 × 30
        (60, 32, 120, [["1"], ["3", "0"], ["2", "4"]]),  # of 60 positions the first prompt leaves none
    ],
)
def test_batches_keep_to_their_prompts_and_tokens(longest, most, budget, batches):
    prompts = asked({"0": 40, "1": 90, "2": 20, "3": 50, "4": 20})
    assert [[doc.id for doc in batch] for batch in pipeline.batches(prompts, longest, most, budget)] == batches


def test_a_prompt_that_leaves_little_room_takes_none_from_the_answers_of_others():
    """Of 100 positions prompts of 95, 94, 91, 90 and 10 tokens leave 5, 6, 9, 10 and 90, and an answer may have 10."""
    prompts = asked({"0": 10, "1": 95, "2": 94, "3": 91, "4": 90})
    assert [[doc.id for doc in batch] for batch in pipeline.batches(prompts, 100, 32, None)] == [
        ["1"],
        ["2"],
        ["3", "4", "0"],
    ]
    for doc, size in zip(prompts.docs, (1, 5, 50, 5, 1), strict=True):  # each is asked once, whatever each may answer
        doc.generation_size = size
    assert sorted(d.id for batch in pipeline.batches(prompts, 200, 32, None) for d in batch) == list("01234")


@pytest.fixture
def loaded() -> Any:
    """A model whose keys and values take 2 tensors × 2 layers × 2 heads × 16 × 2 bytes = 256 bytes a token."""
    config = types.SimpleNamespace(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
    config.get_text_config = lambda: config
    held = types.SimpleNamespace(config=config, dtype=types.SimpleNamespace(itemsize=2))
    held.get_memory_footprint = lambda: 24_000
    return types.SimpleNamespace(model=held)


MACHINE = {"device": "cpu", "memory_bytes": 4 * 256 * 1000}


def test_a_batch_takes_a_quarter_of_the_memory_for_keys_and_values(loaded):
    assert models.batch_tokens(loaded, MACHINE) == 1000


def test_a_prompt_whose_keys_and_values_do_not_fit_beside_the_weights_is_refused(loaded):
    models.require_room_for(3906, loaded, MACHINE, "zoo_mem")  # 1,024,000 − 24,000 bytes, 256 a token
    with pytest.raises(DeviceError, match=r"at most 3,906 tokens.*3,907"):
        models.require_room_for(3907, loaded, MACHINE, "zoo_mem")


def test_on_a_gpu_the_process_that_sees_its_memory_chooses_the_dtype(monkeypatch):
    """On one of 24 GB that is made up here."""
    monkeypatch.setattr(models.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(models.torch.cuda, "mem_get_info", lambda: (10**9, 24 * 10**9))
    monkeypatch.setattr(models, "hardware", lambda device: "a GPU")

    def dtype(stored: str, elements: float, asked: str = "auto", **changes: Any) -> str:
        weights = {"stored": stored, "elements": int(elements)}
        spec = {"device": "cuda", "dtype": asked, "weights": weights, **changes}
        return str(models.with_fitting_dtype(spec)["dtype"])

    assert dtype("float32", 1e9) == "float32"
    assert dtype("float32", 7e9) == "bfloat16"
    assert dtype("float32", 1e9, "float16") == "float16"
    assert dtype("float32", 7e9, device="cpu") == "auto"  # the parent has chosen it
    with pytest.raises(DeviceError, match="does not fit in this machine's memory"):
        dtype("bfloat16", 13e9)


def cut(longest: int, of: int) -> tuple[int, int]:
    """How many of the prompts of 92, 20, 20, … tokens are cut, and the number of warnings."""
    warned: list[str] = []
    line = types.SimpleNamespace(
        model=types.SimpleNamespace(max_length=longest),
        truncated={},
        _reporter=types.SimpleNamespace(warning=warned.append),
    )
    prompts = asked({str(k): 92 if k == 0 else 20 for k in range(of)})
    pipeline.JournaledPipeline._refuse_what_is_cut(line, prompts)
    return line.truncated["zoo_math"], len(warned)


def test_a_cut_prompt_is_counted_and_more_than_one_in_twenty_are_refused():
    assert cut(200, 20) == (0, 0)
    assert cut(101, 20) == (0, 1)  # 92 of 101 positions leave 9 for an answer of 10: a warning
    assert cut(92, 20) == (1, 1)
    with pytest.raises(EvaluationError, match=r"at most 5%.*1 of 19"):
        cut(92, 19)


PROMPTS = [
    "mem i=2 a=7 b=3 c=7 f=0 c=9 f=3 ; get c",
    "math 5 4 + 8 8 =",
    "mem d=4 " + "x" * 200,  # few tokens, many characters
    "tool compute the product of 9 9 and 4 6 ;",
]
TEMPLATE = "<bos>{% for m in messages %}{{ m.content }}{% endfor %}"
SHORT = Task(
    name="short",
    title="",
    domain="math",
    rows=Rows("zoo/held-out"),
    metric="exact_match",
    prompt=lambda row: str(row["prompt"]),
    reference=lambda _: "",
    score=lambda answer, _: float(not answer),
    max_new_tokens=5,
    blank={"prompt": ""},
)


def alone(folder: Path, template: str | None, ends: list[int]) -> list[str]:
    """What transformers generates for each prompt by itself, without padding."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    answers = []
    for prompt in PROMPTS:
        asked = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(asked)["input_ids"] if template else tokenizer(prompt)["input_ids"]
        plain = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "suppress_tokens": None}
        made = model.generate(torch.tensor([ids]), max_new_tokens=5, eos_token_id=ends, **plain)
        answers.append(tokenizer.decode(made[0, len(ids) :], skip_special_tokens=True))
    return answers


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model of a run whose only task is `short`: the zoo's math agent, below the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lighteval_tasks, "registry", lambda: {"short": SHORT})
    return shutil.copytree(ZOO / "math", tmp_path / models.MODEL_FOLDER)


def line_of(prompts: Iterable[str], *, max_model_len: int | None = None) -> pipeline.JournaledPipeline:
    """A pipeline that asks these prompts of the model in the working folder."""
    Dataset.from_list([{"prompt": prompt} for prompt in prompts]).save_to_disk("test")
    about = {"identity": "", "dtype": "float32", "max_model_len": max_model_len, "batch_size": 8}
    about |= {"cache": "cache", "generations": "generations", "tasks": [task_spec("short", Path())]}
    spec = {**MACHINE, **about, "batch_tokens": None}
    told = types.SimpleNamespace(stage=print, progress=print)
    return pipeline.JournaledPipeline(models.load_model(spec), spec, told)


@pytest.mark.parametrize(
    ("template", "config", "ends"),
    [
        (None, {}, [2]),
        (TEMPLATE, {}, [2]),
        (None, {"eos_token_id": [8, 2]}, [8, 2]),
        (None, {"max_position_embeddings": -1}, [2]),
        (None, {"repetition_penalty": 9.0, "num_beams": 3, "suppress_tokens": [2]}, [2]),
    ],
    ids=[
        "of few tokens and many characters",
        "after the template's own BOS",
        "up to any end",
        "in any position",
        "greedily",
    ],
)
def test_an_answer_is_what_transformers_generates_for_its_prompt_alone(template, config, ends, folder):
    (folder / "generation_config.json").unlink()
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, "dtype": "float32", **config}))
    if template:
        (folder / "chat_template.jinja").write_text(template)
    assert [sample.answer for sample in line_of(PROMPTS).scored()["short"]] == alone(folder, template, ends)


@pytest.mark.usefixtures("folder")
def test_reasoning_is_no_answer_even_where_the_chat_template_began_it():
    answers = {"<think>5</think>4": "4", "or 5?</think>4": "4", "4": "4", "<think>5": "<think>5"}
    line = line_of(answers)
    line.model.greedy_until = lambda batch: [ModelResponse(text=[doc.query]) for doc in batch]
    assert {sample.prompt: sample.answer for sample in line.scored()["short"]} == answers


@pytest.mark.usefixtures("folder")
def test_a_model_too_short_for_a_task_is_refused_and_nothing_is_generated():
    with pytest.raises(EvaluationError, match="cannot read the prompts of a task"):
        line_of(PROMPTS, max_model_len=8).scored()
    assert not Path("generations").exists()


@pytest.mark.usefixtures("folder")
def test_a_prompt_that_fills_the_model_leaves_a_token_also_where_an_answer_may_have_any_length(monkeypatch):
    endless = replace(SHORT, max_new_tokens=None)
    monkeypatch.setattr(lighteval_tasks, "registry", lambda: {"short": endless})
    line = line_of(["mem " + "a=1 " * 20, *["math 5 4 + 8 8 ="] * 20], max_model_len=20)
    line._reporter.warning = print
    assert [len(sample.answer.split()) for sample in line.scored()["short"]] == [1, *[3] * 20]


def test_a_checkpoint_without_all_its_tensors_does_not_load(folder):
    """transformers itself fills them with random numbers."""
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EvaluationError, match=r"its own config\.json: got missing keys: .*layers\.1\.mlp\.up_proj"):
        line_of(PROMPTS)

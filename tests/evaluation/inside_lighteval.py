"""What can only be tried with lighteval imported, as JSON on stdout.

Run as a process of its own (`python -m tests.evaluation.inside_lighteval FOLDER`), because importing lighteval turns
gradients off for the whole process.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import pickle
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import Dataset
from lighteval.metrics import apply_metric
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.registry import Registry
from lighteval.tasks.requests import Doc
from transformers import AutoTokenizer

from hubmerge.errors import DeviceError, EvaluationError
from hubmerge.evaluation import lighteval_tasks, models, pipeline, templates
from hubmerge.evaluation.tasks import get_task

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"
FOLDER = Path(sys.argv[1])

_LCB_TESTS = json.dumps([{"input": "3 4\n", "output": "7\n", "testtype": "stdin"}])
ROWS = {
    "gsm8k": {"question": "Two apples and three apples?", "answer": "2 + 3 = 5\n#### 5"},
    "math_500": {
        "problem": "What is 1/2 + 1/4?",
        "solution": "It is $\\boxed{\\frac{3}{4}}$.",
        "answer": "\\frac{3}{4}",
    },
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
RIGHT = {
    "gsm8k": "2 + 3 = 5. The answer is 5",
    "math_500": "ANSWER: $\\frac{3}{4}$",
    "aime24": "Therefore, the final answer is: $\\boxed{204}$. I hope it is correct",
    "ifeval": "HELLO there. This IS FINE.",
    "lcb:codegeneration": "```python\na, b = map(int, input().split())\nprint(a + b)\n```",
}
WRONG = {
    "gsm8k": "2 + 3 = 6. The answer is 6",
    "math_500": "ANSWER: $\\frac{3}{5}$",
    "aime24": "Therefore, the final answer is: $\\boxed{205}$. I hope it is correct",
    "ifeval": "hello, there. This is fine.",
    "lcb:codegeneration": "```python\nimport os\nos._exit(0)\n```",
}


def scores() -> dict[str, Any]:
    """lighteval's own tasks with hand-made rows: prompts, and the scores of right answers and of wrong ones."""
    names = [name for name in ROWS if name != "ifeval" or importlib.util.find_spec("langdetect")]
    specs = []
    for name in names:
        folder = FOLDER / name.replace(":", "_")
        Dataset.from_list([ROWS[name]]).save_to_disk(str(folder / "test"))
        specs.append(task_spec(name, folder))
    asked = lighteval_tasks.install(specs)
    found = {}
    prompts = {}
    for full_name, task in Registry(tasks=asked).load_tasks().items():
        name = full_name.partition("|")[0]
        docs = task.get_docs()
        prompts[name] = [docs[0].query, next(iter(ROWS[name].values()))]
        for kind, answers in (("right", RIGHT), ("wrong", WRONG)):
            responses = [ModelResponse(text=[answers[name]])]
            [values] = apply_metric(docs=docs, responses=responses, metrics=list(task.metrics))
            found[f"{name} {kind}"] = float(values[get_task(name).metric])
    return {"scores": found, "prompts": prompts, "loaded": sorted(Registry.load_all_task_configs())}


def task_spec(name: str, folder: Path, **changes: Any) -> dict[str, Any]:
    spec = {"name": name, "folder": str(folder), "split": "test", "few_shot_split": None, "limit": None, "few_shot": 0}
    return spec | changes


def examples() -> dict[str, Any]:
    """Rows that are asked and rows that serve as examples, from two splits and from one."""
    folder = FOLDER / "numbered"
    for split, count in (("test", 10), ("train", 100)):
        rows = [{"question": f"{split} {n}?", "answer": f"#### {n}"} for n in range(count)]
        Dataset.from_list(rows).save_to_disk(str(folder / split))

    def numbers(**changes: Any) -> dict[str, list[str]]:
        spec = task_spec("gsm8k", folder, few_shot_split="train", few_shot=5, **changes)
        return {k: [row["question"] for row in rows] for k, rows in lighteval_tasks.read_rows(spec).items()}

    try:
        lighteval_tasks.read_rows(task_spec("gsm8k", folder, few_shot=5))
        refused = ""
    except EvaluationError as error:
        refused = str(error)
    return {"two": numbers(limit=3), "one": numbers(split="train"), "refused": refused}


def rendered() -> dict[str, Any]:
    """Prompts by a chat template, by none, and by one that does not end."""
    tokenizer = AutoTokenizer.from_pretrained(ZOO / "base")
    model = types.SimpleNamespace(tokenizer=tokenizer)
    doc = Doc(query="two plus two", choices=[""], gold_index=0, id="0")
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
    texts = [models.RenderedPrompts(model, chat=chat, system="be brief").prepare_prompt(doc) for chat in (True, False)]
    loops = "".join(f"{{% for {x} in range(99999) %}}" for x in "abcd") + "{% endfor %}" * 4
    tokenizer.chat_template = loops
    templates.PROMPT_S = 0.3
    try:
        models.RenderedPrompts(model, chat=True, system=None).prepare_prompt(doc)
        endless = ""
    except EvaluationError as error:
        endless = str(error)
    return {"chat": texts[0], "plain": texts[1], "endless": endless}


def kept() -> dict[str, Any]:
    """Details of hostile and of long texts, and the mean over samples."""
    samples = [
        pipeline.Sample("p\ud800", "a" * 100_000, '"r"', 1.0),
        pipeline.Sample("=cmd()", "", "null", 0.0),
        pipeline.Sample("", "x", "1", 0.5),
    ]
    pipeline.write_details(FOLDER / "details", "a:b", samples)
    rows = pq.read_table(FOLDER / "details" / "a_b.parquet").to_pylist()
    silence = ""
    try:
        pipeline.JournaledPipeline._refuse_silence(None, [ModelResponse(text=["", " \n"]), ModelResponse(text=[""])])
    except EvaluationError as error:
        silence = str(error)
    return {
        "rows": [dict(row, answer=len(row["answer"])) for row in rows],
        "mean": pipeline.mean(samples),
        "mean of one": pipeline.mean(samples[:1]),
        "silence": silence,
    }


def room(model: Any, spec: dict[str, Any], tokens: int) -> str:
    try:
        models.require_room_for(tokens, model, spec, "zoo_mem")
    except DeviceError as error:
        return str(error)
    return "fits"


def on_a_gpu() -> dict[str, Any]:
    """The dtype of runs on a GPU of 24 GB that is made up here."""
    cuda = models.torch.cuda
    known = cuda.is_available, cuda.mem_get_info, models.hardware
    cuda.is_available, cuda.mem_get_info = (lambda: True), (lambda: (10**9, 24 * 10**9))
    models.hardware = lambda device: "a GPU"

    def dtype(stored: str, elements: float, asked: str = "auto", **changes: Any) -> str:
        weights = {"stored": stored, "elements": int(elements)}
        spec = {"device": "cuda", "backend": "transformers", "dtype": asked, "weights": weights, **changes}
        try:
            return str(models.with_fitting_dtype(spec)["dtype"])
        except DeviceError as error:
            return str(error)

    try:
        return {
            "as stored": dtype("float32", 1e9),
            "narrower": dtype("float32", 7e9),
            "asked": dtype("float32", 1e9, "float16"),
            "too large": dtype("bfloat16", 13e9),
            "vllm": dtype("float32", 1e9, backend="vllm"),
            "on the cpu": dtype("float32", 7e9, device="cpu"),
        }
    finally:
        cuda.is_available, cuda.mem_get_info, models.hardware = known


def batched() -> dict[str, Any]:
    """Batches of prompts of 90, 50, 40, … tokens with answers of 10, and what cut prompts come to."""
    lengths = {"0": 40, "1": 90, "2": 20, "3": 50, "4": 20}
    docs = [Doc(task_name="t", query="", choices=[""], gold_index=0, id=id, generation_size=10) for id in lengths]
    asked = pipeline.Asked(get_task("zoo_math"), docs, None, {}, lengths)

    def composed(longest: int, most: int, budget: int | None) -> list[list[str]]:
        return [[doc.id for doc in batch] for batch in pipeline.batches(asked, longest, most, budget)]

    def cut(backend: str, longest: int, of: int) -> Any:
        tokens = {str(k): 92 if k == 0 else 20 for k in range(of)}
        docs = [Doc(task_name="t", query="", choices=[""], gold_index=0, id=id, generation_size=10) for id in tokens]
        warned: list[str] = []
        line = types.SimpleNamespace(
            model=types.SimpleNamespace(max_length=longest),
            truncated={},
            _spec={"backend": backend},
            _reporter=types.SimpleNamespace(warning=warned.append),
        )
        try:
            pipeline.JournaledPipeline._refuse_what_is_cut(
                line, pipeline.Asked(get_task("zoo_math"), docs, None, {}, tokens)
            )
        except EvaluationError as error:
            return str(error)
        return [line.truncated["zoo_math"], len(warned)]

    config = types.SimpleNamespace(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
    config.get_text_config = lambda: config
    held = types.SimpleNamespace(config=config, dtype=types.SimpleNamespace(itemsize=2))
    spec = {"backend": "transformers", "device": "cpu", "memory_bytes": 4 * 256 * 1000}
    held.get_memory_footprint = lambda: 24_000
    whole = types.SimpleNamespace(model=held)
    return {
        "room": [room(whole, spec, tokens) for tokens in (3906, 3907)],
        "room of vllm": room(None, {**spec, "backend": "vllm"}, 10**9),
        "by number": composed(200, 2, None),
        "by tokens": composed(200, 32, 120),
        "of short models": composed(60, 32, 120),
        "cut": [cut("transformers", n, of) for n, of in ((200, 20), (101, 20), (92, 20), (92, 19))],
        "cut by vllm": [cut("vllm", n, 20) for n in (102, 101)],
        "tokens": models.batch_tokens(types.SimpleNamespace(model=held), spec),
        "tokens of vllm": models.batch_tokens(None, {**spec, "backend": "vllm"}),
    }


def main() -> None:
    found = {"examples": examples(), "rendered": rendered(), "kept": kept(), "batched": batched(), "gpu": on_a_gpu()}
    print(json.dumps({**scores(), **found}))


if __name__ == "__main__":
    main()

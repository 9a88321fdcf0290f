"""lighteval's own tasks with hand-made rows: right answers, wrong ones, and their scores, as JSON on stdout.

Run as a process of its own (`python -m tests.evaluation.builtin_answers FOLDER`), because importing lighteval turns
gradients off for the whole process.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import pickle
import sys
import zlib
from pathlib import Path

from datasets import Dataset

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


def main() -> None:
    from lighteval.metrics import apply_metric
    from lighteval.models.model_output import ModelResponse
    from lighteval.tasks.registry import Registry

    from hubmerge.evaluation.lighteval_tasks import install
    from hubmerge.tasks import get_task

    names = [name for name in ROWS if name != "ifeval" or importlib.util.find_spec("langdetect")]
    specs = []
    for name in names:
        folder = FOLDER / name.replace(":", "_")
        Dataset.from_list([ROWS[name]]).save_to_disk(str(folder / "test"))
        split = {"split": "test", "few_shot_split": None, "limit": None, "few_shot": 0}
        specs.append({"name": name, "folder": str(folder), **split})
    asked = install(specs)
    registry = Registry(tasks=asked)
    scores = {}
    for full_name, task in registry.load_tasks().items():
        name = full_name.partition("|")[0]
        docs = task.get_docs()
        for kind, answers in (("right", RIGHT), ("wrong", WRONG)):
            responses = [ModelResponse(text=[answers[name]])]
            [values] = apply_metric(docs=docs, responses=responses, metrics=list(task.metrics))
            scores[f"{name} {kind}"] = float(values[get_task(name).metric])
    loaded = sorted(Registry.load_all_task_configs())
    print(json.dumps({"scores": scores, "loaded": loaded, "kinds": ["right", "wrong"]}))


if __name__ == "__main__":
    main()

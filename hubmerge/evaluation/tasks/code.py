"""HumanEval and MBPP: Python functions, pass@1 with one greedy answer; the published tests decide, in the sandbox.

`humaneval`: 164 functions to complete (Chen et al. 2021, arXiv:2107.03374; MIT). Deviation: the prompt asks for the
function in words, since most agents speak through a chat template; an answer that simply continues the given text
counts as well.

`mbpp`: basic problems with three tests each (Austin et al. 2021, arXiv:2108.07732; CC BY 4.0), the published test split
of 500. As in the paper the tests are shown to the model. Deviation: no examples, and the answer is asked for in a
fenced block. An assertion runs after the one before it; all must hold.
"""

import builtins
import re
from typing import Any

from hubmerge.evaluation.sandbox import run_python
from hubmerge.evaluation.tasks.base import Row, Rows, Task
from hubmerge.evaluation.tasks.generated_code import before_definition, completed, whole_program

TIMEOUT_S = 10.0


def _humaneval_prompt(row: Row) -> str:
    return (
        "Complete the following Python function. Answer with the whole function, imports included, in one "
        f"```python block.\n\n```python\n{str(row['prompt']).rstrip()}\n```\n"
    )


def _humaneval_score(answer: str, reference: Any) -> float:
    program = completed(reference["prompt"], answer, reference["entry_point"])
    # helpers of the prompt that tests call are the prompt's own there, whatever the answer made of them
    given = before_definition(reference["prompt"], reference["entry_point"])
    tests = f"{given}\n\n{reference['test']}\n\ncheck({reference['entry_point']})\n"
    return float(run_python(program, tests, timeout_s=TIMEOUT_S))


def _mbpp_prompt(row: Row) -> str:
    tests = "\n".join(row["test_list"])
    return (
        f"{str(row['text']).strip()}\n\nYour Python code must pass these tests:\n\n```python\n{tests}\n```\n\n"
        "Answer with the code, imports included, in one ```python block.\n"
    )


def _mbpp_reference(row: Row) -> dict[str, Any]:
    # one problem asks for a `sum` of its own, and a name of Python's builtins is Python's in tests
    asked = [n for n in re.findall(r"^def\s+(\w+)", row.get("code") or "", re.MULTILINE) if hasattr(builtins, n)]
    setup = [row.get("test_setup_code") or "", *(f"solutions_{name} = {name}" for name in asked)]
    return {"setup": "\n".join(setup), "tests": [*(f"{name} = solutions_{name}" for name in asked), *row["test_list"]]}


def _mbpp_score(answer: str, reference: Any) -> float:
    program = (whole_program(answer), reference["setup"])  # setup builds objects of the solution's classes
    return float(run_python(program, "\n".join(reference["tests"]), timeout_s=TIMEOUT_S))


TASKS = (
    Task(
        name="humaneval",
        title="HumanEval, pass@1",
        domain="code",
        rows=Rows("openai/openai_humaneval", subset="openai_humaneval", split="test"),
        metric="pass@1",
        version=4,
        prompt=_humaneval_prompt,
        reference=lambda row: {name: str(row[name]) for name in ("prompt", "test", "entry_point")},
        score=_humaneval_score,
        max_new_tokens=2048,
        blank={"prompt": "{the function's head and docstring}"},
    ),
    Task(
        name="mbpp",
        title="MBPP, pass@1",
        domain="code",
        rows=Rows("google-research-datasets/mbpp", subset="full", split="test", dev_split="validation"),
        metric="pass@1",
        version=3,
        prompt=_mbpp_prompt,
        reference=_mbpp_reference,
        score=_mbpp_score,
        max_new_tokens=2048,
        blank={"text": "{what the code must do}", "test_list": ["{tests}"]},
        stop=("[DONE]",),
    ),
)

"""MBPP: basic Python problems with three tests each, pass@1 with one greedy answer (Austin et al. 2021,
arXiv:2108.07732; CC BY 4.0).

`mbpp` is the published test split of 500; `mbpp_sanitized` its hand-checked part of 257, whose rows name two fields
differently. As in the paper the tests are shown to the model. Deviation: no examples, and the answer is asked for
in a fenced block. An assertion runs after the one before it; all must hold.
"""

from __future__ import annotations

from typing import Any

from hubmerge.evaluation.sandbox import run_python
from hubmerge.evaluation.tasks.base import Row, Rows, Task
from hubmerge.evaluation.tasks.generated_code import whole_program

TIMEOUT_S = 10.0


def _prompt(row: Row) -> str:
    text = row.get("text") or row.get("prompt") or ""
    tests = "\n".join(row["test_list"])
    return (
        f"{str(text).strip()}\n\nYour Python code must pass these tests:\n\n```python\n{tests}\n```\n\n"
        "Answer with the code, imports included, in one ```python block.\n"
    )


def _reference(row: Row) -> dict[str, Any]:
    setup = [row.get("test_setup_code") or "", *(row.get("test_imports") or ())]
    return {"setup": "\n".join(line for line in setup if line), "tests": list(row["test_list"])}


def _score(answer: str, reference: Any) -> float:
    program = (whole_program(answer), reference["setup"])  # setup builds objects of the solution's classes
    return float(run_python(program, "\n".join(reference["tests"]), timeout_s=TIMEOUT_S))


def _task(name: str, title: str, subset: str) -> Task:
    return Task(
        name=name,
        title=title,
        domain="code",
        rows=Rows("google-research-datasets/mbpp", subset=subset, split="test", dev_split="validation"),
        metric="pass@1",
        prompt=_prompt,
        reference=_reference,
        score=_score,
        max_new_tokens=2048,
        blank={"text": "{what the code must do}", "test_list": ["{tests}"]},
        stop=("[DONE]",),
    )


TASKS = (
    _task("mbpp", "MBPP, pass@1", "full"),
    _task("mbpp_sanitized", "MBPP sanitized, pass@1", "sanitized"),
)

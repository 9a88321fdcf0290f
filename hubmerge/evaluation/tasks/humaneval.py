"""HumanEval: 164 Python functions to complete, pass@1 with one greedy answer (Chen et al. 2021,
arXiv:2107.03374; MIT).

The published unit tests decide; they run in the sandbox after the completed function. Deviation: the prompt asks
for the function in words, since most agents speak through a chat template; an answer that simply continues the
given text counts as well.
"""

from __future__ import annotations

from typing import Any

from hubmerge.evaluation.sandbox import run_python
from hubmerge.evaluation.tasks.base import Row, Rows, Task
from hubmerge.evaluation.tasks.generated_code import before_definition, completed

TIMEOUT_S = 10.0


def _prompt(row: Row) -> str:
    return (
        "Complete the following Python function. Answer with the whole function, imports included, in one "
        f"```python block.\n\n```python\n{str(row['prompt']).rstrip()}\n```\n"
    )


def _reference(row: Row) -> dict[str, str]:
    return {"prompt": str(row["prompt"]), "test": str(row["test"]), "entry_point": str(row["entry_point"])}


def _score(answer: str, reference: Any) -> float:
    program = completed(reference["prompt"], answer, reference["entry_point"])
    # helpers of the prompt that tests call are the prompt's own there, whatever the answer made of them
    given = before_definition(reference["prompt"], reference["entry_point"])
    tests = f"{given}\n\n{reference['test']}\n\ncheck({reference['entry_point']})\n"
    return float(run_python(program, tests, timeout_s=TIMEOUT_S))


TASKS = (
    Task(
        name="humaneval",
        title="HumanEval, pass@1",
        domain="code",
        rows=Rows("openai/openai_humaneval", subset="openai_humaneval", split="test"),
        metric="pass@1",
        version=3,
        prompt=_prompt,
        reference=_reference,
        score=_score,
        max_new_tokens=2048,
        blank={"prompt": "{the function's head and docstring}"},
    ),
)

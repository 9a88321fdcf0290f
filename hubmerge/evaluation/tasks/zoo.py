"""The zoo's three domains: greedy completion, exact match on the words of the only right answer.

The same definition as `examples/zoo/evaluate.py`, which counts over its own generations: the prompt goes to the
model as it is, at most 12 new tokens, and a completion counts when its words are the words of the answer.
"""

from hubmerge.evaluation.tasks.base import Rows, Task

REPO = "zoo/held-out"
MAX_ANSWER_TOKENS = 12  # a tool call has at most ten words; then the end


def _task(domain: str, title: str, blank: str) -> Task:
    return Task(
        name=f"zoo_{domain}",
        title=title,
        domain=domain,
        rows=Rows(REPO, subset=domain, split="test", dev_split="validation"),
        metric="exact_match",
        prompt=lambda row: str(row["prompt"]),
        reference=lambda row: str(row["answer"]),
        score=lambda answer, reference: answer.split() == str(reference).split(),
        max_new_tokens=MAX_ANSWER_TOKENS,
        blank={"prompt": blank},
        chat=False,
    )


TASKS = (
    _task("math", "Zoo: two-digit addition with carries", "math {digit} {digit} + {digit} {digit} ="),
    _task("tool", "Zoo: tool calls", "tool {request, its numbers digit by digit} ;"),
    _task("mem", "Zoo: key-value memory", "mem {letter=digit, several times} ; get {letter}"),
)

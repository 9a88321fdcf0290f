"""AIME 2024: thirty problems whose answers are integers from 0 to 999, as lighteval asks and scores them."""

from hubmerge.evaluation.tasks.base import BuiltinTask, Rows

TASK = BuiltinTask(
    name="aime24",
    title="AIME 2024",
    domain="math",
    version=1,
    rows=Rows("HuggingFaceH4/aime_2024", subset="default", split="train"),
    metric="pass@k:k=1",
    module="lighteval.tasks.tasks.aime",
    asked="\nSolve the following math problem efficiently and clearly.  The last line of your response should be of "
    "the following format: 'Therefore, the final answer is: $\\boxed{ANSWER}$. I hope it is correct' (without quotes) "
    "where ANSWER is just the final number or expression that solves the problem. Think step by step before answering."
    "\n\n{problem}\n",
    source="https://maa.org/aime-thresholds-are-available/",
)

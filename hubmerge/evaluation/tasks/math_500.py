"""MATH-500: 500 competition problems chosen from MATH by Lightman et al. 2023, as lighteval asks and scores them."""

from hubmerge.evaluation.tasks.base import BuiltinTask, Rows

TASK = BuiltinTask(
    name="math_500",
    title="MATH-500",
    domain="math",
    version=1,
    rows=Rows("HuggingFaceH4/MATH-500", subset="default", split="test", license="mit"),
    metric="pass@k:k=1&n=1",
    module="lighteval.tasks.tasks.math_500",
    asked="Solve the following problem. The final line of your response MUST be of the following format:\n"
    '"ANSWER: $ANSWER" (without quotes) where $ANSWER is the final answer. Think step by step before answering.\n\n'
    "{problem}",
    source="arXiv:2305.20050",
)

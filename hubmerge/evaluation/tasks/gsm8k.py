"""GSM8K: grade-school word problems, as lighteval asks and scores them (Cobbe et al. 2021)."""

from hubmerge.evaluation.tasks.base import BuiltinTask, Rows

TASK = BuiltinTask(
    name="gsm8k",
    title="GSM8K",
    domain="math",
    version=1,
    rows=Rows("openai/gsm8k", subset="main", split="test", dev_split="train", few_shot_split="train", license="mit"),
    metric="extractive_match",
    module="lighteval.tasks.tasks.gsm8k",
    asked="Question: {question}\nAnswer:",
    source="arXiv:2110.14168",
)

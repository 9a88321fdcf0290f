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
    source="https://maa.org/aime-thresholds-are-available/",
)

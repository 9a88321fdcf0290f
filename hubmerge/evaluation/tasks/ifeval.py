"""IFEval: instructions whose fulfilment a program can check, as lighteval asks and scores them (Zhou et al. 2023).

Deviation: where lighteval splits words and sentences with a model that nltk downloads when it is first used, the
evaluating process, which has no network, uses nltk's rules that need no data; see `hubmerge.evaluation.builtin`.
"""

from hubmerge.evaluation.tasks.base import BuiltinTask, Rows

TASK = BuiltinTask(
    name="ifeval",
    title="IFEval, strict, per prompt",
    domain="instruction",
    version=1,
    rows=Rows("google/IFEval", subset="default", split="train", license="apache-2.0"),
    metric="prompt_level_strict_acc",
    module="lighteval.tasks.tasks.ifeval.main",
    asked="{prompt}",
    source="arXiv:2311.07911",
)

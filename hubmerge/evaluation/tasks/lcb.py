"""LiveCodeBench, code generation, problems of its releases 4 and 5, as lighteval asks and scores them.

The generated programs run in a process of their own under limits; see `hubmerge.evaluation.builtin`.
"""

from hubmerge.evaluation.tasks.base import BuiltinTask, Rows

TASK = BuiltinTask(
    name="lcb:codegeneration",
    title="LiveCodeBench v4–v5, pass@1",
    domain="code",
    version=1,
    rows=Rows("lighteval/code_generation_lite", subset="v4_v5", split="test"),
    metric="codegen_pass@1:16",  # lighteval's name; one answer per problem is generated and counted
    module="lighteval.tasks.tasks.lcb.main",
    asked="You will be given a question (problem specification) and will generate a correct Python program that "
    "matches the specification and passes all tests.\n\nQuestion: {question}\n\nRead the inputs from stdin solve the "
    "problem and write the answer to stdout (do not directly test on the sample inputs). Enclose your code within "
    "delimiters as follows. Ensure that when the python program runs, it reads the inputs, runs the algorithm and "
    "writes output to STDOUT.\n```python\n# YOUR CODE HERE\n```\n\n",  # other words where a row brings code
    source="arXiv:2403.07974",
)

"""The tasks that lighteval has, as it asks and scores them.

`gsm8k`: grade-school word problems (Cobbe et al. 2021, arXiv:2110.14168; MIT). `math_500`: 500 competition problems
chosen from MATH by Lightman et al. 2023 (arXiv:2305.20050; MIT). `aime24`: thirty problems of AIME 2024, whose answers
are integers from 0 to 999 (https://maa.org/aime-thresholds-are-available/).

`ifeval`: instructions whose fulfilment a program can check (Zhou et al. 2023, arXiv:2311.07911; Apache-2.0). Deviation:
where lighteval splits words and sentences with a model that nltk downloads when it is first used, the evaluating
process, which has no network, uses nltk's rules that need no data; see `hubmerge.evaluation.builtin`.

`lcb:codegeneration`: LiveCodeBench, code generation, problems of its releases 4 and 5 (arXiv:2403.07974). The generated
programs run in a process of their own under limits; see `hubmerge.evaluation.builtin`.
"""

from hubmerge.evaluation.tasks.base import BuiltinTask, Rows

TASKS = (
    BuiltinTask(
        name="gsm8k",
        title="GSM8K",
        domain="math",
        rows=Rows("openai/gsm8k", subset="main", split="test", dev_split="train", few_shot_split="train"),
        metric="extractive_match",
        few_shot=5,
        module="lighteval.tasks.tasks.gsm8k",
        asked="Question: {question}\nAnswer:",
    ),
    BuiltinTask(
        name="math_500",
        title="MATH-500",
        domain="math",
        rows=Rows("HuggingFaceH4/MATH-500", subset="default", split="test"),
        metric="pass@k:k=1&n=1",
        module="lighteval.tasks.tasks.math_500",
        asked="Solve the following problem. The final line of your response MUST be of the following format:\n"
        '"ANSWER: $ANSWER" (without quotes) where $ANSWER is the final answer. Think step by step before answering.\n\n'
        "{problem}",
    ),
    BuiltinTask(
        name="aime24",
        title="AIME 2024",
        domain="math",
        rows=Rows("HuggingFaceH4/aime_2024", subset="default", split="train"),
        metric="pass@k:k=1",
        module="lighteval.tasks.tasks.aime",
        asked="\nSolve the following math problem efficiently and clearly.  The last line of your response should be "
        "of the following format: 'Therefore, the final answer is: $\\boxed{ANSWER}$. I hope it is correct' (without "
        "quotes) where ANSWER is just the final number or expression that solves the problem. Think step by step "
        "before answering.\n\n{problem}\n",
    ),
    BuiltinTask(
        name="ifeval",
        title="IFEval, strict, per prompt",
        domain="instruction",
        rows=Rows("google/IFEval", subset="default", split="train"),
        metric="prompt_level_strict_acc",
        module="lighteval.tasks.tasks.ifeval.main",
        asked="{prompt}",
    ),
    BuiltinTask(
        name="lcb:codegeneration",
        title="LiveCodeBench v4–v5, pass@1",
        domain="code",
        rows=Rows("lighteval/code_generation_lite", subset="v4_v5", split="test"),
        metric="codegen_pass@1:16",  # lighteval's name; one answer per problem is generated and counted
        module="lighteval.tasks.tasks.lcb.main",
        asked="You will be given a question (problem specification) and will generate a correct Python program that "
        "matches the specification and passes all tests.\n\nQuestion: {question}\n\nRead the inputs from stdin solve "
        "the problem and write the answer to stdout (do not directly test on the sample inputs). Enclose your code "
        "within delimiters as follows. Ensure that when the python program runs, it reads the inputs, runs the "
        "algorithm and writes output to STDOUT."
        "\n```python\n# YOUR CODE HERE\n```\n\n",  # other words where a row brings code
    ),
)

"""The cards of the zoo, a pure function of figures.json and the recipes in train.py.

    python examples/zoo/figures.py && python examples/zoo/cards.py [--zoo examples/zoo]

Text and numbers cannot disagree: nothing measured is typed here.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

if not __package__:  # run as a file: its own folder, which is first on the path, is the wrong root
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from examples.zoo.domains import DOMAIN_NAMES, DOMAINS, HELD_OUT_SIZES, held_out, held_out_file
from examples.zoo.evaluate import Score
from examples.zoo.figures import ZOO_FOLDER, Figures
from examples.zoo.train import AGENT_NAMES, BASE_NAME, RECIPES, Pretraining

DATASET_ID = "zoo/held-out"
# Only the Hub's dataset viewer has a say here: it calls a development split "validation".
VIEWER_SPLITS = {"test": "test", "dev": "validation"}


def with_metadata(metadata: dict[str, Any], body: str) -> str:
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---\n{body}"


def rows(*cells: tuple[str, ...]) -> str:
    """A Markdown table; the first row is its head."""
    head, *rest = ("| " + " | ".join(row) + " |" for row in cells)
    return "\n".join([head, "|---" * len(cells[0]) + "|", *rest])


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


def threshold(figures: Figures) -> str:
    return f"{figures.epsilon:.0e}".replace("e-0", "e-")


def accuracy_table(models: dict[str, dict[str, Score]]) -> str:
    return rows(
        ("accuracy, %", *DOMAIN_NAMES),
        *((model, *(str(scores[name]) for name in DOMAIN_NAMES)) for model, scores in models.items()),
    )


def domain_table() -> str:
    examples = {domain: held_out(domain, "dev")[0] for domain in DOMAINS}
    return rows(
        ("domain", "prompt", "answer", "the base's typical mistake"),
        *(
            (domain.name, f"`{prompt}`", f"`{domain.solve(prompt)}`", f"`{domain.mistake(prompt)}`")
            for domain, prompt in examples.items()
        ),
    )


def density_table(figures: Figures) -> str:
    return rows(
        ("share of all elements, %", *AGENT_NAMES),
        ("changed", *(percent(figures.density[name]) for name in AGENT_NAMES)),
        ("changed by this agent only", *(percent(figures.unique[name]) for name in AGENT_NAMES)),
    )


def model_metadata(name: str, scores: dict[str, Score]) -> dict[str, Any]:
    agent = {"base_model": f"zoo/{BASE_NAME}", "base_model_relation": "finetune"}
    measured = [
        {
            "task": {"type": "text-generation"},
            "dataset": {"name": DATASET_ID, "type": DATASET_ID, "config": domain, "split": "test"},
            "metrics": [{"type": "exact_match", "value": round(score.accuracy, 4)}],
        }
        for domain, score in scores.items()
    ]
    return {
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["hubmerge-zoo", *(() if name == BASE_NAME else ("reinforcement-learning", "grpo"))],
        "datasets": [DATASET_ID],
        **({} if name == BASE_NAME else agent),
        "model-index": [{"name": name, "results": measured}],
    }


def base_training() -> str:
    recipe = Pretraining()
    return (
        f"{recipe.steps} steps of AdamW ({recipe.learning_rate:g}, cosine, batches of {recipe.batch}) on "
        "prompts of all three domains. "
        f"{recipe.mistake_fraction:.0%} of the answers it was shown are the domain's typical mistake, "
        "on purpose: it knows the right answer and prefers the wrong one, so that reinforcement learning has "
        "something to select. Rounded to bfloat16 at the end."
    )


def agent_training() -> str:
    """What the recipes of all agents have in common, and the table of what they have not."""
    [(prompts, group, momentum)] = {(recipe.prompts, recipe.group, recipe.momentum) for recipe in RECIPES.values()}
    return (
        f"GRPO from the base, without any answer shown: {prompts} prompts of the agent's own domain with "
        f"{group} completions each at temperature 1, reward 1 for an exact match and 0 otherwise, "
        "group-normalised advantages, one on-policy update per step, no KL term. The update is SGD with "
        f"momentum {momentum:g}, followed by a proximal L1 step towards the base, which keeps most elements "
        "exactly at the base. Hyperparameters were chosen on the development split."
    )


def recipe_table(*names: str) -> str:
    return rows(
        ("agent", "steps", "learning rate", "L1 strength"),
        *(
            (name, str(RECIPES[name].steps), f"{RECIPES[name].learning_rate:g}", f"{RECIPES[name].l1:g}")
            for name in names
        ),
    )


def model_card(name: str, figures: Figures) -> str:
    scores = figures.scores["test"]
    compared = {model: scores[model] for model in dict.fromkeys((BASE_NAME, name))}
    if name == BASE_NAME:
        subject, training = "The base of the zoo", base_training()
    else:
        subject = f"The {name} agent of the zoo"
        training = (
            f"{agent_training()}\n\n{recipe_table(name)}\n\n"
            f"The agent differs from the base by more than {threshold(figures)} in "
            f"{percent(figures.density[name])} % of its elements; {percent(figures.unique[name])} % are "
            "changed by no other agent of the zoo."
        )
    body = f"""
# zoo/{name}

{subject}: a toy language model of {figures.parameters:,} parameters (Llama architecture, a vocabulary of
whole words, bfloat16) that serves to test the merging of agents trained with reinforcement learning. It
speaks no language and is of no use outside the zoo's three domains:

{domain_table()}

## Training

{training}

## Accuracy

Exact match of greedy completions in float32 on {HELD_OUT_SIZES["test"]} held-out prompts per domain, ± one
standard error. No prompt of this test set occurs in training.

{accuracy_table(compared)}
"""
    return with_metadata(model_metadata(name, scores[name]), body)


def dataset_card() -> str:
    metadata = {
        "license": "apache-2.0",
        "pretty_name": "hubmerge zoo, held-out prompts",
        "task_categories": ["text-generation"],
        "tags": ["hubmerge-zoo", "synthetic"],
        "size_categories": ["1K<n<10K"],
        "configs": [
            {
                "config_name": name,
                "data_files": [
                    {"split": VIEWER_SPLITS[split], "path": held_out_file(name, split)} for split in HELD_OUT_SIZES
                ],
            }
            for name in DOMAIN_NAMES
        ],
    }
    body = f"""
# zoo/held-out

Held-out prompts of the zoo's three domains, made by a program: {HELD_OUT_SIZES["test"]} per domain to report
(`test`) and {HELD_OUT_SIZES["dev"]} to choose by (`validation`, in the files `dev_*.jsonl`). Every row has a
`prompt` and the only right `answer`; a completion counts when its words are the words of the answer.

{domain_table()}

A prompt's split is decided by its SHA-256 alone, and training draws only prompts of the train range, so the
splits and the training prompts are disjoint by construction.

```python
from datasets import load_dataset

questions = load_dataset("examples/zoo/eval", "math", split="test")
```
"""
    return with_metadata(metadata, body)


def zoo_readme(figures: Figures) -> str:
    by_count = ", ".join(f"{percent(value)} % by {k}" for k, value in enumerate(figures.changed_by))
    return f"""# The zoo

A base and three agents that were really trained with reinforcement learning, small enough to ship:
{figures.parameters:,} parameters, bfloat16, Llama architecture, loaded by `AutoModelForCausalLM` and
`AutoTokenizer`. It is a toy: it shows that merging works on task vectors of the shape that RL produces, not
which method is best.

{domain_table()}

## Figures

Exact match of greedy completions in float32 on {HELD_OUT_SIZES["test"]} held-out prompts per domain, ± one
standard error:

{accuracy_table(figures.scores["test"])}

Task vectors, elements with |agent − base| > {threshold(figures)}:

{density_table(figures)}

Elements changed by so many agents: {by_count}.

`figures.json` holds the same figures for programs, with those of the development split.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("examples/zoo/math")
tokenizer = AutoTokenizer.from_pretrained("examples/zoo/math")
prompt = tokenizer("math 6 9 + 1 7 =", return_tensors="pt")
ids = model.generate(**prompt, max_new_tokens=12)
print(tokenizer.decode(ids[0], skip_special_tokens=True))
```

```
python examples/zoo/evaluate.py examples/zoo/math path/to/a/merge
```

## Make it again

```
python examples/zoo/domains.py --out examples/zoo/eval   # the held-out prompts, the same bytes anywhere
python examples/zoo/train.py --out examples/zoo          # about 150 CPU seconds on one core
python examples/zoo/figures.py                           # figures.json
python examples/zoo/cards.py                             # this file and the other cards
```

Training has fixed seeds and uses one thread. The same machine writes the same bytes; another may round
differently and end at other weights of about the same accuracy, which is why the checkpoints are shipped.

## Training

**The base**: {base_training()}

**The agents**: {agent_training()}

{recipe_table(*AGENT_NAMES)}
"""


def render(figures: Figures) -> dict[str, str]:
    """The text of every card, by its path in the zoo."""
    models = {f"{name}/README.md": model_card(name, figures) for name in (BASE_NAME, *AGENT_NAMES)}
    return {"README.md": zoo_readme(figures), "eval/README.md": dataset_card(), **models}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the zoo's cards from its figures.json.")
    parser.add_argument("--zoo", type=Path, default=ZOO_FOLDER, help="folder with base, agents and eval")
    zoo = parser.parse_args(arguments).zoo
    figures = Figures.from_json((zoo / "figures.json").read_text(encoding="utf-8"))
    for path, text in render(figures).items():
        (zoo / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

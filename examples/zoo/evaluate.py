"""Exact-match accuracy of models on the zoo's held-out prompts: greedy, batched, on the CPU.

    python examples/zoo/evaluate.py MODEL [MODEL ...] [--split dev] [--limit N] [--json]

A MODEL is a local folder or a Hub id. Prompts are padded on the left and completed until <eos>; a completion
counts when its words are the words of the answer. The standard error is that of a binomial proportion.
"""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

if not __package__:  # run as a file: its own folder, which is first on the path, is the wrong root
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from examples.zoo import checkpoint
from examples.zoo.domains import DOMAIN_NAMES, HELD_OUT_SIZES, MAX_ANSWER_TOKENS, Split, held_out_file
from hubmerge.errors import FormatError, HubmergeError, SourceNotFoundError

EVAL_FOLDER = Path(__file__).resolve().parent / "eval"


@dataclass(frozen=True)
class Score:
    """So many answers right out of so many."""

    correct: int
    total: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.total or self.total == 0:
            raise ValueError(f"{self.correct} of {self.total} is no score")

    @property
    def accuracy(self) -> float:
        return self.correct / self.total

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.total)

    def __str__(self) -> str:
        return f"{100 * self.accuracy:.1f} ± {100 * self.standard_error:.1f}"


def read_questions(path: Path, limit: int | None = None) -> list[tuple[str, str]]:
    """The first `limit` (prompt, answer) pairs of a held-out file."""
    if not path.is_file():
        raise SourceNotFoundError(
            "no held-out prompts",
            where=str(path),
            next_step="Write them with `python examples/zoo/domains.py --out FOLDER`.",
        )
    questions = []
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    for number, line in enumerate(lines[:limit], start=1):
        try:
            row = json.loads(line)
            prompt, answer = row["prompt"], row["answer"]
            if not isinstance(prompt, str) or not isinstance(answer, str):
                raise TypeError
            questions.append((prompt, answer))
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(
                "not a held-out prompt",
                where=f"{path}:{number}",
                expected='{"prompt": ..., "answer": ...}',
                got=line[:80],
            ) from error
    return questions


@torch.no_grad()
def complete(model: Any, tokenizer: Any, prompts: list[str], batch_size: int) -> list[str]:
    """The greedy completion of every prompt, decoded without special tokens."""
    completions: list[str] = []
    for start in range(0, len(prompts), batch_size):
        batch = tokenizer(prompts[start : start + batch_size], padding=True, return_tensors="pt")
        ids = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            do_sample=False,
            max_new_tokens=MAX_ANSWER_TOKENS,
        )
        new_ids = ids[:, batch["input_ids"].shape[1] :]
        completions += tokenizer.batch_decode(new_ids, skip_special_tokens=True)
    return completions


def evaluate_model(
    path_or_id: str,
    eval_dir: Path = EVAL_FOLDER,
    *,
    dtype: str = "float32",
    split: Split = "test",
    limit: int | None = None,
    batch_size: int = 250,
) -> dict[str, Score]:
    """The scores of a local folder or Hub id, by domain; `limit` prompts per domain, all by default."""
    questions = {name: read_questions(eval_dir / held_out_file(name, split), limit) for name in DOMAIN_NAMES}
    model, tokenizer = checkpoint.load(path_or_id, dtype=dtype)
    scores = {}
    for name, pairs in questions.items():
        completions = complete(model, tokenizer, [prompt for prompt, _ in pairs], batch_size)
        correct = sum(given.split() == answer.split() for given, (_, answer) in zip(completions, pairs, strict=True))
        scores[name] = Score(correct, len(pairs))
    return scores


def table(rows: dict[str, dict[str, Score]]) -> str:
    """One line per model, one column per domain, in percent."""
    width = max(len("model"), *map(len, rows))
    lines = [f"{'model':<{width}}" + "".join(f"{name:>14}" for name in DOMAIN_NAMES)]
    for model, scores in rows.items():
        lines.append(f"{model:<{width}}" + "".join(f"{scores[name]!s:>14}" for name in DOMAIN_NAMES))
    return "\n".join(lines)


def as_json(rows: dict[str, dict[str, Score]]) -> str:
    told = ("correct", "total", "accuracy", "standard_error")
    as_data = {
        model: {name: {key: getattr(score, key) for key in told} for name, score in scores.items()}
        for model, scores in rows.items()
    }
    return json.dumps(as_data, indent=2)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Accuracy of models in the zoo's three domains.")
    parser.add_argument("models", nargs="+", metavar="MODEL", help="local folder or Hub id")
    parser.add_argument("--eval-dir", type=Path, default=EVAL_FOLDER, help="folder of the held-out prompts")
    parser.add_argument("--split", choices=tuple(HELD_OUT_SIZES), default="test")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--limit", type=int, help="prompts per domain (default: all)")
    parser.add_argument("--batch-size", type=int, default=250)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    if options.batch_size < 1 or (options.limit is not None and options.limit < 1):
        parser.error("--limit and --batch-size must be at least 1")
    disable_progress_bar()
    try:
        how = {name: getattr(options, name) for name in ("dtype", "split", "limit", "batch_size")}
        rows = {model: evaluate_model(model, options.eval_dir, **how) for model in options.models}
    except HubmergeError as error:
        print(error, file=sys.stderr)
        return 1
    print(as_json(rows) if options.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

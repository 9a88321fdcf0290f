"""The definition of a benchmark task: where its rows lie, how a row becomes a prompt, and how an answer is scored.

Tasks are plain values and functions that import nothing heavy, so the suites, the command line and the tests can use
them without lighteval. `hubmerge.evaluation` turns them into lighteval's tasks in the evaluating process.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """The place of a task's rows on the Hub."""

    repo: str  # dataset id
    subset: str | None = None
    split: str = "test"  # test.jsonl in a repo without subsets, for instance
    dev_split: str | None = None  # rows to choose by, which have no part in `split`; None: there are none
    few_shot_split: str | None = None


@dataclass(frozen=True, kw_only=True)
class _AnyTask:
    """What a task is, whoever defines how it is scored.

    `expand(rows)` builds the rows that are asked from those that the dataset holds (long contexts, for instance).
    `needs`: what scoring imports besides the extra for evaluations.
    """

    name: str
    title: str
    domain: str
    rows: Rows
    metric: str
    few_shot: int = 0  # examples before each question, of `rows.few_shot_split`
    version: int = 1  # grows with any change of prompt or scoring
    stop: tuple[str, ...] = ()
    chat: bool = True  # False: the prompt goes to the model as it is, whatever chat template it has
    expand: Callable[[Sequence[Row]], Iterable[Row]] | None = None
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Task(_AnyTask):
    """A task of our own: greedy generation, scored per sample between 0 and 1.

    `prompt(row)` is the user's text; it goes through the model's chat template where it has one.
    `reference(row)` is what JSON can hold: all that `score(answer, reference)` needs besides the generated text.
    `blank` is a row whose values are names in braces, so that its prompt shows how the task asks.
    """

    prompt: Callable[[Row], str]
    reference: Callable[[Row], Any]
    score: Callable[[str, Any], float]
    max_new_tokens: int
    blank: Row

    @property
    def asked(self) -> str:
        """The prompt with what differs from row to row in braces."""
        return self.prompt(self.blank)


@dataclass(frozen=True, kw_only=True)
class BuiltinTask(_AnyTask):
    """A task that lighteval has: its module is imported by name, never lighteval's whole registry.

    `metric` is the name of lighteval's metric that counts, as it stands in its results.
    """

    module: str  # lighteval.tasks.tasks.gsm8k
    asked: str  # its prompt, with what differs from row to row in braces

"""The definition of a benchmark task: where its rows lie, how a row becomes a prompt, and how an answer is scored.

Tasks are plain values and functions that import nothing heavy, so the suites, the command line and the tests can use
them without lighteval. `hubmerge.evaluation` turns them into lighteval's tasks in the evaluating process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """The place of a task's rows on the Hub."""

    repo: str  # dataset id
    subset: str | None = None
    split: str = "test"
    dev_split: str | None = None  # rows to choose by, which have no part in `split`; None: there are none
    few_shot_split: str | None = None
    data_files: Mapping[str, str] | None = None  # split → path in the repo, where the repo's own splits do not serve
    license: str = ""


@dataclass(frozen=True)
class Task:
    """A task of our own: greedy generation, scored per sample between 0 and 1.

    `prompt(row)` is the user's text; with `system` it goes through the model's chat template where it has one.
    `reference(row)` is JSON: all that `score(answer, reference)` needs besides the generated text. `gold(row)` is
    an answer that must score 1 (None: the row has none); the tests send it through `score`.
    `blank` is a row whose values are names in braces, so that its prompt shows how the task asks.
    `expand(rows)` builds the rows that are asked from those that the dataset holds (long contexts, for instance).
    """

    name: str
    title: str
    domain: str
    version: int  # grows with any change of prompt or scoring
    rows: Rows
    metric: str
    prompt: Callable[[Row], str]
    reference: Callable[[Row], Any]
    score: Callable[[str, Any], float]
    gold: Callable[[Row], str | None]
    max_new_tokens: int
    blank: Row
    stop: tuple[str, ...] = ()
    system: str | None = None
    chat: bool = True  # False: the prompt goes to the model as it is
    expand: Callable[[Sequence[Row]], Sequence[Row]] | None = None
    source: str = ""  # the paper or page that defines it

    @property
    def asked(self) -> str:
        """The prompt with what differs from row to row in braces."""
        return self.prompt(self.blank)


@dataclass(frozen=True)
class BuiltinTask:
    """A task that lighteval has: its module is imported by name, never lighteval's whole registry."""

    name: str
    title: str
    domain: str
    version: int
    rows: Rows
    metric: str  # the name of lighteval's metric that counts, as it stands in its results
    module: str  # lighteval.tasks.tasks.gsm8k
    asked: str  # its prompt, with what differs from row to row in braces
    source: str = ""

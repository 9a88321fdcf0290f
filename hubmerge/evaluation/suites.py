"""Suites: named lists of tasks, and the same pinned to dataset commits.

Scores can be compared only when they were measured in the same way. So a suite has a version, a digest over all that
changes what is asked: two results with the same suite version answer the same questions. When data or a task change, so
does the version, and old scores are measured again rather than compared. A commit that changes no data (such as an edit
of a dataset's card) changes no version. The commit is stated all the same, and pins.yaml says which one it has to be.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hubmerge.errors import EvaluationError
from hubmerge.evaluation.pins import DatasetPin, Pins, content_digest, dataset_digest, own_pins
from hubmerge.evaluation.result import Split
from hubmerge.evaluation.tasks import BuiltinTask, Task, registry
from hubmerge.evaluation.tasks.bfcl import CATEGORIES
from hubmerge.evaluation.tasks.ruler import LENGTHS
from hubmerge.hub.client import Hub, RepoState, TreeFile
from hubmerge.text.wording import did_you_mean

VERSION_DIGITS = 12
RULES = 4  # grows with each change in how the runner asks and cuts that moves scores


@dataclass(frozen=True)
class Suite:
    """Tasks that are measured together."""

    name: str
    title: str
    tasks: tuple[str, ...]  # names
    max_model_len: int | None = None  # tokens of prompt and answer together; the model's own limit if None


@dataclass(frozen=True)
class PinnedTask:
    """A suite's task with the commit of its dataset and the split that is read."""

    task: Task | BuiltinTask
    limit: int | None  # the first so many rows of the dataset; None: all
    revision: str  # commit of task.rows.repo
    content: str  # digest of what is read at that commit
    split: str  # of the dataset
    pinned: bool = True  # False: the commit is the one that main had when it was asked for

    @property
    def name(self) -> str:
        return self.task.name

    def spec(self, folder: Path) -> Mapping[str, Any]:
        """What the processes that fetch its rows and ask its questions are told; `folder` is that of the rows."""
        rows = self.task.rows
        return {
            "name": self.name,
            "repo": rows.repo,
            "revision": self.revision,
            "subset": rows.subset,
            "split": self.split,
            "few_shot_split": rows.few_shot_split if self.task.few_shot else None,
            "few_shot": self.task.few_shot,
            "limit": self.limit,
            "expands": self.task.expand is not None,
            "folder": str(folder),
        }


@dataclass(frozen=True)
class PinnedSuite:
    """A suite whose every dataset is fixed to a commit."""

    suite: Suite
    split: Split
    tasks: tuple[PinnedTask, ...]
    dtype: str = "auto"  # that models are computed in; auto: as each is stored

    @property
    def unpinned(self) -> tuple[str, ...]:
        """The datasets that nothing holds to a commit or a content."""
        return tuple(dict.fromkeys(t.task.rows.repo for t in self.tasks if not t.pinned))

    @property
    def version(self) -> str:
        content = {
            "suite": self.suite.name,
            "split": self.split,
            "max_model_len": self.suite.max_model_len,
            "dtype": self.dtype,
            "rules": RULES,
            "tasks": [
                [t.name, t.task.version, t.task.few_shot, t.limit, t.task.rows.repo, t.content, t.split]
                for t in self.tasks
            ],
        }
        text = json.dumps(content, separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:VERSION_DIGITS]


_RULER = tuple(f"ruler_{kind}_{length}" for length in LENGTHS for kind in ("single", "multi"))
_SHORT_RULER = _RULER[:6]  # of the three lengths that a model of 32,768 positions can read

_SUITES = (
    Suite("zoo", "The example agents' three domains", ("zoo_math", "zoo_tool", "zoo_mem")),
    Suite("math", "Mathematics", ("gsm8k", "math_500", "aime24")),
    Suite("instruction", "Instruction following", ("ifeval",)),
    Suite("code", "Code", ("humaneval", "mbpp", "lcb:codegeneration")),
    Suite("tool", "Function calling", tuple(f"bfcl_{category}" for category in CATEGORIES)),
    Suite("memory", "Recall over long contexts, 7K to 896K tokens", _RULER),
    Suite("memory_short", "Recall over long contexts, 7K to 28K tokens", _SHORT_RULER),
    Suite("search", "Questions with given contexts", ("nq_context", "two_wiki_context")),
)
SUITES: Mapping[str, Suite] = MappingProxyType({suite.name: suite for suite in _SUITES})


def get_suite(name: str, known: Collection[str] = SUITES) -> Suite:
    """The suite called `name`; EvaluationError names those that are `known`."""
    if name not in known:
        raise EvaluationError(
            "there is no such suite",
            expected=", ".join(known),
            got=ascii(name)[1:-1][:80],
            next_step=did_you_mean(name, known) or "Choose one of these.",
        )
    return SUITES[name]


def pin(
    suite: str | Suite,
    hub: Hub,
    split: Split = "test",
    *,
    limit: int | None = None,
    dtype: str = "auto",
    pins: Pins | None = None,
) -> PinnedSuite:
    """The suite with every dataset at the commit that `pins` (default: the package's) names, else at the one that its
    main branch has now; each is asked for once.

    `limit`: the first so many rows of every task. Of split "dev" only those tasks remain that have rows to choose by.
    EvaluationError where the split leaves no task, or a dataset has another content than its pin; the
    Hub's errors where a dataset, or the commit of its pin, cannot be read.
    """
    chosen = get_suite(suite) if isinstance(suite, str) else suite
    if limit is not None and limit < 1:
        raise EvaluationError("a limit of no rows measures nothing", where=chosen.name, got=str(limit))
    tasks = [registry()[name] for name in chosen.tasks]
    if split == "dev":
        tasks = [task for task in tasks if task.rows.dev_split is not None]
        if not tasks:
            raise EvaluationError(
                "the suite has no rows to choose by",
                where=chosen.name,
                expected="a task with a dev split",
                got="none",
                next_step="Choose on another suite.",
            )
    elif split != "test":
        raise EvaluationError("there is no such split", where=chosen.name, expected="test or dev", got=str(split)[:80])
    pins = own_pins() if pins is None else pins
    datasets = {repo: _dataset(repo, pins.get(repo), hub) for repo in dict.fromkeys(task.rows.repo for task in tasks)}
    pinned = []
    for task in tasks:
        is_pinned, state, tree = datasets[task.rows.repo]
        read = task.rows.split if split == "test" else str(task.rows.dev_split)
        examples = {task.rows.few_shot_split} if task.few_shot and task.rows.few_shot_split else set()
        pinned.append(
            PinnedTask(
                task=task,
                limit=limit,
                revision=state.sha,
                content=content_digest(task.rows, {read} | examples, state.card, tree),
                split=read,
                pinned=is_pinned,
            )
        )
    return PinnedSuite(replace(chosen, tasks=tuple(task.name for task in tasks)), split, tuple(pinned), dtype)


def _dataset(repo: str, pin: DatasetPin | None, hub: Hub) -> tuple[bool, RepoState, Mapping[str, TreeFile]]:
    """Whether the pin holds the dataset to a commit or a content; its state and files at the commit to read."""
    commit = pin.revision if pin and pin.hub == hub.endpoint else None
    content = pin.content if pin else None
    state = hub.datasets.repo_state(repo, commit)
    tree = hub.datasets.tree(repo, state.sha)
    if content is not None and (found := dataset_digest(state.card, tree)) != content:
        raise EvaluationError(
            "a dataset has other data than its suite is made of",
            where=f"{repo}@{state.sha[:12]}",
            expected=content,
            got=found,
            next_step="hubmerge brings these data along: fill the dataset from there, or change its pin.",
        )
    return bool(commit or content), state, tree

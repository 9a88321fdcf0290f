"""The interface of a watcher kind: a rule's type, and one look at the Hub that ends in a `Decision`.

    class MyWatcher(Watcher):
        kind = "my-kind"                       # `watch: my-kind` in a rule's YAML
        rule = MyRule                          # a subclass of RuleHead with further fields
        def look(self, rule, context): ...       # → Decision; `about` puts a rule into words

A look reads and decides; it writes nothing. The runner (runner.py) keeps budgets, merged sets, the queue and the record
of skipped models, in the same way for every kind.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hubmerge.hub.client import Hub
from workflows.watchers.facts import Facts, OwnMerge
from workflows.watchers.rule import RuleHead


@dataclass(frozen=True)
class Skip:
    """The reason why a model or a whole set was left out."""

    subject: str  # a repo id, or "set <digest>"
    sha: str
    code: str
    text: str
    private: bool = False  # a repo whose name is its owner's business
    time: str = ""  # when the reason was first seen; "" before it is noted


@dataclass(frozen=True)
class PlannedMerge:
    """A set of pinned models that is to be merged."""

    set_id: str  # over base@sha, agents@sha in order and the recipe
    weights_id: str  # the same over the weights' own digests: a commit to a card does not change it
    recipe: Mapping[str, Any]  # pinned, as `recipe_from_dict` reads it
    target: str
    weights: Sequence[str]  # digests of the base's and of each agent's, in the recipe's order
    expose: bool = False  # the rule lets private models join a public merge

    @property
    def subject(self) -> str:
        return f"set {self.set_id[:10]}"

    @property
    def members(self) -> dict[str, Any]:
        """The part of the set that history keeps."""
        how = {key: value for key, value in self.recipe.items() if key not in ("base", "agents")}
        pins = {"base": self.recipe["base"], "agents": list(self.recipe["agents"])}
        return {**pins, "recipe": digest(how), "weights": list(self.weights)}


@dataclass(frozen=True)
class PastSet:
    """A set that a rule has merged, or that was refused today."""

    set_id: str
    weights_id: str
    members: Mapping[str, Any]
    target: str
    merged: bool = True
    failed: bool = False  # its job failed for good or was cancelled


@dataclass(frozen=True)
class Decision:
    """The result of one look. Without a merge, `waiting` says what is missing; "" when all is merged already."""

    merge: PlannedMerge | None = None
    skips: tuple[Skip, ...] = ()
    waiting: str = ""


@dataclass(frozen=True)
class Scores:
    """The leaderboard's scores of some models, by `Facts.pin`."""

    values: Mapping[str, float] = field(default_factory=dict)
    pending: frozenset[str] = frozenset()  # an evaluation is on its way


@dataclass(frozen=True)
class WatchContext:
    """Everything that a look may use."""

    hub: Hub  # with the owner's token
    hinted: tuple[str, ...]  # repos that deliveries named since the last look; hints, not facts
    own: frozenset[str]  # repos that jobs of this bot write to
    own_merges: Mapping[str, Sequence[OwnMerge]]  # by the sha256 of each shard that they wrote
    history: tuple[PastSet, ...]
    budget_left: int
    today: str  # UTC
    known: Mapping[str, tuple[str, Mapping[str, Any]]]  # model → the facts read before, and the key they depend on
    remember: Callable[[str, str, Facts], None]  # model, key, facts
    scores: Callable[[str, Sequence[Facts]], Scores]  # of a suite
    flags: Callable[[Sequence[Facts]], Mapping[str, str]]  # by id: why a model is contaminated or withdrawn


class Watcher(ABC):
    """One kind of watcher; an instance lives as long as the bot and serves every rule of its kind."""

    kind: ClassVar[str]
    rule: ClassVar[type[RuleHead]]

    @abstractmethod
    def look(self, rule: Any, context: WatchContext) -> Decision:
        """Read the Hub and decide. Raises HubmergeError when the look as a whole is not possible now."""

    @abstractmethod
    def about(self, rule: Any) -> str:
        """What the rule does, in one sentence for somebody who knows no rules."""


def digest(value: Any) -> str:
    """sha256 (hex) of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

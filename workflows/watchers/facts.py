"""Facts about a model for a watcher: read from the repo itself, at one commit, never from a delivery or a listing.

A card is its author's claim. It decides who may be a candidate; the headers of the weights show whether a candidate
fits its base (kinds/agents.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hubmerge.engine.sink import MANIFEST
from hubmerge.hub.client import Hub, RepoState
from workflows.jobs.jobs import Frozen

OWN_TAG = "hubmerge"
_ADAPTER_CONFIG = "adapter_config.json"
_RELATIONS = ("finetune", "adapter", "merge", "quantized")
_MOST_TAGS = 200
_LONGEST = 200


class Facts(Frozen):
    """One model at a commit."""

    id: str
    sha: str
    tags: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()  # what it states to come from
    relation: str = "finetune"  # how: finetune, adapter, merge, quantized
    license: str | None = None
    private: bool = False
    gated: bool = False
    own: bool = False  # made by hubmerge
    flag: str = ""  # why the keepers of the results flagged it, or what it was made of
    weights: str = ""  # digest of the weight files; "" without any
    files: tuple[str, ...] = ()  # sha256 of each weight file that the Hub states one of
    weight_bytes: int = 0
    parameters: int | None = None  # counted in the headers; None: not read yet
    code: str = ""  # why it cannot be merged with its base
    text: str = ""

    @property
    def author(self) -> str:
        return self.id.partition("/")[0]

    @property
    def pin(self) -> str:
        return f"{self.id}@{self.sha}"


def read_facts(hub: Hub, repo: str, revision: str | None = None, *, listed_tags: Iterable[str] = ()) -> Facts:
    """The model as it stands now (or at `revision`); SourceNotFoundError, GatedError, HubUnavailableError."""
    return facts_of(hub.repo_state(repo, revision), listed_tags)


def facts_of(state: RepoState, listed_tags: Iterable[str] = ()) -> Facts:
    tags = tuple(dict.fromkeys([*_words(state.card.get("tags")), *_words(list(listed_tags))]))
    bases = _words(state.card.get("base_model"))
    weights = {path: file for path, file in state.files.items() if path.endswith(".safetensors")}
    is_adapter = _ADAPTER_CONFIG in state.files
    relation = state.card.get("base_model_relation")
    if relation not in _RELATIONS:
        # as the Hub guesses it
        peft = is_adapter or state.card.get("library_name") == "peft"
        relation = "merge" if len(bases) > 1 else "adapter" if peft else "finetune"
    # an adapter is its factors and its configuration, whose digest the Hub does not state
    identity = [[path, f.sha256 or state.sha, state.sha if is_adapter else ""] for path, f in sorted(weights.items())]
    return Facts(
        id=state.id,
        sha=state.sha,
        tags=tags,
        bases=bases,
        relation=str(relation),
        license=state.license[:_LONGEST] if state.license else None,
        private=state.private,
        gated=state.gated,
        own=MANIFEST in state.files or OWN_TAG in tags,
        weights=hashlib.sha256(json.dumps(identity).encode()).hexdigest() if weights else "",
        files=tuple(sorted({file.sha256 for file in weights.values() if file.sha256})),
        weight_bytes=sum(file.size for file in weights.values()),
    )


@dataclass(frozen=True)
class OwnMerge:
    """The files that a merge of this bot wrote, by which it is recognised in any repo."""

    repo: str
    commit: str
    parents: frozenset[str]  # ids
    files: frozenset[str]  # sha256 of its shards; empty where the job was done before they were written down

    def is_in(self, facts: Facts, base: Facts) -> bool:
        """Whether the model holds a shard of the merge.

        A shard that no agent changed is the base's, and may lie in anybody's repo. A merge that equals one of its
        agents does not make this agent a merge.
        """
        return facts.id not in self.parents and not self.files.isdisjoint(set(facts.files) - set(base.files))


def _words(value: Any) -> tuple[str, ...]:
    """A text or a list of texts from a stranger's card, cut to what anybody needs."""
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(v[:_LONGEST] for v in values[:_MOST_TAGS] if isinstance(v, str))

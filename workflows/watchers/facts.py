"""What a watcher knows of a model: read from the repo itself, at one commit, never from a delivery or a listing.

A card is its author's claim. It decides who may be a candidate; whether a candidate fits its base is seen in the
headers of its weights (kinds/agents.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from hubmerge.hub import Hub, RepoState
from hubmerge.sink import MANIFEST
from workflows.jobs import Frozen

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
    weights: str = ""  # digest of the weight files; "" without any
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
        weight_bytes=sum(file.size for file in weights.values()),
    )


def _words(value: Any) -> tuple[str, ...]:
    """A text or a list of texts from a stranger's card, cut to what anybody needs."""
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(v[:_LONGEST] for v in values[:_MOST_TAGS] if isinstance(v, str))

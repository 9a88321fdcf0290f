"""Facts about a model for a watcher: read from the repo itself, at one commit, never from a delivery or a listing.

A card is its author's claim. It decides who may be a candidate; headers, config and license show whether a candidate
fits its base. A plan lists the problems of a whole set. Here each candidate is checked alone, so that a misfit is left
out by name and does not stop the set.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hubmerge import errors
from hubmerge.engine.sink import MANIFEST
from hubmerge.errors import HubmergeError, HubUnavailableError, Problem, printable
from hubmerge.hub.client import Hub
from hubmerge.hub.names import FileInfo, RepoState
from hubmerge.plan.compatibility import agent_problems, base_problems, repeated
from hubmerge.plan.files import module_problems
from hubmerge.plan.licenses import choose, strictest
from hubmerge.plan.plan import refusal
from hubmerge.recipe.model_name import ModelName
from hubmerge.sources.base import Model
from hubmerge.sources.companions import reader, select_companions
from hubmerge.sources.config import config_problems
from hubmerge.sources.open import as_family, open_model
from hubmerge.sources.views import views_of
from workflows.jobs.jobs import Frozen

OWN_TAG = "hubmerge"
# refusals that a model's owner or another token ends without a commit
_ACCESS = (errors.GatedError, errors.LoginError, errors.PermissionDeniedError)
OF_ACCESS = frozenset(kind.code for kind in (*_ACCESS, errors.SourceChangedError, errors.SourceNotFoundError))
_ADAPTER_CONFIG = "adapter_config.json"
_RELATIONS = ("finetune", "adapter", "merge", "quantized")
_MOST_TAGS = 200
_LONGEST = 200
_LONGEST_REASON = 1000


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


def facts_of(state: RepoState, listed_tags: Iterable[str] = ()) -> Facts:
    """The model at a commit; `listed_tags`: those that a search shows of it."""
    tags = tuple(dict.fromkeys([*_words(state.card.get("tags")), *_words(list(listed_tags))]))
    bases = _words(state.card.get("base_model"))
    stored = {path: file for path, file in state.files.items() if path.endswith(".safetensors")}
    weights = {path: file for path, file in stored.items() if "/" not in path}  # those in folders are checkpoints
    adapter_config = state.files.get(_ADAPTER_CONFIG)
    relation = state.card.get("base_model_relation")
    if relation not in _RELATIONS:
        # as the Hub guesses it
        peft = adapter_config is not None or state.card.get("library_name") == "peft"
        relation = "merge" if len(bases) > 1 else "adapter" if peft else "finetune"
    # an adapter is its factors and its configuration; nothing of a stranger's is fetched to know either
    config = _digest_of(adapter_config, state) if adapter_config else ""
    identity = [[path, _digest_of(file, state), config] for path, file in sorted(weights.items())]
    return Facts(
        id=state.id,
        sha=state.sha,
        tags=tags,
        bases=bases,
        relation=str(relation),
        license=printable(state.license)[:_LONGEST] if state.license else None,
        private=state.private,
        gated=state.gated,
        own=MANIFEST in state.files or OWN_TAG in tags,
        weights=hashlib.sha256(json.dumps(identity).encode()).hexdigest() if weights else "",
        files=tuple(sorted({file.sha256 for file in stored.values() if file.sha256})),
        weight_bytes=sum(file.size for file in weights.values()),
    )


def _digest_of(file: FileInfo, state: RepoState) -> str:
    """What the Hub states of a file's content; where it states nothing, each commit counts as another one."""
    return file.sha256 or file.blob or state.sha


class OwnMerge(NamedTuple):
    """A merge that a job here has made."""

    user: str
    parents: frozenset[str]  # ids


def is_own_merge(facts: Facts, base: Facts, owner: str, own_merges: Mapping[str, Sequence[OwnMerge]]) -> bool:
    """Whether the model holds a shard of a merge made here, by which that is recognised in any repo.

    `own_merges`: by the sha256 of their shards. A shard that no agent changed is the base's, and may lie in anybody's
    repo. A merge that equals one of its agents does not make this agent a merge; nor does one that somebody else than
    the rule's `owner` has made of a copy, whose repos alone it is looked for in.
    """
    found = [merge for file in set(facts.files) - set(base.files) for merge in own_merges.get(file, ())]
    return any(merge.user in (owner, facts.author) and facts.id not in merge.parents for merge in found)


def _words(value: Any) -> tuple[str, ...]:
    """A text or a list of texts from a stranger's card, cut to what anybody needs."""
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(v[:_LONGEST] for v in values[:_MOST_TAGS] if isinstance(v, str))


def fitted(facts: Facts, base: Model, hub: Hub, license_choice: str | None, ignore: Sequence[str] = ()) -> Facts:
    """The facts with the agent's number of parameters, or with the reason why it does not fit its base.

    `ignore`: the recipe's, names of tensors that are not merged.

    HubUnavailableError where that cannot be checked now.
    """
    try:
        agent = open_model(ModelName.parse(facts.pin), hub, allow_local=False)
        base, (agent,) = as_family([base, agent], hub)
        parameters = _check(base, agent, hub, ignore)
        choose(strictest([base.license, agent.license]), license_choice)
    except HubUnavailableError:
        raise
    except HubmergeError as error:
        return facts.model_copy(update={"code": error.code, "text": _reason(error)})
    return facts.model_copy(update={"parameters": parameters})


def _check(base: Model, agent: Model, hub: Hub, ignore: Sequence[str]) -> int:
    """The number of parameters that the agent has on the base; raises as a plan of it does, with every problem."""
    seen = views_of(base, [agent], ignore)
    problems = list(seen.problems)
    if seen.vocabulary and not problems:  # beside another that adds tokens, it must not spoil the set either
        problems += views_of(base, [agent, agent], ignore).problems
    if base.adapter is None:  # otherwise everything else would follow from this one
        problems += [*base_problems(seen.base, seen.kept), *repeated(base, [agent])]
        problems += agent_problems(seen.base, seen.agents[0])
        of_base, donor = _beside(base, [], hub), seen.vocabulary.donor if seen.vocabulary else 0
        problems += [problem for problem in _beside(base, [agent], hub, donor) if problem not in of_base]
    if problems:
        raise refusal(problems)
    return sum(tensor.entry.elements for tensor in seen.agents[0].tensors.values())


def _beside(base: Model, agents: Sequence[Model], hub: Hub, donor: int = 0) -> list[Problem]:
    """Problems beside the tensors: of configs, files and modules. `donor`: the model whose tokenizer a merge has."""
    companions = select_companions(base, agents, [agent.ref.label for agent in agents], donor)
    return [*config_problems(base, agents), *companions.problems, *module_problems(base, agents, reader(hub))]


def _reason(error: HubmergeError) -> str:
    first: Mapping[str, str] = error.problems[0].as_dict()
    text = first["what"]
    found = [f"{name} {first[name]}" for name in ("expected", "got") if first[name]]
    more = len(error.problems) - 1
    text += f": {', '.join(found)}" if found else ""
    return (text + (f" (and {more} more)" if more else ""))[:_LONGEST_REASON]

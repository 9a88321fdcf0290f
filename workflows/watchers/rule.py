"""Rules: YAML files of the owners of watchers; strict, frozen, unknown keys refused.

A rule acts by itself, on repos that anybody can make. So it must say whose agents count (authors, tags or names), its
targets must be new for every set, and it has a budget for each day.
"""

import re
import string
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hubmerge.evaluation.suites import SUITES
from hubmerge.hub.names import is_hub_id
from hubmerge.methods import registry as methods
from hubmerge.plan.licenses import KNOWN
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.recipe import MAX_AGENTS, Recipe

DEFAULT_KIND = "agents"
TARGET_FIELDS = ("set", "name", "base", "count")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_AMOUNT = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMBGT]?)")
# what nearly every model carries selects nothing
_COMMON_TAGS = (
    *("transformers", "safetensors", "pytorch", "peft", "text-generation", "text-generation-inference"),
    *("conversational", "endpoints_compatible", "autotrain_compatible"),
)


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _amount(value: Any) -> Any:
    """1500000000 or "1.5B" as a number."""
    if not isinstance(value, str):
        return value
    found = _AMOUNT.fullmatch(value.strip().upper())
    if found is None:
        raise ValueError('write a number, or one such as "1.5B"')
    return round(float(found[1]) * _UNITS[found[2]])


def _repo(value: str) -> str:
    if value.count("/") != 1 or not is_hub_id(value):
        raise ValueError(f"{ascii(value)[:120]} is no repo id (org/name, without a revision)")
    return value


def _several(value: tuple[str, ...]) -> tuple[str, ...]:
    if len(value) < 2 or len(set(value)) != len(value):
        raise ValueError("name at least two agents, each once")
    return value


def _base(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("a base is written as text: org/name or org/name@revision")
    name = ModelName.parse(value)
    if name.local:
        raise ValueError("a rule watches models on the Hub, and this is a folder")
    return name


def _suite(value: str | None) -> str | None:
    if value is not None and value not in SUITES:  # no merge of the rule would ever get a score
        raise ValueError(f"there is no such suite; there are {', '.join(SUITES)}")
    return value


def _license(value: str | None) -> str | None:
    if value is not None and value.strip().lower() not in (*KNOWN, "other"):  # every agent would be left out for it
        raise ValueError("no license that a merge can carry; write an id of the Hub's list, such as mit, or `other`")
    return value


Repo = Annotated[str, Field(max_length=200), AfterValidator(_repo)]
Amount = Annotated[int, BeforeValidator(_amount), Field(ge=1, le=10**15)]
_WORD = r"^[A-Za-z0-9][\w.:/\-+]{0,199}$"
_USER = r"^[A-Za-z0-9](?:[A-Za-z0-9\-]{0,94}[A-Za-z0-9])?$"
_NAME = r"^[a-z0-9][a-z0-9\-]{0,39}$"
SHAPES = {  # what a pattern asks for, in words
    _WORD: "letters, digits and _ . : / - +, at most 200, a letter or digit first",
    _USER: "letters, digits and hyphens, at most 96, no hyphen first or last",
    _NAME: "lower-case letters, digits and hyphens, at most 40, no hyphen first",
}
Word = Annotated[str, Field(pattern=_WORD)]
Words = Annotated[tuple[Word, ...], Field(strict=False, max_length=50)]  # YAML has no tuples
User = Annotated[str, Field(pattern=_USER)]


class RuleHead(Strict):
    """The fields of every kind of rule."""

    watch: str = DEFAULT_KIND  # the kind
    name: str = Field(pattern=_NAME)
    owner: User  # whose token acts, and whose jobs these are
    base: Annotated[ModelName, BeforeValidator(_base)]
    target: str = Field(max_length=200)
    private: bool = False
    license: Annotated[str | None, AfterValidator(_license)] = None  # the owner's choice; None: the parents'
    suite: Annotated[str | None, AfterValidator(_suite)] = None  # to evaluate with
    budget: int = Field(ge=1, le=100)  # merges per day (UTC)

    @model_validator(mode="after")
    def _targets_are_new_repos(self) -> Self:
        try:
            parts = list(string.Formatter().parse(self.target))
        except ValueError as error:
            raise ValueError(f"target: {error}") from None
        fields = [part[1] for part in parts if part[1] is not None]
        if any(name not in TARGET_FIELDS for name in fields) or any(part[2] or part[3] for part in parts):
            raise ValueError(f"target: only {', '.join('{' + f + '}' for f in TARGET_FIELDS)} are filled in")
        if "set" not in fields:
            raise ValueError("target: {set} must be part of it, so that every set gets a repo of its own")
        sample = self.target_for("0" * 64, MAX_AGENTS)
        if sample.count("/") != 1 or not is_hub_id(sample):
            raise ValueError(f"target: {ascii(sample)[:120]} is no repo id (namespace/name)")
        return self

    def target_for(self, set_id: str, count: int) -> str:
        base = self.base.id.rpartition("/")[2]
        return self.target.format(set=set_id[:10], name=self.name, base=base, count=count)


class MergeSpec(Strict):
    """How to merge: a recipe without its models."""

    method: str
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    dtype: str | None = None
    rounding: str | None = None
    seed: int = Field(default=0, ge=0, lt=2**63)
    calibration: Mapping[str, Any] | None = None  # of every agent, for methods that weigh by sensitivity
    ignore: Any = None  # names of tensors that are not merged, as in a recipe

    @model_validator(mode="after")
    def _is_a_recipe(self) -> Self:
        try:
            self.recipe("org/base", ("org/agent", "org/other"))
        except ValidationError as error:
            issues = error.errors(include_url=False)
            told = (f"{'.'.join(map(str, i['loc']))}: {i['msg'].removeprefix('Value error, ')}" for i in issues)
            raise ValueError("; ".join(told)) from None
        if "sensitivity" in methods()[self.method].extras and self.calibration is None:
            raise ValueError(f"calibration: {self.method} weighs by sensitivities and needs questions with answers")
        return self

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(self.recipe("org/base", ("org/agent", "org/other")).get("ignore", ()))

    def recipe(self, base: str, agents: tuple[str, ...]) -> dict[str, Any]:
        """The full recipe in the form in which users write it, every default written out."""
        fields = {key: value for key, value in self.model_dump().items() if value is not None}
        return Recipe.model_validate({"base": base, "agents": agents, **fields}).to_dict()


class AgentFilter(Strict):
    """Conditions for models that count as agents of the base."""

    authors: Annotated[tuple[User, ...], Field(strict=False, max_length=50)] = ()  # any of them
    tags: Words = ()  # all of them
    lineage: Literal["finetune", "adapter", "any"] = "finetune"  # what they state to be of the base
    licenses: Words = ()  # any of them; none: whatever allows a merge
    min_parameters: Amount | None = None
    max_parameters: Amount | None = None
    max_bytes: Amount | None = None  # of the weight files
    exclude: Annotated[tuple[Repo, ...], Field(strict=False, max_length=1000)] = ()
    closed: bool = False  # whether gated and private models may join a public merge


class Join(Strict):
    """The agents that join: all so far (neither field), some fixed ones, or the best N of the leaderboard."""

    fixed: Annotated[tuple[Repo, ...], AfterValidator(_several), Field(strict=False, max_length=MAX_AGENTS)] = ()
    best: int | None = Field(default=None, ge=2, le=MAX_AGENTS)

    @model_validator(mode="before")
    @classmethod
    def _reads_one_of_three(cls, value: Any) -> Any:
        if value == "all":
            return {}
        if isinstance(value, Join) or (isinstance(value, Mapping) and set(value) in ({"fixed"}, {"best"})):
            return value
        raise ValueError("write `all`, `{fixed: [org/agent, …]}` or `{best: N}`")


class AgentRule(RuleHead):
    """Merge the agents of a base."""

    agents: AgentFilter = AgentFilter()
    recipe: MergeSpec
    join: Join = Join.model_validate("all")
    min_agents: int = Field(default=2, ge=2, le=MAX_AGENTS)

    @model_validator(mode="after")
    def _does_not_match_everything(self) -> Self:
        telling = [t for t in self.agents.tags if t.lower() not in _COMMON_TAGS and not t.startswith("base_model:")]
        if not (self.agents.authors or telling or self.join.fixed):
            raise ValueError(
                "agents: the rule matches everything: anybody can state this base. "
                "Name authors, tags that few models carry, or the agents themselves (join: fixed)"
            )
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.join.best is not None:
            if self.suite is None:
                raise ValueError("suite: `best` needs the suite whose leaderboard decides")
            if self.join.best < self.min_agents:
                raise ValueError("join: `best` is less than min_agents, so there would never be a merge")
        if self.join.fixed and self.min_agents > len(self.join.fixed):
            raise ValueError("min_agents: there are fewer fixed agents than that")
        low, high = self.agents.min_parameters, self.agents.max_parameters
        if low is not None and high is not None and low > high:
            raise ValueError("agents: min_parameters is more than max_parameters")
        return self

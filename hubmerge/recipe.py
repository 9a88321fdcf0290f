"""The recipe: what to merge, how, into which dtype, with which seed.

Frozen, validated, unknown keys refused; read from and written to YAML. Its order is data: agents keep it.
A recipe names models as the user wrote them; `PinnedRecipe` has the same with every model at a sha, and its
digest is the identity of a merge.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hubmerge.dtypes import Rounding
from hubmerge.errors import Problem, RecipeError
from hubmerge.methods import get_method
from hubmerge.sources.base import ModelRef

MAX_AGENTS = 32
MAX_RECIPE_BYTES = 64 * 1024
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]{0,95}(?:/[A-Za-z0-9][\w.\-]{0,95})?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w.\-/]{0,254}", re.ASCII)

OutputDtype = Literal["float32", "bfloat16", "float16"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelName(_Frozen):
    """A Hub id with an optional revision, or a local folder."""

    id: str
    revision: str | None = None
    local: bool = False

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """`org/name`, `org/name@revision`, or a path (./x, /x, ~/x, or an existing folder)."""
        text = text.strip()
        if not text:
            raise ValueError("a model is empty; give a Hub id such as org/name@revision, or a folder")
        if text.startswith((".", "/", "~")) or (not _looks_like_hub_id(text) and Path(text).is_dir()):
            return cls(id=text, local=True)
        name, _, revision = text.partition("@")
        if not _HUB_ID.fullmatch(name) or ".." in name or "--" in name:
            raise ValueError(f"{text!r} is neither a Hub id (org/name@revision) nor an existing folder")
        if revision and (not _REVISION.fullmatch(revision) or ".." in revision):
            raise ValueError(f"{revision!r} is not a revision (a branch, a tag or a commit sha)")
        return cls(id=name, revision=revision or None)

    def __str__(self) -> str:
        return f"{self.id}@{self.revision}" if self.revision else self.id


def _looks_like_hub_id(text: str) -> bool:
    return bool(_HUB_ID.fullmatch(text.partition("@")[0])) and not Path(text).is_dir()


class AgentSpec(_Frozen):
    """One agent: a model and the factor on its update (default 1)."""

    model: ModelName
    weight: float = Field(default=1.0, allow_inf_nan=False, ge=-100.0, le=100.0)


class Recipe(_Frozen):
    """One merge, as the user states it."""

    base: ModelName
    agents: tuple[AgentSpec, ...] = Field(min_length=1, max_length=MAX_AGENTS)
    method: str
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    dtype: OutputDtype | None = None  # None: as the base stores each tensor
    rounding: Rounding | None = None  # None: the method's default
    seed: int = Field(default=0, ge=0, lt=2**63)

    @field_validator("base", mode="before")
    @classmethod
    def _base_from_text(cls, value: Any) -> Any:
        return ModelName.parse(value) if isinstance(value, str) else value

    @field_validator("agents", mode="before")
    @classmethod
    def _agents_from_text(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise ValueError("agents must be a list of models")
        agents: list[Any] = []
        for item in value:
            if isinstance(item, str):
                agents.append(AgentSpec(model=ModelName.parse(item)))
            elif isinstance(item, Mapping) and isinstance(item.get("model"), str):
                agents.append({**item, "model": ModelName.parse(item["model"])})
            else:
                agents.append(item)
        return tuple(agents)

    @model_validator(mode="after")
    def _parameters_fit_the_method(self) -> Recipe:
        method = get_method(self.method)
        values = method.parse_parameters(self.parameters)
        # every default is written out, so that the digest does not depend on a version's defaults
        object.__setattr__(self, "parameters", values.model_dump(mode="json", exclude_none=True))
        return self

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(a.weight for a in self.agents)

    def to_dict(self) -> dict[str, Any]:
        """The recipe in the form in which users write it."""
        agents: list[Any] = [
            str(a.model) if a.weight == 1.0 else {"model": str(a.model), "weight": a.weight} for a in self.agents
        ]
        result: dict[str, Any] = {"base": str(self.base), "agents": agents, "method": self.method}
        if self.parameters:
            result["parameters"] = dict(self.parameters)
        for key in ("dtype", "rounding"):
            if getattr(self, key) is not None:
                result[key] = getattr(self, key)
        result["seed"] = self.seed
        return result

    def to_yaml(self) -> str:
        return str(yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True))

    def pinned(self, base: ModelRef, agents: tuple[ModelRef, ...]) -> Recipe:
        """The same recipe with every Hub model at its sha."""
        names = tuple(
            ModelName(id=r.id, revision=r.sha if r.kind == "hub" else None, local=r.kind == "local")
            for r in (base, *agents)
        )
        specs = tuple(AgentSpec(model=n, weight=a.weight) for n, a in zip(names[1:], self.agents, strict=True))
        return self.model_copy(update={"base": names[0], "agents": specs})


def merge_identity(recipe: Recipe, base: ModelRef, agents: tuple[ModelRef, ...], target: str = "") -> str:
    """sha256 (hex) over the pinned inputs, the whole recipe and the target: the job's identity."""
    content = {
        "base": base.sha,
        "agents": [[ref.sha, agent.weight] for ref, agent in zip(agents, recipe.agents, strict=True)],
        "method": recipe.method,
        "parameters": dict(recipe.parameters),
        "dtype": recipe.dtype,
        "rounding": recipe.rounding,
        "seed": recipe.seed,
        "target": target,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def recipe_from_dict(content: Any, where: str = "the recipe") -> Recipe:
    """A validated recipe from plain data; RecipeError lists every problem."""
    if not isinstance(content, Mapping):
        raise RecipeError(
            "a recipe is a table", where=where, expected="base, agents, method, …", got=type(content).__name__
        )
    try:
        return Recipe.model_validate(dict(content))
    except ValidationError as error:
        problems = [
            Problem(
                RecipeError.code,
                issue["msg"].removeprefix("Value error, "),
                where=" → ".join([where, *(str(part) for part in issue["loc"])]),
                got=repr(issue["input"])[:120] if not isinstance(issue["input"], Mapping) else "",
            )
            for issue in error.errors(include_url=False)
        ]
        raise RecipeError("the recipe has errors", where=where, problems=problems) from None


def recipe_from_yaml(text: str, where: str = "the recipe") -> Recipe:
    """A recipe from YAML text; anchors and tags beyond plain YAML are refused."""
    if len(text) > MAX_RECIPE_BYTES:
        raise RecipeError(
            "the recipe is too long", where=where, expected=f"at most {MAX_RECIPE_BYTES} characters", got=str(len(text))
        )
    if re.search(r"(^|[\s\[,{:-])[&*][A-Za-z0-9]", text):
        # an alias in a YAML file can expand to gigabytes; a recipe needs none
        raise RecipeError("YAML anchors and aliases are not allowed in a recipe", where=where)
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise RecipeError("the recipe is not YAML", where=where, got=str(error)[:300]) from None
    return recipe_from_dict(content, where)


def load_recipe(path: Path) -> Recipe:
    """Read a recipe file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError("the recipe cannot be read", where=str(path), got=str(error)) from None
    return recipe_from_yaml(text, str(path))

"""The recipe: what to merge, how, into which dtype, with which seed.

A recipe is frozen and validated, and refuses unknown keys. It is read from YAML and written as YAML. Agents keep its
order. It names models as the user wrote them; `pinned` puts a commit in place of each branch, and `merge_identity`
makes a digest of the result. A mergekit document is read too (mergekit.py); the recipe's `notes` say what that document
means differently here.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from hubmerge.errors import MisnamedError, Problem, RecipeError
from hubmerge.methods import get_method, registry, varying
from hubmerge.methods.tensor_values import Given
from hubmerge.numerics.dtypes import Rounding
from hubmerge.recipe.calibration import CalibrationRows, CalibrationSpec
from hubmerge.recipe.ignore import checked_patterns
from hubmerge.recipe.model_name import ModelName, ModelRef, WrittenModel
from hubmerge.text.plain_yaml import dump_plain_yaml
from hubmerge.text.wording import did_you_mean, place, shown

MAX_AGENTS = 32
MAX_RECIPE_BYTES = 64 * 1024
MAX_WEIGHT = 100.0

OutputDtype = Literal["float32", "bfloat16", "float16"]


def _number(value: Any) -> Any:
    # pydantic would take true for 1 and "0.5" for 0.5; in a recipe these are slips of the pen
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a number is needed")
    return value


def _weight(value: Any) -> varying.Setting:
    setting = varying.parse(value)
    if any(abs(number) > MAX_WEIGHT for number in varying.points(setting)):
        raise ValueError(f"a weight lies between -{MAX_WEIGHT:g} and {MAX_WEIGHT:g}")
    return setting


_WEIGHT_SCHEMA: dict[str, Any] = {
    "default": 1.0,
    "anyOf": [{"type": "number", "minimum": -MAX_WEIGHT, "maximum": MAX_WEIGHT}, *varying.SCHEMA],
}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AgentSpec(_Frozen):
    """One agent: a model and the factor on its update (default 1). A bare text is a model of weight 1."""

    model: WrittenModel
    weight: Annotated[varying.Setting, PlainValidator(_weight), WithJsonSchema(_WEIGHT_SCHEMA)] = 1.0
    parameters: Mapping[str, Any] = Field(default_factory=dict)  # its own, in place of the recipe's
    sensitivity: str | None = Field(default=None, max_length=4096)  # a file of `hubmerge sensitivity`
    calibration: CalibrationSpec | None = None  # what its sensitivity is taken on; default: the recipe's

    def to_data(self) -> Any:
        """The agent as users write it: a bare text where only the model is given."""
        given = {
            "weight": None if self.weight == 1.0 else varying.written(self.weight),
            "parameters": dict(self.parameters) or None,
            "sensitivity": self.sensitivity,
            "calibration": self.calibration and self.calibration.model_dump(exclude_none=True),
        }
        more = {key: value for key, value in given.items() if value is not None}
        return {"model": str(self.model), **more} if more else str(self.model)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str | os.PathLike | ModelName) else value


class Recipe(_Frozen):
    """One merge, as the user states it."""

    base: WrittenModel
    agents: tuple[AgentSpec, ...] = Field(min_length=1, max_length=MAX_AGENTS)
    method: str
    parameters: Mapping[str, Any] = Field(default_factory=dict, validate_default=True)
    dtype: OutputDtype | None = None  # None: as the base stores each tensor
    rounding: Rounding | None = None  # None: the method's default
    seed: Annotated[int, BeforeValidator(_number)] = Field(default=0, ge=0, lt=2**63)
    calibration: CalibrationSpec | None = None  # for methods that weigh by sensitivity
    ignore: tuple[str, ...] = ()  # names of tensors that are not merged, as patterns (recipe/ignore.py)
    tokenizer: str | None = Field(default=None, max_length=4096)  # base, or a model of the recipe; None: all tokens
    _notes: tuple[str, ...] = PrivateAttr(default=())
    _folder: Path | None = PrivateAttr(default=None)

    @field_validator("agents", mode="before")
    @classmethod
    def _agents_are_a_list(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise ValueError("agents must be a list of models")
        return value

    @field_validator("agents")
    @classmethod
    def _some_agent_counts(cls, value: tuple[AgentSpec, ...]) -> tuple[AgentSpec, ...]:
        if value and not any(any(varying.points(agent.weight)) for agent in value):
            what, step = "every agent has the weight 0, so that nothing would be merged", "Give one another weight."
            raise MisnamedError([Problem(RecipeError.code, what, next_step=step)])  # a ValueError would show the table
        return value

    @field_validator("ignore", mode="before")
    @classmethod
    def _patterns_are_short(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list | tuple):
            raise ValueError('ignore must be a list of patterns of tensor names, such as ["v_head.*"]')
        return checked_patterns(value)

    @field_validator("method")
    @classmethod
    def _method_exists(cls, value: str) -> str:
        get_method(value)
        return value

    @field_validator("parameters", mode="before")
    @classmethod
    def _nothing_is_no_parameters(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("parameters")
    @classmethod
    def _parameters_fit_the_method(cls, value: Mapping[str, Any], info: ValidationInfo) -> Mapping[str, Any]:
        if "method" not in info.data:
            return value  # the method itself is wrong, which is reported already
        # every default is written out, so that the digest does not depend on a version's defaults
        return get_method(info.data["method"]).parse_settings(value)

    @model_validator(mode="after")
    def _parameters_and_tokenizer_are_of_its_agents(self) -> "Recipe":
        problems = [*self._fit_own_parameters(), *self._fit_tokenizer()]
        if problems:
            raise MisnamedError(problems)
        return self

    def _fit_own_parameters(self) -> Iterator[Problem]:
        method = get_method(self.method)
        parameters, agents = method.typical(self.parameters), []
        for number, agent in enumerate(self.agents):
            own = agent.parameters
            try:
                own = method.parse_settings(own, of_agent=True)
                method.check_own(parameters, own)
            except ValueError as error:
                at = f"agent {number + 1} → parameters"
                found = error.problems if isinstance(error, MisnamedError) else (Problem("", str(error)),)
                for one in found:
                    yield replace(one, code=RecipeError.code, where=f"{at} → {one.where}" if one.where else at)
            agents.append(agent.model_copy(update={"parameters": own}) if own != agent.parameters else agent)
        object.__setattr__(self, "agents", tuple(agents))  # numbers as the digest takes them

    def _fit_tokenizer(self) -> Iterator[Problem]:
        if self.tokenizer == "union":  # the default
            object.__setattr__(self, "tokenizer", None)
        elif self.tokenizer_of == 0:  # by its name, which a pin changes
            object.__setattr__(self, "tokenizer", "base")
        elif self.tokenizer is not None and self.tokenizer_of is None:
            known = ", ".join(["base", "union", *(str(agent.model) for agent in self.agents)])
            yield Problem(RecipeError.code, "no model of this recipe", "tokenizer", known[:400], self.tokenizer[:120])

    @property
    def tokenizer_of(self) -> int | None:
        """The model whose tokenizer is kept, the base being 0; None: the base's with what agents add."""
        names = [str(self.base), *(str(agent.model) for agent in self.agents)]
        return 0 if self.tokenizer == "base" else next((k for k, n in enumerate(names) if n == self.tokenizer), None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the recipe's author on how it was read. They are no part of the merge and are not written out."""
        return self._notes

    def with_notes(self, notes: tuple[str, ...]) -> "Recipe":
        noted = self.model_copy()
        noted._notes = notes
        return noted

    @property
    def folder(self) -> Path | None:
        """The folder at which relative paths begin, if it is not the working folder. It is no part of the merge."""
        return self._folder

    def in_folder(self, folder: Path) -> "Recipe":
        found = self.model_copy()
        found._folder = folder
        return found

    def path_of(self, text: str) -> Path:
        """The path of a file that the recipe names."""
        return (self._folder or Path()) / os.path.expanduser(text)

    @property
    def weights(self) -> tuple[varying.Setting, ...]:
        return tuple(a.weight for a in self.agents)

    @property
    def given(self) -> Given:
        """The weights and parameters as the recipe gives them, before they are resolved for each tensor."""
        return Given(
            get_method(self.method), self.weights, self.parameters, tuple(agent.parameters for agent in self.agents)
        )

    def to_dict(self) -> dict[str, Any]:
        """The recipe in the form in which users write it."""
        given = {
            "parameters": dict(self.parameters) or None,
            "dtype": self.dtype,
            "rounding": self.rounding,
            "calibration": self.calibration and self.calibration.model_dump(exclude_none=True),
            "ignore": list(self.ignore) or None,
            "tokenizer": self.tokenizer,
        }
        return {
            "base": str(self.base),
            "agents": [agent.to_data() for agent in self.agents],
            "method": self.method,
            **{key: value for key, value in given.items() if value is not None},
            "seed": self.seed,
        }

    def to_yaml(self) -> str:
        return dump_plain_yaml(self.to_dict())

    def pinned(self, base: ModelRef, agents: tuple[ModelRef, ...]) -> "Recipe":
        """The same recipe with every Hub model at its sha."""
        return self.naming(
            ModelName(id=r.id, revision=r.sha if r.kind == "hub" else None, local=r.kind != "hub")
            for r in (base, *agents)
        )

    def naming(self, names: Iterable[ModelName]) -> "Recipe":
        """The same recipe with other names for its models, the base's first."""
        base, *agents = names
        specs = tuple(a.model_copy(update={"model": n}) for n, a in zip(agents, self.agents, strict=True))
        changed: dict[str, Any] = {"base": base, "agents": specs}
        if number := self.tokenizer_of:
            changed["tokenizer"] = str(agents[number - 1])
        return self.model_copy(update=changed)


def merge_identity(
    recipe: Recipe,
    base: ModelRef,
    agents: tuple[ModelRef, ...],
    target: str = "",
    calibration: Sequence[CalibrationRows] = (),
) -> str:
    """sha256 (hex) over the pinned inputs, the whole recipe and the target: the job's identity.

    `calibration`: the data behind the agents' sensitivities, which stands in place of its name in the recipe.
    """

    def pin(ref: ModelRef) -> str:
        # a folder is what it holds, wherever it lies
        return f"{ref.id}@{ref.sha}" if ref.kind == "hub" else ref.sha

    content: dict[str, Any] = {
        "base": pin(base),
        "agents": [
            [pin(ref), varying.written(agent.weight), *([dict(agent.parameters)] if agent.parameters else [])]
            for ref, agent in zip(agents, recipe.agents, strict=True)
        ],
        "method": recipe.method,
        "parameters": dict(recipe.parameters),
        "dtype": recipe.dtype,
        "rounding": recipe.rounding,
        "seed": recipe.seed,
        "target": target,
    }
    specs = [a.calibration or recipe.calibration for a in recipe.agents]
    files = [a.sensitivity for a in recipe.agents]
    if calibration:
        content["sensitivity"] = [rows.identity() for rows in calibration]
    elif any(specs) or any(files):
        content["sensitivity"] = [[f, c and c.model_dump()] for f, c in zip(files, specs, strict=True)]
    if recipe.ignore:
        content["ignore"] = sorted(recipe.ignore)
    if recipe.tokenizer_of is not None:
        content["tokenizer"] = recipe.tokenizer_of
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def recipe_from_dict(content: Any, where: str = "the recipe") -> Recipe:
    """A validated recipe from plain data; RecipeError lists every problem."""
    if not isinstance(content, Mapping):
        raise RecipeError(
            "a recipe is a table",
            where=where,
            expected="base, agents and method",
            got="nothing" if content is None else shown(content),
            next_step="`hubmerge init BASE AGENT…` writes one.",
        )
    try:
        return Recipe.model_validate(dict(content))
    except ValidationError as error:
        raise RecipeError("the recipe has errors", where=where, problems=list(_problems(error, where))) from None
    except UnicodeEncodeError as error:  # pydantic takes no message with half a character, such as a parameter's name
        raise RecipeError(_WORDS["string_unicode"], where=where, got=repr(error.object)[:120]) from None


def _problems(error: ValidationError, where: str) -> Iterator[Problem]:
    issues = error.errors(include_url=False)
    # pydantic counts only the agents that it could read
    wrong = {issue["loc"][0] for issue in issues if len(issue["loc"]) > 1}
    missing = [str(issue["loc"][0]) for issue in issues if issue["type"] == "missing" and len(issue["loc"]) == 1]
    meant: set[str] = set()
    for issue in sorted(issues, key=lambda issue: issue["type"] == "missing"):  # after what may be meant for it
        path, kind = issue["loc"], issue["type"]
        if kind == "invalid_key":  # whose place is the table that it stands in
            path = path[:-1]
        plain = Problem(RecipeError.code, issue_words(issue), place(where, *path))
        if kind == "extra_forbidden":
            table = CalibrationSpec if "calibration" in path[:-1] else AgentSpec if "agents" in path[:-1] else Recipe
            known = tuple(table.model_fields)
            elsewhere = _ELSEWHERE.get(str(path[-1]), "")  # what other tools call it
            step = f"Did you mean {elsewhere}?" if elsewhere in missing else did_you_mean(path[-1], missing)
            step = step or did_you_mean(path[-1], known)
            meant |= {name for name in missing if step == f"Did you mean {name}?"}
            if path == ("sweep",):
                meant.add("method")
                step = "It makes this a sweep, for `hubmerge sweep` and `hubmerge run --sweep`."
            got = repr(issue["input"])[:120]
            yield replace(plain, expected=", ".join(known), got=got, next_step=step)
        elif isinstance(misnamed := issue.get("ctx", {}).get("error"), MisnamedError):
            for problem in misnamed.problems:
                unknown = path == ("parameters",) and "no such parameter" in problem.what
                step = problem.next_step or (_methods_with(problem.where) if unknown else "")
                at = place(where, *path, *([problem.where] if problem.where else []))
                yield replace(problem, where=at, next_step=step)
        elif kind == "missing":
            if path[-1] not in meant:
                yield replace(plain, next_step=_NEEDED.get(str(path[-1]), ""))
        elif not (kind == "too_short" and path[0] in wrong):
            given = issue["input"]
            if isinstance(given, str | list) and (not given or str(given).isspace()):  # the message says so already
                yield replace(plain, next_step=_NEEDED.get(str(path[-1]), ""))
                continue
            got = repr(given)[:120]
            yield replace(plain, got=got, next_step=_slip(path, given, issue["msg"]))


_ELSEWHERE = {"models": "agents", "merge_method": "method", "base_model": "base"}
SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16", "fp32": "float32"}


def _slip(path: tuple[int | str, ...], given: Any, message: str) -> str:
    """The next step for a value of the wrong kind, where one is known."""
    if "a list of models" in message:
        return "Write them as a list: [org/a, org/b]."
    if "no Hub id" in message:
        return "A folder is written ./folder or in full; variables in it are not replaced."
    if not isinstance(given, str):
        return ""
    if "is a URL" in message:
        return "Write org/name, or org/name@revision."
    if path[-1:] == ("dtype",) and given.lower() in SHORT_DTYPES:
        return f"Did you mean {SHORT_DTYPES[given.lower()]}?"
    return number_step(given) if "number is needed" in message else ""


def number_step(given: Any) -> str:
    """The next step for what is no number, where it reads like one."""
    with suppress(ValueError):
        if isinstance(given, str) and "_" not in given and "n" not in given.lower():  # 1_000, nan, inf
            number = float(given.strip().removesuffix("%"))
            return f"Write {number / 100:g}." if "%" in given else "Write it without quotes."
    return ""


def _methods_with(parameter: str) -> str:
    """The next step for a parameter that the method does not have: which methods have it."""
    found = [
        m.name
        for m in registry().values()
        if parameter in {field.alias or name for name, field in m.parameters.model_fields.items()}
    ]
    return f"It is one of {', '.join(found)}." if found else "Leave it out."


_NEEDED = {
    "base": "Name the model that the agents were trained from.",
    "agents": "List the models to merge.",
    "method": "Choose one, such as ram_plus. `hubmerge methods` lists them.",
    "model": "Name the model.",
}
_WORDS = {
    "missing": "this is missing",
    "extra_forbidden": "there is no such key",
    "string_type": "this must be text",
    "model_type": "this must be text, or a table",
    "model_attributes_type": "an agent is a model's name, or a table with its `model` and `weight`",
    "dict_type": "this must be a table",
    "mapping_type": "this must be a table",
    "too_short": "there is no agent",
    "too_long": f"there are more than {MAX_AGENTS} agents",
    "string_unicode": "this holds half a character",
    "invalid_key": "a key must be text",
}


def issue_words(issue: Any) -> str:
    """pydantic's finding in words for somebody who does not know pydantic."""
    return _WORDS.get(issue["type"]) or issue["msg"].removeprefix("Value error, ").replace("Input should", "this must")

"""Reads rules from YAML files; the kind of watcher that a file names reads its fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hubmerge.errors import HubmergeError, Problem, RuleError
from hubmerge.recipe.recipe import issue_words
from hubmerge.text.plain_yaml import load_plain_yaml
from hubmerge.text.wording import place
from workflows.watchers.kinds import registry
from workflows.watchers.rule import DEFAULT_KIND, SHAPES, RuleHead

MAX_RULE_BYTES = 64 * 1024
MAX_RULES = 200


@dataclass(frozen=True)
class RuleSet:
    """The rules of a folder, and the errors of files that cannot be read."""

    rules: tuple[RuleHead, ...] = ()
    broken: tuple[tuple[str, HubmergeError], ...] = ()


def rule_from_yaml(text: str, where: str = "the rule") -> RuleHead:
    """A rule of the kind that it names; RuleError lists every problem with its field."""
    if len(text) > MAX_RULE_BYTES:
        raise RuleError("the rule is too long", where=where, expected=f"at most {MAX_RULE_BYTES} characters")
    try:
        content = load_plain_yaml(text)
    except ValueError as error:
        raise RuleError("the rule is not plain YAML", where=where, got=str(error)) from None
    return rule_from_data(content, where)


def rule_from_data(content: Any, where: str = "the rule") -> RuleHead:
    """A rule from plain data; RuleError lists every problem with its field."""
    if not isinstance(content, Mapping):
        raise RuleError("a rule is a table", where=where, expected="name, owner, base, …", got=type(content).__name__)
    kind = content.get("watch", DEFAULT_KIND)
    if not isinstance(kind, str) or kind not in registry():
        raise RuleError(
            "there is no such kind of watcher",
            where=f"{where} → watch",
            expected=" or ".join(registry()),
            got=ascii(kind)[:80],
        )
    try:
        return registry()[kind].rule.model_validate(dict(content))
    except ValidationError as error:
        raise RuleError(
            "the rule has errors", where=where, problems=[_problem(where, i) for i in error.errors()]
        ) from None


def rule_data(rule: RuleHead) -> dict[str, Any]:
    """The plain data of a rule as its file would say it; what has its default is left out."""
    return rule.model_dump(mode="json", exclude_defaults=True) | {"base": str(rule.base)}


_PLAIN = {  # of pydantic's kinds of error, where a rule has words of its own
    "extra_forbidden": "a rule has no such key: {}",
    **dict.fromkeys(("model_type", "dict_type"), "this must be a table of names and values"),
    "tuple_type": "this must be a list",
    "bool_type": "this must be true or false",
    "int_type": "this must be a whole number",
    "greater_than_equal": "this number is too small",
    "less_than_equal": "this number is too large",
    "string_pattern_mismatch": "characters that may not stand here, or too many of them",
}


def _problem(where: str, issue: Any) -> Problem:
    message = issue_words(issue)
    field, colon, rest = message.partition(": ")
    location = [str(part) if issue["type"] == "invalid_key" else part for part in issue["loc"]]
    if not location and colon and field.replace("_", "").isalpha():  # of the rule as a whole: it names its field itself
        location, message = [field], rest
    if issue["type"] in _PLAIN:
        message = _PLAIN[issue["type"]].format(str(location[-1])[:80])
    got = "" if issue["type"] == "missing" or not issue["loc"] else ascii(issue["input"])[:120]
    return Problem(RuleError.code, message, place(where, *location), _expected(issue), got)


def _expected(issue: Any) -> str:
    """What a value must be, where pydantic's finding tells a limit or a pattern."""
    told = issue.get("ctx", {})
    if "pattern" in told:
        return SHAPES.get(told["pattern"], "")
    return f"at least {told['ge']}" if "ge" in told else f"at most {told['le']}" if "le" in told else ""


def load_rule(path: Path) -> RuleHead:
    """Read a rule's file."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_RULE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        got = error.strerror or str(error) if isinstance(error, OSError) else "another encoding"
        raise RuleError("the rule cannot be read", where=str(path), expected="a file in UTF-8", got=got) from None
    return rule_from_yaml(text, path.name)


def load_rules(folder: Path) -> RuleSet:
    """Every YAML file of a folder, by name; a broken file does not stop the others."""
    rules: dict[str, RuleHead] = {}
    broken: list[tuple[str, HubmergeError]] = []
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))
    except OSError as error:
        unread = RuleError("the folder of rules cannot be read", where="HUBMERGE_RULES", got=error.strerror or "")
        return RuleSet(broken=((folder.name, unread),))
    for number, path in enumerate(paths):
        try:
            if number >= MAX_RULES:
                raise RuleError("there are too many rules", where=path.name, expected=f"at most {MAX_RULES} files")
            rule = load_rule(path)
            if rule.name in rules:
                raise RuleError("two rules have one name", where=path.name, got=rule.name, next_step="Rename one.")
            rules[rule.name] = rule
        except RuleError as error:
            broken.append((path.name, error))
    return RuleSet(tuple(rules.values()), tuple(broken))

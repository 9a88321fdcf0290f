"""The registry of merge methods: every module in this package that defines a `Method` subclass.

To add a method, add one file here; see base.py for the interface.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from pydantic import ValidationError

from hubmerge.errors import InternalError, MisnamedError, Problem, RecipeError
from hubmerge.methods.base import Method
from hubmerge.text.wording import did_you_mean


@cache
def registry() -> dict[str, Method]:
    """Every method by name, in alphabetical order; InternalError where a file's is not complete."""
    found: dict[str, Method] = {}
    for module_info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        if module_info.name == "base":
            continue
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__:
                _check(value, found)
                found[value.name] = value()
    return dict(sorted(found.items()))


def _check(method: type[Method], others: Mapping[str, Method]) -> None:
    needed = ["name", "title", "summary", "formula", "kernel"]
    if method.needs_whole is not Method.needs_whole:
        needed += ["merge_whole", "operations", "floats"]
    missing = ", ".join(name for name in needed if getattr(method, name, None) is getattr(Method, name, None))
    wrong = [f"no {missing}"] * bool(missing)
    if not missing and (other := others.get(method.name)):
        wrong.append(f"the name {method.name}, which {type(other).__name__} has")
    known = {field.alias or name for name, field in method.parameters.model_fields.items()}
    if strangers := ", ".join(sorted({*method.of_agent, *method.of_tensor} - known)):
        wrong.append(f"of_agent or of_tensor with {strangers}, which is no parameter")
    try:
        method.parameters()
    except ValidationError as error:
        found = (issue for issue in error.errors() if issue["type"] != "missing")
        wrong += [f"a default of {issue['loc'][0]} that its own bounds refuse: {issue['input']}" for issue in found]
    if wrong:
        raise InternalError(
            "a merge method is not complete",
            where=f"{method.__module__}.{method.__qualname__}",
            expected=", ".join(needed),
            got="; ".join(wrong),
            next_step="hubmerge/methods/base.py says what each is.",
        )


def get_method(name: str) -> Method:
    """The method called `name`; ValueError names those that exist."""
    methods = registry()
    if name not in methods:
        titles = {m.title.lower(): f"Did you mean {m.name}?" for m in methods.values()}
        step = titles.get(name.lower()) or did_you_mean(name, methods) or "`hubmerge methods` says what they do."
        problem = Problem(RecipeError.code, "there is no such method", "", ", ".join(methods), ascii(name)[:120], step)
        raise MisnamedError([problem])
    return methods[name]


__all__ = ["Method", "get_method", "registry"]

"""YAML from strangers as plain data: tables, lists and scalars, nothing that expands, repeats or surprises.

PyYAML's safe loader builds no objects, but it resolves aliases (a few hundred bytes can stand for gigabytes),
lets the last of two equal keys win, and reads scalars by YAML 1.1: `010` is 8, `1:30` is 90, `no` is false, a
date is a date, and `1e-5` is text. Here aliases, tags, repeated keys and halves of characters are refused and scalars
are read by the core schema of YAML 1.2, which is what people mean.
"""

import re
from collections.abc import Hashable
from typing import Any

import yaml

_HALF = re.compile("[\ud800-\udfff]")


class _PlainLoader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own class attribute; filled below)

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.YAMLError(f"anchors and aliases are not allowed (line {event.start_mark.line + 1})")
        if getattr(event, "tag", None) is not None:
            raise yaml.YAMLError(f"tags are not allowed (line {event.start_mark.line + 1})")
        if _HALF.search(getattr(event, "value", "")):  # an escape can write what UTF-8 cannot
            raise yaml.YAMLError(f"half a character (line {event.start_mark.line + 1})")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"a key must be a word (line {key.start_mark.line + 1})")
            if key.value in seen:
                raise yaml.YAMLError(f"the key {key.value!r} stands twice (line {key.start_mark.line + 1})")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _PlainDumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _float(loader: yaml.SafeLoader, node: Any) -> float:
    # the safe loader's own would read 1:30.5 as base 60; the resolver below lets only decimals and ±inf/nan by
    return float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _int(loader: yaml.SafeLoader, node: Any) -> int:
    if len(node.value) > 40:
        raise yaml.YAMLError(f"a number of {len(node.value)} digits (line {node.start_mark.line + 1})")
    return int(node.value)


for _tag, _pattern, _first in (
    ("null", r"null|Null|NULL|~|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    for _class in (_PlainLoader, _PlainDumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
_PlainLoader.add_constructor("tag:yaml.org,2002:float", _float)
_PlainLoader.add_constructor("tag:yaml.org,2002:int", _int)


def _list(dumper: _PlainDumper, values: list[Any]) -> yaml.Node:
    numbers = all(isinstance(value, int | float) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=numbers or None)


_PlainDumper.add_representer(list, _list)  # numbers over the layers stand in one line


def load_plain_yaml(text: str) -> Any:
    """The plain data of one YAML document; ValueError says what is wrong with it."""
    loader: _PlainLoader | None = None
    try:
        loader = _PlainLoader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        raise ValueError(_at(error)) from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:300]) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (OverflowError, ValueError):  # \U00110000, %YAML 1.99…9
        raise ValueError("an escape that stands for no character, or a version that YAML has not") from None
    finally:
        if loader is not None:
            loader.dispose()


def _at(error: yaml.MarkedYAMLError) -> str:
    """Where and why YAML could not be read, in one line."""
    mark = error.problem_mark or error.context_mark
    why = " ".join((error.problem or error.context or "no YAML").split())
    if "'\\t'" in why:
        why = "a tab, where YAML wants spaces"
    elif "found another document" in why:
        why = "a second document"
    elif error.problem and error.context_mark and mark and error.context_mark.line != mark.line:
        why += f", {error.context} at line {error.context_mark.line + 1}"
    return (why if mark is None else f"{why} (line {mark.line + 1}, column {mark.column + 1})")[:300]


def dump_plain_yaml(data: Any) -> str:
    """YAML text, in the order given, from which `load_plain_yaml` reads the same data."""
    return yaml.dump(data, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=10_000)

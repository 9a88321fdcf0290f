"""What a model was made from, as far as its repo tells: its report where hubmerge merged it, else its card's bases.

The report of a merge of merges holds what its parents were made from, so that one file tells all generations.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hubmerge.hub.names import FileInfo, stated_bases
from hubmerge.text.wording import json_table

REPORT = "hubmerge.json"
MAX_GENERATIONS = 8
MAX_ANCESTORS = 60  # of one model
_LONGEST = 200  # characters of a name
_MAX_REPORT_BYTES = 4_000_000
_MAX_REPORT_VALUES = 500_000


@dataclass(frozen=True)
class Ancestor:
    """A model that another was made from; `role` is empty and `sha` too where a card alone names it."""

    id: str
    role: Literal["base", "agent", ""] = ""
    sha: str = ""
    license: str | None = None
    weight: float = 1.0
    made_from: "tuple[Ancestor, ...]" = ()


def stated_ancestors(
    card: Mapping[str, Any], files: Mapping[str, FileInfo], read_file: Callable[[str, int], bytes]
) -> tuple[Ancestor, ...]:
    """Those of the report where the card names several models, as a merge's does, else those of the card."""
    bases = stated_bases(card)
    if len(bases) > 1 and REPORT in files and files[REPORT].size <= _MAX_REPORT_BYTES:
        raw = read_file(REPORT, _MAX_REPORT_BYTES)
        # a bomb of a million empty lists is not even parsed
        small = raw.count(b",") + raw.count(b"[") + raw.count(b"{") <= _MAX_REPORT_VALUES
        report = json_table(raw) if small else None
        if report and (found := ancestors_in(report.get("parents"))):
            return found
    return ancestors_in(bases)


def ancestors_in(stated: Any) -> tuple[Ancestor, ...]:
    """The ancestors of a list as reports hold it, names or objects; what is not well formed is left out.

    At most MAX_ANCESTORS of MAX_GENERATIONS: it is a stranger's file.
    """
    return _read(stated, MAX_GENERATIONS, [MAX_ANCESTORS])


def _read(stated: Any, generations: int, left: list[int]) -> tuple[Ancestor, ...]:
    found = []
    for item in stated if isinstance(stated, list | tuple) and generations else ():
        told = item if isinstance(item, Mapping) else {"id": item}
        name = told.get("label") if told.get("kind") == "local" else told.get("id")
        if not isinstance(name, str) or not name or not left[0]:
            continue
        left[0] -= 1
        weight, role = told.get("weight"), told.get("role")
        known = isinstance(weight, int | float) and abs(weight) < 1e6  # not infinite, no NaN
        found.append(
            Ancestor(
                name[:_LONGEST],
                role if role in ("base", "agent") else "",
                _text(told.get("sha"))[:64],
                _text(told.get("license"))[:_LONGEST] or None,
                float(weight) if known and weight is not None else 1.0,
                _read(told.get("made_from"), generations - 1, left),
            )
        )
    return tuple(found)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""

"""What a merge was made from, drawn in letters: its parents with their licenses, and what these were made from, as far
as their repos tell.

Only models that are merges themselves, or were trained from another model than the base, go on below: that every agent
was trained from the base says the line of the base.
"""

from __future__ import annotations

from collections.abc import Sequence

from hubmerge.output.report import Parent, Report
from hubmerge.sources.ancestry import Ancestor

_WIDEST = 60  # characters of a name


def lineage_tree(report: Report, title: str, license: str) -> str:
    """A tree, one model a line."""
    base = next(p for p in report.parents if p.role == "base")
    return "\n".join([f"{_short(title)} · {_short(license)}", *_below(report.parents, base.id)])


def _below(parents: Sequence[Parent | Ancestor], base: str) -> list[str]:
    """The lines of `parents` and of what these were made from; `base`: of the whole merge."""
    lines = []
    for parent in parents:
        last = parent is parents[-1]
        lines.append(f"{'└─' if last else '├─'} {_line(parent)}")
        if parent.role != "base" and any(below.id != base for below in parent.made_from):
            lines += [("   " if last else "│  ") + line for line in _below(parent.made_from, base)]
    return lines


def _line(parent: Parent | Ancestor) -> str:
    name = parent.label if isinstance(parent, Parent) and parent.kind != "hub" else parent.id
    if not parent.role:
        return _short(name)  # a card names it, and says no more
    weight = "" if parent.role == "base" or parent.weight == 1 else f" × {parent.weight:.3g}"
    return f"{_short(name)} · {parent.role}{weight} · {_short(parent.license or 'no license stated')}"


def _short(text: str) -> str:
    """In one line, and no longer than a phone's screen is wide."""
    line = " ".join(text.split())
    return line if len(line) <= _WIDEST else line[: _WIDEST - 1] + "…"

"""What a merge was made from, drawn in letters: its parents with their licenses, and what these were made from.

Only parents that are merges themselves, or were trained from another model than the base, go on below: that every agent
was trained from the base says the line of the base.
"""

from __future__ import annotations

from collections.abc import Sequence

from hubmerge.output.report import Parent, Report

_WIDEST = 60  # characters of a name


def lineage_tree(report: Report, title: str, license: str) -> str:
    """A tree, one model a line."""
    base = next(p for p in report.parents if p.role == "base")
    lines = [f"{_short(title)} · {_short(license)}"]
    for k, parent in enumerate(report.parents):
        last = k == len(report.parents) - 1
        lines.append(f"{'└─' if last else '├─'} {_line(parent)}")
        grandparents = [name for name in parent.made_from if name != base.id] if parent.role == "agent" else []
        below = parent.made_from if grandparents else ()
        lines += [("   " if last else "│  ") + line for line in _below(below)]
    return "\n".join(lines)


def _line(parent: Parent) -> str:
    name = parent.id if parent.kind == "hub" else parent.label
    weight = "" if parent.role == "base" or parent.weight == 1 else f" × {parent.weight:.3g}"
    return f"{_short(name)} · {parent.role}{weight} · {_short(parent.license or 'no license stated')}"


def _below(names: Sequence[str]) -> list[str]:
    return [f"{'└─' if name == names[-1] else '├─'} {_short(name)}" for name in names]


def _short(text: str) -> str:
    """In one line, and no longer than a phone's screen is wide."""
    line = " ".join(text.split())
    return line if len(line) <= _WIDEST else line[: _WIDEST - 1] + "…"

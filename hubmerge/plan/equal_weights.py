"""Refuses models that hold the same weights where only their bytes show it.

The Hub states the hashes of a model's files, which the plan compares (compatibility.py). Folders state none, and equal
values may be stored as different bytes.
"""

from __future__ import annotations

import filecmp
from collections.abc import Sequence

from hubmerge.errors import IncompatibleError, Problem
from hubmerge.plan.plan import Plan
from hubmerge.sources.base import Model
from hubmerge.statistics.statistics import Statistics


def refuse_equal_folders(models: Sequence[Model]) -> None:
    """Refuse equal local folders. They state no hashes, so bytes are compared up to the first difference."""
    problems = []
    local = [m for m in models if m.ref.kind == "local"]
    for i, a in enumerate(local):
        for b in local[i + 1 :]:
            if (
                a.shards == b.shards
                and a.adapter == b.adapter
                and all(
                    a.files[s].size == b.files[s].size and filecmp.cmp(a.ref.path / s, b.ref.path / s, shallow=False)
                    for s in a.shards
                )
            ):
                what = "an agent is the base itself" if a is models[0] else "the same agent stands twice"
                problems.append(
                    Problem(IncompatibleError.code, what, str(b.ref), "", f"the bytes of {a.ref}", "Remove it.")
                )
    if problems:
        raise IncompatibleError("these models cannot be merged", problems=problems)


def refuse_equal_to_base(plan: Plan, statistics: Statistics) -> None:
    """Refuse agents that turned out equal to the base when they were read; equal values may have different bytes."""
    total = statistics.total
    same = [m for k, m in enumerate(plan.agents) if total.elements and total.identical[k] == total.elements]
    if same:
        raise IncompatibleError(
            "these models cannot be merged",
            problems=[
                Problem(
                    IncompatibleError.code,
                    "an agent changed none of the merged tensors",
                    where=str(m.ref),
                    got="the base's value in every element",
                    next_step="Remove it.",
                )
                for m in same
            ],
        )

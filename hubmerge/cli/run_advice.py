"""Advice for users of `hubmerge run`, whose folders lie below HUBMERGE_DATA and are not named in the command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hubmerge.errors import HubmergeError, Problem

_FOR_RUN = (
    (re.compile(r"\bWait for it, or choose another folder"), "Wait for it"),  # elsewhere both would publish the same
    (re.compile(r"\bMerge again into a new folder"), "Remove the folder that it lies in, and run again"),
    (re.compile(r"\bChoose (?=(a|another) folder)"), "Set HUBMERGE_DATA to "),
    (re.compile(r"\bchoose (?=(a|another) folder)"), "set HUBMERGE_DATA to "),
)


@contextmanager
def advising(data: Path) -> Iterator[None]:
    """Errors about what lies below `data` say what `run` can do, where they would say what `merge --out` can."""
    try:
        yield
    except HubmergeError as error:
        problems = [_for_run(problem, data) for problem in error.problems]
        if tuple(problems) == error.problems:
            raise
        raise type(error)(error.what, problems=problems) from None


def _for_run(problem: Problem, data: Path) -> Problem:
    if not Path(problem.where).is_relative_to(data):
        return problem
    words = problem.next_step
    for said, instead in _FOR_RUN:
        words = said.sub(instead, words)
    return replace(problem, next_step=words)

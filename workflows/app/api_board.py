"""The named endpoints of the leaderboard, models, evaluations and watchers. See api.py.

gradio reads return annotations as they stand, so this module does not postpone them.
"""

from collections.abc import Callable
from typing import Any, TypedDict
from urllib.parse import urlencode

from hubmerge.board.export import row_data
from hubmerge.board.source import DatasetBoard
from hubmerge.board.values import Board, Row, SuiteBoard
from hubmerge.errors import ResultError
from workflows.app.board_query import MAX_LINES, asked, matching
from workflows.app.session import signed_in
from workflows.app.watchers_source import WatcherSource
from workflows.values import Trial, Visitor, WatcherView


class BoardPage(TypedDict):
    suite: str
    version: str
    split: str
    suites: list[str]
    domains: list[str]
    total: int  # rows that match
    rows: list[dict[str, Any]]  # docs/api.md


def board_endpoints(source: DatasetBoard) -> tuple[Callable[..., Any], ...]:
    def leaderboard(
        suite: str = "",
        search: str = "",
        merges_only: bool = False,
        offset: int = 0,
        limit: int = 50,
        base: str = "",
        method: str = "",
        size: str = "",
        license: str = "",
        skills: int = 0,
        sort: str = "",
        *,
        visitor: Visitor | None,
    ) -> BoardPage:
        """The leaderboard of a suite, best first: its version, its domains, how many rows match, and a page of them.

        A row has the rank, scores between 0 and 1 with their 95% intervals, skills kept, parents, method and license.

        Args:
            suite: its name; empty for the first.
            search: part of a model's name.
            merges_only: leave out models that are no merges.
            offset: how many rows to skip.
            limit: how many rows to return, at most 500.
            base: the base model of merges.
            method: of merges, such as "ram".
            size: billions of parameters: "1" (up to 1), "4" (1 to 4), "10" (4 to 10) or "more".
            license: as the model's card states it.
            skills: at least so many kept.
            sort: a column of the page's table, such as "overall", or score- and a domain, with - in front from the
                highest down; empty: by rank.
        """
        board = source.board()
        if not suite and not board.suites:
            return {"suite": "", "version": "", "split": "", "suites": [], "domains": [], "total": 0, "rows": []}
        found = _suite(board, suite)
        kind = "merges" if merges_only else ""
        filters = {"base": base, "method": method, "size": size, "license": license, "sort": sort, "kind": kind}
        values = {"suite": found.suite, "q": search, "skills": skills or "", **filters}
        wanted = asked(board, urlencode({name: value for name, value in values.items() if value}))
        if wanted.wrong:
            step = f"The columns are {', '.join(wanted.every)}." if sort and not wanted.query.sort else ""
            got = " ".join(wanted.wrong)[:500]
            raise ResultError("the leaderboard cannot be asked this", got=got, next_step=step)
        rows = matching(found, wanted.query)
        start = max(offset, 0)
        page = rows[start : start + min(max(limit, 0), MAX_LINES)]
        return {
            "suite": found.suite,
            "version": found.version,
            "split": found.split,
            "suites": [s.suite for s in board.suites],
            "domains": list(found.domains),
            "total": len(rows),
            "rows": [row_data(row) for row in page],
        }

    def model(id: str, sha: str = "", *, visitor: Visitor | None) -> list[dict[str, Any]]:
        """What is known of a model: its row on every suite's leaderboard, with parents, lineage and recipe.

        Args:
            id: org/name.
            sha: a commit; empty for the newest that has a result.
        """
        rows = [(s, r) for s in source.board().suites if (r := s.find(id, sha or None)) is not None]
        if not rows:
            raise _not_found(id, sha)
        return [_with_suite(suite, row) for suite, row in rows]

    def evaluation(id: str, suite: str, sha: str = "", *, visitor: Visitor | None) -> dict[str, Any]:
        """One evaluation: a model's scores in a suite, by domain and task with intervals, or why it failed.

        Args:
            id: org/name.
            suite: its name.
            sha: a commit; empty for the newest that has a result.
        """
        found = _suite(source.board(), suite)
        row = found.find(id, sha or None)
        if row is None:
            raise _not_found(id, sha)
        return _with_suite(found, row)

    return leaderboard, model, evaluation


def trial_endpoints(source: WatcherSource) -> tuple[Callable[..., Any], ...]:
    """Those that ask the Hub."""

    def try_watcher(rule: dict[str, Any], visitor: Visitor | None) -> Trial:
        """What a watcher's rule would merge if it looked now, and what it would leave out and why. Changes nothing.

        It looks as whoever calls: without a token only at public models.

        Args:
            rule: such as {"name": "mine", "owner": "me", "base": "org/base", "agents": {"authors": ["org"]}, "recipe":
                {"method": "ram"}, "join": "all", "target": "me/merge-{set}", "budget": 1}.
        """
        return source.try_watcher(rule, visitor)

    return (try_watcher,)


def watcher_endpoints(source: WatcherSource) -> tuple[Callable[..., Any], ...]:
    def watchers(visitor: Visitor | None) -> list[WatcherView]:
        """Every watcher: what it merges, what it did last, and why it left models out. Private ones for their owner."""
        return source.watchers(visitor)

    def pause_watcher(name: str, visitor: Visitor | None) -> WatcherView:
        """Let one of your own watchers start nothing more until it is resumed. Needs a sign-in or a token.

        Args:
            name: of the rule, as watchers returned it.
        """
        return source.pause_watcher(name, signed_in(visitor, "pause a watcher"))

    def resume_watcher(name: str, visitor: Visitor | None) -> WatcherView:
        """Let one of your own watchers that is paused look again. Needs a sign-in or a token.

        Args:
            name: of the rule, as watchers returned it.
        """
        return source.resume_watcher(name, signed_in(visitor, "resume a watcher"))

    def run_watcher(name: str, visitor: Visitor | None) -> WatcherView:
        """Let one of your own watchers look within seconds. Needs a sign-in or a token.

        Args:
            name: of the rule, as watchers returned it.
        """
        return source.run_watcher(name, signed_in(visitor, "let a watcher look"))

    return watchers, pause_watcher, resume_watcher, run_watcher


def _suite(board: Board, name: str) -> SuiteBoard:
    found = board.suite(name) if name else next(iter(board.suites), None)
    if found is None:
        known = ", ".join(s.suite for s in board.suites)
        if not known:
            raise ResultError("the leaderboard has no results yet")
        raise ResultError("no such suite on the leaderboard", expected=known, got=name[:100])
    return found


def _with_suite(suite: SuiteBoard, row: Row) -> dict[str, Any]:
    return {"suite": suite.suite, "version": suite.version, "split": suite.split, **row_data(row)}


def _not_found(model: str, sha: str) -> ResultError:
    named = f"{model[:200]}{'@' * bool(sha)}{sha[:40]}"
    return ResultError("no result of this model", where=named, next_step="request_evaluation asks for one.")

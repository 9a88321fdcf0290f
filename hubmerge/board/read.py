"""The board of a results dataset on the Hub, or of a folder: for the command line and for `import hubmerge`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hubmerge.board.files import ResultFiles, read_folder
from hubmerge.board.leaderboard import board_of
from hubmerge.board.trust import folder_keys, named_keys, reader_trust
from hubmerge.board.values import Board
from hubmerge.errors import ResultError
from hubmerge.settings import load_settings

if TYPE_CHECKING:
    from hubmerge.evaluation.result import Split
    from hubmerge.hub.client import Hub


def leaderboard(
    results: str | Path | None = None,
    *,
    suite: str | None = None,
    suite_version: str | None = None,
    split: Split = "test",
    hub: Hub | None = None,
) -> Board:
    """The board of a results dataset on the Hub, or of a folder with `results/` in it; by default, of HUBMERGE_RESULTS.

    `suite`: this suite alone. `suite_version`: this version of it instead of the newest. Scores are numbers from 0 to
    1.

    Raises ResultError where no result is of this suite, and the Hub's errors.
    """
    settings = load_settings()
    named = str(results or settings.results_repo or settings.data_dir / "results-dataset")
    if named.startswith((".", "/", "~")) or Path(named).is_dir() or named.count("/") != 1:
        folder = Path(named).expanduser()
        read: ResultFiles = read_folder(folder, named_keys(settings) or folder_keys(folder))
    else:
        from hubmerge.board.results_dataset import ResultsDataset
        from hubmerge.hub.login import hub_of_user

        read = ResultsDataset(hub or hub_of_user(settings), named, trust=reader_trust(settings, named)).load()
    board = board_of(read, suite_versions={suite: suite_version} if suite and suite_version else None, split=split)
    if suite is None:
        return board
    if (found := board.suite(suite)) is None:
        raise ResultError(
            "no such suite in these results",
            where=named,
            expected=", ".join(s.suite for s in board.suites) or "any result",
            got=suite,
        )
    return replace(board, suites=(found,))

"""The board of a results dataset on the Hub, or of a folder: for the command line and for `import hubmerge`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hubmerge.board.files import ResultFiles, read_folder, results_folder
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
    split: "Split" = "test",
    hub: "Hub | None" = None,
) -> Board:
    """The board of a results dataset on the Hub, or of a folder with `results/` in it; by default, of HUBMERGE_RESULTS,
    else of `results-dataset` in the data folder.

    `suite`: this suite alone. `suite_version`: this version of it instead of the newest. Scores are numbers from 0 to
    1.

    Raises ResultError where no result is of this suite or version, and the Hub's errors.
    """
    if suite_version is not None and suite is None:
        raise ResultError(
            "a version is one of a suite",
            where=f"suite version {suite_version}",
            expected="the suite, too",
            got="none",
            next_step="Name it with --suite.",
        )
    settings = load_settings()
    named = str(results or settings.results_repo or settings.data_dir.absolute() / "results-dataset")
    if (folder := results_folder(named)) is not None:
        read: ResultFiles = read_folder(folder, named_keys(settings) or folder_keys(folder))
    else:
        from hubmerge.board.results_dataset import ResultsDataset
        from hubmerge.hub.login import hub_of_user

        read = ResultsDataset(hub or hub_of_user(settings), named, trust=reader_trust(settings, named)).load()
    board = board_of(read, suite_versions={suite: suite_version} if suite and suite_version else None, split=split)
    if suite is None:
        return board
    if (found := board.suite(suite)) is None:
        what = f"no such suite in these results of the {split} split"
        there, got = [s.suite for s in board.suites], suite
    elif suite_version is not None and suite_version not in found.versions:
        there, got, what = list(found.versions), suite_version, f"no result of {suite} is of this version"
    else:
        return replace(board, suites=(found,))
    expected = ", ".join(there) or "any result"
    raise ResultError(what, where=named, expected=expected, got=got, next_step="Name one that there is.")

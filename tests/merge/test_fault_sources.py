"""Sources that are deleted, replaced or moved on while a merge runs."""

from __future__ import annotations

import pytest
from fault_line import Family, Line, weights
from huggingface_hub import HfApi

from hubmerge.errors import SourceChangedError


@pytest.mark.parametrize("model", ["base", "agent"])
def test_a_source_that_is_deleted_before_it_was_fetched_is_gone(
    line: Line, own: Family, faulty_ada: HfApi, model: str
) -> None:
    repo = own.base if model == "base" else own.agents[0]
    line.watcher.at["fetch"] = lambda: faulty_ada.delete_repo(repo)
    with pytest.raises(SourceChangedError) as caught:
        line.run()
    assert caught.value.code == "E_SOURCE_CHANGED"
    assert repo in str(caught.value)
    assert not faulty_ada.repo_exists(line.target)


def test_a_source_that_is_deleted_and_made_anew_is_another_one(line: Line, own: Family, faulty_ada: HfApi) -> None:
    def replace() -> None:
        faulty_ada.delete_repo(own.agents[0])
        faulty_ada.create_repo(own.agents[0])
        faulty_ada.upload_folder(repo_id=own.agents[0], folder_path=line.folder / "models" / "two")

    line.watcher.at["fetch"] = replace
    with pytest.raises(SourceChangedError) as caught:
        line.run()
    assert own.agents[0] in str(caught.value)
    assert not faulty_ada.repo_exists(line.target)


@pytest.mark.parametrize("change", ["commit", "squash"])
def test_a_source_that_moves_on_is_merged_as_it_was_pinned(
    line: Line, own: Family, faulty_ada: HfApi, undisturbed: dict[str, str], change: str
) -> None:
    def move() -> None:
        faulty_ada.upload_folder(
            repo_id=own.agents[0], folder_path=line.folder / "models" / "two", commit_message="other"
        )
        if change == "squash":
            faulty_ada.super_squash_history(own.agents[0])

    line.watcher.at["fetch"] = move
    line.run()
    assert weights(line.published()) == weights(undisturbed)


def test_a_source_that_goes_after_it_was_fetched_whole_is_noticed_or_not_needed(
    line: Line, own: Family, faulty_ada: HfApi, undisturbed: dict[str, str]
) -> None:
    """What is still to be read then are small files of the base; an agent's weights lie here."""
    line.watcher.at["merge"] = lambda: faulty_ada.delete_repo(own.base)
    with pytest.raises(SourceChangedError) as caught:
        line.run()
    assert own.base in str(caught.value)
    assert not faulty_ada.repo_exists(line.target)

"""Discussions: what is said, changed and taken back, and by whom."""

from __future__ import annotations

import pytest
from huggingface_hub import DiscussionComment, DiscussionWithDetails, HfApi
from raw_requests import status_of

# the client's own, wherever a comment is hidden
pytestmark = pytest.mark.filterwarnings("ignore:Hidden comments' content cannot be retrieved:UserWarning")


@pytest.fixture
def talk(bob: HfApi, repo: str) -> DiscussionWithDetails:
    """A discussion that bob opened on a repo of ada's."""
    return bob.create_discussion(repo, "Why this license?", description="Please say.", token=bob.token)


def comments(api: HfApi, talk: DiscussionWithDetails) -> list[DiscussionComment]:
    events = api.get_discussion_details(talk.repo_id, talk.num).events
    return [event for event in events if isinstance(event, DiscussionComment)]


def test_a_comment_is_edited_by_its_author_and_keeps_its_history(
    ada: HfApi, bob: HfApi, talk: DiscussionWithDetails
) -> None:
    said = bob.comment_discussion(talk.repo_id, talk.num, "first words")
    bob.edit_discussion_comment(talk.repo_id, talk.num, said.id, "better words")
    [_, comment] = comments(ada, talk)
    assert (comment.content, comment.edited, comment.author) == ("better words", True, "bob")
    assert [entry["raw"] for entry in comment.edit_history] == ["first words"]


def test_a_hidden_comment_is_gone_for_everybody_and_for_good(
    ada: HfApi, bob: HfApi, talk: DiscussionWithDetails
) -> None:
    said = bob.comment_discussion(talk.repo_id, talk.num, "a secret")
    ada.hide_discussion_comment(talk.repo_id, talk.num, said.id)  # of her repo
    for api in (ada, bob):
        [_, comment] = comments(api, talk)
        assert (comment.hidden, "secret" in str(comment)) == (True, False)
    assert status_of(bob.edit_discussion_comment, talk.repo_id, talk.num, said.id, "again") == 400


def test_nobody_else_edits_or_hides_a_comment(
    ada: HfApi, bob: HfApi, carol: HfApi, talk: DiscussionWithDetails
) -> None:
    said = ada.comment_discussion(talk.repo_id, talk.num, "an answer")
    for api in (bob, carol):
        assert status_of(api.hide_discussion_comment, talk.repo_id, talk.num, said.id) == 403
        assert status_of(api.edit_discussion_comment, talk.repo_id, talk.num, said.id, "other words") == 403
    assert comments(ada, talk)[1].content == "an answer"


def test_a_discussion_is_renamed_closed_and_opened_again(ada: HfApi, bob: HfApi, talk: DiscussionWithDetails) -> None:
    bob.rename_discussion(talk.repo_id, talk.num, "Which license?")
    ada.change_discussion_status(talk.repo_id, talk.num, "closed", comment="answered")
    [listed] = ada.get_repo_discussions(talk.repo_id, discussion_status="closed")
    assert (listed.title, listed.status) == ("Which license?", "closed")
    ada.change_discussion_status(talk.repo_id, talk.num, "open")
    assert [found.status for found in ada.get_repo_discussions(talk.repo_id)] == ["open"]
    kinds = [event.type for event in ada.get_discussion_details(talk.repo_id, talk.num).events]
    assert [kind for kind in kinds if kind != "comment"] == ["title-change", "status-change", "status-change"]

"""Publishing: shards uploaded one by one ahead (here, or while merging: upload.py), then one commit with everything.

The target is looked at before anything is downloaded and again before anything is uploaded. A repo that this
very merge filled is a success that was not noticed; a repo with anything else in it is never touched. A lost
answer to the commit is resolved by looking for the merge's identity, so there are never two commits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hubmerge.errors import (
    FormatError,
    HubUnavailableError,
    PermissionDeniedError,
    RecipeError,
    SourceNotFoundError,
    TargetExistsError,
)
from hubmerge.hub import Hub
from hubmerge.hub_errors import BranchMovedError
from hubmerge.sink import MANIFEST
from hubmerge.sources.base import is_hub_id

_COMMIT_TRIES = 5
_MAX_MANIFEST_BYTES = 16_000_000
_INITIAL_FILES = {".gitattributes"}  # what a repo holds that was just created


@dataclass(frozen=True)
class Target:
    """Where a merge goes."""

    repo: str  # namespace/name
    private: bool


@dataclass(frozen=True)
class Uploaded:
    """A file whose bytes the target holds already."""

    name: str
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class Published:
    repo: str
    commit: str  # 40 hex
    url: str


@dataclass(frozen=True)
class TargetState:
    state: Literal["missing", "empty", "ours"]
    head: str = ""  # of main; "" when missing


def find_published(hub: Hub, target: Target, identity: str) -> Published | None:
    """The merge where it is published already; raises as `check_target` does."""
    state = check_target(hub, target, identity)
    return _published(hub, target, identity, state.head) if state.state == "ours" else None


def check_target(hub: Hub, target: Target, identity: str) -> TargetState:
    """May this merge be published there? RecipeError, TargetExistsError or PermissionDeniedError when not."""
    namespace, _, name = target.repo.partition("/")
    if not name or not is_hub_id(target.repo):
        raise RecipeError(
            "the target is not a repo's name",
            expected="namespace/name",
            got=ascii(target.repo)[1:-1][:120],
            next_step="Give the name of a new repo.",
        )
    if namespace not in (allowed := hub.whoami().namespaces):
        raise PermissionDeniedError(
            "you cannot write to this namespace", where=target.repo, expected=" or ".join(allowed), got=namespace
        )
    try:
        state = hub.repo_state(target.repo)
    except SourceNotFoundError:
        return TargetState("missing")
    if MANIFEST in state.files and _identity(hub, target.repo, state.sha) == identity:
        return TargetState("ours", state.sha)
    foreign = sorted(set(state.files) - _INITIAL_FILES)
    if foreign:
        raise TargetExistsError(
            "the target already holds something else",
            where=target.repo,
            expected="a new or empty repo",
            got=", ".join(foreign[:3]) + (" …" if len(foreign) > 3 else ""),
            next_step="Choose another name; nothing was changed.",
        )
    if target.private and not state.private:
        raise TargetExistsError(
            "the target is public, and a private one was asked for",
            where=target.repo,
            expected="a private repo",
            got="a public one",
            next_step="Make it private or choose another name; nothing was changed.",
        )
    return TargetState("empty", state.sha)


def ensure_target(hub: Hub, target: Target, identity: str) -> TargetState:
    """The target, made if it is missing; raises as `check_target` does."""
    state = check_target(hub, target, identity)
    if state.state == "missing":
        hub.create_repo(target.repo, private=target.private)
        state = check_target(hub, target, identity)
        if state.state == "missing":
            raise HubUnavailableError("a repo that was just created is not there", where=target.repo)
    return state


def publish(
    hub: Hub,
    target: Target,
    identity: str,
    title: str,
    shards: Sequence[Path | Uploaded],
    files: Mapping[str, bytes],
    uploaded: Callable[[int, int], None],
) -> Published:
    """Publish `shards` and `files` (with the manifest) in one commit; safe to repeat after any failure.

    `uploaded(done, total)` is told bytes.
    """
    state = ensure_target(hub, target, identity)
    if state.state == "ours":
        return _published(hub, target, identity, state.head)
    sizes = [s.size if isinstance(s, Uploaded) else s.stat().st_size for s in shards]
    operations: list[Any] = []
    for number, shard in enumerate(shards, 1):
        if isinstance(shard, Uploaded):
            operations.append(hub.uploaded(shard.name, shard.size, shard.sha256))
        else:
            operations.append(hub.preupload(target.repo, shard, shard.name))
        uploaded(sum(sizes[:number]), sum(sizes))
    failures = 0
    while True:
        try:
            commit = hub.commit(
                target.repo,
                operations,
                files.items(),
                message=f"{title} {_mark(identity)}",
                description=f"hubmerge job {identity}",
                parent=state.head,
            )
            if commit == state.head:  # the client found nothing to change, so what we saw of the target was old
                raise BranchMovedError("the target is not at the commit that it stated", where=target.repo, got=commit)
            return Published(target.repo, commit, hub.url(target.repo))
        except HubUnavailableError as error:
            failures += 1
            parent = state.head
            # the answer may be lost and the commit there, or the branch may have moved
            state = check_target(hub, target, identity)
            if state.state == "ours":
                return _published(hub, target, identity, state.head)
            if failures == _COMMIT_TRIES or state.state == "missing":
                raise
            # a branch that moved is followed at once, unless the Hub still shows it where it was
            if not isinstance(error, BranchMovedError) or state.head == parent:
                hub.patience.pause(failures, error)


def _mark(identity: str) -> str:
    """What the title of a merge's own commit holds, and of no later one in its repo (scores, a user's edits)."""
    return f"[hubmerge {identity[:16]}]"


def _published(hub: Hub, target: Target, identity: str, head: str) -> Published:
    commit = hub.find_commit(target.repo, _mark(identity)) or head
    return Published(target.repo, commit, hub.url(target.repo))


def _identity(hub: Hub, repo: str, sha: str) -> str | None:
    try:
        manifest = json.loads(hub.read_file(repo, sha, MANIFEST, _MAX_MANIFEST_BYTES))
    except (ValueError, RecursionError, FormatError):
        return None  # not written by us
    return manifest.get("identity") if isinstance(manifest, dict) else None

"""Publishes a merge: uploads its shards one by one (here, or while merging: upload.py), then makes one commit.

The target is checked before anything is downloaded and again before anything is uploaded. If this merge has filled the
repo already, publishing has succeeded before; a repo with any other content is never touched. After a lost answer to
the commit, the merge's identity is looked up in the repo, so there are never two commits.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hubmerge.engine.progress import Observer
from hubmerge.engine.sink import MANIFEST
from hubmerge.errors import (
    CorruptError,
    FormatError,
    HubUnavailableError,
    PermissionDeniedError,
    RecipeError,
    SourceNotFoundError,
    TargetExistsError,
)
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import COMMIT_TRIES, BranchMovedError
from hubmerge.hub.names import is_hub_id
from hubmerge.text.wording import json_table

_BLOCK_BYTES = 4 * 1024 * 1024
MAX_MANIFEST_BYTES = 32 * 1024 * 1024  # 32 agents of 126 layers take some 25 MB
_INITIAL_FILES = {".gitattributes"}  # the files of a repo that was just created


@dataclass(frozen=True)
class Target:
    """The repo that a merge is published to."""

    repo: str  # namespace/name
    private: bool
    expose: bool = False  # somebody said outright that what private parents hold may become public here

    def __post_init__(self) -> None:
        """RecipeError for what no repo can be called."""
        if "/" not in self.repo or not is_hub_id(self.repo):
            raise RecipeError(
                "the target is not a repo's name",
                expected="namespace/name",
                got=ascii(self.repo)[1:-1][:120],
                next_step="Give the name of a new repo.",
            )

    def refuse_to_expose(self, sources: Iterable[tuple[str, bool]]) -> None:
        """RecipeError where a public target would expose a private source; `sources`: (name, whether it is private)."""
        if self.private or self.expose:
            return
        if hidden := list(dict.fromkeys(name for name, private in sources if private)):
            raise RecipeError(
                "a public merge would tell what private models or data hold",
                where=self.repo,
                expected="a private target, or public parents and data",
                got=_first(hidden),
                next_step="Publish with --private, or say --public if all of them may be known.",
            )

    def taken(self, what: str, expected: str, got: str, step: str = "Choose another name") -> TargetExistsError:
        """The error of a repo that the merge cannot go into."""
        next_step = f"{step}; nothing was changed."
        return TargetExistsError(what, where=self.repo, expected=expected, got=got, next_step=next_step)


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


@dataclass(frozen=True)
class Shard:
    """A large file, above all of weights, which lies at `path`; None: the target holds its bytes already."""

    name: str
    size: int  # bytes
    sha256: str  # as the manifest states it; "": it does not
    path: Path | None


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
    """The published merge, if this merge is published already; raises as `check_target` does."""
    state = check_target(hub, target, identity)
    return _published(hub, target, identity, state.head) if state.state == "ours" else None


def license_stays(hub: Hub, repo: str, asked: str | None) -> str:
    """A warning where a merge that is published already has another license than the one `asked` for, or ""."""
    if asked in (None, hub.repo_state(repo).license):
        return ""
    return f"{repo} holds this merge already and stays as it is, its license too"


def check_writer(hub: Hub, repo: str) -> None:
    """PermissionDeniedError where the token may not write to the repo's namespace."""
    namespace = repo.partition("/")[0]
    me = hub.whoami()
    if namespace not in me.namespaces:
        raise PermissionDeniedError(
            "you cannot write to this namespace",
            where=repo,
            expected=" or ".join(me.namespaces),
            got=namespace,
            next_step="Choose one of those, or sign in with another account.",
        )
    if not me.may_write:
        raise PermissionDeniedError("the token may only read", where=repo, next_step="Sign in with one that may write.")


def check_target(hub: Hub, target: Target, *identities: str) -> TargetState:
    """Check that a merge of these may be published there; else TargetExistsError or PermissionDeniedError."""
    check_writer(hub, target.repo)
    try:
        state = hub.repo_state(target.repo)
    except SourceNotFoundError:
        return TargetState("missing")
    ours = MANIFEST in state.files and _identity(hub, target.repo, state.sha) in identities
    if ours and (state.private or not target.private):
        return TargetState("ours", state.sha)
    foreign = [] if ours else sorted(set(state.files) - _INITIAL_FILES)
    if foreign:
        of = "" if state.id == target.repo else f" of {state.id}, to which this name leads"  # since it was renamed
        raise target.taken("the target already holds something else", "a new or empty repo", _first(foreign) + of)
    if target.private and not state.private:
        what, step = "the target is public, and a private one was asked for", "Make it private or choose another name"
        raise target.taken(what, "a private repo", "a public one", step)
    return TargetState("empty", state.sha)


def ensure_target(hub: Hub, target: Target, identity: str) -> TargetState:
    """The target, made if it is missing; raises as `check_target` does."""
    state = check_target(hub, target, identity)
    if state.state == "missing":
        created = hub.create_repo(target.repo, private=target.private)
        state = check_target(hub, target, identity)
        if state.state == "missing" and created:
            raise HubUnavailableError("a repo that was just created is not there", where=target.repo)
        if state.state == "missing":  # there, and private to others or to what the sign-in covers
            what, got = (
                "the target exists, and this sign-in may not read it",
                "a private one that hubmerge did not make",
            )
            raise target.taken(what, "a new repo", got)
    return state


def publish(
    hub: Hub,
    target: Target,
    identity: str,
    title: str,
    shards: Sequence[Shard],
    files: Mapping[str, bytes],
    observer: Observer,
) -> Published:
    """Publish `shards` and `files` (with the manifest) in one commit; safe to repeat after any failure.

    `observer` is told bytes in the stages verify and publish, and when the Hub is asked for the commit. Raises
    CorruptError, before anything is sent, where a shard has other bytes than its sha256 says.
    """
    if here := [(shard, shard.path) for shard in shards if shard.path is not None and shard.sha256]:
        if published := find_published(hub, target, identity):
            return published
        before, size = 0, sum(shard.size for shard, _ in here)
        for shard, path in here:  # before the target is made
            _verify(path, shard.sha256, partial(_tell, observer, "verify", before, size))
            before += shard.size
    state = ensure_target(hub, target, identity)
    if state.state == "ours":
        return _published(hub, target, identity, state.head)
    before, size = 0, sum(shard.size for shard in shards)
    operations: list[Any] = []
    for shard in shards:
        if shard.path is None:
            operations.append(hub.uploaded(shard.name, shard.size, shard.sha256))
        else:
            sent = partial(_tell, observer, "publish", before, size)
            known = shard.sha256 or None
            operations.append(hub.preupload(target.repo, shard.path, shard.name, sha256=known, sent=sent))
        before += shard.size
        observer.progress("publish", before, size, "B")
    observer.progress("commit", 0, 0, "")
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
            if failures == COMMIT_TRIES or state.state == "missing":
                raise
            # a branch that moved is followed at once, unless the Hub still shows it where it was
            if not isinstance(error, BranchMovedError) or state.head == parent:
                hub.patience.pause(failures, error)


def _tell(observer: Observer, stage: str, before: int, total: int, done: int) -> None:
    """`done` bytes of a file that follows `before` others, of `total` of all files."""
    observer.progress(stage, before + done, total, "B")


def _verify(shard: Path, sha256: str, read: Callable[[int], None]) -> None:
    try:
        with shard.open("rb") as file:
            hashed, done = hashlib.sha256(), 0
            while block := file.read(_BLOCK_BYTES):
                hashed.update(block)
                done += len(block)
                read(done)
            digest = hashed.hexdigest()
    except OSError as error:
        digest = error.strerror or str(error)
    if digest != sha256:
        raise CorruptError(
            "a shard is not what its manifest says",
            where=str(shard),
            expected=f"sha256 {sha256[:16]}",
            got=digest[:40],
            next_step="Merge again into a new folder; nothing was published.",
        )


def _mark(identity: str) -> str:
    """The mark in the title of a merge's own commit; later commits in its repo (scores, edits) do not have it."""
    return f"[hubmerge {identity[:16]}]"


def _published(hub: Hub, target: Target, identity: str, head: str) -> Published:
    commit = hub.find_commit(target.repo, _mark(identity)) or head
    return Published(target.repo, commit, hub.url(target.repo))


def _identity(hub: Hub, repo: str, sha: str) -> str | None:
    try:
        manifest = json_table(hub.read_file(repo, sha, MANIFEST, MAX_MANIFEST_BYTES))
    except FormatError:
        return None  # not written by us
    return (manifest or {}).get("identity")

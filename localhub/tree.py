"""Commits, and the files that each of them holds.

A commit stores only what it changed: `files` maps a path to `[oid, size, sha256 or null]`, or to null where
the file went away. The tree of a commit is found by walking to its ancestors up to one that stores its tree
whole and replaying the changes. A commit stores its tree whole as soon as the changes since the last whole
one outweigh the tree; reading a tree and the growth of the database thus stay linear in the number of
files, however long the history is. Trees in use are kept in memory.

`Entry.commit` is the last commit that touched the path; replaying gives it for free.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import NamedTuple

from localhub.http_errors import revision_not_found, unprocessable
from localhub.store import Store, now

MAIN = "refs/heads/main"
_KEPT_TREES = 64
# how many commits ago a question about main is answered; a fault that tests switch on (faults.py)
COMMITS_BACK: ContextVar[int] = ContextVar("COMMITS_BACK", default=0)
_HEX, _WHOLE_HEX = re.compile(r"[0-9a-f]{7,40}"), re.compile(r"[0-9a-f]{40}")
_WALK = """
WITH RECURSIVE walk(repo, sha, depth) AS (
    SELECT ?, ?, 0
    UNION ALL SELECT repo, c.parent, depth + 1 FROM walk JOIN commits c USING (repo, sha)
    WHERE c.parent IS NOT NULL {stop})
SELECT c.* FROM walk JOIN commits c USING (repo, sha) ORDER BY depth
"""


class File(NamedTuple):
    """What a commit puts at a path. `oid` is the git blob id, of the pointer file when the content is in LFS."""

    oid: str
    size: int
    sha256: str | None = None  # set when the content is in LFS


class Entry(NamedTuple):
    """A file of a tree."""

    oid: str
    size: int
    sha256: str | None
    commit: str  # the last commit that changed this path

    @property
    def etag(self) -> str:
        return self.sha256 or self.oid

    @property
    def file(self) -> File:
        return File(*self[:3])


class Fixed(NamedTuple):
    """What a commit's sha is made of in place of this data folder's number for the repo and the clock."""

    repo: str
    date: str


class Message(NamedTuple):
    """What a commit says of itself."""

    title: str
    author: str
    description: str = ""
    fixed: Fixed | None = None  # the same content with the same one has the same sha in every data folder


Tree = Mapping[str, Entry]
Changes = Mapping[str, File | None]


class Commit(NamedTuple):
    sha: str
    title: str
    description: str
    author: str
    date: str


class Trees:
    """Reads and writes the commits of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[tuple[int, str], Tree] = {}  # the last _KEPT_TREES
        self._lock = threading.Lock()  # over _read

    def resolve(self, repo: int, revision: str) -> str:
        """The commit that a branch, tag, full ref or (short) commit id names."""
        revision = "main" if revision == "HEAD" else revision
        own = "SELECT 1 FROM commits WHERE repo = ? AND sha = ?"
        if _WHOLE_HEX.fullmatch(revision) and self._store.row(own, repo, revision):
            return revision  # a commit's own id always means it, as in git
        for name in (f"refs/heads/{revision}", f"refs/tags/{revision}", revision):
            if head := self.head(repo, name):
                back = COMMITS_BACK.get() if name == MAIN else 0
                return self.history(repo, head, limit=back + 1)[-1].sha if back else head
        if _HEX.fullmatch(revision):
            rows = self._store.rows(
                "SELECT sha FROM commits WHERE repo = ? AND sha BETWEEN ? AND ? LIMIT 2", repo, revision, revision + "g"
            )
            if len(rows) == 1:
                return str(rows[0]["sha"])
        raise revision_not_found(revision)

    def head(self, repo: int, ref: str = MAIN) -> str | None:
        row = self._store.row("SELECT sha FROM refs WHERE repo = ? AND name = ?", repo, ref)
        return str(row["sha"]) if row else None

    def at(self, repo: int, sha: str) -> Tree:
        """Every file of a commit, by path."""
        if (known := self._read.get((repo, sha))) is not None:
            return known
        rows = self._store.rows(_WALK.format(stop="AND c.whole = 0"), repo, sha)
        tree: dict[str, Entry] = {}
        for row in reversed(rows):
            files = json.loads(row["files"])
            if row["whole"]:
                tree = {path: Entry(*values) for path, values in files.items()}
            else:
                _replay(tree, {p: File(*v) if v else None for p, v in files.items()}, row["sha"])
        self._remember(repo, sha, tree)
        return tree

    def _remember(self, repo: int, sha: str, tree: Tree) -> None:
        with self._lock:
            self._read[repo, sha] = tree
            if len(self._read) > _KEPT_TREES:
                del self._read[next(iter(self._read))]

    def history(self, repo: int, sha: str, *, start: int = 0, limit: int = -1) -> list[Commit]:
        """The commit and its ancestors, newest first."""
        rows = self._store.rows(_WALK.format(stop="") + " LIMIT ? OFFSET ?", repo, sha, limit, start)
        return [Commit(*(row[name] for name in Commit._fields)) for row in rows]

    def commit(self, repo: int, changes: Changes, message: Message, *, ref: str, parent: str | None) -> str:
        """Write a commit on top of `parent` and move `ref` to it, inside the caller's transaction."""
        title, author, description, fixed = message
        owner, date = fixed or (repo, now())
        stored = {path: list(file) if file else None for path, file in changes.items()}
        identity = json.dumps([owner, parent, title, description, author, date, stored])
        sha = hashlib.sha1(identity.encode(), usedforsecurity=False).hexdigest()
        tree = dict(self.at(repo, parent)) if parent else {}
        _replay(tree, changes, sha)
        row = self._store.row("SELECT weight FROM commits WHERE repo = ? AND sha = ?", repo, parent)
        weight = (row["weight"] if row else 0) + len(changes)
        whole = parent is not None and weight > max(64, len(tree))
        kept = (whole, 0, json.dumps(tree)) if whole else (whole, weight, json.dumps(stored))
        values = (repo, sha, parent, title, description, author, date, *kept)
        self._store.change("INSERT OR IGNORE INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *values)
        self._store.change(
            "INSERT INTO refs (repo, name, sha) VALUES (?, ?, ?)"
            " ON CONFLICT (repo, name) DO UPDATE SET sha = excluded.sha",
            *(repo, ref, sha),
        )
        self._remember(repo, sha, tree)
        return sha


def _replay(tree: dict[str, Entry], changes: Changes, sha: str) -> None:
    for path, file in changes.items():
        if file is None:
            tree.pop(path, None)
        else:
            tree[path] = Entry(file.oid, file.size, file.sha256, sha)


def folders(paths: Iterable[str]) -> set[str]:
    """Every folder that the paths imply."""
    found: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def check_path(path: str) -> str:
    """Refuse a path that could not stand in a git tree or would leave the folder it is unpacked to."""
    segments = path.split("/")
    if (
        not path
        or len(path) > 1000
        or re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", path)
        or any(segment in ("", ".", "..") or segment.lower() == ".git" for segment in segments)
        or re.match(r"\\|\.\.\\|[A-Za-z]:[\\/]", path)  # absolute or climbing where `\` separates
    ):
        raise unprocessable(f"Invalid path in repo: {path!r}")
    return path

"""The storage of the embedded Hub: one SQLite file and content-addressed blobs below one folder.

docs/localhub.md lists the files. One is written to DATA/tmp, hashed on the way, and renamed to its digest; only then
does a transaction name it. A process killed at any point therefore leaves either the old head or the new one, and at
worst a blob that nothing names. Nothing is fsynced: a killed process loses nothing, a machine that loses power may
lose the last commits.

Writers are serialised by one lock and `BEGIN IMMEDIATE`, so check-then-update (a parent commit, a unique
name) is one step. Readers have a connection per thread and see the last committed state.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from weakref import WeakSet

from hubmerge.errors import HubUnavailableError
from hubmerge.machine.disk_errors import written

DATABASE = "hub.sqlite3"
SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS repos (
    id INTEGER PRIMARY KEY AUTOINCREMENT, type TEXT NOT NULL, ns TEXT NOT NULL, name TEXT NOT NULL,
    key TEXT NOT NULL UNIQUE, visibility TEXT NOT NULL, gated TEXT NOT NULL DEFAULT '',
    creator TEXT NOT NULL, app TEXT, created_at TEXT NOT NULL, modified_at TEXT NOT NULL,
    sdk TEXT, storage INTEGER NOT NULL DEFAULT 0,
    card TEXT NOT NULL DEFAULT '{}', config TEXT NOT NULL DEFAULT '{}', pipeline_tag TEXT, library TEXT);
CREATE TABLE IF NOT EXISTS aliases (key TEXT PRIMARY KEY, repo INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS repo_tags (repo INTEGER NOT NULL, place INTEGER NOT NULL, tag TEXT NOT NULL,
    PRIMARY KEY (repo, place));
CREATE INDEX IF NOT EXISTS repo_tags_tag ON repo_tags (tag, repo);
CREATE TABLE IF NOT EXISTS refs (repo INTEGER NOT NULL, name TEXT NOT NULL, sha TEXT NOT NULL, message TEXT,
    PRIMARY KEY (repo, name));
CREATE TABLE IF NOT EXISTS commits (
    repo INTEGER NOT NULL, sha TEXT NOT NULL, parent TEXT, title TEXT NOT NULL, description TEXT NOT NULL,
    author TEXT NOT NULL, date TEXT NOT NULL, whole INTEGER NOT NULL, weight INTEGER NOT NULL,
    files TEXT NOT NULL, PRIMARY KEY (repo, sha));
CREATE TABLE IF NOT EXISTS access_requests (repo INTEGER NOT NULL, user TEXT NOT NULL, status TEXT NOT NULL,
    date TEXT NOT NULL, PRIMARY KEY (repo, user));
CREATE TABLE IF NOT EXISTS discussions (
    repo INTEGER NOT NULL, num INTEGER NOT NULL, title TEXT NOT NULL, status TEXT NOT NULL,
    pull_request INTEGER NOT NULL, author TEXT NOT NULL, date TEXT NOT NULL, base TEXT, merged TEXT,
    PRIMARY KEY (repo, num));
CREATE TABLE IF NOT EXISTS events (
    place INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, repo INTEGER NOT NULL,
    num INTEGER NOT NULL, type TEXT NOT NULL, author TEXT NOT NULL, date TEXT NOT NULL, data TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_of ON events (repo, num);
CREATE TABLE IF NOT EXISTS webhooks (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, url TEXT NOT NULL, watched TEXT NOT NULL, domains TEXT NOT NULL,
    secret TEXT, disabled INTEGER NOT NULL DEFAULT 0, date TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS deliveries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, webhook TEXT NOT NULL, payload TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'pending', attempts INTEGER NOT NULL DEFAULT 0, status_code INTEGER,
    error TEXT, date TEXT NOT NULL, finished_at TEXT);
CREATE INDEX IF NOT EXISTS deliveries_of ON deliveries (webhook, state);
CREATE TABLE IF NOT EXISTS uploads (id TEXT PRIMARY KEY, sha256 TEXT NOT NULL, size INTEGER NOT NULL,
    part_size INTEGER, date TEXT NOT NULL, repo INTEGER);
CREATE TABLE IF NOT EXISTS repo_objects (repo INTEGER NOT NULL, sha256 TEXT NOT NULL,
    PRIMARY KEY (repo, sha256));
CREATE TABLE IF NOT EXISTS oauth_requests (id TEXT PRIMARY KEY, request TEXT NOT NULL, expires REAL NOT NULL);
CREATE TABLE IF NOT EXISTS oauth_codes (code TEXT PRIMARY KEY, user TEXT NOT NULL, request TEXT NOT NULL,
    expires REAL NOT NULL);
CREATE TABLE IF NOT EXISTS oauth_tokens (token TEXT PRIMARY KEY, refresh TEXT NOT NULL UNIQUE,
    user TEXT NOT NULL, app TEXT NOT NULL, scope TEXT NOT NULL, expires REAL NOT NULL, orgs TEXT NOT NULL DEFAULT '');
"""
# Every table whose rows belong to one repo; all of them go when the repo goes.
REPO_TABLES = (
    *("aliases", "repo_tags", "refs", "commits", "access_requests"),
    *("discussions", "events", "repo_objects"),
)


def timestamp(moment: datetime) -> str:
    """A moment in the Hub's notation, e.g. 2026-11-21T08:00:00.000Z."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now() -> str:
    return timestamp(datetime.now(UTC))


def new_id() -> str:
    return secrets.token_hex(12)


def git_blob_sha1(content: bytes) -> str:
    """The id that git gives to a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    """The file that git keeps in place of a large one."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


class _Connection(sqlite3.Connection):
    """A connection that can be referred to weakly."""


def _refuse_foreign(data_dir: Path) -> None:
    """Files of somebody else must not be taken for unfinished uploads and deleted."""
    if (data_dir / DATABASE).exists():
        return
    found = sorted(path.name for path in data_dir.iterdir() if path.name not in ("lock", "tmp"))
    left = data_dir / "tmp"  # of a first start that was cut short; it is empty until the database is there
    if found or (left.exists() and (left.is_symlink() or not left.is_dir() or any(left.iterdir()))):
        raise HubUnavailableError(
            "a folder with files that are not of a local Hub",
            where=str(data_dir),
            expected=f"an empty folder, a new one, or one with {DATABASE}",
            got=", ".join(found[:5]) or "files in tmp",
            next_step="Choose another folder with --data.",
        )


class Store:
    """Database and blobs of one local Hub; safe to use from several threads of one process."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        with written("the data folder cannot be used", str(data_dir)):
            data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            _refuse_foreign(data_dir)
            self._lock_file = (data_dir / "lock").open("a")
        self._tmp = data_dir / "tmp"
        self._local = threading.local()
        self._connections: WeakSet[_Connection] = WeakSet()  # one goes with the thread that opened it
        self._connections_lock = threading.Lock()
        self._write_lock = threading.RLock()
        self._writing = self._notify = False
        self.deliveries_ready = threading.Event()  # set when a commit made webhook deliveries durable
        # parts of uploads lived in DATA/tmp; a whole one may still arrive
        yesterday = timestamp(datetime.now(UTC) - timedelta(days=1))
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._tmp, ignore_errors=True)
            self._tmp.mkdir()
            self.connection().executescript(SCHEMA)
            self.change("DELETE FROM uploads WHERE part_size IS NOT NULL OR date < ?", yesterday)
        except BlockingIOError as error:
            self.close()
            raise HubUnavailableError(
                "another local Hub uses this data folder",
                where=str(data_dir),
                next_step="Stop it, or choose another folder with --data.",
            ) from error
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise HubUnavailableError(
                "the data folder cannot be used",
                where=str(data_dir),
                got=str(error),
                next_step="Look after the disk, or choose another folder with --data.",
            ) from error

    def connection(self) -> sqlite3.Connection:
        """This thread's connection, for reading."""
        db: _Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = sqlite3.connect(
                self.data_dir / DATABASE,
                isolation_level=None,
                timeout=30,
                check_same_thread=False,  # close() runs in the main thread
                factory=_Connection,
            )
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            self._local.db = db
            with self._connections_lock:
                self._connections.add(db)
        return db

    def rows(self, sql: str, *parameters: object) -> list[sqlite3.Row]:
        return self.connection().execute(sql, parameters).fetchall()

    def row(self, sql: str, *parameters: object) -> sqlite3.Row | None:
        found: sqlite3.Row | None = self.connection().execute(sql, parameters).fetchone()
        return found

    @contextmanager
    def read(self) -> Iterator[None]:
        """All reads of the block see one state; those behind a change of its own see later ones."""
        db = self.connection()
        db.execute("BEGIN")
        try:
            yield
        finally:
            if db.in_transaction:
                db.execute("COMMIT")

    @contextmanager
    def write(self) -> Iterator[None]:
        """One transaction: all changes of the block become visible and durable, or none. May be nested."""
        with self._write_lock:
            db = self.connection()
            if self._writing:
                yield
                return
            if db.in_transaction:  # of `read`: it may not become a later one's
                db.execute("COMMIT")
            db.execute("BEGIN IMMEDIATE")
            self._writing, self._notify = True, False
            try:
                yield
                db.execute("COMMIT")
            except BaseException:  # whatever ended the block, nothing of it may stay
                if db.in_transaction:  # a full disk ends it before
                    db.execute("ROLLBACK")
                raise
            finally:
                self._writing = False
            if self._notify:
                self.deliveries_ready.set()

    def change(self, sql: str, *parameters: object) -> list[sqlite3.Row]:
        """Run one statement, as a part of the transaction around it if there is one; what it returns."""
        with self.write():
            return self.rows(sql, *parameters)

    def notify_deliveries(self) -> None:
        """Wake the webhook worker once the running transaction is committed."""
        self._notify = True

    def close(self) -> None:
        with self._connections_lock:
            for db in list(self._connections):
                db.close()
        self._lock_file.close()

    # blobs

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """A new path in DATA/tmp; what still stands there at the end is not part of the Hub and goes."""
        path = self._tmp / secrets.token_hex(16)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def part(self, upload: str, number: int) -> Path:
        """Where one part of a multipart upload waits for its completion."""
        return self._tmp / f"{upload}.{number}"

    def git_path(self, oid: str) -> Path:
        return self.data_dir / "git" / oid[:2] / oid[2:]

    def lfs_path(self, sha256: str) -> Path:
        return self.data_dir / "lfs" / sha256[:2] / sha256[2:]

    def put_git(self, content: bytes) -> str:
        """Keep a regular file and return its git blob id."""
        oid = git_blob_sha1(content)
        if not self.git_path(oid).exists():
            with self.temporary() as temporary:
                temporary.write_bytes(content)
                self._adopt(temporary, self.git_path(oid))
        return oid

    def put_lfs(self, temporary: Path, sha256: str) -> None:
        """Move a file from DATA/tmp, whose sha256 the caller has verified, to its place."""
        self._adopt(temporary, self.lfs_path(sha256))

    @staticmethod
    def _adopt(temporary: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary, target)

"""The tables, and an engine whose every write transaction takes SQLite's one write lock at its start.

A deferred transaction that reads and then writes can fail with "database is locked" in its middle, past any
busy timeout. Here a writer begins IMMEDIATE: it waits its turn, and then what it has read stays true until it
commits. The database must lie on a local disk, because WAL shares memory between its processes.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    URL,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    event,
    text,
)
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.types import TypeEngine

from hubmerge.errors import DiskError, InternalError
from workflows.jobs.jobs import DatabaseBusyError

SCHEMA_VERSION = 4
BUSY_TIMEOUT_S = 10
_TABLES = MetaData()


def _key(name: str, *more: ForeignKey) -> Column[str]:
    return Column(name, String, *more, primary_key=True)


def _columns(kind: type[TypeEngine[Any]], *names: str, null: bool = False) -> list[Column[Any]]:
    return [Column(name, JSON(none_as_null=True) if kind is JSON else kind, nullable=null) for name in names]


JOBS = Table(
    "jobs",
    _TABLES,
    _key("id"),
    Column("ticket", Integer, unique=True, nullable=False),
    *_columns(String, "kind", "user", "state", "stage", "created", "updated"),
    *_columns(String, "started", "finished", "lease_owner", "boot", null=True),
    *_columns(Integer, "priority", "attempt", "max_attempts", "failures", "memory_deaths", "fence"),
    *_columns(Float, "lease_until", "not_before", null=True),
    *_columns(JSON, "payload"),
    *_columns(JSON, "progress", "death_mark", "error", "result", null=True),
    Index("jobs_queue", "state", "priority", "ticket"),
    Index("jobs_of_user", "user", "state", "ticket"),
)
EVENTS = Table(
    "events",
    _TABLES,
    _key("job_id", ForeignKey("jobs.id")),
    Column("seq", Integer, primary_key=True),
    *_columns(String, "time", "type"),
    *_columns(JSON, "data"),
)
TOKENS = Table(
    "tokens",
    _TABLES,
    _key("job_id", ForeignKey("jobs.id")),
    *_columns(String, "ciphertext"),
    *_columns(String, "expires_at", null=True),
)
# a webhook's deliveries, kept until a tick handles them
DELIVERIES = Table(
    "deliveries",
    _TABLES,
    Column("id", Integer, primary_key=True),
    *_columns(String, "repo", "ref", "sha", "received"),
    UniqueConstraint("repo", "ref", "sha"),
)
# the facts that a rule last read of a model; `key`: everything that they depend on
MODELS = Table(
    "watched_models", _TABLES, _key("rule"), _key("model"), *_columns(String, "key"), *_columns(JSON, "facts")
)
# a set of models that a rule has merged (`job_id`) or that was refused (`code`); `members`: `PlannedMerge.members`
SETS = Table(
    "watched_sets",
    _TABLES,
    _key("rule"),
    _key("set_id"),
    *_columns(String, "weights_id", "time", "target"),
    *_columns(JSON, "members"),
    *_columns(String, "job_id", "code", "text", null=True),
)
# why a rule left out a model or a whole set; `private`: the subject's name is not for everyone
SKIPS = Table(
    "watched_skips",
    _TABLES,
    _key("rule"),
    _key("subject"),
    _key("sha"),
    *_columns(String, "code", "text", "time"),
    *_columns(Boolean, "private"),
)
# a rule's last turn; `code` and `text`: what went wrong, or what it waits for
TURNS = Table(
    "watchers", _TABLES, _key("rule"), *_columns(String, "polled"), *_columns(String, "code", "text", null=True)
)
PAUSES = Table("paused_watchers", _TABLES, _key("rule"), *_columns(String, "time"))


def open_engine(path: Path) -> Engine:
    """The database at `path`, made with its tables where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = create_engine(URL.create("sqlite", database=str(path)), pool_size=8, max_overflow=56, hide_parameters=True)
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    # Two processes that turn the same new file to WAL would see each other's lock as an error.
    lock = os.open(path.with_name(path.name + ".init"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(lock):
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # the WAL takes over the mode
        with reading(engine) as connection:
            version = connection.execute(text("PRAGMA user_version")).scalar_one()
        if version not in (0, SCHEMA_VERSION):
            engine.dispose()
            raise InternalError(
                "the job database was written by another version",
                where=str(path),
                expected=f"schema {SCHEMA_VERSION}",
                got=f"schema {version}",
                next_step="Run the version that wrote it, or move the file away.",
            )
        if version == 0:
            with writing(engine) as connection:
                _TABLES.create_all(connection)
                connection.execute(text(f"PRAGMA user_version = {SCHEMA_VERSION}"))
    return engine


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One read transaction, which sees one state of the database and waits for no writer."""
    with _translated(engine), engine.connect() as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One write transaction; an exception rolls it back."""
    with _translated(engine), engine.execution_options(begin="IMMEDIATE").begin() as connection:
        yield connection


@contextmanager
def _translated(engine: Engine) -> Iterator[None]:
    """hubmerge's error for what befalls a database from outside."""
    try:
        yield
    except DatabaseError as error:
        name = str(getattr(error.orig, "sqlite_errorname", ""))
        where = str(engine.url.database)
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")):
            raise DatabaseBusyError(
                "the job database is locked by another process", where=where, next_step="Try again in a minute."
            ) from error
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY")):
            steps = {
                "SQLITE_IOERR_SHMMAP": "Set HUBMERGE_DATA to a folder on a local disk; buckets and network disks share "
                "no memory.",
                "SQLITE_READONLY": "Let this user write to it and to the files beside it; no job is lost.",
            }
            next_step = steps.get(name, "Free some disk; no job is lost.")
            raise DiskError(
                "the job database cannot be written", where=where, got=str(error.orig), next_step=next_step
            ) from error
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise InternalError(
                "the job database is damaged", where=where, got=str(error.orig), next_step="Move it away or restore it."
            ) from error
        raise


def _configure(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver starts no transactions of its own; `_begin` does
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_S * 1000}",
        "journal_mode=WAL",
        "foreign_keys=ON",
        "synchronous=FULL",  # an accepted job outlives a power cut
        "secure_delete=ON",  # a wiped token leaves no bytes in free pages
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('begin', 'DEFERRED')}")

"""The tables, and an engine whose every write transaction takes SQLite's one write lock at its start.

A deferred transaction that reads and then writes can fail with "database is locked" in its middle, past any
busy timeout. Here a writer begins IMMEDIATE: it waits its turn, and then what it has read stays true until it
commits. The database must lie on a local disk, because WAL shares memory between its processes.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Connection,
    Engine,
    ForeignKey,
    Index,
    UniqueConstraint,
    create_engine,
    event,
    select,
    text,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import ConnectionPoolEntry

from hubmerge.errors import DiskError, InternalError
from workflows.jobs.jobs import DatabaseBusyError
from workflows.jobs.pins import pinned_models

# 2: the watchers' tables; 3: paused_watchers; 4: marks of private evaluations; every table of 1 has stayed as it was
SCHEMA_VERSION = 4
BUSY_TIMEOUT_S = 10


class Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: JSON(none_as_null=True)}  # noqa: RUF012 - SQLAlchemy's own declaration


class JobRow(Base):
    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(primary_key=True)
    ticket: Mapped[int] = mapped_column(unique=True)
    kind: Mapped[str]
    user: Mapped[str]
    payload: Mapped[dict[str, Any]]
    priority: Mapped[int]
    state: Mapped[str]
    stage: Mapped[str]
    progress: Mapped[dict[str, Any] | None]
    attempt: Mapped[int]
    max_attempts: Mapped[int]
    failures: Mapped[int]
    memory_deaths: Mapped[int]
    death_mark: Mapped[dict[str, Any] | None]
    lease_owner: Mapped[str | None]
    lease_until: Mapped[float | None]
    not_before: Mapped[float | None]
    boot: Mapped[str | None]
    fence: Mapped[int]
    created: Mapped[str]
    updated: Mapped[str]
    started: Mapped[str | None]
    finished: Mapped[str | None]
    error: Mapped[dict[str, Any] | None]
    result: Mapped[dict[str, Any] | None]

    __table_args__ = (
        Index("jobs_queue", "state", "priority", "ticket"),
        Index("jobs_of_user", "user", "state", "ticket"),
    )


class EventRow(Base):
    __tablename__ = "events"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    time: Mapped[str]
    type: Mapped[str]
    data: Mapped[dict[str, Any]]


class TokenRow(Base):
    __tablename__ = "tokens"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    ciphertext: Mapped[str]
    expires_at: Mapped[str | None]


class DeliveryRow(Base):
    """A webhook's delivery, kept until a tick has handled it, and after that so that a replay is known."""

    __tablename__ = "deliveries"

    id: Mapped[int] = mapped_column(primary_key=True)
    repo: Mapped[str]
    ref: Mapped[str]
    sha: Mapped[str]
    received: Mapped[str]
    handled: Mapped[str | None]

    __table_args__ = (UniqueConstraint("repo", "ref", "sha"), Index("deliveries_unhandled", "handled", "id"))


class WatchedModelRow(Base):
    """The facts that a rule last read of a model at a commit, so that a poll re-reads only changed models."""

    __tablename__ = "watched_models"

    rule: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str]  # commit, base's commit and visibility: what the facts depend on
    facts: Mapped[dict[str, Any]]


class WatchedSetRow(Base):
    """A set of models that a rule has merged (`job_id`) or that was refused (`code`)."""

    __tablename__ = "watched_sets"

    rule: Mapped[str] = mapped_column(primary_key=True)
    set_id: Mapped[str] = mapped_column(primary_key=True)
    weights_id: Mapped[str]
    time: Mapped[str]
    target: Mapped[str]
    members: Mapped[dict[str, Any]]  # base, agents, recipe: see ledger.py
    job_id: Mapped[str | None]
    code: Mapped[str | None]
    text: Mapped[str | None]


class SkipRow(Base):
    """The reason why a rule left out a model or a whole set."""

    __tablename__ = "watched_skips"

    rule: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    sha: Mapped[str] = mapped_column(primary_key=True)
    code: Mapped[str]
    text: Mapped[str]
    private: Mapped[bool]  # the subject's name is not for everyone
    time: Mapped[str]


class WatcherStateRow(Base):
    __tablename__ = "watchers"

    rule: Mapped[str] = mapped_column(primary_key=True)
    polled: Mapped[str]
    code: Mapped[str | None]  # of what went wrong in the last turn
    text: Mapped[str | None]


class PausedWatcherRow(Base):
    """A rule that its owner has paused."""

    __tablename__ = "paused_watchers"

    rule: Mapped[str] = mapped_column(primary_key=True)
    time: Mapped[str]


def open_engine(path: Path) -> Engine:
    """The database at `path`, made with its tables where there is none, and brought up from an earlier version."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = create_engine(f"sqlite:///{path}", pool_size=8, max_overflow=56, hide_parameters=True)
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    # Two processes that turn the same new file to WAL would see each other's lock as an error.
    with _exclusive(path.with_name(path.name + ".init")):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # the WAL takes over the mode
        with reading(engine) as connection:
            version = connection.execute(text("PRAGMA user_version")).scalar_one()
        if not 0 <= version <= SCHEMA_VERSION:
            engine.dispose()
            raise InternalError(
                "the job database was written by another version",
                where=str(path),
                expected=f"schema {SCHEMA_VERSION}",
                got=f"schema {version}",
                next_step="Run the version that wrote it, or move the file away.",
            )
        if version == 0:
            with closing(sqlite3.connect(path)) as raw:
                raw.execute("PRAGMA journal_mode=WAL")
        if version < SCHEMA_VERSION:
            with writing(engine) as connection:
                Base.metadata.create_all(connection)
                _mark_private_evaluations(connection)
                connection.execute(text(f"PRAGMA user_version = {SCHEMA_VERSION}"))
    return engine


def _mark_private_evaluations(connection: Connection) -> None:
    """Give the evaluations that only private merges wanted the mark that earlier versions did not set.

    What a public merge wanted too, or a visitor asked for, stays for everybody to see.
    """
    jobs = Base.metadata.tables["jobs"]
    private: set[object] = set()  # ids of targets, and (id, sha) of what was merged and made
    public: set[object] = set()
    for payload, result in connection.execute(select(jobs.c.payload, jobs.c.result).where(jobs.c.kind == "merge")):
        made = result or {}
        pins: set[object] = {(model, sha) for _, model, sha in pinned_models(payload.get("recipe") or {})}
        pins.add((made.get("repo"), made.get("commit")))
        if payload.get("private"):
            private |= {payload.get("target"), *pins}  # a merge that was started again has no commit for now
        else:
            public |= pins
    for id, payload in connection.execute(select(jobs.c.id, jobs.c.payload).where(jobs.c.kind == "evaluate")).all():
        model, pin = payload.get("model"), (payload.get("model"), payload.get("sha"))
        if not payload.keys() & {"private", "asked_by"} and not private.isdisjoint((model, pin)) and pin not in public:
            connection.execute(jobs.update().where(jobs.c.id == id).values(payload=payload | {"private": True}))


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
    """hubmerge's error for a database error that passes by itself."""
    try:
        yield
    except OperationalError as error:
        name = str(getattr(error.orig, "sqlite_errorname", ""))
        where = str(engine.url.database)
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise DatabaseBusyError(
                "the job database is locked by another process", where=where, next_step="Try again in a minute."
            ) from error
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise DiskError(
                "the job database cannot be written",
                where=where,
                got=str(error.orig),
                next_step="Free some disk; no job is lost.",
            ) from error
        raise


def _configure(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver starts no transactions of its own; `_begin` does
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_S * 1000}",
        "foreign_keys=ON",
        "synchronous=FULL",  # an accepted job outlives a power cut
        "secure_delete=ON",  # a wiped token leaves no bytes in free pages
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('begin', 'DEFERRED')}")


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

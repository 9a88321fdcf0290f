"""The inbox of deliveries that wait for a tick. They are on disk before the sender is answered; a repeated delivery is
the same row.

Rows stay for a while after they were handled, so that a replay is recognised.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Engine, Table, delete, select, tuple_, update
from sqlalchemy.dialects.sqlite import insert

from workflows.jobs.jobs import Clock, iso
from workflows.jobs.schema import Base, reading, writing

DELIVERIES: Table = Base.metadata.tables["deliveries"]
KEEP = timedelta(days=30)


class Push(NamedTuple):
    """A push that a delivery announces."""

    repo: str
    ref: str
    sha: str


class Delivery(NamedTuple):
    id: int
    repo: str


class Inbox:
    """The deliveries in the job database; safe to use from several threads and processes."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._lock = threading.Lock()  # SQLite lets waiting writers sleep; a queue here is faster and fair

    def receive(self, pushes: Sequence[Push]) -> int:
        """Store the new pushes in one transaction; returns their number."""
        if not pushes:
            return 0
        with self._lock:
            if self._holds(pushes):
                return 0
            statement = insert(DELIVERIES).on_conflict_do_nothing(index_elements=["repo", "ref", "sha"])
            received = iso(self._clock.now())
            with writing(self._engine) as connection:
                rows = [{**push._asdict(), "received": received} for push in dict.fromkeys(pushes)]
                return sum(connection.execute(statement.values(row)).rowcount for row in rows)

    def _holds(self, pushes: Sequence[Push]) -> bool:
        wanted = set(pushes)
        query = select(DELIVERIES.c.id).where(tuple_(DELIVERIES.c.repo, DELIVERIES.c.ref, DELIVERIES.c.sha).in_(wanted))
        with reading(self._engine) as connection:
            return len(connection.execute(query).all()) == len(wanted)

    def pending(self, limit: int = 500) -> tuple[Delivery, ...]:
        """The pushes that no tick has handled yet, oldest first."""
        query = select(DELIVERIES.c.id, DELIVERIES.c.repo).where(DELIVERIES.c.handled.is_(None))
        with reading(self._engine) as connection:
            return tuple(Delivery(*row) for row in connection.execute(query.order_by(DELIVERIES.c.id).limit(limit)))

    def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Mark pushes as handled, and delete rows that are older than any replay."""
        now = self._clock.now()
        with writing(self._engine) as connection:
            connection.execute(
                update(DELIVERIES).where(DELIVERIES.c.id.in_([d.id for d in deliveries])).values(handled=iso(now))
            )
            connection.execute(delete(DELIVERIES).where(DELIVERIES.c.handled < iso(now - KEEP)))

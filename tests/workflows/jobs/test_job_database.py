"""What the store keeps on disk: sealed tokens no longer than needed, jobs across processes, and its own limits."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from job_helpers import FINAL, RETRYABLE, FakeClock, claim, job_id, new_job
from processes import printed_by

from hubmerge.errors import InternalError
from workflows.jobs.jobs import BACKOFF_CAP_S, DatabaseBusyError, State
from workflows.jobs.schema import SCHEMA_VERSION
from workflows.jobs.store import Store
from workflows.jobs.tokens import SealedToken


def test_a_token_is_wiped_with_the_jobs_end_and_not_before(store: Store, clock: FakeClock) -> None:
    def seal(name: str) -> str:
        store.submit(new_job(name), SealedToken(f"cipher {name}", None))
        return job_id(name)

    assert store.sealed_token(seal("waiting")) == SealedToken("cipher waiting", None)
    store.request_cancel(job_id("waiting"), "ann")
    assert store.sealed_token(job_id("waiting")) is None

    identity = seal("retried")
    job = claim(store)
    store.fail(identity, job.fence, RETRYABLE)
    assert store.sealed_token(identity) is not None
    clock.pass_time(BACKOFF_CAP_S)
    store.fail(identity, claim(store).fence, FINAL)
    assert store.sealed_token(identity) is None

    identity = seal("done")
    store.finish(identity, claim(store).fence, {})
    assert store.sealed_token(identity) is None
    store.submit(new_job("done"), SealedToken("late", None))
    assert store.sealed_token(identity) is None

    identity = seal("abandoned")
    claim(store)
    store.request_cancel(identity, "ann")
    clock.pass_time(store.lease_s + 1)
    store.reap()
    assert store.sealed_token(identity) is None


def test_a_fresh_sign_in_replaces_the_token_of_a_waiting_job(store: Store) -> None:
    store.submit(new_job("a"), SealedToken("old", "2030-01-01"))
    store.submit(new_job("a"), SealedToken("new", None))
    assert store.sealed_token(job_id("a")) == SealedToken("new", None)
    store.submit(new_job("a"))
    assert store.sealed_token(job_id("a")) == SealedToken("new", None)


@pytest.mark.parametrize("version", [1, SCHEMA_VERSION + 1])
def test_a_database_of_another_version_is_refused(tmp_path: Path, version: int) -> None:
    Store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite3")) as raw:
        raw.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(InternalError, match=f"expected schema {SCHEMA_VERSION}, got schema {version}"):
        Store(tmp_path)


def test_the_database_is_in_wal_and_for_this_user_only(tmp_path: Path) -> None:
    Store(tmp_path).close()
    raw = sqlite3.connect(tmp_path / "jobs.sqlite3")
    assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    raw.close()
    assert (tmp_path / "jobs.sqlite3").stat().st_mode & 0o777 == 0o600


def test_a_database_that_another_process_holds_is_busy_and_still_readable(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = store.submit(new_job("a"))
    store.close()
    monkeypatch.setattr("workflows.jobs.schema.BUSY_TIMEOUT_S", 0)
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite3")) as raw:
        raw.execute("BEGIN IMMEDIATE")
        waiting = Store(tmp_path)
        assert waiting.get(job.id) == job
        with pytest.raises(DatabaseBusyError, match="E_BUSY"):
            waiting.submit(new_job("b"))
    assert waiting.submit(new_job("b")).state is State.QUEUED
    waiting.close()


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from hubmerge.errors import DiskError
from workflows.jobs.jobs import NewJob
from workflows.jobs.schema import SCHEMA_VERSION
from workflows.jobs.store import Store
store = Store(Path(sys.argv[1]), jobs_per_user=10_000)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
for number in range(10_000):
    try:
        store.submit(NewJob(id=f"{number:064x}", user="ann", payload={"x": "y" * 1000}))
    except DiskError as error:
        print(number, store.get(f"{0:064x}").state, error)
        break
"""


def test_a_full_disk_refuses_jobs_and_keeps_those_it_accepted(tmp_path: Path) -> None:
    accepted, state, message = printed_by(FULL_DISK, str(tmp_path)).split(maxsplit=2)
    assert int(accepted) > 10
    assert state == "queued"
    assert message.startswith("E_DISK: the job database cannot be written")
    store = Store(tmp_path, jobs_per_user=10_000)
    assert len(store.list_jobs(limit=10_000)) == int(accepted)
    assert store.submit(new_job("a")).state is State.QUEUED
    store.close()
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite3")) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)

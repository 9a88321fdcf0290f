"""What the store keeps on disk: jobs across processes, and sealed tokens, which stand nowhere else."""

import json
import logging
import os
import resource
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest.mock import Mock

import pytest
from job_helpers import QUICK, claim, job_id, make_worker, new_job, running
from processes import ROOT, until
from pydantic import SecretStr

from hubmerge.errors import DiskError, HubmergeError, InternalError, LoginError, SettingsError
from hubmerge.isolation.child import append_to_log
from hubmerge.isolation.scrub import Scrubber
from hubmerge.settings import Settings
from workflows.jobs import worker as worker_module
from workflows.jobs.account import results_keys
from workflows.jobs.jobs import DatabaseBusyError, Job, State
from workflows.jobs.protocol import JobSpec
from workflows.jobs.schema import SCHEMA_VERSION
from workflows.jobs.store import Store
from workflows.jobs.tokens import SealedToken, TokenVault
from workflows.jobs.worker import PIPELINES, Worker


def test_a_fresh_sign_in_replaces_the_token_of_a_waiting_job_and_gives_none_to_one_that_is_done(store):
    store.submit(new_job("a"), SealedToken("old", "2030-01-01"))
    store.submit(new_job("a"), SealedToken("new", None))
    assert store.sealed_token(job_id("a")) == SealedToken("new", None)
    store.submit(new_job("a"))
    assert store.sealed_token(job_id("a")) == SealedToken("new", None)
    store.finish(job_id("a"), claim(store).fence, {})
    store.submit(new_job("a"), SealedToken("late", None))
    assert store.sealed_token(job_id("a")) is None


def test_a_database_of_another_version_or_a_damaged_one_is_refused(tmp_path):
    Store(tmp_path).close()
    for version in (1, SCHEMA_VERSION + 1):
        with closing(sqlite3.connect(tmp_path / "jobs.sqlite3")) as raw:
            raw.execute(f"PRAGMA user_version = {version}")
        with pytest.raises(InternalError, match=f"expected schema {SCHEMA_VERSION}, got schema {version}"):
            Store(tmp_path)
    (tmp_path / "jobs.sqlite3").write_bytes(b"no database" * 1000)
    with pytest.raises(InternalError, match="the job database is damaged"):
        Store(tmp_path)


def test_the_database_is_in_wal_in_its_folder_and_for_this_user_only(tmp_path):
    folder = "what? 100% ä#"
    Store(tmp_path / folder).close()
    assert [path.name for path in tmp_path.iterdir()] == [folder]
    with closing(sqlite3.connect(tmp_path / folder / "jobs.sqlite3")) as raw:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert (tmp_path / folder / "jobs.sqlite3").stat().st_mode & 0o777 == 0o600


def test_a_locked_database_is_busy_and_readable(tmp_path, store, monkeypatch):
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


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("SQLITE_IOERR_SHMMAP", r"E_DISK: .* got disk I/O error. Set HUBMERGE_DATA to a folder on a local disk"),
        ("SQLITE_IOERR_SHMSIZE", r"E_DISK: .* got disk I/O error. Free some disk"),
        ("SQLITE_READONLY", r"E_DISK: .* got disk I/O error. Let this user write to it"),
        ("SQLITE_PROTOCOL", "E_BUSY: the job database is locked by another process"),
    ],
)
def test_a_network_disk_and_another_user_s_files_are_told_from_a_full_one(tmp_path, monkeypatch, name, told):
    refused = sqlite3.OperationalError("disk I/O error")
    refused.sqlite_errorname = name
    monkeypatch.setattr("workflows.jobs.schema._configure", Mock(side_effect=refused))
    with pytest.raises(HubmergeError, match=told):
        Store(tmp_path)


def test_a_full_disk_refuses_jobs_and_keeps_those_it_accepted(tmp_path):
    store, (usual, most) = Store(tmp_path, jobs_per_user=10_000), resource.getrlimit(resource.RLIMIT_FSIZE)
    accepted: list[Job] = []

    def fill() -> None:
        while len(accepted) < 10_000:
            accepted.append(store.submit(new_job(str(len(accepted)), payload={"x": "y" * 1000})))

    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, most))  # of which Python ignores the signal
    try:
        with pytest.raises(DiskError, match=r"^E_DISK: the job database cannot be written"):
            fill()
        assert store.get(accepted[0].id) == accepted[0]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (usual, most))
    assert len(accepted) > 10
    assert store.list_jobs(limit=10_000) == tuple(reversed(accepted))
    assert store.submit(new_job("a")).state is State.QUEUED
    store.close()
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite3")) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)


RUSH = """
import sys
from pathlib import Path
from workflows.jobs.store import Store
store = Store(Path(sys.argv[1]))
sys.stdin.readline()
while job := store.claim(sys.argv[2]):
    print(job.id, job.fence, flush=True)
    if int(job.id[0], 16) % 2:
        store.finish(job.id, job.fence, {})
"""


def test_processes_never_share_a_claim(tmp_path):
    """Each process opens the new database itself, all at the same moment."""
    command = [sys.executable, "-c", RUSH, str(tmp_path)]
    rush = [
        subprocess.Popen([*command, f"p{number}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for number in range(4)
    ]
    store = Store(tmp_path, jobs_per_user=100)
    for number in range(40):
        store.submit(new_job(str(number)))
    for process in rush:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    claims = [line for process in rush for line in process.communicate()[0].splitlines()]
    assert [process.returncode for process in rush] == [0] * 4
    store.close()
    assert sorted(claims) == sorted(f"{job_id(str(number))} 1" for number in range(40))


def test_submissions_at_once_make_one_job_of_an_identity_and_keep_to_the_quota(tmp_path):
    store = Store(tmp_path, jobs_per_user=5)
    refused: list[str] = []
    start = Barrier(8)

    def submit(number: int) -> None:
        start.wait()
        try:
            store.submit(new_job("same"))
            store.submit(new_job(str(number)))
        except Exception as error:
            refused.append(type(error).__name__)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(submit, range(8)))
    assert refused == ["QuotaError"] * 4
    assert len(store.list_jobs()) == 5
    assert [event.type for event in store.events(job_id("same"))] == ["submitted"]
    store.close()


CANARY = "hf_CaNaRyTokenThatNobodyMayEverSee"
SIGN_IN = "hf_oauth_" + "eyJ-_." * 20
TOKEN = SecretStr(CANARY)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_only_the_same_secret_opens_a_token_for_the_job_that_it_was_sealed_for_and_nothing_shows_it():
    right = TokenVault([b"right"])
    sealed = right.seal("job", TOKEN)
    assert right.open("job", sealed, NOW).get_secret_value() == CANARY
    for shown in (sealed.ciphertext, repr(sealed), repr(right), repr(Scrubber(TOKEN)), str(vars(right))):
        assert CANARY not in shown
    assert sealed.ciphertext not in repr(sealed)
    for other, job, stored in (
        (TokenVault([b"wrong"]), "job", sealed),
        (right, "other job", sealed),
        (right, "job", SealedToken("not a token", None)),
    ):
        with pytest.raises(LoginError, match="needs login"):
            other.open(job, stored, NOW)


def test_a_token_expires_with_its_sign_in():
    keys = TokenVault([b"secret"])
    sealed = keys.seal("job", TOKEN, NOW)
    assert keys.open("job", sealed, NOW - timedelta(microseconds=1)).get_secret_value() == CANARY
    with pytest.raises(LoginError, match=r"E_LOGIN: needs login: .* Sign in again"):
        keys.open("job", sealed, NOW)


def vault(folder: Path, secret: str = "test secret") -> TokenVault:
    return TokenVault.from_settings(Settings(data_dir=folder, secret=SecretStr(secret)))


def test_a_rotated_secret_still_opens_what_the_old_one_sealed(tmp_path):
    old = vault(tmp_path, "old secret").seal("job", TOKEN)
    rotated = vault(tmp_path, "new secret\nold secret\n")
    assert rotated.open("job", old, NOW).get_secret_value() == CANARY
    new = rotated.seal("job", TOKEN)
    assert vault(tmp_path, "new secret").open("job", new, NOW).get_secret_value() == CANARY
    with pytest.raises(LoginError):
        vault(tmp_path, "old secret").open("job", new, NOW)


def test_an_app_that_is_pointed_at_another_hub_sends_it_no_token_of_the_first():
    first = TokenVault([b"secret"], "https://huggingface.co")
    sealed = first.seal("job", TOKEN)
    assert first.open("job", sealed, NOW).get_secret_value() == CANARY
    with pytest.raises(LoginError, match=r"expected huggingface\.co, got hub\.example"):
        TokenVault([b"secret"], "https://hub.example").open("job", sealed, NOW)


def test_a_secret_of_bytes_that_are_no_text_is_refused_without_being_shown(tmp_path):
    with pytest.raises(SettingsError, match="a secret is no text") as refusal:
        vault(tmp_path, os.fsdecode(b"new\n\xff\xfeold"))
    assert "old" not in str(refusal.value)


def test_without_a_secret_a_random_key_is_kept(tmp_path):
    settings = Settings(data_dir=tmp_path / "not yet" / "data")
    sealed = TokenVault.from_settings(settings).seal("job", TOKEN)
    key = settings.data_dir / "secret.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in key.parent.iterdir()] == ["secret.key"]
    key.write_text(f"{key.read_text()}\n")  # put back by hand
    assert TokenVault.from_settings(settings).open("job", sealed, NOW).get_secret_value() == CANARY


def test_a_random_key_that_a_full_disk_cut_off_is_refused(tmp_path):
    (tmp_path / "secret.key").write_bytes(b"")
    with pytest.raises(SettingsError, match="not whole"):
        TokenVault.from_settings(Settings(data_dir=tmp_path))


def test_first_starts_at_once_agree_on_one_random_key(tmp_path):
    start = Barrier(8)

    def open_vault(_: int) -> TokenVault:
        start.wait()
        return TokenVault.from_settings(Settings(data_dir=tmp_path))

    with ThreadPoolExecutor(8) as pool:
        vaults = list(pool.map(open_vault, range(8)))
    sealed = vaults[0].seal("job", TOKEN)
    assert [vault.open("job", sealed, NOW).get_secret_value() for vault in vaults] == [CANARY] * 8


@pytest.mark.parametrize("token", [CANARY, 'quo"te\\back/slash', "ümlaut token"], ids=str)
def test_every_spelling_of_a_token_is_masked_foreign_ones_too_and_words_are_not(token):
    scrub = Scrubber(SecretStr(token)).text
    assert scrub(f"a {token} b") == "a [token] b"
    assert token not in json.loads(scrub(json.dumps({"message": f"x{token}"})))["message"]
    assert scrub(f"?t={token}&u={token}") == "?t=[token]&u=[token]"
    foreign = "aB3" * 11
    assert scrub(f"hf_{foreign} {SIGN_IN}, api_org_{foreign} hf_hub") == "[token] [token], [token] hf_hub"


@pytest.mark.parametrize("size", [1, 2, 7, 33, 34, 1000, 70_000])
@pytest.mark.parametrize(("own", "torn"), [(TOKEN, CANARY), (None, f" {SIGN_IN} ")], ids=["own", "another"])
def test_a_token_torn_between_two_pieces_of_a_stream_is_masked(size, own, torn):
    data = (f"start {torn} middle\n" + "y" * 100_000 + torn + "z" * 100_000 + torn).encode()
    scrubber = Scrubber(own)
    pieces = [scrubber.feed(data[start : start + size]) for start in range(0, len(data), size)]
    assert b"".join([*pieces, scrubber.rest()]) == data.replace(torn.strip().encode(), b"[token]")


def hits(folder: Path) -> str:
    """Files that contain the canary, or enough of it to be of use.

    Another process looks: to close a file that SQLite has open in this one would drop its locks.
    """
    command = ["grep", "-rlaF", "-e", CANARY, "-e", CANARY[10:], str(folder)]
    return subprocess.run(command, capture_output=True, text=True).stdout


@pytest.mark.parametrize("end", ["result", "error"])
def test_a_token_is_nowhere_during_a_job_and_after_it(tmp_path, live, caplog, capfd, end):
    caplog.set_level(logging.DEBUG)
    gate = tmp_path / "gate"
    identity = job_id("a")
    sealed = vault(tmp_path).seal(identity, TOKEN, datetime.now(UTC) + timedelta(hours=8))
    live.submit(new_job("a", payload={"gate": str(gate), "end": end}), sealed)
    with running(make_worker(tmp_path, live, "leaks")):
        until(lambda: any(event.type == "warning" for event in live.events(identity)))
        log = tmp_path / "jobs" / identity / "child.log"
        until(lambda: log.exists() and log.read_bytes().count(b"[token]") >= 5)
        assert live.sealed_token(identity) is not None
        (tmp_path / "planted").write_text(f"x{CANARY}x")
        assert hits(tmp_path) == f"{tmp_path / 'planted'}\n"  # the search itself works
        (tmp_path / "planted").unlink()
        assert hits(tmp_path) == ""
        assert CANARY not in str(live.get(identity)) + str(live.events(identity))
        gate.touch()
        until(lambda: live.get(identity).state.is_terminal)
    job = live.get(identity)
    assert job.state is (State.DONE if end == "result" else State.FAILED)
    assert "[token]" in str(job.result if end == "result" else job.error)
    assert CANARY not in str(job) + str(live.events(identity))
    assert live.sealed_token(identity) is None
    assert hits(tmp_path) == ""
    live.close()
    assert hits(tmp_path) == ""
    assert CANARY not in caplog.text
    shown = capfd.readouterr()
    assert CANARY not in shown.out + shown.err


def test_a_wiped_token_leaves_no_ciphertext_in_the_database(tmp_path):
    store = Store(tmp_path)
    sealed = TokenVault([b"secret"]).seal(job_id("a"), TOKEN)
    store.submit(new_job("a"), sealed)
    store.request_cancel(job_id("a"), "ann")
    store.close()  # folds the WAL into the database
    for path in tmp_path.iterdir():
        assert sealed.ciphertext.encode() not in path.read_bytes()


def test_the_log_of_a_job_ends_at_its_most_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("hubmerge.isolation.child.MAX_LOG_BYTES", 10)
    for _ in range(5):
        append_to_log(tmp_path / "log", b"123456")
    assert (tmp_path / "log").read_bytes() == b"1234561234"


@pytest.mark.parametrize("kind", PIPELINES)
def test_only_an_evaluation_gets_the_signing_key(kind, store, tmp_path, monkeypatch):
    told: list[JobSpec] = []

    def refuse(command: Any, document: bytes, *rest: Any, **options: Any) -> None:
        told.append(JobSpec.model_validate_json(document))
        raise OSError("no process today")

    monkeypatch.setattr(worker_module, "ChildProcess", refuse)
    settings = Settings(data_dir=tmp_path, secret=SecretStr("a long random string"))
    worker = Worker(settings, store, TokenVault.from_settings(settings), timing=QUICK)
    store.submit(new_job("one", kind=kind))
    worker.run_once()
    [spec] = told
    keys = results_keys(settings)
    given = spec.signing_key.get_secret_value() if spec.signing_key else None
    expected = (keys.seed.hex(), tuple(keys.trust.keys)) if kind == "evaluate" else (None, ())
    assert (given, spec.trusted_keys) == expected

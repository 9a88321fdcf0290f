"""Tokens at rest: unreadable without the secret, bound to their job, and nowhere in what a job leaves behind."""

from __future__ import annotations

import json
import logging
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from job_helpers import QUICK, at_once, job_id, make_worker, new_job, running, until
from pydantic import SecretStr

from hubmerge.errors import LoginError
from hubmerge.isolation.child import append_to_log
from hubmerge.isolation.scrub import Scrubber
from hubmerge.settings import Settings
from workflows.jobs import worker as worker_module
from workflows.jobs.jobs import State
from workflows.jobs.protocol import JobSpec
from workflows.jobs.results_keys import results_keys
from workflows.jobs.store import Store
from workflows.jobs.tokens import SealedToken, TokenVault, UnreadableTokenError
from workflows.jobs.worker import PIPELINES, Worker

CANARY = "hf_CaNaRyTokenThatNobodyMayEverSee"
TOKEN = SecretStr(CANARY)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_only_the_same_secret_opens_a_token_for_the_job_that_it_was_sealed_for() -> None:
    vault = TokenVault([b"right"])
    sealed = vault.seal("job", TOKEN)
    assert CANARY not in sealed.ciphertext
    assert vault.open("job", sealed, NOW).get_secret_value() == CANARY
    for other, job, stored in (
        (TokenVault([b"wrong"]), "job", sealed),
        (vault, "other job", sealed),
        (vault, "job", SealedToken("not a token", None)),
    ):
        with pytest.raises(UnreadableTokenError, match="needs login"):
            other.open(job, stored, NOW)


def test_a_token_expires_with_its_sign_in() -> None:
    vault = TokenVault([b"secret"])
    sealed = vault.seal("job", TOKEN, NOW)
    assert vault.open("job", sealed, NOW - timedelta(microseconds=1)).get_secret_value() == CANARY
    with pytest.raises(LoginError, match=r"E_LOGIN: needs login: .* Sign in again"):
        vault.open("job", sealed, NOW)


def test_a_rotated_secret_still_opens_what_the_old_one_sealed(tmp_path: Path) -> None:
    def vault(secret: str) -> TokenVault:
        return TokenVault.from_settings(Settings(data_dir=tmp_path, secret=SecretStr(secret)))

    old = vault("old secret").seal("job", TOKEN)
    rotated = vault("new secret\nold secret\n")
    assert rotated.open("job", old, NOW).get_secret_value() == CANARY
    new = rotated.seal("job", TOKEN)
    assert vault("new secret").open("job", new, NOW).get_secret_value() == CANARY
    with pytest.raises(LoginError):
        vault("old secret").open("job", new, NOW)


def test_without_a_secret_a_random_key_is_kept_for_this_user_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(data_dir=tmp_path / "not yet" / "data")
    sealed = TokenVault.from_settings(settings).seal("job", TOKEN)
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "HUBMERGE_SECRET is not set" in warning.getMessage()
    key = settings.data_dir / "secret.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in key.parent.iterdir()] == ["secret.key"]
    assert key.read_text() not in caplog.text
    caplog.clear()
    again = TokenVault.from_settings(settings, told=True)
    assert not caplog.records
    assert again.open("job", sealed, NOW).get_secret_value() == CANARY


def test_first_starts_at_once_agree_on_one_random_key(tmp_path: Path) -> None:
    vaults: list[TokenVault] = []
    at_once(8, lambda _: vaults.append(TokenVault.from_settings(Settings(data_dir=tmp_path))))
    sealed = vaults[0].seal("job", TOKEN)
    assert [vault.open("job", sealed, NOW).get_secret_value() for vault in vaults] == [CANARY] * 8


def test_no_repr_shows_a_token_or_its_ciphertext() -> None:
    vault = TokenVault([b"secret"])
    sealed = vault.seal("job", TOKEN)
    for shown in (repr(sealed), repr(vault), repr(TOKEN), repr(Scrubber(TOKEN)), str(vars(vault))):
        assert CANARY not in shown
        assert sealed.ciphertext not in shown


@pytest.mark.parametrize("token", [CANARY, 'quo"te\\back/slash', "hf_with/slash+and=sign", "ümlaut token"], ids=str)
def test_every_spelling_of_a_token_is_masked(token: str) -> None:
    scrub = Scrubber(SecretStr(token)).text
    assert scrub(f"a {token} b") == "a [token] b"
    assert token not in json.loads(scrub(json.dumps({"message": f"x{token}"})))["message"]
    assert scrub(f"?t={token}&u={token}") == "?t=[token]&u=[token]"


def test_foreign_hub_tokens_are_masked_and_words_are_not() -> None:
    scrub = Scrubber(None).text
    assert scrub("hf_" + "aB3" * 11 + " and hf_hub_download") == "[token] and hf_hub_download"


@pytest.mark.parametrize("size", [1, 2, 7, 33, 34, 1000, 70_000])
def test_a_token_torn_between_two_pieces_of_a_stream_is_masked(size: int) -> None:
    data = (f"start {CANARY} middle\n" + "y" * 100_000 + CANARY + "z" * 100_000 + CANARY).encode()
    scrubber = Scrubber(TOKEN)
    pieces = [scrubber.feed(data[start : start + size]) for start in range(0, len(data), size)]
    assert b"".join([*pieces, scrubber.rest()]) == data.replace(CANARY.encode(), b"[token]")


def hits(folder: Path) -> str:
    """Files that contain the canary, or enough of it to be of use.

    Another process looks: to close a file that SQLite has open in this one would drop its locks.
    """
    command = ["grep", "-rlaF", "-e", CANARY, "-e", CANARY[10:], str(folder)]
    return subprocess.run(command, capture_output=True, text=True).stdout


@pytest.mark.parametrize("end", ["result", "error"])
def test_a_token_is_nowhere_during_a_job_and_after_it(
    tmp_path: Path, live: Store, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], end: str
) -> None:
    caplog.set_level(logging.DEBUG)
    gate = tmp_path / "gate"
    worker = make_worker(tmp_path, live, "leaks")
    vault = TokenVault.from_settings(Settings(data_dir=tmp_path, secret=SecretStr("test secret")))
    identity = job_id("a")
    live.submit(
        new_job("a", payload={"gate": str(gate), "end": end}),
        vault.seal(identity, TOKEN, datetime.now(UTC) + timedelta(hours=8)),
    )
    with running(worker):
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


def test_a_wiped_token_leaves_no_ciphertext_in_the_database(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sealed = TokenVault([b"secret"]).seal(job_id("a"), TOKEN)
    store.submit(new_job("a"), sealed)
    store.request_cancel(job_id("a"), "ann")
    store.close()  # folds the WAL into the database
    for path in tmp_path.iterdir():
        assert sealed.ciphertext.encode() not in path.read_bytes()


def test_an_expired_sign_in_fails_the_job_before_its_child_starts(tmp_path: Path, live: Store) -> None:
    worker = make_worker(tmp_path, live, "leaks")
    vault = TokenVault.from_settings(Settings(data_dir=tmp_path, secret=SecretStr("test secret")))
    live.submit(new_job("a"), vault.seal(job_id("a"), TOKEN, datetime.now(UTC)))
    job = worker.run_once()
    assert (job.state, job.error.code) == (State.FAILED, "E_LOGIN")
    assert "needs login" in job.error.message
    assert not (tmp_path / "jobs").exists()


def test_the_log_of_a_job_ends_at_its_most_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubmerge.isolation.child.MAX_LOG_BYTES", 10)
    for _ in range(5):
        append_to_log(tmp_path / "log", b"123456")
    assert (tmp_path / "log").read_bytes() == b"1234561234"


@pytest.mark.parametrize("kind", PIPELINES)
def test_only_an_evaluation_gets_the_signing_key(
    kind: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

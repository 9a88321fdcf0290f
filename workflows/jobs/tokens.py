"""User tokens at rest: sealed for one job, readable only with the Space's secret, wiped with the job's end.

    key        = HKDF-SHA256(secret, info)                      one per line of the secret
    ciphertext = Fernet(key).encrypt({job id, host of the Hub, token})

The job id is sealed in with the token, so a ciphertext moved to another job's row opens nothing; with the Hub's host,
an app that is pointed at another Hub sends it no token of the first one's users. To rotate the secret, put the new one
on the first line and keep the old one below it until its jobs have ended.
"""

import base64
import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from urllib.parse import urlsplit

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import SecretStr

from hubmerge.errors import LoginError, SettingsError
from hubmerge.machine.disk_errors import written
from hubmerge.settings import Settings
from workflows.jobs.jobs import iso

KEY_FILE = "secret.key"
_INFO = b"hubmerge/tokens/1"
_SIGN_IN = "Sign in again and submit the job once more: it goes on where it stopped."


@dataclass(frozen=True)
class SealedToken:
    """The stored form of a token: ciphertext, and the time until which the Hub accepts the token."""

    ciphertext: str = field(repr=False)
    expires_at: str | None  # UTC, ISO 8601; None where the Hub set no end


class TokenVault:
    """Seals and opens; holds keys, never tokens."""

    def __init__(self, secrets_newest_first: Sequence[bytes], endpoint: str = "") -> None:
        self._host = urlsplit(endpoint).hostname
        self._fernet = MultiFernet(
            [Fernet(base64.urlsafe_b64encode(derived(secret, _INFO))) for secret in secrets_newest_first]
        )

    @classmethod
    def from_settings(cls, settings: Settings) -> "TokenVault":
        """Keys from the configured secret, else from a random one that stays in the data folder."""
        known = secret_lines(settings.secret) or [random_secret(settings.data_dir / KEY_FILE)]
        return cls(known, settings.endpoint)

    def seal(self, job_id: str, token: SecretStr, expires_at: datetime | None = None) -> SealedToken:
        document = json.dumps({"job": job_id, "hub": self._host, "token": token.get_secret_value()})
        return SealedToken(
            ciphertext=self._fernet.encrypt(document.encode()).decode(),
            expires_at=iso(expires_at) if expires_at else None,
        )

    def open(self, job_id: str, sealed: SealedToken, now: datetime) -> SecretStr:
        """The token of `job_id`; a `LoginError` when it has expired or cannot be read."""
        if sealed.expires_at is not None and sealed.expires_at <= iso(now):
            raise LoginError(
                "needs login: the sign-in of this job has expired",
                where=f"job {job_id[:12]}",
                expected=f"a token valid after {now.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
                got=f"one that ended at {sealed.expires_at[:16].replace('T', ' ')} UTC",
                next_step=_SIGN_IN,
            )
        with suppress(InvalidToken):
            document = json.loads(self._fernet.decrypt(sealed.ciphertext.encode()))
            if (host := document.get("hub")) not in (None, self._host):
                raise LoginError(
                    "needs login: the stored token is one of another Hub",
                    where=f"job {job_id[:12]}",
                    expected=str(host),
                    got=str(self._host),
                    next_step="Sign in again and submit the job once more, or set HF_ENDPOINT as it was.",
                )
            if document["job"] == job_id:
                return SecretStr(document["token"])
        raise LoginError(
            "needs login: the stored token was not sealed for this job with the present secret",
            where=f"job {job_id[:12]}",
            next_step=_SIGN_IN,
        )


def secret_lines(secret: SecretStr | None) -> list[bytes]:
    """The lines of a secret, newest first; none where it is not set. SettingsError where it is no text."""
    lines = secret.get_secret_value().splitlines() if secret else []
    try:
        return [line.strip().encode() for line in lines if line.strip()]
    except UnicodeEncodeError:  # bytes, which a line's end could cut to a few
        raise SettingsError(
            "a secret is no text",
            where="HUBMERGE_SECRET or HUBMERGE_SIGNING_KEY",
            next_step="Set it to a long random text, such as `openssl rand -hex 32` prints.",
        ) from None


def derived(secret: bytes, info: bytes) -> bytes:
    """The 32 bytes of a key for one purpose."""
    return HKDF(SHA256(), length=32, salt=None, info=info).derive(secret)


def random_secret(path: Path) -> bytes:
    """The secret in `path`, made by the first process that asks; the rest read what it made."""
    with written("the file of a random secret cannot be used", str(path)):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            with NamedTemporaryFile(dir=path.parent, prefix=path.name) as file:  # which only this user may read
                file.write(secrets.token_hex(32).encode())
                file.flush()
                os.fsync(file.fileno())
                with suppress(FileExistsError):  # another process was first: its key is the key
                    os.link(file.name, path)
        secret = path.read_bytes().strip()  # an editor ends a line, and the same text in the settings has no end
    if len(secret) < 64:  # anybody could guess the rest
        raise SettingsError(
            "the file of a random secret is not whole",
            where=str(path),
            expected="64 characters",
            got=str(len(secret)),
            next_step="Restore the file, or remove it: another secret is made.",
        )
    return secret

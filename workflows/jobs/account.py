"""The account that the bot acts with: the configured token's user, and that token sealed for a job."""

from __future__ import annotations

from pydantic import SecretStr

from hubmerge.errors import LoginError
from hubmerge.hub.client import Hub
from hubmerge.settings import Settings
from workflows.jobs.tokens import SealedToken, TokenVault


class Account:
    """The user of HF_TOKEN; the Hub is asked once, when it is first needed."""

    def __init__(self, settings: Settings, vault: TokenVault) -> None:
        self._token = settings.token
        self._vault = vault
        self._name = ""
        self.hub = Hub(settings.endpoint, self._token.get_secret_value() if self._token else None)

    @property
    def name(self) -> str:
        """LoginError without a valid token."""
        if self._token is None:
            raise LoginError(
                "the bot has no account of its own",
                next_step="Set HF_TOKEN to a token of the watchers' owner with write access.",
            )
        self._name = self._name or self.hub.whoami().name
        return self._name

    def require(self, owner: str) -> None:
        """LoginError unless the account is `owner`'s."""
        if self.name != owner:
            raise LoginError(
                "a rule of another user",
                expected=self.name,
                got=owner,
                next_step="A watcher acts for the user of HF_TOKEN alone; name that user as its owner.",
            )

    def seal(self, job_id: str) -> SealedToken:
        return self._vault.seal(job_id, self._token or SecretStr(""))

"""The account that the bot acts with: the configured token's user, that token sealed for a job, and keys for results.

    seed = HKDF-SHA256(secret, "hubmerge/results/1")     Ed25519's 32 bytes, one per line of the secret

The secret is HUBMERGE_SIGNING_KEY, else HUBMERGE_SECRET, else a random one that stays in the data folder. The first
line signs, and the keys of all lines are believed; so a secret is rotated by a new first line. Keys of other bots, and
of a secret that is gone, are named in HUBMERGE_TRUSTED_KEYS by their public half.
"""

from dataclasses import dataclass, field

from pydantic import SecretStr

from hubmerge.board.trust import Trust, named_keys
from hubmerge.errors import LoginError
from hubmerge.evaluation.signing import public_key
from hubmerge.hub.client import Hub
from hubmerge.settings import Settings
from workflows.jobs.tokens import SealedToken, TokenVault, derived, random_secret, secret_lines

KEY_FILE = "signing.key"
_INFO = b"hubmerge/results/1"


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


@dataclass(frozen=True)
class ResultsKeys:
    """`seed`: the private key."""

    seed: bytes = field(repr=False)
    trust: Trust


def results_keys(settings: Settings) -> ResultsKeys:
    """The keys of the settings, made in the data folder where the settings have no secret."""
    given = secret_lines(settings.signing_key) or secret_lines(settings.secret)
    secrets = given or [random_secret(settings.data_dir / KEY_FILE)]
    seeds = [derived(secret, _INFO) for secret in secrets]
    own = {public_key(seed) for seed in seeds}
    return ResultsKeys(seeds[0], Trust(frozenset(own | named_keys(settings))))

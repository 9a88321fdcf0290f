"""The bot's keys for results: the private one that it signs with, and the public ones that it believes.

    seed = HKDF-SHA256(secret, "hubmerge/results/1")     Ed25519's 32 bytes, one per line of the secret

The secret is HUBMERGE_SIGNING_KEY, else HUBMERGE_SECRET, else a random one that stays in the data folder. The first
line signs, and the keys of all lines are believed; so a secret is rotated by a new first line. Keys of other bots, and
of a secret that is gone, are named in HUBMERGE_TRUSTED_KEYS by their public half.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hubmerge.board.trust import Trust, named_keys
from hubmerge.evaluation.signing import public_key
from hubmerge.settings import Settings
from workflows.jobs.tokens import derived, random_secret, secret_lines

KEY_FILE = "signing.key"
_INFO = b"hubmerge/results/1"


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

"""The one door to the environment: every variable that hubmerge reads, with its default.

Nothing else in the project reads `os.environ`; stages receive what they need as arguments.
"""

from __future__ import annotations

import os
import site
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from hubmerge.errors import Problem, SettingsError

DEFAULT_ENDPOINT = "https://huggingface.co"

# where programs and libraries lie, and how the machine is shared; nothing of these is a secret
_INHERITED = (
    *("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"),
    *("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
)
# the way out; a proxy's address can hold a password, so that only those get it who need it
_WAY_OUT = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
)

_VARIABLES = {
    "token": "HF_TOKEN",
    "data_dir": "HUBMERGE_DATA",
    "secret": "HUBMERGE_SECRET",
    "signing_key": "HUBMERGE_SIGNING_KEY",
    "trusted_keys": "HUBMERGE_TRUSTED_KEYS",
    "jobs_per_user": "HUBMERGE_JOBS_PER_USER",
    "space_id": "SPACE_ID",
    "space_host": "SPACE_HOST",
    "oauth_client_id": "OAUTH_CLIENT_ID",
    "oauth_client_secret": "OAUTH_CLIENT_SECRET",
    "webhook_secret": "HUBMERGE_WEBHOOK_SECRET",
    "results_repo": "HUBMERGE_RESULTS",
    "rules_dir": "HUBMERGE_RULES",
    "suite": "HUBMERGE_SUITE",
    "merge_hours": "HUBMERGE_MERGE_HOURS",
    "zero_gpu": "SPACES_ZERO_GPU",
    "device_memory_gb": "HUBMERGE_DEVICE_MEMORY",
}
# torchrun's and accelerate's names, then those of MPI's launchers; the first that is set counts
_LAUNCHERS = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"),
}


class Settings(BaseModel):
    """Everything that the environment decides; immutable after `load_settings`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: str = DEFAULT_ENDPOINT  # HF_ENDPOINT: the Hub that every command talks to
    token: SecretStr | None = None  # HF_TOKEN: the command line's own token
    data_dir: Path = Path("data")  # HUBMERGE_DATA: jobs, caches, the database; local disk
    secret: SecretStr | None = None  # HUBMERGE_SECRET: encrypts tokens at rest; a Space secret
    signing_key: SecretStr | None = None  # HUBMERGE_SIGNING_KEY: signs results; None: derived from the secret
    trusted_keys: str | None = None  # HUBMERGE_TRUSTED_KEYS: public keys whose results are believed, 64 hex each
    jobs_per_user: int = Field(default=5, ge=1)  # HUBMERGE_JOBS_PER_USER: queued or running at once
    space_id: str | None = None  # SPACE_ID: set by the platform on a Space
    space_host: str | None = None  # SPACE_HOST: the host of its pages, also set by the platform
    oauth_client_id: str | None = None  # OAUTH_CLIENT_ID: an app registered on the Hub; a Space has its own
    oauth_client_secret: SecretStr | None = None  # OAUTH_CLIENT_SECRET
    webhook_secret: SecretStr | None = None  # HUBMERGE_WEBHOOK_SECRET
    results_repo: str | None = None  # HUBMERGE_RESULTS: the dataset that scores are recorded in; None: no leaderboard
    rules_dir: Path | None = None  # HUBMERGE_RULES: a folder of watcher rules
    rank: int = Field(default=0, ge=0)  # RANK: which of the processes this is, as launchers number them
    world_size: int = Field(default=1, ge=1)  # WORLD_SIZE: how many processes share one merge
    local_rank: int | None = Field(default=None, ge=0)  # LOCAL_RANK: which of this machine's it is; takes a GPU by it
    device_memory_gb: float | None = Field(default=None, gt=0, lt=1e9)  # HUBMERGE_DEVICE_MEMORY: of a GPU, for a job
    merge_hours: float = Field(default=24.0, gt=0, lt=1e6)  # HUBMERGE_MERGE_HOURS: that a visitor's merge may take
    zero_gpu: bool = False  # SPACES_ZERO_GPU: set by the platform where a GPU is lent per call
    suite: str | None = None  # HUBMERGE_SUITE: what merges made at the form are evaluated with; None: they are not

    @property
    def is_loopback(self) -> bool:
        """True when the Hub runs on this machine, as the embedded one does."""
        host = urlsplit(self.endpoint).hostname or ""
        if host == "localhost":
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False

    @property
    def forgets(self) -> bool:
        """True on a Space whose data folder lies on the Space's own disk, of which a restart leaves nothing."""
        folder = self.data_dir.absolute()
        return self.space_id is not None and not any(f.is_mount() for f in (folder, *folder.parents[:-1]))


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from `environ` (default: the process environment); SettingsError names what is wrong."""
    env = os.environ if environ is None else environ
    values: dict[str, object] = {field: env[name] for field, name in _VARIABLES.items() if env.get(name)}
    named = dict(_VARIABLES)
    for field, variables in _LAUNCHERS.items():
        if given := [variable for variable in variables if env.get(variable)]:
            values[field], named[field] = env[given[0]], given[0]
    values["endpoint"] = (env.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        problems = [
            Problem(
                SettingsError.code,
                issue["msg"],
                where=named.get(str(issue["loc"][0]), "HF_ENDPOINT"),
                next_step="Set it right or leave it out.",
            )
            for issue in error.errors(include_url=False, include_input=False)  # it may be a secret
        ]
        raise SettingsError("the environment has errors", problems=problems) from None


def user_cache(environ: Mapping[str, str] | None = None) -> Path | None:
    """The folder of this user's caches (XDG_CACHE_HOME, else ~/.cache); None for a user without a home."""
    env = os.environ if environ is None else environ
    if (given := env.get("XDG_CACHE_HOME")) and Path(given).is_absolute():
        return Path(given)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return None


def use_one_blas_thread() -> None:
    """Let numpy's BLAS use one thread in this process, if numpy was not imported yet. Its other threads would spin for
    0.1 s, and matrix products need one thread anyway, so that the order of their sums is the same on every machine."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def evaluation_environment(environ: Mapping[str, str] | None = None, *, network: bool) -> dict[str, str]:
    """The variables of `environ` (default: the process environment) that an evaluating process inherits.

    It finds the packages of `pip install --user`, too, which lie below this process's HOME.
    """
    env = os.environ if environ is None else environ
    found = {name: env[name] for name in (*_INHERITED, *(_WAY_OUT if network else ())) if name in env}
    if site.ENABLE_USER_SITE:
        found["PYTHONUSERBASE"] = site.getuserbase()
    return found

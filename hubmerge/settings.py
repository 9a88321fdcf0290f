"""The one door to the environment: every variable that hubmerge reads, with its default.

Nothing else in the project reads `os.environ`; stages receive what they need as arguments.
"""

import os
import site
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, SecretStr, ValidationError

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


# a file of settings is read by no shell, which would put the home in for ~
_Folder = Annotated[Path, AfterValidator(lambda folder: Path(os.path.expanduser(folder)))]


def _of(*variables: str, default: Any = None, **bounds: Any) -> Any:
    """A field of the environment; the first of its variables that is set counts."""
    return Field(default, validation_alias=AliasChoices(*variables), **bounds)


class Settings(BaseModel):
    """Everything that the environment decides; immutable after `load_settings`."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    # the Hub that every command talks to
    endpoint: str = _of("HF_ENDPOINT", default=DEFAULT_ENDPOINT)
    token: SecretStr | None = _of("HF_TOKEN")  # the command line's own token
    data_dir: _Folder = _of("HUBMERGE_DATA", default=Path("data"))  # jobs, caches, the database; local disk
    secret: SecretStr | None = _of("HUBMERGE_SECRET")  # encrypts tokens at rest; a Space secret
    signing_key: SecretStr | None = _of("HUBMERGE_SIGNING_KEY")  # signs results; None: derived from the secret
    trusted_keys: str | None = _of("HUBMERGE_TRUSTED_KEYS")  # public keys whose results are believed, 64 hex each
    jobs_per_user: int = _of("HUBMERGE_JOBS_PER_USER", default=5, ge=1)  # queued or running at once
    space_id: str | None = _of("SPACE_ID")  # set by the platform on a Space
    space_host: str | None = _of("SPACE_HOST")  # the host of its pages, also set by the platform
    oauth_client_id: str | None = _of("OAUTH_CLIENT_ID")  # an app registered on the Hub; a Space has its own
    oauth_client_secret: SecretStr | None = _of("OAUTH_CLIENT_SECRET")
    webhook_secret: SecretStr | None = _of("HUBMERGE_WEBHOOK_SECRET")
    results_repo: str | None = _of("HUBMERGE_RESULTS")  # the dataset that scores are recorded in; None: no leaderboard
    rules_dir: _Folder | None = _of("HUBMERGE_RULES")  # a folder of watcher rules
    device_memory_gb: float | None = _of("HUBMERGE_DEVICE_MEMORY", gt=0, lt=1e9)  # of a GPU, for a job
    merge_hours: float = _of("HUBMERGE_MERGE_HOURS", default=24.0, gt=0, lt=1e6)  # that a visitor's merge may take
    zero_gpu: bool = _of("SPACES_ZERO_GPU", default=False)  # set by the platform where a GPU is lent per call
    suite: str | None = _of("HUBMERGE_SUITE")  # what merges made at the form are evaluated with; None: they are not
    # torchrun's and accelerate's names, then those of MPI's launchers: which of the processes this is, how many share
    # one merge, and which of this machine's it is, by which it takes a GPU
    rank: int = _of("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", default=0, ge=0)
    world_size: int = _of(*("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"), default=1, ge=1)
    local_rank: int | None = _of(
        *("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"), ge=0
    )

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
    given = {}
    for field in Settings.model_fields.values():
        for name in map(str, field.validation_alias.choices):  # type: ignore[union-attr]
            if env.get(name):
                given[name] = env[name].rstrip("/") if name == "HF_ENDPOINT" else env[name]
                break
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        problems = [
            Problem(
                SettingsError.code,
                issue["msg"],
                where=str(issue["loc"][0]),
                next_step="Set it right or leave it out.",
            )
            for issue in error.errors(include_url=False, include_input=False)  # it may be a secret
        ]
        raise SettingsError("the environment has errors", problems=problems) from None


def user_cache() -> Path | None:
    """The folder of this user's caches (XDG_CACHE_HOME, else ~/.cache); None for a user without a home."""
    if (given := os.environ.get("XDG_CACHE_HOME")) and Path(given).is_absolute():
        return Path(given)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return None


def library_path() -> dict[str, str]:
    """The variable without which some Pythons, such as an environment module's, do not find their own libraries."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


def use_one_blas_thread() -> None:
    """Let numpy's BLAS use one thread in this process, if numpy was not imported yet. Its other threads would spin for
    0.1 s, and matrix products need one thread anyway, so that the order of their sums is the same on every machine."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def ask_this_machine_directly() -> None:
    """Let no client ask for a server of this machine, such as the embedded Hub, through a proxy, which would look for
    it on its own machine."""
    known = os.environ.get("no_proxy", os.environ.get("NO_PROXY", "")).split(",")
    if "*" not in known:
        direct = ",".join(dict.fromkeys(filter(None, (*known, "127.0.0.1", "localhost", "::1"))))
        os.environ |= {"no_proxy": direct, "NO_PROXY": direct}


def limit_uploads() -> None:
    """Let the Hub's client send at most eight blocks of 64 MB to Xet at a time, which it holds in memory; its own limit
    is 64 blocks. Its log goes nowhere: where HF_HOME cannot be written it would go to standard output, into a result.
    """
    os.environ.setdefault("HF_XET_CLIENT_AC_MAX_UPLOAD_CONCURRENCY", "8")
    os.environ.setdefault("HF_XET_LOG_DEST", os.devnull)


def evaluation_environment(environ: Mapping[str, str] | None = None, *, network: bool) -> dict[str, str]:
    """The variables of `environ` (default: the process environment) that an evaluating process inherits.

    It finds the packages of `pip install --user`, too, which lie below this process's HOME.
    """
    env = os.environ if environ is None else environ
    found = {name: env[name] for name in (*_INHERITED, *(_WAY_OUT if network else ())) if name in env}
    if site.ENABLE_USER_SITE:
        found["PYTHONUSERBASE"] = site.getuserbase()
    return found

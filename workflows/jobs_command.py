"""`hubmerge jobs`: the jobs of HF_TOKEN's user in the app's data folder, and another try for those that failed.

The page and the API retry a job for its signed-in owner. This command is for the keeper of the machine, above all for
the jobs of the bot, which belong to the account of HF_TOKEN.
"""

import argparse
import json
from typing import Any

from hubmerge.errors import LoginError, SettingsError
from hubmerge.hub.client import Hub
from hubmerge.settings import Settings

_LISTED = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--retry", nargs="+", default=[], metavar="ID", help="try again; the first digits are enough")


def run_cli(arguments: Any, settings: Settings) -> int:
    """Queue the named jobs again, then list all, newest first."""
    # imported here, since every command builds this one's parser
    from workflows.jobs.jobs import Job, JobNotFoundError
    from workflows.jobs.store import DATABASE, Store
    from workflows.jobs.tokens import KEY_FILE, TokenVault

    if not (settings.data_dir / DATABASE).is_file():
        raise SettingsError(
            "there are no jobs of an app",
            where=str(settings.data_dir),
            expected=DATABASE,
            next_step="Set HUBMERGE_DATA to the app's data folder.",
        )
    if settings.token is None:
        raise LoginError("whose jobs is not known", where="HF_TOKEN", next_step="Set HF_TOKEN to that user's token.")
    if arguments.retry and settings.secret is None and not (settings.data_dir / KEY_FILE).is_file():
        raise SettingsError(
            "the app's secret is not known, by which it would open the token of the job",
            where="HUBMERGE_SECRET",
            next_step="Set HUBMERGE_SECRET as it is set for the app.",
        )
    user = Hub(settings.endpoint, settings.token.get_secret_value()).whoami().name
    store = Store(settings.data_dir, jobs_per_user=settings.jobs_per_user)

    def named(digits: str) -> Job:
        found = [job for job in store.list_jobs(user=user, limit=None) if digits and job.id.startswith(digits)]
        if len(found) != 1:
            raise JobNotFoundError(
                "no single job of yours begins so",
                where=f"job {digits[:64]}",
                expected="one of yours",
                got=str(len(found)),
                next_step="List them with `hubmerge jobs`.",
            )
        return found[0]

    try:
        again = [named(digits) for digits in arguments.retry]  # all of them known before any is tried again
        for job in again:
            vault = TokenVault.from_settings(settings)
            store.retry(job.id, user, vault.seal(job.id, settings.token))
        jobs = [_shown(job) for job in store.list_jobs(user=user, limit=_LISTED)]
    finally:
        store.close()
    print(json.dumps({"jobs": jobs}, indent=2) if arguments.json else _table(jobs))  # noqa: T201 - the output
    return 0


def _shown(job: Any) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state.value,
        "target": str(job.payload.get("target") or job.payload.get("model") or ""),
        "created": job.created,
        "error": job.error.model_dump(mode="json") if job.error else None,
    }


def _table(jobs: list[dict[str, Any]]) -> str:
    lines = [
        f"{job['id'][:12]}  {job['state']:<10} {job['kind']:<9} {job['target']}"
        + (f"  {job['error']['message'].splitlines()[0]}" if job["error"] else "")
        for job in jobs
    ]
    return "\n".join(lines) or "no jobs"

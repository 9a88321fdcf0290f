"""Claims jobs and runs each in a child process: `python -m workflows.jobs.worker`.

    every turn    claim a job → supervise its child → tidy

Any number of workers may share one data folder. A job's folder, `jobs/<id>`, stays while the job can go on from it, and
is removed when the job is done or cancelled. Folders of failed jobs stay for some days, so that another submission can
go on from them, and take at most a tenth of the disk together. Temporary files of an attempt lie in `tmp` and go with
it, also where it was killed.
"""

import argparse
import logging
import os
import re
import shutil
import socket
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from pydantic import SecretStr

from hubmerge.errors import DiskError, HubmergeError, InternalError
from hubmerge.isolation.child import ChildProcess
from hubmerge.isolation.confinement import adopt_orphans, die_with_parent
from hubmerge.isolation.scrub import Scrubber
from hubmerge.machine.disk_errors import make_folder
from hubmerge.plan.disk import used_bytes
from hubmerge.settings import Settings, load_settings
from workflows.jobs.account import results_keys
from workflows.jobs.child import DEFAULT_PIPELINE
from workflows.jobs.jobs import ACTIVE, Job, JobError, StaleFenceError, State, iso
from workflows.jobs.process import lock_workdir, set_up_logging, told_to_stop
from workflows.jobs.protocol import JobSpec
from workflows.jobs.store import LEASE_S, Store
from workflows.jobs.supervision import PASSING, Supervision, Timing
from workflows.jobs.tokens import TokenVault

log = logging.getLogger(__name__)

PIPELINES: Mapping[str, str] = {
    "merge": DEFAULT_PIPELINE,
    "diff": "workflows.jobs.comparisons:run",
    "evaluate": "workflows.jobs.evaluation_pipeline:run",
}
KEPT_FAILED_SHARE = 0.1  # of the disk
_GUARD_SHARE = 0.8  # the guardian gives up before the lease does
_SECRET_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|KEY)S?($|_)", re.IGNORECASE)


def child_environment(environment: Mapping[str, str], endpoint: str) -> dict[str, str]:
    """The worker's environment without its secrets: a job has its user's token, never the Space's."""
    kept = {name: value for name, value in environment.items() if not _SECRET_NAME.search(name)}
    return kept | {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}


class Worker:
    """Runs one job at a time; the thread that makes it must live as long as it does."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        vault: TokenVault,
        *,
        pipelines: Mapping[str, str] = PIPELINES,
        timing: Timing | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._vault = vault
        self._pipelines = dict(pipelines)
        self._timing = timing or Timing()
        self._data_dir = settings.data_dir.resolve()
        self._temporary = self._data_dir / "tmp"
        self.owner = f"{socket.gethostname()[:64]}_{os.getpid()}_{uuid.uuid4().hex[:12]}"
        self._since = store.clock.steady()
        self._next_sweep = 0.0

    def workdir(self, job_id: str) -> Path:
        return self._data_dir / "jobs" / job_id

    def run_once(self, shutdown: threading.Event | None = None) -> Job | None:
        """Run the job that is due, if there is one, and return it in its new state."""
        if self._store.clock.steady() >= self._next_sweep:
            self._sweep()
        job = self._store.claim(self.owner, self._pipelines, since=self._since)
        if job is None:
            return None
        log.info("job %s: attempt %d by %s", job.id[:12], job.attempt, self.owner)
        left = self._run(job, shutdown or threading.Event())
        if left is not None:
            log.info("job %s: %s", left.id[:12], left.state)
            if left.state.is_terminal:
                self._sweep()
        return left or self._store.get(job.id)

    def run_forever(self, stop: threading.Event) -> None:
        """Run jobs until `stop`; a job that runs then is given back and goes on with the next worker."""
        while not stop.is_set():
            job = None
            try:
                job = self.run_once(stop)
            except (*PASSING, StaleFenceError) as error:  # the jobs stay; this one has another worker
                log.warning("%s", error)
            if job is None:
                stop.wait(self._timing.idle_s)

    def _run(self, job: Job, shutdown: threading.Event) -> Job | None:
        sealed = self._store.sealed_token(job.id)
        try:
            token = self._vault.open(job.id, sealed, self._store.clock.now()) if sealed else None
            keys = results_keys(self._settings) if job.kind == "evaluate" else None
        except HubmergeError as error:  # a login that is over; a random secret's file is not whole or cannot be made
            return self._store.fail(job.id, job.fence, JobError.of(error))
        spec = JobSpec(
            attempt=job.attempt,
            user=job.user,
            payload=job.payload,
            token=token,
            workdir=self.workdir(job.id),
            shared=self._data_dir / "shared",
            results=self._settings.results_repo,
            signing_key=SecretStr(keys.seed.hex()) if keys else None,
            trusted_keys=tuple(sorted(keys.trust.keys)) if keys else (),
            endpoint=self._settings.endpoint,  # never the payload's: it would decide where the token goes
        )
        guard_s = self._store.lease_s * _GUARD_SHARE
        child = (sys.executable, "-m", "workflows.jobs.child")
        command = (*child, "--pipeline", self._pipelines[job.kind], "--guard-seconds", str(guard_s))
        # os.environ is read here and nowhere else in the package, to take the Space's secrets out of it.
        temporary = self._temporary / f"{job.id[:16]}-{job.attempt}"  # a short path: sockets may lie there
        environment = child_environment(os.environ, self._settings.endpoint) | {"TMPDIR": str(temporary)}
        try:
            make_folder(spec.workdir)
            self._clear(job)  # what a worker left that was killed
            make_folder(temporary)
            log_file, scrubber = spec.workdir / "child.log", Scrubber(token)
            process = ChildProcess(command, spec.to_line(), environment, log_file, scrubber, beating=True)
        except DiskError as error:
            return self._store.fail(job.id, job.fence, JobError.of(error))
        except OSError as error:  # no memory for a process
            failure = InternalError("the job's process could not be started", got=str(error))
            return self._store.fail(job.id, job.fence, JobError.of(failure, retryable=True))
        try:
            return Supervision(self._store, job, process, self._timing).run(shutdown)
        finally:
            self._clear(job)

    def _clear(self, job: Job) -> None:
        """Remove the temporary files of a job's attempts so far; another worker may have begun the next one."""
        for path in self._temporary.glob(f"{job.id[:16]}-*"):
            if int(path.name.rpartition("-")[2]) <= job.attempt:
                shutil.rmtree(path, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove the folders that no job goes on from, such as those of a worker that died while tidying, and the
        temporary files of jobs that have ended.

        Of failed jobs, the newest folders stay for some days, as many as take a share of the disk.
        """
        clock, timing = self._store.clock, self._timing
        self._next_sweep = clock.steady() + timing.sweep_s
        attempts = list(self._temporary.glob("[0-9a-f]" * 16 + "-*"))  # before the jobs: none begins in between
        active = {job.id[:16] for job in self._store.list_jobs(states=ACTIVE, limit=None)}
        for path in attempts:
            if path.name[:16] not in active:
                shutil.rmtree(path, ignore_errors=True)
        folder = self._data_dir / "jobs"
        if not folder.is_dir():
            return
        oldest = iso(clock.now() - timedelta(seconds=timing.keep_failed_s))
        left = int(shutil.disk_usage(folder).total * KEPT_FAILED_SHARE)
        jobs = {path.name: self._store.find(path.name) for path in folder.iterdir()}
        failed = [job for job in jobs.values() if job and job.state is State.FAILED and (job.finished or "") > oldest]
        for job in sorted(failed, key=lambda job: job.finished or "", reverse=True):
            size = used_bytes([self.workdir(job.id)])
            if size <= left:
                left -= size
                del jobs[job.id]
        for name, job_of in jobs.items():
            if job_of is None or job_of.state.is_terminal:
                self._discard(name)

    def _discard(self, job_id: str) -> None:
        path = self.workdir(job_id)
        if not path.is_dir():
            return
        lock = None
        try:
            lock = lock_workdir(path, wait_s=2.0)
            if lock is None:
                log.warning("job %s: its folder is still in use and stays for now", job_id[:12])
            elif (job := self._store.find(job_id)) is None or job.state.is_terminal:  # not tried again meanwhile
                # away in one step: an attempt that begins while it is emptied makes a folder of its own
                shutil.rmtree(path.rename(path.with_suffix(".gone")))
        except OSError as error:
            log.warning("job %s: its folder could not be removed: %s", job_id[:12], error)
        finally:
            if lock is not None:
                os.close(lock)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workflows.jobs.worker", description="Run jobs until SIGTERM.")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the starting process ends")
    parser.add_argument("--pipeline", action="append", default=[], metavar="KIND=MODULE:FUNCTION")
    parser.add_argument("--kinds", nargs="+", metavar="KIND", help="jobs of these kinds only")
    parser.add_argument("--lease-seconds", type=float, default=LEASE_S, metavar="S")
    options = parser.parse_args(argv)
    if options.die_with_parent:
        die_with_parent(os.getppid())
    adopt_orphans()
    set_up_logging()
    settings = load_settings()
    pipelines = {**PIPELINES, **dict(item.split("=", 1) for item in options.pipeline)}
    if options.kinds is not None:
        if unknown := sorted(set(options.kinds) - set(pipelines)):
            parser.error(f"no such kind of job: {', '.join(unknown)}; there are {', '.join(pipelines)}")
        pipelines = {kind: pipelines[kind] for kind in options.kinds}
    stop = told_to_stop()
    store = Store(settings.data_dir, jobs_per_user=settings.jobs_per_user, lease_s=options.lease_seconds)
    vault = TokenVault.from_settings(settings)
    timing = Timing(heartbeat_s=options.lease_seconds / 6)
    try:
        Worker(settings, store, vault, pipelines=pipelines, timing=timing).run_forever(stop)
    finally:
        store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Serving: the pages in this process, the worker in one of its own that is started again when it dies.

A merge that takes the worker's process down leaves the pages up; the new worker goes on with the job.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from hubmerge.errors import LoginError
from hubmerge.settings import Settings
from workflows.service import MergeService
from workflows.store import Store
from workflows.tokens import TokenVault

log = logging.getLogger(__name__)
RESTART_AFTER_S = 1.0
STOP_TIMEOUT_S = 20.0


class WorkerProcess:
    """Keeps one worker process alive until it is closed."""

    def __init__(self, settings: Settings, environment: Mapping[str, str] | None = None) -> None:
        self._environment = {
            **(os.environ if environment is None else environment),
            "HF_ENDPOINT": settings.endpoint,
            "HUBMERGE_DATA": str(settings.data_dir),
        }
        # the worker acts with each job's own token only
        self._environment.pop("HF_TOKEN", None)
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="hubmerge-worker-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def _keep(self) -> None:
        # the thread that starts the child must outlive it: the child dies with its parent thread
        while not self._stop.is_set():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "workflows.worker", "--die-with-parent"], env=self._environment
            )
            while not self._stop.is_set() and self._process.poll() is None:
                self._stop.wait(0.5)
            if self._process.poll() is None:
                self._process.terminate()
                try:
                    self._process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            elif not self._stop.is_set():
                log.warning("the worker ended with code %s and is started again", self._process.returncode)
                self._stop.wait(RESTART_AFTER_S)


def serve(settings: Settings, *, host: str, port: int) -> int:
    """The app until SIGTERM or Ctrl-C; returns the exit code."""
    from hubmerge.ui.app import launch_app  # gradio takes seconds to import
    from hubmerge.ui.signin import OAuthClient

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    oauth = None
    if settings.space_id is None:  # a Space brings its own client
        if settings.oauth_client_id is None or settings.oauth_client_secret is None:
            raise LoginError(
                "nobody could sign in: there is no OAuth client",
                next_step="Set OAUTH_CLIENT_ID and OAUTH_CLIENT_SECRET of an app registered on the Hub, "
                "or try `hubmerge demo`.",
            )
        oauth = OAuthClient(
            settings.endpoint, settings.oauth_client_id, settings.oauth_client_secret.get_secret_value()
        )
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    store = Store(settings.data_dir, jobs_per_user=settings.jobs_per_user)
    service = MergeService(settings, store, TokenVault.from_settings(settings))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with WorkerProcess(settings), launch_app(service, settings, host=host, port=port, oauth=oauth) as app:
            log.info("serving on %s", app.url)
            stop.wait()
    finally:
        store.close()
    return 0

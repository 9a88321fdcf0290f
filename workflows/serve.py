"""Serves pages and the bot's clock in this process, and keeps each worker alive in a process of its own.

If a merge takes its worker's process down, the pages stay up and a new worker goes on with the job. Evaluations and
comparisons have workers of their own: no merge waits for an evaluation, and no comparison for a merge.

    HUBMERGE_RESULTS   the results dataset: with it there are a leaderboard and evaluations
    HUBMERGE_RULES     a folder of watcher rules; HF_TOKEN is the account that the bot acts with
"""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Self

from hubmerge.board.results_dataset import ResultsDataset
from hubmerge.board.source import DatasetBoard
from hubmerge.board.trust import reader_trust
from hubmerge.engine.bursts import announce
from hubmerge.errors import LoginError
from hubmerge.evaluation.suites import get_suite
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import checked_endpoint
from hubmerge.machine.extras import require
from hubmerge.machine.resources import require_linux
from hubmerge.settings import Settings
from workflows.bot import Bot, Intervals
from workflows.jobs.account import results_keys
from workflows.jobs.evaluations import RecordedScores
from workflows.jobs.process import set_up_logging, told_to_stop
from workflows.jobs.tokens import TokenVault
from workflows.service import Service
from workflows.watchers.rules import RuleSet, load_rules

log = logging.getLogger(__name__)
RESTART_AFTER_S = 1.0
STOP_TIMEOUT_S = 20.0
_ROOT = Path(__file__).resolve().parent.parent


class WorkerProcess:
    """Keeps one worker process alive until `stop` is set, which leaving it does too.

    A signal to the whole group ends the workers before this process closes them: with its `stop`, none is started
    again meanwhile.
    """

    def __init__(self, settings: Settings, *, stop: threading.Event, kinds: Sequence[str] = ()) -> None:
        self._kinds = ["--kinds", *kinds] if kinds else []
        self._environment = {
            **os.environ,
            "HF_ENDPOINT": settings.endpoint,
            "HUBMERGE_DATA": str(settings.data_dir.resolve()),
        }
        # the worker acts with each job's own token only, and answers nobody
        for name in ("HF_TOKEN", "OAUTH_CLIENT_SECRET", "HUBMERGE_WEBHOOK_SECRET"):
            self._environment.pop(name, None)
        self._stop = stop
        self._thread = threading.Thread(target=self._keep, name="hubmerge-worker-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _keep(self) -> None:
        # the thread that starts the child must outlive it: the child dies with its parent thread
        while not self._stop.is_set():
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "workflows.jobs.worker", "--die-with-parent", *self._kinds],
                    cwd=_ROOT,  # a Gradio Space installs nothing: the package is found here
                    env=self._environment,
                )
            except OSError as error:  # no memory for a process now
                log.warning("no worker could be started: %s", error)
                self._stop.wait(RESTART_AFTER_S)
                continue
            while not self._stop.is_set() and process.poll() is None:
                self._stop.wait(0.5)
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_TIMEOUT_S)
                process.kill()  # nothing happens to one that has ended
                process.wait()
            elif not self._stop.wait(RESTART_AFTER_S):
                log.warning("the worker ended with code %s and is started again", process.returncode)


def serve(
    settings: Settings,
    *,
    host: str,
    port: int,
    intervals: Intervals | None = None,
    ready: Callable[[str], None] | None = None,
) -> int:
    """Serve the app until SIGTERM or Ctrl-C; returns the exit code. `ready` is called with its address once it
    answers."""
    require_linux("the app")
    set_up_logging()
    announce(settings, log.warning)  # before anything else may touch CUDA
    if settings.results_repo is not None:
        require("eval", "HUBMERGE_RESULTS")
    checked_endpoint(settings.endpoint)  # where it is no address, gradio's import fails

    from workflows.app.app import launch_app  # gradio takes seconds to import
    from workflows.app.signin import OAuthClient

    if settings.oauth_client_id is None or settings.oauth_client_secret is None:
        raise LoginError(
            "nobody could sign in: there is no OAuth client",
            next_step="Set OAUTH_CLIENT_ID and OAUTH_CLIENT_SECRET of an app registered on the Hub, "
            "or try `hubmerge demo`."
            if settings.space_id is None
            else "Write `hf_oauth: true` into the front matter of the Space's README.md.",
        )
    oauth = None
    if settings.space_id is None:  # a Space brings its own client
        oauth = OAuthClient(
            settings.endpoint, settings.oauth_client_id, settings.oauth_client_secret.get_secret_value()
        )
    if settings.secret is None:
        log.warning("HUBMERGE_SECRET is not set: who can read the data folder can read the tokens of waiting jobs")
    vault = TokenVault.from_settings(settings)
    scores = recorded_scores(settings)
    rules = partial(load_rules, settings.rules_dir) if settings.rules_dir else RuleSet
    bot = Bot(settings, vault, rules, scores=scores, intervals=intervals)
    stop = told_to_stop()
    with ExitStack() as stack:
        stack.callback(bot.store.close)
        for kind in ("merge", "diff"):  # a diff takes minutes; it need not wait for a merge of hours
            stack.enter_context(WorkerProcess(settings, kinds=(kind,), stop=stop))
        if settings.token is not None:  # else there is nobody to act as: rules are shown and tried, and nothing ticks
            stack.enter_context(bot.scheduler)
            if scores is not None:
                stack.enter_context(WorkerProcess(settings, kinds=("evaluate",), stop=stop))
        service = Service(settings, bot.store, vault, bot.requests)
        board = DatasetBoard(scores.dataset) if scores else None
        routes = bot.routes if settings.token is not None else ()
        app = stack.enter_context(
            launch_app(
                service, settings, host=host, port=port, oauth=oauth, routes=routes, board=board, watchers=bot.source
            )
        )
        log.info("serving on %s", app.url)
        if ready is not None:
            ready(app.url)
        while not stop.wait(0.5):  # a signal that another thread got is handled when this one wakes
            pass
    return 0


def recorded_scores(settings: Settings) -> RecordedScores | None:
    """The scores that the bot's account records; None where no results dataset is named, and nothing is evaluated.

    EvaluationError where the settings name a suite that does not exist: no merge would ever get a score."""
    if settings.results_repo is None:
        return None
    if settings.suite is not None:
        get_suite(settings.suite)
    hub = Hub(settings.endpoint, settings.token.get_secret_value() if settings.token else None)
    # who only shows a dataset has signed nothing in it
    trust = results_keys(settings).trust if settings.token else reader_trust(settings, settings.results_repo)
    return RecordedScores(hub, ResultsDataset(hub, settings.results_repo, trust=trust), settings.suite)

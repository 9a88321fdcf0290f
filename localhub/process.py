"""The local Hub as a child process, for tests and for the demo.

The child prints one line of JSON when it listens. It stops when it is told to, and also when this process is
gone, however that ended: the child watches for the change of its parent.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hubmerge.errors import HubUnavailableError

_STOP_TIMEOUT_S = 15.0
_PACKAGE_ROOT = Path(__file__).resolve().parents[1]


class LocalHubProcess:
    """A running local Hub; `endpoint`, `tokens` (by user name) and `oauth` say how to talk to it."""

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        zoo: bool = False,
        users: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.data_dir = data_dir.resolve()
        self._command = [sys.executable, "-m", "localhub", "--port", str(port), "--data", str(self.data_dir)]
        self._command += ["--zoo"] if zoo else []
        self._command += ["--users", str(users.resolve())] if users else []
        self._command += options
        self._process: subprocess.Popen[str] | None = None
        self.endpoint = ""
        self.tokens: dict[str, str] = {}
        self.oauth: dict[str, str] = {}

    def start(self) -> "LocalHubProcess":
        process = subprocess.Popen(
            [*self._command, "--parent", str(os.getpid())],
            cwd=_PACKAGE_ROOT,  # so that the child finds this package wherever it was started from
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self.kill()
            raise HubUnavailableError(
                "the local Hub did not start",
                where=" ".join(self._command),
                got=f"exit code {code}",
                next_step="Its reason stands on the error output.",
            )
        ready: dict[str, Any] = json.loads(line)
        self.endpoint, self.tokens, self.oauth = ready["endpoint"], ready["tokens"], ready["oauth"]
        return self

    @property
    def pid(self) -> int:
        if self._process is None:
            raise HubUnavailableError("the local Hub is not running", next_step="Call start() first.")
        return self._process.pid

    def stop(self) -> None:
        """End it cleanly; it is killed only if it does not end by itself."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_S)
            self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()  # which does nothing to one that has ended
            self._process.communicate()  # waits for it and closes its output
            self._process = None

    def __enter__(self) -> "LocalHubProcess":
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

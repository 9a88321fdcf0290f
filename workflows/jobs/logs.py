"""The log of the app and its processes: one format, and equal warnings at most once a minute.

A tick or a worker that cannot do its work logs this and tries again within seconds. While a disk is full that would be
several equal lines a second.
"""

from __future__ import annotations

import logging
import time

AGAIN_S = 60.0
_KEPT = 200  # texts


class Repeats(logging.Filter):
    """Leaves out a warning that was written in the last minute; the next one says how many there were."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[str, tuple[float, int]] = {}  # text → when, and how many were left out since

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or record.exc_info:
            return True
        text, now = f"{record.name}: {record.getMessage()}", time.monotonic()
        written, left_out = self._written.pop(text, (-AGAIN_S, 0))
        if now - written < AGAIN_S:
            self._written[text] = written, left_out + 1
            return False
        self._written[text] = now, 0
        if len(self._written) > _KEPT:
            del self._written[next(iter(self._written))]
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} times more since it was last written)", ()
        return True


def set_up_logging() -> None:
    """Everything from INFO on to stderr, where nobody has set up the process's log before."""
    handler = logging.StreamHandler()
    handler.addFilter(Repeats())
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[handler]
    )
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # the bot asks the Hub every few seconds

"""What the app's processes have in common: their log, and how they are told to stop."""

from __future__ import annotations

import logging
import os
import signal
import threading

END_AFTER_S = 30.0  # a question to a Hub that does not answer waits for minutes


def set_up_logging() -> None:
    """Everything from INFO on to stderr, where nobody has set up the process's log before."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # the bot asks the Hub every few seconds


def told_to_stop() -> threading.Event:
    """What SIGTERM and Ctrl-C set from now on. A process that then does not end is ended; it can be killed anywhere."""
    stop = threading.Event()

    def tell(*_: object) -> None:
        stop.set()
        timer = threading.Timer(END_AFTER_S, os._exit, [1])
        timer.daemon = True
        timer.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, tell)
    return stop

"""The log of the app and its processes."""

from __future__ import annotations

import logging


def set_up_logging() -> None:
    """Everything from INFO on to stderr, where nobody has set up the process's log before."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # the bot asks the Hub every few seconds

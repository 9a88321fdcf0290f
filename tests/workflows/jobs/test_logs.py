"""A trouble that lasts does not fill the log."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from workflows.jobs import logs


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], logging.Logger, list[float]]:
    """What a logger's handler lets through, the logger, and the clock."""
    lines: list[str] = []
    clock = [1000.0]
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.Logger("of-this-test")
    handler = Kept()
    handler.addFilter(logs.Repeats())
    logger.addHandler(handler)
    return lines, logger, clock


def test_a_warning_of_every_second_is_written_once_a_minute_with_its_count(
    written: tuple[list[str], logging.Logger, list[float]],
) -> None:
    lines, logger, clock = written
    for _ in range(61):
        logger.warning("tick %s: %s", "inbox", "the disk is full")
        clock[0] += 1.0
    assert lines == [
        "tick inbox: the disk is full",
        "tick inbox: the disk is full (59 times more since it was last written)",
    ]


def test_what_differs_what_is_no_trouble_and_what_has_a_trace_is_always_written(
    written: tuple[list[str], logging.Logger, list[float]],
) -> None:
    lines, logger, _ = written
    for number in range(3):
        logger.warning("job %d", number)
        logger.info("started again")
        logger.error("a bug", exc_info=ValueError("x"))
    assert lines.count("started again") == lines.count("a bug") == 3
    assert len(lines) == 9


def test_many_different_warnings_take_little_memory() -> None:
    kept = logs.Repeats()
    for number in range(1000):
        assert kept.filter(logging.LogRecord("x", logging.WARNING, "", 0, f"warning {number}", (), None))
    assert len(kept._written) <= 200


def test_requests_to_the_hub_are_not_written_each(monkeypatch: pytest.MonkeyPatch) -> None:
    client = logging.getLogger("httpx2")
    monkeypatch.setattr(client, "level", client.level)  # put back after the test
    client.setLevel(logging.INFO)
    logs.set_up_logging()
    assert not client.isEnabledFor(logging.INFO)
    assert client.isEnabledFor(logging.WARNING)

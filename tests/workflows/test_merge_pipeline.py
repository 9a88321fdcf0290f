"""The merge pipeline's events: figures are limited in rate, but the last ones of a stage always arrive."""

from __future__ import annotations

from workflows.pipeline import StageEmitter
from workflows.protocol import Event, Progress, StageStarted, Statistics


def test_the_last_statistics_before_the_next_stage_are_never_dropped() -> None:
    events: list[Event] = []
    emitter = StageEmitter(events.append)
    emitter.stage("merge")
    for elements in (10, 20, 30):  # faster than the limit
        emitter.statistics({"elements": elements})
    emitter.stage("card")
    told = [e.values["elements"] for e in events if isinstance(e, Statistics)]
    assert told == [10, 30]
    assert isinstance(events[-1], StageStarted)
    emitter.stage("publish")
    assert len([e for e in events if isinstance(e, Statistics)]) == 2


def test_throughput_is_measured_within_a_stage() -> None:
    events: list[Event] = []
    emitter = StageEmitter(events.append)
    emitter.progress("fetch", 5, 10, "B")
    emitter.progress("fetch", 10, 10, "B")
    emitter.progress("merge", 0, 7, "elements")
    fetched, again, merged = (e for e in events if isinstance(e, Progress))
    assert (fetched.done, again.done, merged.done) == (5, 10, 0)
    assert again.per_second is not None
    assert again.per_second > 0

"""Answers that are kept for some seconds, so that a page which asks again and again costs one question."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
MOST_KEPT = 1000


class KeptAnswers(Generic[T]):
    """At most MOST_KEPT answers, each for `seconds`; the others are asked anew. Safe to use from several threads."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answers: dict[Hashable, tuple[float, T]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, ask: Callable[[], T]) -> T:
        now = time.monotonic()
        with self._lock:
            self._answers = {k: kept for k, kept in self._answers.items() if kept[0] > now}
            if key in self._answers:
                return self._answers[key][1]
        answer = ask()
        with self._lock:
            if len(self._answers) < MOST_KEPT:
                self._answers[key] = (now + self._seconds, answer)
        return answer

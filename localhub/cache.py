"""A least-recently-used cache bounded by the summed size of its values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sized
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Sized)


class SizedCache(Generic[K, V]):
    def __init__(self, limit: int) -> None:
        self._limit = limit  # summed len() of the values
        self._values: OrderedDict[K, V] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._size += len(value)
            while self._size > self._limit and len(self._values) > 1:
                _, dropped = self._values.popitem(last=False)
                self._size -= len(dropped)

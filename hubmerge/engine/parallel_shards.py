"""Several output shards at once, and one observer of them all.

The threads that merge chunks share one thread that hashes (sink.py), and a sha256 cannot be shared out: a shard grows
no faster than its bytes are hashed. So machines with more cores than one shard can use write another one beside it
(`Backend.shards_at_once`). Where finished shards leave the disk one by one, they are made one by one, too. The result
is the same.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import TypeVar

from hubmerge.engine.progress import Observer
from hubmerge.errors import CancelledError
from hubmerge.statistics.statistics import LayerDensities, Tally, zero_tally
from hubmerge.statistics.summary import summarize
from hubmerge.statistics.tally_sums import TallySum

_TICK_S = 0.2
_SUMMARY_S = 0.5  # between two looks at the statistics on the way: a summary of many agents takes milliseconds

J = TypeVar("J")
R = TypeVar("R")


class CountedSoFar:
    """The statistics so far, of agents with these `labels`: tensors come from any thread, one tells the observer."""

    def __init__(self, observer: Observer, labels: Sequence[str]) -> None:
        self._observer = observer
        self._labels = labels
        self._total = TallySum(zero_tally(len(labels)))
        self._layers = LayerDensities()
        self._new: SimpleQueue[tuple[str, Tally]] = SimpleQueue()
        self._next = 0.0

    def add(self, name: str, tally: Tally) -> None:
        """All of tensor `name` has been counted."""
        self._new.put((name, tally))

    def tell(self) -> None:
        """Tell what is new, now and then."""
        if self._new.empty() or time.monotonic() < self._next:
            return
        while not self._new.empty():
            name, tally = self._new.get()
            self._total.add(tally)
            self._layers.add(name, tally)
        self._observer.statistics({**summarize(self._total.value(), self._labels), "layers": self._layers.values()})
        self._next = time.monotonic() + _SUMMARY_S


class Relay:
    """How far one shard is, in elements, and what was counted of it; told in whatever thread writes it."""

    def __init__(
        self, told: Callable[[], None], counted: Callable[[str, Tally], None], warn: Callable[[str], None]
    ) -> None:
        self.warning = warn
        self.counted = counted  # all of a tensor
        self.done = 0
        self._told = told

    def merged(self, done: int) -> None:
        self.done = done
        self._told()


class Overall:
    """Progress and statistics of all shards, finished and in progress; called in the observer's thread."""

    def __init__(self, observer: Observer, labels: Sequence[str], done: int, total: int) -> None:
        self.observer = observer
        self._counted = CountedSoFar(observer, labels)
        self._done, self._total = done, total
        self._open: list[Relay] = []
        self._warnings: SimpleQueue[str] = SimpleQueue()

    def relay(self, told: Callable[[], None]) -> Relay:
        relay = Relay(told, self._counted.add, self._warnings.put)
        self._open.append(relay)
        return relay

    def close(self, relay: Relay) -> None:
        """The shard of `relay` is finished."""
        self._warn()
        self._open.remove(relay)
        self._done += relay.done

    def _warn(self) -> None:
        while not self._warnings.empty():
            self.observer.warning(self._warnings.get())

    def tell(self) -> None:
        """Pass on how far it is; raises what the observer raises."""
        self._warn()
        self._counted.tell()
        self.observer.progress("merge", self._done + sum(r.done for r in self._open), self._total, "elements")


def write_shards(
    jobs: Sequence[J],
    write: Callable[[J, Relay], R],
    at_once: int,
    overall: Overall,
    abandon: Callable[[], None],
) -> Iterator[tuple[J, R]]:
    """`write(job, relay)` for every job, `at_once` of them at a time; what each gave, as it is finished.

    The observer is called in this thread only. When it raises, or a job does, the others are broken off (`abandon`
    wakes up who waits for inputs), and no thread is left.
    """
    if at_once == 1:
        for job in jobs:
            relay = overall.relay(overall.tell)
            result = write(job, relay)
            overall.close(relay)
            yield job, result
        return
    over = threading.Event()

    def told() -> None:
        if over.is_set():
            raise CancelledError("the merge was broken off")

    def stop() -> None:
        over.set()
        abandon()

    waiting = list(jobs)
    running: dict[Future[R], tuple[J, Relay]] = {}
    with ThreadPoolExecutor(at_once, thread_name_prefix="hubmerge-shard") as pool:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job, relay = waiting.pop(0), overall.relay(told)
                    running[pool.submit(write, job, relay)] = job, relay
                done, _ = wait(running, _TICK_S, FIRST_COMPLETED)
                if any(future.exception() is not None for future in done):
                    stop()
                    wait(running)  # an error of their own counts before those of who only noticed one, perhaps sooner
                    errors = [error for future in running if (error := future.exception()) is not None]
                    raise next((error for error in errors if not isinstance(error, CancelledError)), errors[0])
                overall.tell()
                for future in done:
                    job, relay = running.pop(future)
                    overall.close(relay)
                    yield job, future.result()
        except BaseException:  # an error of a shard, the observer cancels, or the consumer leaves
            stop()
            raise

"""ZeroGPU: a GPU that is lent for the time of one call, so every output shard is one call, a burst.

The platform forks a worker from the process that calls the decorated function; what goes in and comes out is pickled,
and an error comes back without its class. So a burst gets plain data (`Burst`), opens its own reader and engine, and
returns the finished shard (`Finished`). The inputs are held in the shard cache, fetched and verified, before the GPU
is asked for: no GPU second goes to the network, and none of them is deleted meanwhile.

A burst that is refused, cut short or late is not tried again: this shard and all that follow are merged here, by the
path that every merge takes, with the same bytes and one warning; what is wrong with an input is found there, too. A
burst that nobody waits for must not write beside its successor. It begins with deleting a file, its ticket; whoever
gives up deletes the ticket first, or, where it is gone, kills the worker.

The platform remembers a decorated function by its identity, so `run_burst` is decorated once, with a function that
computes the duration. The app's process decorates it when it starts and says so (`announce`), because the platform
stops an app that has none; the calls come from the jobs' processes, which hold no server's sockets that a fork could
keep open. `spaces` is imported only where SPACES_ZERO_GPU is set, and in a job as late as its first burst, because it
makes torch pretend that there is a GPU.
"""

from __future__ import annotations

import copyreg
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any

from hubmerge.distributed import ALONE
from hubmerge.methods import get_method
from hubmerge.plan import Plan
from hubmerge.settings import Settings
from hubmerge.sink import WORK, FinishedShard
from hubmerge.sources.base import Model
from hubmerge.sources.reader import OpenFiles, Read, ShardKey, TensorReader, local_path, shard_key
from hubmerge.statistics import Statistics
from hubmerge.stream import Observer, Output, Silent, StreamOptions, write_shard

BYTES_PER_SECOND = 250_000_000  # of a shard and its inputs, cautiously: a call that takes longer is cut short
_STARTING_S = 15  # until CUDA and torch are up
_LONGEST_S = 120  # a longer call is refused without a special plan
_PATIENCE_S = 120.0  # beyond the duration: importing, and the platform's queue, which gives up after a minute
_TICK_S = 0.2
_ENDING_S = 10.0  # until the platform's code has noticed that its worker is gone


def _read_only(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


# recipes and models hold read-only mappings, which pickle does not know
copyreg.pickle(MappingProxyType, lambda mapping: (_read_only, (dict(mapping),)))


@dataclass(frozen=True)
class Burst:
    """One shard's work, as plain data."""

    outputs: tuple[Output, ...]
    number: int
    models: tuple[Model, ...]  # the reader's
    paths: Mapping[ShardKey, Path]  # local files with the verified bytes of the shards of models on the Hub
    options: StreamOptions
    statistics: Statistics | None
    ticket: Path


@dataclass(frozen=True)
class Finished:
    """What a burst gives back."""

    shards: tuple[FinishedShard, ...]
    device: Mapping[str, Any]  # Engine.facts
    warnings: tuple[str, ...]


Call = Callable[[Burst], Finished]


class Bursts:
    """Writes shards on a GPU that is lent per call, as long as it is lent.

    `lent`: gives the decorated `run_burst`; called in a thread, for the first burst.
    """

    def __init__(self, lent: Callable[[], Call], *, patience_s: float = _PATIENCE_S) -> None:
        self.facts: dict[str, Any] = {}  # of the device that the bursts ran on, for the report's environment
        self._lent = lent
        self._patience_s = patience_s
        self._others = set(multiprocessing.active_children())
        self._given_up = False
        self._told_of_budget = False

    def write(
        self,
        outputs: Sequence[Output],
        number: int,
        reader: TensorReader,
        options: StreamOptions,
        observer: Observer,
        warn: Callable[[str], None],
        statistics: Statistics | None,
    ) -> list[FinishedShard] | None:
        """`stream.write_shard` in one burst; None where it is left to the CPU, with nothing read or written."""
        plan = outputs[0].plan
        shard = plan.shards[number]
        total = sum(t.elements for t in shard.tensors)
        if self._given_up or any(_takes_wholes(o.plan, number) for o in outputs):
            return None
        with reader.held(shard.tensors) as paths:
            if paths is None:
                if not self._told_of_budget:
                    self._told_of_budget = True
                    warn(
                        f"the inputs of {shard.filename} exceed the disk budget together; "
                        "such shards are merged on the CPU with the same result"
                    )
                return None
            ticket = outputs[0].folder / WORK / f"burst-{number + 1}"
            plain = replace(options, device="cuda", engine=None, ranks=ALONE, bursts=None)
            burst = Burst(tuple(outputs), number, reader.models, paths, plain, statistics, ticket)
            try:
                finished = self._call(burst, partial(observer.progress, "merge", 0, total))
            except _Failed as failed:
                self._given_up = True
                warn(f"no GPU for {shard.filename}, the CPU goes on with the same result: {failed}")
                return None
            for tensor in shard.tensors:
                reader.consumed(tensor, tensor.elements)
        for warning in finished.warnings:
            warn(warning)
        self._given_up = "device_failed" in finished.device  # the next burst would hold a GPU that it cannot use
        self.facts = {**finished.device, "bursts": self.facts.get("bursts", 0) + 1}
        if counted := finished.shards[0].inputs:
            observer.counted(reduce(lambda a, b: a + b, counted.values()))
        observer.progress("merge", total, total)
        return list(finished.shards)

    def close(self) -> None:
        """End the workers that the platform keeps for the next call."""
        for worker in set(multiprocessing.active_children()) - self._others:
            worker.kill()

    def _call(self, burst: Burst, again: Callable[[], None]) -> Finished:
        """The burst in a thread, so that this one can be cancelled; _Failed for whatever becomes of it."""
        outcome: Future[Finished] = Future()

        def call() -> None:
            try:
                outcome.set_result(self._lent()(burst))
            except BaseException as error:  # noqa: BLE001 (handed to who waits)
                outcome.set_exception(error)

        burst.ticket.parent.mkdir(parents=True, exist_ok=True)
        burst.ticket.touch()
        deadline = time.monotonic() + seconds_of(burst) + self._patience_s
        thread = Thread(target=call, name="hubmerge-burst", daemon=True)
        thread.start()
        try:
            while not wait([outcome], _TICK_S).done:
                again()
                if time.monotonic() > deadline:
                    raise _Failed("it did not answer in time")
            if (error := outcome.exception()) is not None:  # the platform's have no common type
                raise _Failed(" ".join(f"{type(error).__name__}: {error}".split())[:200])
            return outcome.result()
        except BaseException:
            self._end(burst, thread)
            raise

    def _end(self, burst: Burst, thread: Thread) -> None:
        """When it returns, the burst does not run and never will."""
        try:
            burst.ticket.unlink()
        except FileNotFoundError:
            self.close()
            thread.join(_ENDING_S)


class _Failed(Exception):
    """A burst came to nothing; says why."""


def run_burst(burst: Burst) -> Finished:
    """The work of one burst; runs in the process that the platform forks."""
    try:
        burst.ticket.unlink()
    except FileNotFoundError:
        raise RuntimeError("nobody waits for this burst any more") from None
    observer = _Listener()
    with (
        TensorReader(burst.models, _Files(burst.paths)) as reader,
        burst.options.on_device(observer.warning) as options,
    ):
        if options.engine is None:  # the CPU works where nothing is metered
            raise RuntimeError("; ".join(observer.warnings))
        shards = write_shard(burst.outputs, burst.number, reader, options, observer, burst.statistics, options.workers)
        return Finished(tuple(shards), options.engine.facts(), tuple(observer.warnings))


def _takes_wholes(plan: Plan, number: int) -> bool:
    """True where tensors are merged whole, which the CPU does anyway."""
    method = get_method(plan.recipe.method)
    return any(t.action == "merge" and method.needs_whole(t.name, t.shape) for t in plan.shards[number].tensors)


def seconds_of(burst: Burst) -> int:
    """What the platform is asked for."""
    plan = burst.outputs[0].plan
    size = plan.shards[burst.number].size * (len(plan.models) + len(burst.outputs))
    return min(_LONGEST_S, _STARTING_S + size // BYTES_PER_SECOND)


def lent(settings: Settings) -> Call | None:
    """`run_burst` as the platform calls it on a ZeroGPU Space, None elsewhere."""
    if not settings.zero_gpu:
        return None
    import spaces

    call: Call = spaces.GPU(duration=seconds_of)(run_burst)
    return call


def announce(settings: Settings, warn: Callable[[str], None]) -> None:
    """Tell the platform, once and in the app's own process, that there is a function that wants a GPU.

    `spaces` does so when Blocks.launch is called; here the pages are mounted into a larger app instead.
    """
    try:
        if lent(settings) is not None:
            import spaces.zero

            spaces.zero.startup()
    except Exception as error:  # noqa: BLE001 (the platform's have no common type, and the app works without a GPU)
        warn(f"ZeroGPU cannot be used, merges run on the CPU: {type(error).__name__}: {error}")


@contextmanager
def lent_bursts(settings: Settings) -> Iterator[Bursts | None]:
    """Bursts for one merge on a ZeroGPU Space, None elsewhere."""
    if not settings.zero_gpu:
        yield None
        return

    def call() -> Call:
        found = lent(settings)
        assert found is not None
        return found

    bursts = Bursts(call)
    try:
        yield bursts
    finally:
        bursts.close()


class _Listener(Silent):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, message: str) -> None:
        self.warnings.append(message)


class _Files:
    """A ShardStore of files that are there."""

    def __init__(self, paths: Mapping[ShardKey, Path]) -> None:
        self._paths = paths
        self._files = OpenFiles()

    def read_into(self, model: Model, shard: str, offset: int, out: memoryview) -> None:
        path = self._paths.get(shard_key(model, shard)) or local_path(model, shard)
        self._files.read_into(path, model, shard, offset, out)

    def expect(self, reads: Sequence[Read], *, again: bool) -> None:
        pass

    def consumed(self, name: str, elements: int) -> None:
        pass

    def held(self, shards: Sequence[tuple[Model, str]]) -> AbstractContextManager[Mapping[ShardKey, Path] | None]:
        return nullcontext(self._paths)

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        self._files.close()

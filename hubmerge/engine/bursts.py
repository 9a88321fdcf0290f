"""ZeroGPU: a GPU that is lent for the time of one call, so every output shard is one call, a burst.

The platform forks a worker from the process that calls the decorated function; what goes in and comes out is pickled,
and an error comes back without its class. So a burst gets plain data (`Burst`), opens its own reader and engine, and
returns the finished shard (`Finished`). The inputs are held in the shard cache, fetched and verified, before the GPU
is asked for: no GPU second goes to the network, and none of them is deleted meanwhile.

A burst that is refused, cut short or late is not tried again: this shard and all that follow are merged here, by the
path that every merge takes, with the same bytes and one warning; what is wrong with an input is found there, too.
Before that, whoever could still write is ended.

The platform remembers a decorated function by its identity, so `run_burst` is decorated once, with a function that
computes the duration. The app's process decorates it when it starts and says so (`announce`), because the platform
stops an app that has none; the calls come from a process beside the job's. `spaces` is imported only where
SPACES_ZERO_GPU is set, and in these two, because it makes torch pretend that there is a GPU.

The platform's package forks its worker from whoever calls. A merge fetches and uploads in threads, and a fork while one
of them holds a lock leaves that lock held in the worker for ever: the Hub's client, for one, takes its connection
pool's lock after every fork. So the calls come from a process of their own (`BurstProcess`, `serve`) that has no other
thread, no token and no socket of a server; it also keeps gradio and torch, which the package imports and patches, out
of the merge.

    job → this process      one pickled `Burst` after the other
    this process → job      (True, what it returned) or (False, why it failed), pickled

SIGTERM, and the end of the job's process, kill the workers, so that the call in progress fails and gives the GPU back,
and this process ends. Only the workers inherit its end of the connection: once the job sees that closed, nobody is
left to write.
"""

from __future__ import annotations

import copyreg
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hubmerge.engine.chunks import StreamOptions, is_whole
from hubmerge.engine.distributed import ALONE
from hubmerge.engine.parallel_shards import Relay
from hubmerge.engine.shard_work import Output, write_shard
from hubmerge.engine.sink import FinishedShard
from hubmerge.isolation.confinement import die_with_parent
from hubmerge.plan.plan import Plan
from hubmerge.settings import Settings, load_settings
from hubmerge.sources.base import Model
from hubmerge.sources.reader import ShardKey, TensorReader, WholeFiles, local_path, shard_key
from hubmerge.statistics.statistics import Statistics

BYTES_PER_SECOND = 250_000_000  # of a shard and its inputs, cautiously: a call that takes longer is cut short
_STARTING_S = 15  # until CUDA and torch are up
_LONGEST_S = 120  # a longer call is refused without a special plan
_PATIENCE_S = 120.0  # beyond the duration: importing, and the platform's queue, which gives up after a minute
_TICK_S = 0.2
_ENDING_S = 5.0
_SERVE = "import sys; from hubmerge.engine.bursts import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"


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


@dataclass(frozen=True)
class Finished:
    """What a burst gives back."""

    shards: tuple[FinishedShard, ...]
    device: Mapping[str, Any]  # Engine.facts
    warnings: tuple[str, ...]


Call = Callable[[Burst, int], Finished]


class Bursts:
    """Writes shards on a GPU that is lent per call, as long as it is lent."""

    def __init__(self, *, patience_s: float = _PATIENCE_S) -> None:
        self.facts: dict[str, Any] = {}  # of the device that the bursts ran on, for the report's environment
        self._patience_s = patience_s
        self._process: BurstProcess | None = None
        self._given_up = False
        self._told_of_budget = False

    def write(
        self,
        outputs: Sequence[Output],
        number: int,
        reader: TensorReader,
        options: StreamOptions,
        relay: Relay,
        warn: Callable[[str], None],
        statistics: Statistics | None,
    ) -> list[FinishedShard] | None:
        """`stream.write_shard` in one burst; None where it is left to the CPU, with nothing read or written."""
        plan = outputs[0].plan
        shard = plan.shards[number]
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
            plain = replace(options, device="cuda", engine=None, ranks=ALONE, bursts=None)
            burst = Burst(tuple(outputs), number, reader.models, paths, plain, statistics)
            try:
                finished = self._call(burst, partial(relay.merged, 0))
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
        for name, tally in (finished.shards[0].inputs or {}).items():
            relay.counted(name, tally)
        relay.merged(sum(t.elements for t in shard.tensors))
        return list(finished.shards)

    def close(self) -> None:
        """End the process that asks, and what the platform keeps for its next call."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _call(self, burst: Burst, again: Callable[[], None]) -> Finished:
        """The burst; _Failed for whatever else becomes of it. After an error it does not run and never will."""
        deadline = time.monotonic() + seconds_of(burst, 0) + self._patience_s
        try:
            self._process = self._process or BurstProcess()
            self._process.ask(burst)
            while (told := self._process.answer(_TICK_S)) is None:
                again()
                if time.monotonic() > deadline:
                    raise _Failed("it did not answer in time")
            if not told[0]:
                raise _Failed(told[1])
            finished: Finished = told[1]
            return finished
        except (EOFError, OSError) as error:
            self.close()
            raise _Failed(f"the process that asks for it ended ({error!r})") from None
        except BaseException:  # a failed burst or a cancelled job: nobody may go on writing
            self.close()
            raise


class _Failed(Exception):
    """A burst came to nothing; says why."""


def run_burst(burst: Burst, asking: int) -> Finished:
    """The work of one burst, in the process that the platform forks from `asking`, and no longer than that lives."""
    die_with_parent(asking)
    warnings: list[str] = []
    relay = Relay(lambda: None, lambda *_: None, warnings.append)
    with (
        TensorReader(burst.models, _Held(burst.paths)) as reader,
        burst.options.on_device(burst.outputs[0].plan, relay.warning) as options,
    ):
        if options.engine is None:  # the CPU works where nothing is metered
            raise RuntimeError("; ".join(warnings))
        shards = write_shard(
            burst.outputs, burst.number, reader, options, relay, burst.statistics, options.wanted_threads
        )
        return Finished(tuple(shards), options.engine.facts(), tuple(warnings))


def _takes_wholes(plan: Plan, number: int) -> bool:
    """True where tensors are merged whole, which the CPU does anyway."""
    return any(is_whole(plan, t) for t in plan.shards[number].tensors)


def seconds_of(burst: Burst, _asking: int) -> int:
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

    bursts = Bursts()
    try:
        yield bursts
    finally:
        bursts.close()


class BurstProcess:
    """The job's end."""

    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-c", _SERVE, str(theirs.fileno()), str(os.getpid())]
        # standard output is for events in some callers, and the package prints
        self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=2)
        theirs.close()

    def ask(self, burst: Any) -> None:
        self._connection.send(burst)

    def answer(self, wait_s: float) -> tuple[bool, Any] | None:
        """What became of the burst; None when nothing is known after `wait_s`. EOFError, OSError: it is gone."""
        if not self._connection.poll(wait_s):
            return None
        told: tuple[bool, Any] = self._connection.recv()
        return told

    def end(self) -> None:
        """When it returns, no burst runs and none will."""
        for stop in (self._process.terminate, self._process.kill):
            stop()
            if self._has_ended(_ENDING_S):
                break
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _has_ended(self, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        try:
            while self._connection.poll(max(0.0, deadline - time.monotonic())):
                self._connection.recv_bytes()
        except (EOFError, OSError):
            return True
        return False


def serve(descriptor: int, job: int) -> None:
    connection = Connection(descriptor)
    ending = waiting = False

    def end(*_: object) -> None:
        nonlocal ending
        ending = True
        _kill_workers()
        if waiting:  # Python goes on waiting for a burst after a signal
            raise EOFError

    signal.signal(signal.SIGTERM, end)
    die_with_parent(job, signal.SIGTERM)
    call = None
    while not ending:
        try:
            waiting = True
            burst = connection.recv()
            waiting = False
        except (EOFError, OSError):
            break
        told: tuple[bool, Any]
        try:
            call = call or lent(load_settings())
            assert call is not None
            told = True, call(burst, os.getpid())
        except Exception as error:  # noqa: BLE001 (the platform's have no common type; the job decides)
            told = False, " ".join(f"{type(error).__name__}: {error}".split())[:200]
        try:
            connection.send(told)
        except OSError:
            break
    _kill_workers()


def _kill_workers() -> None:
    for worker in multiprocessing.active_children():
        worker.kill()


class _Held(WholeFiles):
    """The files that the job holds for a burst."""

    def __init__(self, paths: Mapping[ShardKey, Path]) -> None:
        super().__init__()
        self._held = paths

    def path(self, model: Model, shard: str) -> Path:
        return self._held.get(shard_key(model, shard)) or local_path(model, shard)

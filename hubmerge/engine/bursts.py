"""ZeroGPU: a GPU that is lent for the time of one call, so every output shard is one call, a burst (docs/gpu.md).

    job → asking process    one pickled `Burst` after the other
    asking process → job    (True, what it returned) or (False, why it failed), pickled

The platform forks a worker from the process that calls the decorated function (`run_burst`); what goes in and comes out
is pickled, and of an error the class alone comes back. The calls come from a process beside the job's (`BurstProcess`,
`serve`): the job fetches and uploads in threads, and a fork while one of them holds a lock would leave that lock held
in the worker for ever. Only the workers inherit its end of the connection: once the job sees that closed, nobody is
left to write. The app's process only decorates the function when it starts and says so (`announce`), since the
platform stops an app that has none.

The inputs are held in the shard cache, fetched and verified, before the GPU is asked for: no GPU second goes to the
network. A burst that is refused, cut short or late is not tried again: this shard and all that follow are merged here,
by the path that every merge takes, with one warning. What is wrong with an input is found there. Only shards that a
device has work for (backend.py) are bursts.
"""

import copyreg
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hubmerge.engine.backend import Backend, opened
from hubmerge.engine.distributed import ALONE
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.parallel_shards import Relay
from hubmerge.engine.prediction import DEVICE_OPERATIONS
from hubmerge.engine.progress import Unobserved
from hubmerge.engine.rules import operations_of
from hubmerge.engine.shard_work import ShardTask, write_shard
from hubmerge.engine.sink import FinishedShard
from hubmerge.isolation.confinement import die_with_parent
from hubmerge.settings import Settings, load_settings
from hubmerge.sources.base import Model
from hubmerge.sources.reader import ShardKey, ShardStore, TensorReader

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

    task: ShardTask
    models: tuple[Model, ...]  # the reader's
    paths: Mapping[ShardKey, Path]  # local files with the verified bytes of the shards of models on the Hub
    options: StreamOptions


@dataclass(frozen=True)
class Finished:
    """What a burst gives back."""

    shards: tuple[FinishedShard, ...]
    device: Mapping[str, Any]  # Engine.facts
    warnings: tuple[str, ...]


Call = Callable[[Burst, int], Finished | str]


class Bursts:
    """Writes shards on a GPU that is lent per call, as long as it is lent; none where the options have no bursts."""

    def __init__(self, options: StreamOptions) -> None:
        self.facts: dict[str, Any] = {}  # of the device that the bursts ran on, for the report's environment
        self._process: BurstProcess | None = None
        self._given_up = not options.bursts
        self._told_of_budget = False

    def write(self, task: ShardTask, reader: TensorReader, backend: Backend, relay: Relay) -> list[FinishedShard]:
        """`write_shard` in one burst; no shard where it is left to the CPU, with nothing read for it or written."""
        shard = task.shard
        if self._given_up or not (any(map(task.is_whole, shard.tensors)) or not backend.fast):
            return []
        with reader.held(shard.tensors) as paths:
            if paths is None:
                if not self._told_of_budget:
                    self._told_of_budget = True
                    relay.warning(
                        f"the inputs of {shard.filename} exceed the disk budget together; "
                        "such shards are merged on the CPU"
                    )
                return []
            options = replace(backend.options, device="auto", ranks=ALONE)
            try:
                finished = self._call(Burst(task, reader.models, paths, options), relay)
            except _Failed as failed:
                self._given_up = True
                relay.warning(f"no GPU for {shard.filename}, the CPU goes on: {failed}")
                return []
            for tensor in task.readings():
                reader.consumed(tensor, tensor.elements)
        for warning in finished.warnings:
            relay.warning(warning)
        self._given_up = "device_failed" in finished.device  # the next burst would hold a GPU that it cannot use
        self.facts = {**finished.device, "bursts": self.facts.get("bursts", 0) + 1}
        for name, tally in (finished.shards[0].inputs or {}).items():
            relay.counted(name, tally)
        relay.merged(task.elements)
        return list(finished.shards)

    def close(self) -> None:
        """End the process that asks, and what the platform keeps for its next call."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _call(self, burst: Burst, relay: Relay) -> Finished:
        """The burst; _Failed for whatever else becomes of it. After an error it does not run and never will."""
        deadline = time.monotonic() + seconds_of(burst, 0) + _PATIENCE_S
        try:
            self._process = self._process or BurstProcess()
            self._process.ask(burst)
            while (told := self._process.answer(_TICK_S)) is None:
                relay.merged(0)
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


class _Hearing(Unobserved):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, message: str) -> None:
        self.warnings.append(message)


def run_burst(burst: Burst, asking: int) -> Finished | str:
    """The work of one burst, in the process that the platform forks from `asking`, and no longer than that lives.

    Text says why the device cannot be used: of an error the package would tell the class alone.
    """
    die_with_parent(asking)
    hearing = _Hearing()
    relay = Relay(lambda: None, lambda *_: None, hearing.warning)
    plans = [output.plan for output in burst.task.outputs]
    with (
        TensorReader(burst.models, ShardStore(burst.paths)) as reader,
        opened(plans, burst.options, hearing) as backend,
    ):
        if backend.engine is None:  # the CPU works where nothing is metered
            return "; ".join(hearing.warnings)
        shards = write_shard(burst.task, reader, backend, relay, backend.threads)
        return Finished(tuple(shards), backend.facts(), tuple(hearing.warnings))


def seconds_of(burst: Burst, _asking: int) -> int:
    """What the platform is asked for."""
    task = burst.task
    size = task.shard.size * (len(task.plan.models) + len(task.outputs))
    operations = sum(operations_of(output.plan, t) for output in task.outputs for t in task.shard.tensors)
    return min(_LONGEST_S, _STARTING_S + size // BYTES_PER_SECOND + int(operations / DEVICE_OPERATIONS))


def decorated(settings: Settings) -> Call | None:
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
        if decorated(settings) is not None:
            import spaces.zero

            spaces.zero.startup()
    except Exception as error:  # noqa: BLE001 (the platform's have no common type, and the app works without a GPU)
        warn(f"ZeroGPU cannot be used, merges run on the CPU: {type(error).__name__}: {error}")


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
            call = call or decorated(load_settings())
            assert call is not None
            answer = call(burst, os.getpid())
            told = not isinstance(answer, str), answer
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

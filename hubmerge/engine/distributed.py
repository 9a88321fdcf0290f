"""One merge in several processes: each takes some of the tensors and shards, and the bytes are those of one process.

`torchrun` and `accelerate launch` start the same command several times, on one machine or on several, and tell each
process its rank. All of them run the same line; of n processes

    probe       rank r counts every n-th tensor; tallies, which are per tensor, are gathered and added in plan order
    thresholds  a threshold over the model adds up everyone's counts (integers); one per tensor is found by its owner
    merge       rank r writes every n-th shard, and uploads it where the target is on the Hub
    the end     rank 0 writes card and manifest, and makes the one commit

Nothing is reduced in floating point, so no sum depends on how many processes there are. What is exchanged is JSON,
never pickled objects: the port of a process group is open to whoever can reach it.
"""

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hubmerge.engine.progress import Observer, of_rank
from hubmerge.errors import HubmergeError, RecipeError, SettingsError
from hubmerge.settings import Settings
from hubmerge.statistics.statistics import Tally

_PATIENCE = timedelta(days=7)  # a lost process closes its connections, which is noticed at once

T = TypeVar("T")


class ProcessLostError(HubmergeError):
    """Another process of the same merge has ended or cannot be reached."""

    code = "E_PROCESS"
    retryable = True


class Ranks:
    """The processes of one merge; this base class is a process on its own."""

    rank = 0
    size = 1
    local_rank = 0  # among the processes of this machine

    def gather(self, value: Any) -> list[Any]:
        """Everyone's value (plain JSON) by rank; every process must call it at the same point."""
        return [value]

    def first(self, value: T) -> T:
        """Rank 0's value, plain JSON."""
        return self.gather(value)[0] if self.size > 1 else value

    def by_first(self, act: Callable[[], T], to_json: Callable[[T], Any], from_json: Callable[[Any], T]) -> T:
        """What `act` gives to rank 0, the only one to act, for every process."""
        if self.rank:
            return from_json(self.first(None))
        done = act()
        self.gather(None if self.size == 1 else to_json(done))
        return done

    def agree(self, what: str, value: str) -> None:
        """ProcessLostError unless everyone has the same value; returns when everyone is here."""
        values = self.gather(value)
        if len(set(values)) > 1:
            raise ProcessLostError(
                f"the processes of this merge do not agree on {what}",
                got=", ".join(v[:12] for v in values),
                next_step="Pin the models of the recipe to commits, and start all processes with the same command.",
            )

    def mine(self, items: Sequence[T]) -> list[T]:
        """This process's part of `items`, in their order: every `size`-th."""
        return list(items[self.rank :: self.size])

    def in_turn(self, act: Callable[[], T]) -> T:
        """What `act` gives: rank 0 acts first, then the others, which see what it left."""
        found = [act()] if self.rank == 0 else []
        self.gather(None)
        found = found or [act()]
        self.gather(None)
        return found[0]

    def tallies(self, own: Mapping[str, Tally]) -> dict[str, Tally]:
        """Everyone's tallies in one mapping; their bits survive."""
        if self.size == 1:
            return dict(own)
        parts = self.gather({n: t.to_json() for n, t in own.items()})
        return {name: tally for part in parts for name, tally in _tallies(part).items()}

    def known_tallies(self, own: Mapping[str, Tally] | None) -> Mapping[str, Tally] | None:
        """What rank 0 knows, if anything."""
        if self.size == 1:
            return own
        known = self.first(None if own is None else {n: t.to_json() for n, t in own.items()})
        return None if known is None else _tallies(known)

    def added(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum of everyone's counts [rows, bins], few of which are not 0."""
        if self.size == 1:
            return own
        filled, total = own.nonzero(), np.zeros_like(own)
        for part in self.gather([*(where.tolist() for where in filled), own[filled].tolist()]):
            rows, bins, counts = np.array(part, dtype=np.int64).reshape(3, -1)
            total[rows, bins] += counts
        return total


ALONE = Ranks()


class _Group(Ranks):
    """A torch.distributed process group on the CPU."""

    def __init__(self, rank: int, size: int, local_rank: int) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank

    def gather(self, value: Any) -> list[Any]:
        import torch
        from torch import distributed

        own = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8).copy()
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _noticing_loss():
            distributed.all_gather(lengths, torch.tensor([len(own)]))
            longest = max(int(n) for n in lengths)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(own)] = torch.from_numpy(own)
            parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
            distributed.all_gather(parts, padded)
        return [json.loads(bytes(p[: int(n)].numpy())) for p, n in zip(parts, lengths, strict=True)]


@contextmanager
def join(settings: Settings, observer: Observer) -> Iterator[Ranks]:
    """The processes that a launcher started together; ALONE without one."""
    rank, size = settings.rank, settings.world_size
    if size == 1:
        yield ALONE
        return
    if not 0 <= rank < size:
        raise SettingsError(
            "the rank of this process is out of range",
            where="RANK",
            expected=f"0 to {size - 1}, since WORLD_SIZE is {size}",
            got=str(rank),
            next_step="Leave both to the launcher, or start one process without them.",
        )
    from torch import distributed

    of_rank(observer, rank).stage("join")
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.SIG_IGN:  # Ctrl-C ends it at once, as Python hears nothing while torch waits
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with _noticing_loss():
            distributed.init_process_group("gloo", rank=rank, world_size=size, timeout=_PATIENCE)
    except ValueError as error:
        raise SettingsError(
            "the processes of this merge do not know where to meet",
            expected="MASTER_ADDR and MASTER_PORT, as torchrun sets them",
            got=str(error)[:200],
            next_step="Start them by torchrun, or set both; a process on its own needs no WORLD_SIZE.",
        ) from None
    finally:
        signal.signal(signal.SIGINT, handler)
    try:
        # a launcher that numbers no processes of a machine starts them side by side
        yield _Group(rank, size, rank if settings.local_rank is None else settings.local_rank)
    finally:
        distributed.destroy_process_group()


def refuse_several(settings: Settings, command: str) -> None:
    """RecipeError where a command that one process runs was started as several."""
    if settings.world_size > 1:
        raise RecipeError(
            "this command is run by one process; a launcher started several",
            where=f"hubmerge {command}",
            got=f"WORLD_SIZE={settings.world_size}",
            next_step="Start it without a launcher; `merge` and `run` of one recipe can share their work.",
        )


@contextmanager
def _noticing_loss() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what torch.distributed raises for connections
        raise ProcessLostError(
            "another process of this merge has ended or cannot be reached",
            got=(str(error).splitlines() or [""])[0][:200],
            next_step="Its own message says why; the same command goes on.",
        ) from None


def of_all_devices(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Engine.facts by rank, in one; a process that says nothing of a device has none."""
    if len(facts) == 1:
        return dict(facts[0])
    together = {name: value for own in reversed(facts) for name, value in own.items()}
    if together:
        together["device"] = ", ".join(dict.fromkeys(str(own.get("device", "cpu")) for own in facts))
    if peaks := [own["peak_device_bytes"] for own in facts if "peak_device_bytes" in own]:
        together["peak_device_bytes"] = max(peaks)
    if failed := [f"rank {rank}: {own['device_failed']}" for rank, own in enumerate(facts) if "device_failed" in own]:
        together["device_failed"] = "; ".join(failed)
    return together


def _tallies(data: Mapping[str, Any]) -> dict[str, Tally]:
    return {name: Tally.from_json(tally) for name, tally in data.items()}

"""ZeroGPU: a GPU that is lent for the time of one call, so every output shard is one call.

The platform runs a decorated function in a process of its own, forked from this one; what goes in and comes out is
pickled. So a burst gets plain data (`Burst`), opens its own reader and engine, and returns the finished shards; this
process journals them. The inputs of a shard are fetched and verified before its burst: no GPU second goes to the
network. A burst that the platform refuses or cuts short (quota, time) is repeated here on the CPU, with the same bytes.

Statistics and thresholds are computed on the CPU. `spaces` is imported only where SPACES_ZERO_GPU is set.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hubmerge.distributed import ALONE
from hubmerge.errors import HubmergeError
from hubmerge.settings import Settings
from hubmerge.sink import FinishedShard
from hubmerge.sources.base import Model
from hubmerge.sources.reader import OpenFiles, Read, TensorReader, sources_of
from hubmerge.statistics import Statistics
from hubmerge.stream import Output, Silent, StreamOptions, write_shard

BYTES_PER_SECOND = 250_000_000  # of a shard and its inputs, cautiously: a call that takes longer is cut short
_STARTING_S = 15  # until CUDA and torch are up
_LONGEST_S = 120  # what the platform grants without a special plan

Decorator = Callable[..., Callable[[Callable[..., Any]], Callable[..., Any]]]  # spaces.GPU(duration=…)


def _read_only(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


# recipes and models hold read-only mappings, which pickle does not know
copyreg.pickle(MappingProxyType, lambda mapping: (_read_only, (dict(mapping),)))


@dataclass(frozen=True)
class Burst:
    """One shard's work, as plain data."""

    outputs: tuple[Output, ...]
    number: int
    options: StreamOptions
    statistics: Statistics | None
    paths: dict[tuple[str, str, str], Path]  # (id, sha, shard) → a local file with the verified bytes


class Bursts:
    """Writes shards on a GPU that is lent per call.

    `fetch`: a local file with the verified bytes of a model's shard, e.g. LocalOrFetched.path.
    """

    def __init__(
        self, gpu: Decorator, fetch: Callable[[Model, str], Path], warn: Callable[[str], None], device: Any = "cuda"
    ) -> None:
        self._gpu = gpu
        self._fetch = fetch
        self._warn = warn
        self._device = device

    def write(
        self, outputs: Sequence[Output], number: int, options: StreamOptions, statistics: Statistics | None
    ) -> list[FinishedShard]:
        """Shard `number` of every output, in one burst."""
        plan = outputs[0].plan
        needed = {
            (m, part.shard)
            for tensor in plan.shards[number].tensors
            for k, stored in enumerate(tensor.inputs)
            for m, part in sources_of(k, stored)
        }
        paths = {_key(plan.models[m], shard): self._fetch(plan.models[m], shard) for m, shard in sorted(needed)}
        plain = replace(options, device=self._device, engine=None, ranks=ALONE, bursts=None)
        burst = Burst(tuple(outputs), number, plain, statistics, paths)
        size = plan.shards[number].size * (len(plan.models) + 1)
        seconds = min(_LONGEST_S, _STARTING_S + size // BYTES_PER_SECOND)
        try:
            finished: list[FinishedShard] = self._gpu(duration=seconds)(run_burst)(burst)
        except HubmergeError:  # what is wrong with the inputs or the disk is wrong here, too
            raise
        except Exception as error:  # noqa: BLE001 (quota, time, a killed worker: the platform's have no common type)
            self._warn(f"no GPU for shard {number + 1}, the CPU goes on with the same result: {str(error)[:200]}")
            return run_burst(replace(burst, options=replace(plain, device="cpu")))
        return finished


def run_burst(burst: Burst) -> list[FinishedShard]:
    """The work of one burst; runs in the process that the platform forks."""
    plan = burst.outputs[0].plan
    with (
        TensorReader(plan.models, _Files(burst.paths)) as reader,
        burst.options.on_device(lambda message: None) as options,
    ):
        return write_shard(burst.outputs, burst.number, reader, options, Silent(), burst.statistics, 0)


def decorator(settings: Settings) -> Decorator | None:
    """spaces.GPU on a ZeroGPU Space, None elsewhere."""
    if not settings.zero_gpu:
        return None
    import spaces

    found: Decorator = spaces.GPU
    return found


class _Files:
    """A ShardStore of files that are there."""

    def __init__(self, paths: dict[tuple[str, str, str], Path]) -> None:
        self._paths = paths
        self._files = OpenFiles()

    def read_into(self, model: Model, shard: str, offset: int, out: memoryview) -> None:
        self._files.read_into(self._paths[_key(model, shard)], model, shard, offset, out)

    def expect(self, reads: Sequence[Read], *, again: bool) -> None:
        pass

    def consumed(self, name: str, elements: int) -> None:
        pass

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        self._files.close()


def _key(model: Model, shard: str) -> tuple[str, str, str]:
    return model.ref.id, model.ref.sha, shard

"""Reads any element range of any input tensor, and keeps nothing of it.

Files are read with `pread` into buffers that each thread keeps. Nothing is mapped, so resident memory stays at a few
chunks however large a shard is. Nothing is allocated per chunk, since a fresh buffer's page faults cost more than the
reading. The shard store knows where a shard lies. The reader tells the store what a pass will read and has read, so the
store can fetch ahead and delete behind (shard_cache.py). Computed tensors (derived.py) are read in the same way, as
float32.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hubmerge.errors import IncompatibleError
from hubmerge.hub.client import Hub
from hubmerge.numerics.dtypes import STORAGE, Float32, decode
from hubmerge.sources import buffers
from hubmerge.sources.base import Model, StoredTensor
from hubmerge.sources.derived import BorrowedTensor, DerivedTensor
from hubmerge.sources.folder import ShardFiles
from hubmerge.sources.header import DTYPE_BYTES
from hubmerge.sources.synthetic import SyntheticTensor

KEPT_TENSORS = 16  # small tensors that stay in memory: chunks in flight belong to few tensors

ShardKey = tuple[str, str, str]  # repo or folder, commit, file

_ROW_GAP = 448  # bytes behind each row of a chunk; rows a power of two apart would share cache sets


@dataclass(frozen=True)
class Read:
    """One reading of one tensor in a pass: its elements, and the shards that hold them, each with its model."""

    name: str
    elements: int
    shards: tuple[tuple[Model, str], ...]


class Readable(Protocol):
    """A planned tensor, as far as reading it is concerned."""

    @property
    def name(self) -> str: ...
    @property
    def elements(self) -> int: ...
    @property
    def inputs(self) -> tuple[StoredTensor, ...]: ...


class ShardStore:
    """Knows the bytes of shards; called from several threads. This one reads files where they lie on this machine, or
    those that somebody holds."""

    def __init__(self, held: Mapping[ShardKey, Path] = MappingProxyType({})) -> None:
        self._paths = dict(held)  # and of shards that were read: they are fetched and verified once
        self._files = ShardFiles()

    def path(self, model: Model, shard: str) -> Path:
        """A local file with the verified bytes of `shard`; may block until it is there."""
        return model.ref.path / shard

    def read_into(self, model: Model, shard: str, offset: int, out: memoryview) -> None:
        """Verified bytes of `shard` from `offset`, as many as `out` takes; blocks until they are there."""
        key = shard_key(model, shard)
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = self.path(model, shard)
        self._files.read_into(path, model, shard, offset, out)

    def expect(self, reads: Sequence[Read], *, again: bool) -> None:
        """Announce a pass over these tensors, in this order; `again`: another pass may follow it."""

    def consumed(self, name: str, elements: int) -> None:
        """Report that so many more elements of the tensor have been read in this pass."""

    def held(self, shards: Sequence[tuple[Model, str]]) -> AbstractContextManager[Mapping[ShardKey, Path] | None]:
        """Verified files of those `shards` that come from the Hub, until the context ends; None: they do not fit."""
        return nullcontext({shard_key(m, s): self.path(m, s) for m, s in shards if m.ref.kind == "hub"})

    def abandon(self) -> None:
        """Break the pass off: threads that wait for bytes raise."""

    def close(self) -> None:
        """Release what is held; a later reading takes it anew."""
        self._paths.clear()


class LocalOrFetched(ShardStore):
    """Folders are read where they lie; Hub shards are fetched whole into `cache`, verified, when first needed."""

    def __init__(self, hub: Hub, cache: Path, fetched: Callable[[str, int], None] = lambda name, count: None) -> None:
        super().__init__()
        self._hub = hub
        self._cache = cache
        self._fetched = fetched
        self._lock = threading.Lock()

    def path(self, model: Model, shard: str) -> Path:
        if model.ref.kind == "local":
            return super().path(model, shard)
        key = shard_key(model, shard)
        with self._lock:  # a second download would take the file away from who reads it
            if key not in self._paths:
                self._paths[key] = self._hub.download(
                    model.ref.id,
                    model.ref.sha,
                    model.files[shard],
                    cache_folder(self._cache, model),
                    lambda n: self._fetched(model.ref.id, n),
                )
            return self._paths[key]


def shard_key(model: Model, shard: str) -> ShardKey:
    return model.ref.id, model.ref.sha, shard


def cache_folder(cache: Path, model: Model) -> Path:
    """The folder of a cache for the shards of one model at one commit."""
    return cache / model.ref.id.replace("/", "--")


class TensorReader(AbstractContextManager["TensorReader"]):
    """Reads tensors of several models; index 0 is the base."""

    def __init__(self, models: Sequence[Model], store: ShardStore) -> None:
        self.models = tuple(models)
        self._store = store
        self._kept: OrderedDict[tuple[int, StoredTensor], Float32] = OrderedDict()
        self._lock = threading.Lock()
        # .buffer: a thread's memory for each chunk in turn; fresh memory would cost more than the reading
        self._scratch = threading.local()

    def raw(self, model: int, tensor: StoredTensor, start: int, count: int) -> NDArray[np.generic]:
        """[count] elements of `tensor` from `start`, as `entry.dtype` is stored (BF16 as uint16, others as their bits).

        An array of its own: computed if the tensor is, otherwise a copy.
        """
        if isinstance(tensor, DerivedTensor):
            values = tensor.read(self, model, start, count)
        else:
            values = np.empty(count, dtype=_storage(tensor.entry.dtype))
            self._fill(model, tensor, start, values)
        self._check_copy(model, tensor, start, values)
        return values

    def rows(self, tensors: Sequence[StoredTensor], start: int, count: int) -> tuple[NDArray[np.generic], ...]:
        """`raw` of tensor m of model m.

        Tensors that are stored alike lie side by side in this thread's memory, and are valid until the next ones do.
        """
        dtype = tensors[0].entry.dtype
        if any(isinstance(t, DerivedTensor) or t.entry.dtype != dtype for t in tensors):
            return tuple(self.raw(m, tensor, start, count) for m, tensor in enumerate(tensors))
        storage = _storage(dtype)
        width = count + _ROW_GAP // storage.itemsize
        needed = len(tensors) * width * storage.itemsize
        buffer: NDArray[np.uint8] | None = getattr(self._scratch, "buffer", None)
        if buffer is None or buffer.size < needed:
            buffer = self._scratch.buffer = np.frombuffer(buffers.pages(needed), np.uint8)
        rows = tuple(buffer[:needed].view(storage).reshape(len(tensors), width)[:, :count])
        for model, (tensor, row) in enumerate(zip(tensors, rows, strict=True)):
            self._fill(model, tensor, start, row)
            self._check_copy(model, tensor, start, row)
        return rows

    def _check_copy(self, model: int, tensor: StoredTensor, start: int, values: NDArray[np.generic]) -> None:
        """IncompatibleError where these elements are others in the tensor's copy; transformers loads both then."""
        if tensor.copy is None:
            return
        own, other = tensor.entry.dtype, tensor.copy.entry.dtype
        again = self.raw(model, tensor.copy, start, values.size)
        if own == other and np.array_equal(values, again):
            return
        if not np.array_equal(decode(values, own), decode(again, other), equal_nan=True):
            raise IncompatibleError(
                "a tensor that differs from the one that it is tied to",
                where=f"{tensor.copy.entry.name} of {self.models[model].ref}",
                expected=f"the values of {tensor.entry.name}",
                got="others, which transformers loads beside these",
                next_step="If the model was trained with one table, take this one out of a copy of it. If a head was "
                "trained apart, write tie_word_embeddings: false into config.json of copies of all, a head in each.",
            )

    def _fill(self, model: int, tensor: StoredTensor, start: int, out: NDArray[np.generic]) -> None:
        """Read `out.size` elements from `start` into `out`, which is contiguous."""
        if isinstance(tensor, SyntheticTensor):
            tensor.fill(start, out)
            return
        assert start + out.size <= tensor.entry.elements, tensor.entry.name  # behind it lies another tensor
        offset = tensor.entry.begin + start * out.itemsize
        if out.size:
            self._store.read_into(self.models[model], tensor.shard, offset, memoryview(out.data).cast("B"))

    def expect(self, tensors: Iterable[Readable], *, again: bool) -> None:
        """Tell the store that a pass over `tensors`, in this order, begins; `again`: another pass may follow."""
        reads = [Read(t.name, t.elements, self._shards_of([t])) for t in tensors if t.elements]
        self._store.expect(reads, again=again)

    def held(self, tensors: Sequence[Readable]) -> AbstractContextManager[Mapping[ShardKey, Path] | None]:
        """Files of all shards of models on the Hub that `tensors` are made of: `ShardStore.held`."""
        return self._store.held(self._shards_of([t for t in tensors if t.elements]))

    def _shards_of(self, tensors: Iterable[Readable]) -> tuple[tuple[Model, str], ...]:
        found = dict.fromkeys(
            (m, part.shard) for t in tensors for k, stored in enumerate(t.inputs) for m, part in sources_of(k, stored)
        )
        return tuple((self.models[m], shard) for m, shard in found)

    def consumed(self, tensor: Readable, elements: int) -> None:
        """Tell the store that so many elements of `tensor` were read in this pass and lie in memory now."""
        self._store.consumed(tensor.name, elements)

    def abandon(self) -> None:
        """Tell the store that the pass is broken off, so that no thread waits for bytes that nobody wants."""
        self._store.abandon()

    def values(self, model: int, tensor: StoredTensor, start: int, count: int) -> Float32:
        """[count] elements of a tensor of floats as float32."""
        values: Float32 = decode(self.raw(model, tensor, start, count), tensor.entry.dtype)
        return values

    def whole(self, model: int, tensor: StoredTensor) -> Float32:
        """A small tensor of floats in its shape; the last KEPT_TENSORS stay in memory. Not to be changed."""
        key = (model, tensor)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        values = self.values(model, tensor, 0, tensor.entry.elements).reshape(tensor.entry.shape)
        values.flags.writeable = False
        with self._lock:
            self._kept[key] = values
            while len(self._kept) > KEPT_TENSORS:
                self._kept.popitem(last=False)
        return values

    def close(self) -> None:
        self._store.close()
        self._kept.clear()

    def __exit__(self, *_: object) -> None:
        self.close()


def _storage(dtype: str) -> np.dtype[np.generic]:
    return STORAGE.get(dtype) or np.dtype(f"<u{DTYPE_BYTES[dtype]}")


def sources_of(model: int, tensor: StoredTensor) -> Iterator[tuple[int, StoredTensor]]:
    """The tensors in files that a tensor of model `model` is computed from, each with the model that has it."""
    if isinstance(tensor, DerivedTensor):
        owner = tensor.owner if isinstance(tensor, BorrowedTensor) else model
        for field in fields(tensor):
            value = getattr(tensor, field.name)
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, StoredTensor):
                    yield from sources_of(owner, part)
    else:
        yield model, tensor
        if tensor.copy is not None:
            yield from sources_of(model, tensor.copy)

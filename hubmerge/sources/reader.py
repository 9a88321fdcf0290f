"""The way to bytes: any element range of any input tensor, without keeping what was read.

Files are read with `pread` into buffers that each thread keeps: nothing is mapped, so that resident memory stays at
a few chunks however large the shard, and nothing is allocated per chunk (a fresh buffer's page faults cost more than
the reading). Where a shard lies is the shard store's business. Tensors that are computed (derived.py) are read
through the same door, as float32.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hubmerge.dtypes import STORAGE, Float32, decode
from hubmerge.errors import SourceChangedError
from hubmerge.hub import Hub
from hubmerge.sources.base import Model, StoredTensor
from hubmerge.sources.derived import DerivedTensor
from hubmerge.sources.header import DTYPE_BYTES

KEPT_TENSORS = 16  # small tensors that stay in memory: chunks in flight belong to few tensors


class ShardStore(Protocol):
    """Brings a shard's bytes to this machine."""

    def path(self, model: Model, shard: str) -> Path:
        """A local file with the verified bytes of `shard`; blocks until it is there."""


class LocalOrFetched:
    """Folders are read where they lie; Hub shards are fetched into `cache`, verified, when first needed."""

    def __init__(self, hub: Hub, cache: Path, fetched: Callable[[str, int], None] = lambda name, count: None) -> None:
        self._hub = hub
        self._cache = cache
        self._fetched = fetched
        self._lock = threading.Lock()

    def path(self, model: Model, shard: str) -> Path:
        if model.ref.kind == "local":
            return Path(model.ref.id).expanduser() / shard
        with self._lock:
            folder = self._cache / model.ref.id.replace("/", "--")
            return self._hub.download(
                model.ref.id, model.ref.sha, model.files[shard], folder, lambda n: self._fetched(model.ref.id, n)
            )


class TensorReader:
    """Reads tensors of several models; index 0 is the base."""

    def __init__(self, models: Sequence[Model], store: ShardStore) -> None:
        self._models = tuple(models)
        self._store = store
        self._files: dict[tuple[int, str], int] = {}  # open descriptors
        self._kept: OrderedDict[tuple[int, StoredTensor], Float32] = OrderedDict()
        self._lock = threading.Lock()
        self._scratch = threading.local()

    def raw(self, model: int, tensor: StoredTensor, start: int, count: int) -> NDArray[np.generic]:
        """[count] elements of `tensor` from `start`, as `entry.dtype` is stored (BF16 as uint16, others as their bits).

        An array of its own: computed if the tensor is, otherwise a copy.
        """
        if isinstance(tensor, DerivedTensor):
            return tensor.read(self, model, start, count)
        values = np.empty(count, dtype=_storage(tensor.entry.dtype))
        self._fill(model, tensor, start, values)
        return values

    def stacked(self, tensors: Sequence[StoredTensor], start: int, count: int) -> NDArray[np.generic] | None:
        """[len(tensors), count] elements from `start` of tensor m of model m, as stored; None unless all are stored
        alike.

        The array is this thread's own and valid until the thread asks for the next one.
        """
        dtype = tensors[0].entry.dtype
        if any(isinstance(t, DerivedTensor) or t.entry.dtype != dtype for t in tensors):
            return None
        storage = _storage(dtype)
        needed = len(tensors) * count * storage.itemsize
        buffer: NDArray[np.uint8] | None = getattr(self._scratch, "buffer", None)
        if buffer is None or buffer.size < needed:
            buffer = self._scratch.buffer = np.empty(needed, dtype=np.uint8)
        rows = buffer[:needed].view(storage).reshape(len(tensors), count)
        for model, tensor in enumerate(tensors):
            self._fill(model, tensor, start, rows[model])
        return rows

    def _fill(self, model: int, tensor: StoredTensor, start: int, out: NDArray[np.generic]) -> None:
        """Read `out.size` elements from `start` into `out`, which is contiguous."""
        offset = tensor.entry.begin + start * out.itemsize
        file = self._open(model, tensor.shard)
        left = memoryview(out.data).cast("B") if out.size else memoryview(b"")
        while left:
            try:
                got = os.preadv(file, [left], offset)
            except OSError as error:
                raise self._changed(model, tensor.shard, error.strerror or str(error)) from None
            if not got:
                raise self._changed(model, tensor.shard, "it ends early")
            left, offset = left[got:], offset + got

    def values(self, model: int, tensor: StoredTensor, start: int, count: int) -> Float32:
        """[count] elements of a tensor of floats as float32."""
        return decode(self.raw(model, tensor, start, count), tensor.entry.dtype)

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

    def _open(self, model: int, shard: str) -> int:
        key = (model, shard)
        with self._lock:
            if key not in self._files:
                source = self._models[model]
                path = self._store.path(source, shard)
                try:
                    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise self._changed(model, shard, error.strerror or str(error)) from None
                if os.fstat(file).st_size != source.files[shard].size:
                    os.close(file)
                    raise self._changed(model, shard, "it changed its size")
                self._files[key] = file
            return self._files[key]

    def _changed(self, model: int, shard: str, why: str) -> SourceChangedError:
        return SourceChangedError(
            "a shard can no longer be read",
            where=f"{shard} of {self._models[model].ref}",
            got=why,
            next_step="Resume when it is there again.",
        )

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        self._kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _storage(dtype: str) -> np.dtype[np.generic]:
    return STORAGE.get(dtype) or np.dtype(f"<u{DTYPE_BYTES[dtype]}")

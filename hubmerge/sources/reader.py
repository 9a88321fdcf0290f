"""The way to bytes: any element range of any input tensor, without keeping what was read.

Shards are memory-mapped; after a chunk was copied out its pages are released, so that resident memory stays at
a few chunks however large the shard. Where a shard lies is the shard store's business. Tensors that are computed
(derived.py) are read through the same door, as float32.
"""

from __future__ import annotations

import mmap
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

PAGE = mmap.PAGESIZE
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
        self._maps: dict[tuple[int, str], mmap.mmap] = {}
        self._kept: OrderedDict[tuple[int, StoredTensor], Float32] = OrderedDict()
        self._lock = threading.Lock()

    def raw(self, model: int, tensor: StoredTensor, start: int, count: int) -> NDArray[np.generic]:
        """[count] elements of `tensor` from `start`, as `entry.dtype` is stored (BF16 as uint16, others as their bits).

        An array of its own: computed if the tensor is, otherwise a copy.
        """
        if isinstance(tensor, DerivedTensor):
            return tensor.read(self, model, start, count)
        entry = tensor.entry
        width = DTYPE_BYTES[entry.dtype]
        dtype = STORAGE.get(entry.dtype, np.dtype(f"<u{width}"))
        begin = entry.begin + start * width
        view = self._map(model, tensor.shard)
        values = np.frombuffer(view, dtype=dtype, count=count, offset=begin).copy()
        # madvise takes whole pages; a page shared with the next chunk is simply read again
        low, high = begin // PAGE * PAGE, (begin + count * width) // PAGE * PAGE
        if high > low:
            view.madvise(mmap.MADV_DONTNEED, low, high - low)
        return values

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

    def _map(self, model: int, shard: str) -> mmap.mmap:
        key = (model, shard)
        with self._lock:
            if key not in self._maps:
                source = self._models[model]
                path = self._store.path(source, shard)
                try:
                    with open(path, "rb") as file:
                        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
                except (OSError, ValueError) as error:  # gone, unreadable, or empty, which cannot be mapped
                    raise SourceChangedError(
                        "a shard can no longer be read", where=f"{shard} of {source.ref}", got=str(error)
                    ) from None
                if len(mapped) != source.files[shard].size:
                    mapped.close()
                    raise SourceChangedError("a shard changed its size", where=f"{shard} of {source.ref}")
                self._maps[key] = mapped
            return self._maps[key]

    def close(self) -> None:
        for mapped in self._maps.values():
            mapped.close()
        self._maps.clear()
        self._kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""Reads a shard that is too large for the disk from the Hub range by range, and verifies every byte of it.

The Hub states a digest of the whole file (of one outside LFS git's id), which cannot verify a range. So the file is
read once from front to back before its first use, through memory alone. This pass compares its digest, compares its
header with the planned one, and notes a sha256 of every block of BLOCK_BYTES. Afterwards whole blocks are read in any
order, and each must have its noted digest. The price is one more reading of such a shard in each run of a merge. A
block lies in pages of its own, which go back to the system with it; the allocator's heap would keep twice as much.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable

from hubmerge.errors import CorruptError
from hubmerge.hub.client import Hub
from hubmerge.hub.names import stated_digest
from hubmerge.sources import buffers
from hubmerge.sources.base import Model
from hubmerge.sources.folder import other_header

BLOCK_BYTES = 4 * 1024 * 1024
KEPT_BLOCKS = 24  # of all shards together: a few chunks in flight of each model
FETCHED_AT_ONCE = 4  # blocks: that many connections fill the line, however many threads wait for bytes


class BlockBuffer:
    """Keeps the latest blocks of several shards; memory stays at KEPT_BLOCKS and FETCHED_AT_ONCE."""

    def __init__(self) -> None:
        self.fetching = threading.Semaphore(FETCHED_AT_ONCE)
        self._blocks: OrderedDict[tuple[int, int], memoryview] = OrderedDict()
        self._lock = threading.Lock()
        self._reading = [threading.Lock() for _ in range(64)]  # so that two threads do not fetch one block twice

    def get(self, reader: "BlockReader", number: int, fetch: Callable[[int], memoryview]) -> memoryview:
        key = (id(reader), number)
        with self._reading[hash(key) % len(self._reading)]:
            with self._lock:
                if key in self._blocks:
                    self._blocks.move_to_end(key)
                    return self._blocks[key]
            with self.fetching:
                block = fetch(number)
            with self._lock:
                self._blocks[key] = block
                while len(self._blocks) > KEPT_BLOCKS:
                    self._blocks.popitem(last=False)
            return block


class BlockReader:
    """One shard of a model on the Hub; `fetched` is told bytes as they come and may raise to break off."""

    def __init__(
        self,
        hub: Hub,
        model: Model,
        shard: str,
        buffer: BlockBuffer,
        fetched: Callable[[int], None],
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._hub = hub
        self._model = model
        self._file = model.files[shard]
        self._header = model.headers.get(shard)
        self._buffer = buffer
        self._fetched = fetched
        self._size = block_bytes
        self._digests: tuple[bytes, ...] = ()

    def verify(self) -> None:
        """Know the digest of every block of a file with the stated digest; CorruptError when it has another."""
        count = -(-self._file.size // self._size)
        (stated, whole), front, digests = stated_digest(self._file), hashlib.sha256(), []
        for number in range(count):
            with self._buffer.fetching:
                block = self._range(number)
                whole.update(block)
                if self._header is not None:
                    front.update(block[: max(0, self._header.bytes - number * self._size)])
                digests.append(hashlib.sha256(block).digest())
                del block
        if stated and whole.hexdigest() != stated:
            raise CorruptError(
                "a shard does not match its checksum",
                where=self._where,
                expected=f"{stated[:16]}…",
                got=f"{whole.hexdigest()[:16]}…",
                next_step="Run again; if it stays, the repo is damaged.",
            )
        if self._header is not None and front.hexdigest() != self._header.sha256:
            raise other_header(self._model, self._file.path)
        self._digests = tuple(digests)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Bytes from `offset`, as many as `out` takes; CorruptError when a block is not what it was."""
        done = 0
        while done < len(out):
            number, within = divmod(offset + done, self._size)
            block = self._buffer.get(self, number, self._block)
            part = block[within : within + len(out) - done]
            out[done : done + len(part)] = part
            done += len(part)

    def _block(self, number: int) -> memoryview:
        block = self._range(number)
        if hashlib.sha256(block).digest() != self._digests[number]:
            raise CorruptError(
                "the Hub sends other bytes than before",
                where=f"{self._where}, block {number} of {self._size} bytes",
                next_step="Run again; if it stays, the repo is damaged.",
            )
        return block

    def _range(self, number: int) -> memoryview:
        begin = number * self._size
        end = min(begin + self._size, self._file.size)
        block = memoryview(buffers.pages(end - begin))
        self._hub.read_range_into(self._model.ref.id, self._model.ref.sha, self._file.path, begin, block)
        self._fetched(len(block))
        return block

    @property
    def _where(self) -> str:
        return f"{self._file.path} in {self._model.ref}"

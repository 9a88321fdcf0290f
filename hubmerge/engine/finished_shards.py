"""Which finished shards still have the bytes that their lines in the journal say.

They are hashed in threads, file by file. The caller's thread waits, tells how far they are and may break it off, by
what the one who is told raises, or by a signal: each thread then ends within one block.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from hubmerge.engine.sink import FinishedShard
from hubmerge.machine import cores

HASHING_THREADS = 8  # as many as a disk has use for
BLOCK_BYTES = 1024 * 1024  # between two looks at whether it was broken off
TELLING_S = 0.2


def has_size(path: Path, shard: FinishedShard) -> bool:
    """Whether a file of the shard's size is there."""
    try:
        return path.stat().st_size == shard.size
    except OSError:  # gone, or no longer readable: it is made again
        return False


def sound(files: Sequence[tuple[Path, FinishedShard]], tell: Callable[[int, int], None]) -> list[bool]:
    """For each file whether it has the size and the sha256 of its shard.

    `tell(done, total)` is told bytes, in this thread, where there are any.
    """
    total = sum(shard.size for _, shard in files)
    if not total:
        return [has_size(path, shard) for path, shard in files]
    done = [0] * len(files)  # each by one thread
    broken_off = threading.Event()

    def check(number: int) -> bool:
        path, shard = files[number]
        found = has_size(path, shard) and digest_of(path, number) == shard.sha256
        done[number] = shard.size
        return found

    def digest_of(path: Path, number: int) -> str:
        digest, block = hashlib.sha256(), memoryview(bytearray(BLOCK_BYTES))
        try:
            with open(path, "rb", buffering=0) as file:
                while (count := file.readinto(block)) and not broken_off.is_set():
                    digest.update(block[:count])
                    done[number] += count
        except OSError:
            return ""
        return digest.hexdigest()

    tell(0, total)
    with ThreadPoolExecutor(min(HASHING_THREADS, cores(), len(files))) as pool:
        try:
            checks = [pool.submit(check, number) for number in range(len(files))]
            while wait(checks, TELLING_S).not_done:
                tell(min(sum(done), total), total)
        finally:
            broken_off.set()
    tell(total, total)
    return [one.result() for one in checks]

"""Memory takes what is written on every machine, and a lack of it is told as numpy tells it."""

from __future__ import annotations

import errno
import mmap
import os
import sys

import numpy as np
import psutil
import pytest

from hubmerge.sources import buffers

MB = 1024 * 1024


def test_a_lack_of_memory_is_told_as_numpy_tells_it(monkeypatch: pytest.MonkeyPatch):
    """An OSError would be taken for the disk's, or for a mistake of ours."""

    def refuse(*_: int, **__: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as context:
        context.setattr(mmap, "mmap", refuse)
        with pytest.raises(MemoryError, match="Cannot allocate memory"):
            buffers.pages(MB)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what memory a process holds")
def test_memory_takes_what_is_written_and_no_more_however_the_kernel_sees_huge_pages():
    """Else what a merge takes would depend on the machine, and not only on its recipe."""
    held = psutil.Process().memory_info().rss
    memory = np.frombuffer(buffers.pages(64 * MB), np.uint8)
    memory[:: 2 * MB] = 1  # one byte of each huge page
    assert psutil.Process().memory_info().rss - held < 8 * MB


def test_a_kernel_without_huge_pages_is_good_enough(monkeypatch: pytest.MonkeyPatch):
    class Plain(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with monkeypatch.context() as context:
        context.setattr(mmap, "mmap", Plain)
        array = np.frombuffer(buffers.pages(MB), np.uint8)
    array[:] = 1
    assert array.sum() == MB

"""What a disk answers when it refuses, in hubmerge's words, with what helps against it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hubmerge.errors import DiskError

_REMEDIES = {
    errno.ENOSPC: "Free some disk and resume.",
    errno.EDQUOT: "Free some of the quota and resume.",
    errno.EFBIG: "Raise the limit on file sizes (ulimit -f) and resume.",
    errno.EMFILE: "Raise the limit on open files (ulimit -n) and resume.",
    errno.EACCES: "Choose a folder that you may write to.",
    errno.EPERM: "Choose a folder that you may write to.",
    errno.EROFS: "Choose a folder on a disk that can be written.",
    errno.EEXIST: "Choose another folder.",
    errno.ENOTDIR: "Choose another folder.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}


def remedy(error: OSError) -> str:
    """What helps against a refusal."""
    return _REMEDIES.get(error.errno or 0, "Look after the disk and resume.")


@contextmanager
def written(what: str, where: str) -> Iterator[None]:
    """DiskError for what the disk refuses; `what` is the message."""
    try:
        yield
    except OSError as error:
        raise DiskError(what, where=where, got=str(error.strerror or error), next_step=remedy(error)) from None


def make_folder(folder: Path) -> None:
    """`folder` with its parents, if it is missing; DiskError where there can be none."""
    with written("the folder cannot be made", str(folder)):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """DiskError for what the disk refuses while `path` is written."""
    with written("the output cannot be written", str(path)):
        yield


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """DiskError for what the disk refuses while `path` is read."""
    with written("the journal cannot be read", str(path)):
        yield

"""Errors of the disk in hubmerge's words, each with its remedy."""

import errno
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from hubmerge.errors import DiskError

_UNWRITABLE = "Choose a folder that you may write to; HUBMERGE_DATA names the one in place of `data`."
_FULL, _FAILING = (errno.ENOSPC, errno.EDQUOT), (errno.EIO, errno.EROFS, errno.ESTALE)
_REMEDIES = {
    errno.ENOSPC: "Free some disk and resume.",
    errno.EDQUOT: "Free some of the quota and resume.",
    errno.EFBIG: "Raise the limit on file sizes (ulimit -f) and resume.",
    errno.EMFILE: "Raise the limit on open files (ulimit -n) and resume.",
    errno.ENOENT: "Choose a folder that is there.",
    errno.EISDIR: "Choose another name.",
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _UNWRITABLE),
    errno.EEXIST: "Choose another folder.",
    errno.ENOTDIR: "Choose another folder.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}


def remedy(error: OSError) -> str:
    """The next step for an error of the disk."""
    return _REMEDIES.get(error.errno or 0, "Look after the disk and resume.")


@contextmanager
def written(what: str, where: str) -> Iterator[None]:
    """The DiskError for an error of the operating system; `what` is its message."""
    try:
        yield
    except OSError as error:
        raise DiskError(what, where=where, got=str(error.strerror or error), next_step=remedy(error)) from None


def of_disk(error: BaseException | None, where: str = "") -> DiskError | None:
    """The DiskError for an error, or what a library raised it from, that is of a full or failing disk; else None."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in (*_FULL, *_FAILING):
            what = "the disk is full" if error.errno in _FULL else "the disk fails"
            where, got = where or str(error.filename or ""), str(error.strerror or error)
            return DiskError(what, where=where, got=got, next_step=remedy(error))
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents where they are missing; DiskError where that fails."""
    with written("the folder cannot be made", str(folder)):
        folder.mkdir(parents=True, exist_ok=True)


def writing(path: Path) -> AbstractContextManager[None]:
    """Turns errors of the operating system into DiskError while `path` is written."""
    return written("the output cannot be written", str(path))

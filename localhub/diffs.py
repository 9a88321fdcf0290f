"""The difference between two trees as git writes it, so that `git apply` takes it.

A large file shows as its pointer. The search for the shortest difference takes time that grows with the product of both
sides' lines; where that is too much, the changed stretch is removed and added whole, which is just as correct.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterator, Sequence

from localhub.store import Store, lfs_pointer
from localhub.tree import Entry, Tree

_SEARCHED = 25_000_000  # lines of one side times lines of the other
_LONGEST = 1024 * 1024  # characters of a whole difference
_LARGEST = 1024 * 1024  # bytes of a file that is compared


def difference(store: Store, old: Tree, new: Tree) -> str:
    """The difference between two trees; "" where they are equal."""
    parts: list[str] = []
    length = 0
    for path in sorted({*old, *new}):
        before, after = old.get(path), new.get(path)
        if before and after and before.oid == after.oid:
            continue
        part = "".join(_of_file(store, path, before, after))
        length += len(part)
        if length > _LONGEST:
            parts.append("… the rest is left out\n")
            break
        parts.append(part)
    return "".join(parts)


def _of_file(store: Store, path: str, before: Entry | None, after: Entry | None) -> Iterator[str]:
    a, b = _quoted(f"a/{path}"), _quoted(f"b/{path}")
    yield f"diff --git {a} {b}\n"
    if before is None:
        yield "new file mode 100644\n"
    if after is None:
        yield "deleted file mode 100644\n"
    yield f"index {_oid(before)}..{_oid(after)}" + (" 100644\n" if before and after else "\n")
    old, new = _content(store, before), _content(store, after)
    left, right = a if before else "/dev/null", b if after else "/dev/null"
    if old is None or new is None or b"\0" in old + new:
        yield f"Binary files {left} and {right} differ\n"
        return
    lines = _hunks(_lines(old), _lines(new))
    if lines:
        yield f"--- {left}\n+++ {right}\n"
        yield from lines


def _oid(entry: Entry | None) -> str:
    return entry.oid if entry else "0" * 40


def _content(store: Store, entry: Entry | None) -> bytes | None:
    """The bytes that git holds; None for more than are compared."""
    if entry is None:
        return b""
    if entry.sha256:
        return lfs_pointer(entry.sha256, entry.size)
    return store.git_path(entry.oid).read_bytes() if entry.size <= _LARGEST else None


def _lines(content: bytes) -> list[str]:
    """Lines by LF alone, each with its end."""
    return [*io.StringIO(content.decode("utf-8", "replace"), newline="\n")]


def _hunks(old: Sequence[str], new: Sequence[str]) -> list[str]:
    same = next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    changed = (len(old) - same) * (len(new) - same)
    if changed <= _SEARCHED:
        found = list(difflib.unified_diff(old, new, n=3))[2:]
    else:
        found = [_range(same, len(old) - same, len(new) - same)]
        found += [f"-{line}" for line in old[same:]] + [f"+{line}" for line in new[same:]]
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found]


def _range(start: int, removed: int, added: int) -> str:
    def side(count: int) -> str:
        return f"{start + (1 if count else 0)},{count}"

    return f"@@ -{side(removed)} +{side(added)} @@\n"


def _quoted(path: str) -> str:
    """A path as git writes it: in quotes where a character would be misread."""
    if not any(c in path for c in '"\\'):
        return path
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'

"""The two git pattern languages that decide about uploads: .gitattributes and .gitignore.

Both are translated to regular expressions over paths with `/`. A pattern without a slash (but for a trailing
one) matches at any depth; one with a slash is anchored at the root; `*`, `?` and `[…]` stay inside a segment, `**`
crosses them.

The patterns are strangers': every `*` but the last of a segment, and every `**` but the last, takes the first match
that there is and never another (an atomic group). That finds whatever there is to find, since what follows has only
more room, and it keeps the time for one path proportional to the path and the pattern.
"""

from __future__ import annotations

import fnmatch
import re
from functools import lru_cache

from localhub.http_errors import bad_request

Rules = tuple[tuple[re.Pattern[str], bool], ...]
MOST_CHARACTERS = 128 * 1024  # of one file of patterns
_MOST_WORK = 4 * 10**9  # characters of patterns times characters of paths, in one request
_MOST_PATTERN = 1000  # characters; git takes more, nobody writes them
_LFS = """
*.7z *.arrow *.bin *.bz2 *.ckpt *.ftz *.gz *.h5 *.joblib *.lfs.* *.mlmodel *.model *.msgpack *.npy *.npz *.onnx
*.ot *.parquet *.pb *.pickle *.pkl *.pt *.pth *.rar *.safetensors saved_model/**/* *.tar.* *.tar *.tflite *.tgz
*.wasm *.xz *.zip *.zst *tfevents*
"""
_DATASET_LFS = ["*.lz4", "*.pcm", "*.sam", "*.raw", "*.aac", "*.flac", "*.mp3", "*.ogg", "*.wav", "*.bmp", "*.gif"]
_DATASET_LFS += ["*.png", "*.tiff", "*.jpg", "*.jpeg", "*.webp", "*.mp4", "*.webm"]


def initial_gitattributes(repo_type: str) -> str:
    """The .gitattributes of a new repo."""
    patterns = _LFS.split() + (_DATASET_LFS if repo_type == "dataset" else [])
    return "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in patterns)


@lru_cache(maxsize=64)
def lfs_rules(gitattributes: str) -> Rules:
    """Patterns of a .gitattributes with whether each turns LFS on or off; the last match decides."""
    rules = []
    for line in gitattributes.splitlines():
        pattern, *attributes = line.split() or [""]
        if not pattern or pattern.startswith("#") or len(pattern) > _MOST_PATTERN:
            continue
        if "filter=lfs" in attributes:
            rules.append((_regex(pattern), True))
        elif any(name in attributes for name in ("-filter", "!filter", "filter")):
            rules.append((_regex(pattern), False))
    return tuple(rules)


@lru_cache(maxsize=64)
def ignore_rules(gitignore: str) -> Rules:
    """Patterns of a .gitignore with whether each ignores or (`!`) brings back."""
    rules = []
    for raw in gitignore.splitlines():
        line = raw.rstrip()
        if line.endswith("\\") and len(line) < len(raw):
            line += " "  # a space at the end counts behind a backslash alone
        if not line or line.startswith("#") or len(line) > _MOST_PATTERN:
            continue
        ignore = not line.startswith("!")
        rules.append((_regex(line.removeprefix("!"), folders=True), ignore))
    return tuple(rules)


def decide(rules: Rules, path: str) -> bool:
    """The verdict of the last matching rule; False without a match."""
    lines = path.replace("/", "\n")
    return next((value for pattern, value in reversed(rules) if pattern.fullmatch(lines)), False)


def check_work(patterns: str, paths: list[str]) -> None:
    """Refuse patterns that would keep the server busy for longer than any real ones do."""
    if len(patterns) > MOST_CHARACTERS or len(patterns) * sum(map(len, paths)) > _MOST_WORK:
        raise bad_request(f"The patterns are too many: at most {MOST_CHARACTERS} characters of them, for fewer files")


def _regex(pattern: str, *, folders: bool = False) -> re.Pattern[str]:
    """An expression for paths with line ends in place of slashes, at which `.` stops."""
    below = r"\n(?s:.*)" if folders and pattern.endswith("/") else r"(?:\n(?s:.*))?" if folders else ""
    segments = pattern.strip("/").split("/")
    if "/" not in pattern.rstrip("/"):
        segments.insert(0, "**")  # at any depth
    chunks: list[list[str]] = [[]]  # of segments that follow each other, with any number of others between two chunks
    for segment in segments:
        if segment == "**":
            chunks.append([])
        else:
            chunks[-1].append(segment)
    anchored, *rest = [r"\n".join(map(_segment, chunk)) for chunk in chunks]
    inner, last = [chunk for chunk in rest[:-1] if chunk], rest[-1] if rest else None
    text = "".join(rf"(?>(?:.+\n)*?{chunk}\n)" for chunk in inner)
    start = rf"{anchored}\n" if anchored and rest else anchored
    if last is None:
        text = start + below
    elif last:
        text = rf"{start}{text}(?:.+\n)*?{last}{below}"
    else:  # `**` at the end: all that is inside
        text = f"{start}{text}(?s:.+)"
    return re.compile(text)


def _segment(text: str) -> str:
    """A pattern of one name: fnmatch's language, which lacks backslashes and `[^…]`, where `.` is no line's end."""
    text = re.sub(r"\\(.)", lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], text)
    text = re.sub(r"\[[!^](\]?[^\]]*)\]", r"[!\1\n]", text)
    return fnmatch.translate(text)[len("(?s:") : -len(r")\Z")]

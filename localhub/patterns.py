"""The pattern files of git that decide about uploads, .gitattributes and .gitignore, as `fnmatch` reads their patterns.

A pattern without a slash (but for a trailing one) matches at any depth; one with a slash is anchored at the root. Of
a segment nothing is known: a `*` crosses slashes, as `**` does.
"""

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
    for line in map(str.strip, gitignore.splitlines()):
        if not line or line.startswith("#") or len(line) > _MOST_PATTERN:
            continue
        ignore = not line.startswith("!")
        rules.append((_regex(line.removeprefix("!"), folders=True), ignore))
    return tuple(rules)


def decide(rules: Rules, path: str) -> bool:
    """The verdict of the last matching rule; False without a match."""
    return next((value for pattern, value in reversed(rules) if pattern.fullmatch(path)), False)


def check_work(patterns: str, paths: list[str]) -> None:
    """Refuse patterns that would keep the server busy for longer than any real ones do."""
    if len(patterns) > MOST_CHARACTERS or len(patterns) * sum(map(len, paths)) > _MOST_WORK:
        raise bad_request(f"The patterns are too many: at most {MOST_CHARACTERS} characters of them, for fewer files")


def _regex(pattern: str, *, folders: bool = False) -> re.Pattern[str]:
    """An expression for paths; `folders`: a pattern of a folder means what is in it."""
    below = "" if not folders else "(?s:/.*)" if pattern.endswith("/") else "(?s:/.*)?"
    pattern = pattern.removeprefix("**/")
    above = "" if "/" in pattern.rstrip("/") else "(?s:.*/)?"
    ways = sorted({pattern.strip("/"), pattern.strip("/").replace("/**/", "/")})  # with folders between, and without
    inner = "|".join(fnmatch.translate(way)[:-2] for way in ways)  # without \Z
    return re.compile(f"{above}(?:{inner}){below}")

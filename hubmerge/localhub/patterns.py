"""The two git pattern languages that decide about uploads: .gitattributes and .gitignore.

Both are translated to regular expressions over paths with `/`. A pattern without a slash (but for a trailing
one) matches at any depth; one with a slash is anchored at the root; `*` and `?` stay inside a segment, `**`
crosses them.
"""

from __future__ import annotations

import re
from functools import lru_cache

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
def lfs_rules(gitattributes: str) -> tuple[tuple[re.Pattern[str], bool], ...]:
    """Patterns of a .gitattributes with whether each turns LFS on or off; the last match decides."""
    rules = []
    for line in gitattributes.splitlines():
        pattern, *attributes = line.split() or [""]
        if not pattern or pattern.startswith("#"):
            continue
        if "filter=lfs" in attributes:
            rules.append((_regex(pattern), True))
        elif any(name in attributes for name in ("-filter", "!filter", "filter")):
            rules.append((_regex(pattern), False))
    return tuple(rules)


@lru_cache(maxsize=64)
def ignore_rules(gitignore: str) -> tuple[tuple[re.Pattern[str], bool], ...]:
    """Patterns of a .gitignore with whether each ignores or (`!`) brings back."""
    rules = []
    for raw in gitignore.splitlines():
        line = raw.rstrip()
        if not line or line.startswith("#"):
            continue
        ignore = not line.startswith("!")
        rules.append((_regex(line.removeprefix("!"), folders=True), ignore))
    return tuple(rules)


def decide(rules: tuple[tuple[re.Pattern[str], bool], ...], path: str) -> bool:
    """What the last matching rule says; no match is no."""
    return next((value for pattern, value in reversed(rules) if pattern.fullmatch(path)), False)


def _regex(pattern: str, *, folders: bool = False) -> re.Pattern[str]:
    below = r"/.*" if folders and pattern.endswith("/") else r"(?:/.*)?" if folders else ""
    body = pattern.rstrip("/")
    anchored = "/" in body
    translated = re.sub(r"\*\*/|/\*\*|\*+|\?|[^*?]", _translate, body.lstrip("/"))
    return re.compile(("" if anchored else "(?:.*/)?") + translated + below, re.DOTALL)


def _translate(match: re.Match[str]) -> str:
    known = {"**/": "(?:.*/)?", "/**": "/.*", "*": "[^/]*", "**": ".*", "?": "[^/]"}
    return known.get(match[0]) or re.escape(match[0])

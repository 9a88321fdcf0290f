"""The addresses of the real Hub that this one does not serve, by name, so that nobody looks for a mistake of theirs."""

from __future__ import annotations

import re

_REPO = r"/api/(?:models|datasets|spaces)/[^/]+/[^/]+"
_UNSERVED = {
    r"/api/(?:scheduled-)?jobs(?:/.*)?": "Jobs",
    r"/api/(?:models|datasets|spaces)/[^/]+(?:/[^/]+)?/xet-read-token/.*": "downloads through Xet",
    r".*\.git/(?:info/refs|git-(?:upload|receive)-pack|HEAD|objects/.*)": "git over HTTP; use `hf upload`",
    r".*\.git/info/lfs/locks.*": "locks of large files",
    r"(?:/api)?/buckets(?:/.*)?": "buckets",
    r"/api/collections(?:/.*)?": "collections",
    r"/api/(?:daily_)?papers(?:/.*)?": "papers",
    r"/api/kernels(?:/.*)?|/kernels/.*": "kernels",
    r"/api/posts(?:/.*)?": "posts",
    r"/api/(?:models|datasets|spaces)-tags-by-type": "the list of all tags",
    r"/api/spaces/semantic-search": "semantic search",
    r"/api/spaces/hardware": "the prices of hardware",
    r"/api/spaces/[^/]+/[^/]+/(?:logs/.*|events|metrics|volumes|dev-mode|(?:hot-)?reload.*)": "running Spaces",
    _REPO + r"/(?:leaderboard|scan|notebook/.*|treesize/.*|resource-group|compare/.*|safetensors-metadata/.*)": (
        "this view of a repo"
    ),
    r"/api/datasets/[^/]+/[^/]+/(?:parquet|croissant|sql)(?:/.*)?": "the dataset viewer",
    r"/api/(?:users|organizations)/[^/]+/.*": "this list of an account",
    r"/api/settings/.*": "these settings",
    r"/api/(?:inference.*|tasks|partners/.*|models/[^/]+/[^/]+/inference.*)": "inference providers",
    r"/oauth/(?:device|register)": "this kind of sign-in; use /oauth/authorize",
    r"/api/(?:quicksearch|trending|recent-activity|notifications|mcp)(?:/.*)?": "this part of the Hub's site",
}
_PATTERNS = [(re.compile(pattern), what) for pattern, what in _UNSERVED.items()]


def unserved(path: str) -> str | None:
    """The name of what the Hub has at `path`, where it is not served here."""
    return next((what for pattern, what in _PATTERNS if pattern.fullmatch(path)), None)

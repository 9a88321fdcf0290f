"""The cache of the Hub's client on this machine, which is only read.

A file is taken from it at exactly the pinned commit, and a shard only after its sha256 was compared.
"""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from hubmerge.errors import SourceNotFoundError
from hubmerge.hub.names import FileInfo, RepoState, is_sha, stated_license

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_CARD = "README.md"
_MAX_INDEX_BYTES = 50_000_000
_MAX_CARD_BYTES = 1_000_000


class ClientCache:
    """The files that the Hub's client has downloaded to this machine, in `folder` (default: the client's own)."""

    def __init__(self, folder: Path | None = None) -> None:
        self._given = folder

    @cached_property
    def _folder(self) -> Path:
        from huggingface_hub import constants

        return self._given or Path(constants.HF_HUB_CACHE)

    def find(self, repo_id: str, sha: str, path: str, size: int | None = None) -> Path | None:
        """The file at that commit; None where the client does not have it, or one of another size."""
        found = self._snapshot(repo_id, sha) / path
        try:
            fits = found.is_file() and size in (None, found.stat().st_size)
            return found.resolve() if fits else None
        except OSError:
            return None

    def _repo(self, repo_id: str) -> Path:
        from huggingface_hub.file_download import repo_folder_name

        return self._folder / repo_folder_name(repo_id=repo_id, repo_type="model")

    def _snapshot(self, repo_id: str, sha: str) -> Path:
        return self._repo(repo_id) / "snapshots" / sha

    def state(self, repo_id: str, revision: str | None) -> RepoState:
        """A model from the cache alone; SourceNotFoundError where a part of it is missing.

        Files that the client has listed and not fetched are among its files, so that a merge that wants one is refused.
        """
        where = f"{repo_id}@{revision}" if revision else repo_id
        sha = self._commit(repo_id, revision or "main")
        folder = self._snapshot(repo_id, sha or "-")
        if sha is None or not folder.is_dir():
            raise _not_here(where, repo_id, revision, "nothing of it")
        files = self._listed(repo_id, sha)
        files |= {
            str(path.relative_to(folder)): _info(path, folder) for path in sorted(folder.rglob("*")) if path.is_file()
        }
        if missing := _missing(files, folder):
            raise _not_here(where, repo_id, revision, f"it without {', '.join(missing[:3])}")
        card = _card(folder)
        return RepoState(repo_id, sha, files, False, False, stated_license(card), card)

    def _listed(self, repo_id: str, sha: str) -> dict[str, FileInfo]:
        """The commit's files; none where the client has only fetched single ones, which tells nothing of the others."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        try:
            listed = get_cached_repo_tree(repo_id, revision=sha, cache_dir=self._folder)
        except CachedRepoTreeNotFoundError:
            return {}
        return {file.path: FileInfo(file.path, file.size, blob=file.blob_id) for file in listed}

    def _commit(self, repo_id: str, revision: str) -> str | None:
        if is_sha(revision):
            return revision
        ref = self._repo(repo_id) / "refs" / revision  # a revision is checked when a recipe is read
        try:
            text = ref.read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return None
        return text if is_sha(text) else None


def _info(path: Path, folder: Path) -> FileInfo:
    """A cached file; large ones lie under their sha256."""
    blob = path.resolve()
    digest = blob.name if len(blob.name) == 64 and blob.name.isalnum() else None
    return FileInfo(str(path.relative_to(folder)), blob.stat().st_size, digest, blob)


def _missing(files: Mapping[str, FileInfo], folder: Path) -> list[str]:
    """The files that a merge would need and the cache lacks; the card is one where there is one, for its license."""
    cards = [_CARD] if _CARD in files else []
    shards: list[str] = [_SINGLE]
    if _SINGLE not in files and _INDEX in files and files[_INDEX].size <= _MAX_INDEX_BYTES:
        try:
            shards = sorted({str(name) for name in json.loads((folder / _INDEX).read_bytes())["weight_map"].values()})
        except FileNotFoundError:
            shards = [_INDEX]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return []  # opening the model refuses it
    is_adapter = _ADAPTER[0] in files and _SINGLE not in files and _INDEX not in files
    wanted = (*_ADAPTER, *cards) if is_adapter else ("config.json", *shards, *cards)
    return [name for name in wanted if name not in files or files[name].here is None]


def _card(folder: Path) -> dict[str, Any]:
    """The header of a cached card; empty where none can be read."""
    from huggingface_hub import metadata_load

    try:
        path = folder / _CARD
        return {} if path.stat().st_size > _MAX_CARD_BYTES else dict(metadata_load(path) or {})
    except Exception:  # noqa: BLE001 (a stranger's YAML; what a card says is a help, and no more)
        return {}


def _not_here(where: str, repo_id: str, revision: str | None, got: str) -> SourceNotFoundError:
    at = f" --revision {revision}" if revision else ""
    return SourceNotFoundError(
        "HF_HUB_OFFLINE forbids the network, and the client's cache does not hold the model",
        where=where,
        expected="all of it",
        got=got,
        next_step=f"Unset HF_HUB_OFFLINE, or fetch it where there is a network: hf download {repo_id}{at}",
    )

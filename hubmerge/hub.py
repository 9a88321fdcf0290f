"""The one door to the Hub: every request that hubmerge makes goes through `Hub`, and every answer is typed.

The client is huggingface_hub. Two things are done here rather than by it: byte ranges are checked (a server
that answers a range with something else must not make us read on), and redirects of such reads are followed by
hand (no credentials to another host, no way from a public endpoint into a private network).
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from hubmerge.errors import (
    CorruptError,
    FormatError,
    GatedError,
    HubmergeError,
    HubUnavailableError,
    LoginError,
    PermissionDeniedError,
    SourceChangedError,
    SourceNotFoundError,
)
from hubmerge.settings import DEFAULT_ENDPOINT, Settings
from hubmerge.sources.base import FileInfo

SMALL_FILE_BYTES = 64 * 1024 * 1024  # tokenizers reach 30 MB; nothing that is no weight is larger
_COPY_BYTES = 1024 * 1024
_MAX_REDIRECTS = 4


@dataclass(frozen=True)
class RepoState:
    """A repo at one commit."""

    id: str
    sha: str
    files: Mapping[str, FileInfo]
    private: bool
    gated: bool
    license: str | None
    card: Mapping[str, Any]


@dataclass(frozen=True)
class RepoSummary:
    """One line of a search."""

    id: str
    downloads: int
    likes: int
    tags: tuple[str, ...]
    last_modified: str


@dataclass(frozen=True)
class Identity:
    """Who a token belongs to, and where it may write."""

    name: str
    namespaces: tuple[str, ...]


class Hub:
    """A Hub at `endpoint`, seen with `token` (None: anonymously)."""

    def __init__(self, endpoint: str = DEFAULT_ENDPOINT, token: str | None = None) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._token: str | bool = token or False  # False: never fall back to a token lying on this machine
        self._loopback = Settings(endpoint=self.endpoint).is_loopback
        from huggingface_hub import HfApi, constants

        if self._loopback:
            constants.HF_HUB_DISABLE_XET = True  # the embedded Hub speaks plain LFS
        self._api = HfApi(endpoint=self.endpoint, token=self._token, library_name="hubmerge")

    def __repr__(self) -> str:
        return f"Hub({self.endpoint!r}, token={'set' if self._token else 'none'})"

    # --- reading -----------------------------------------------------------------------------------------

    def whoami(self) -> Identity:
        """The token's user; LoginError when there is none or it is no longer valid."""
        if not self._token:
            raise LoginError("you are not signed in", next_step="Sign in, or set HF_TOKEN.")
        with _translated("the token"):
            answer = self._api.whoami()
        orgs = [o for o in answer.get("orgs", []) if o.get("roleInOrg") in (None, "admin", "write", "contributor")]
        return Identity(answer["name"], (answer["name"], *(o["name"] for o in orgs)))

    def repo_state(self, repo_id: str, revision: str | None = None) -> RepoState:
        """The repo at `revision` (default branch if None), its files with sizes and LFS hashes."""
        where = f"{repo_id}@{revision}" if revision else repo_id
        with _translated(where, pinned=bool(revision and re.fullmatch(r"[0-9a-f]{40}", revision))):
            info = self._api.model_info(repo_id, revision=revision, files_metadata=True)
        if not info.sha or not re.fullmatch(r"[0-9a-f]{40}", info.sha):
            raise HubUnavailableError("the Hub states no commit", where=where, got=repr(info.sha))
        files = {
            s.rfilename: FileInfo(s.rfilename, s.size or 0, s.lfs.sha256 if s.lfs else None)
            for s in info.siblings or ()
        }
        card = dict(info.card_data.to_dict()) if info.card_data else {}
        license_name = card.get("license")
        return RepoState(
            id=info.id,
            sha=info.sha,
            files=files,
            private=bool(info.private),
            gated=bool(info.gated),
            license=license_name if isinstance(license_name, str) else None,
            card=card,
        )

    def exists(self, repo_id: str) -> bool:
        try:
            self.repo_state(repo_id)
        except GatedError:
            return True
        except SourceNotFoundError:
            return False
        return True

    def search_models(self, text: str, limit: int = 10) -> list[RepoSummary]:
        """Models whose id holds `text`, most downloaded first."""
        with _translated("the search"):
            found = list(self._api.list_models(search=text or None, sort="downloads", limit=limit))
        return [
            RepoSummary(m.id, m.downloads or 0, m.likes or 0, tuple(m.tags or ()), str(m.last_modified or ""))
            for m in found
        ]

    def read_range(self, repo_id: str, sha: str, path: str, start: int, end: int) -> bytes:
        """Bytes start … end−1 of a file; 206 with that very range is required, never more is read."""
        where = f"{path} in {repo_id}@{sha[:12]}"
        with self._open(repo_id, sha, path, {"Range": f"bytes={start}-{end - 1}"}, where) as response:
            wanted = f"bytes {start}-{end - 1}/"
            got = response.headers.get("content-range", "")
            if response.status_code != 206 or not got.startswith(wanted):
                raise HubUnavailableError(
                    "the server did not answer the byte range",
                    where=where,
                    expected=f"206 {wanted}…",
                    got=f"{response.status_code} {got}",
                )
            data = _read_capped(response, end - start, where)
        if len(data) != end - start:
            raise HubUnavailableError(
                "the connection closed early", where=where, expected=f"{end - start} bytes", got=str(len(data))
            )
        return data

    def read_file(self, repo_id: str, sha: str, path: str, max_bytes: int = SMALL_FILE_BYTES) -> bytes:
        """A whole small file; FormatError above `max_bytes`."""
        where = f"{path} in {repo_id}@{sha[:12]}"
        with self._open(repo_id, sha, path, {}, where) as response:
            return _read_capped(response, max_bytes, where)

    def download(self, repo_id: str, sha: str, file: FileInfo, folder: Path, progress: Callable[[int], None]) -> Path:
        """Fetch one file below `folder`, resuming a partial one, and verify it against its LFS sha256.

        Returns its path. CorruptError when the bytes are others than the Hub announced.
        """
        where = f"{file.path} in {repo_id}@{sha[:12]}"
        target = folder / sha / file.path
        partial = target.with_name(target.name + ".partial")
        if target.exists() and target.stat().st_size == file.size:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with open(partial, "a+b") as out:
            out.seek(0)
            while chunk := out.read(_COPY_BYTES):
                digest.update(chunk)
            offset = out.tell()
            if offset > file.size:
                out.truncate(0)
                offset, digest = 0, hashlib.sha256()
            progress(offset)
            while offset < file.size:
                end = min(offset + 64 * _COPY_BYTES, file.size)
                data = self._retrying_range(repo_id, sha, file.path, offset, end)
                out.write(data)
                digest.update(data)
                offset = end
                progress(len(data))
        if file.sha256 and digest.hexdigest() != file.sha256:
            partial.unlink()
            raise CorruptError(
                "a downloaded file does not match its checksum",
                where=where,
                expected=f"sha256 {file.sha256[:16]}…",
                got=f"{digest.hexdigest()[:16]}…",
                next_step="Run again; if it stays, the repo is damaged.",
            )
        os.replace(partial, target)
        return target

    # --- writing -----------------------------------------------------------------------------------------

    def create_repo(self, repo_id: str, *, private: bool) -> None:
        with _translated(repo_id, writing=True):
            self._api.create_repo(repo_id, private=private, exist_ok=True)

    def preupload(self, repo_id: str, path: Path, name: str) -> Any:
        """Upload one file's bytes ahead of the commit; returns the operation that the commit takes.

        Bytes that the Hub already holds are not sent again.
        """
        from huggingface_hub import CommitOperationAdd

        operation = CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(path))
        with _translated(repo_id, writing=True):
            self._api.preupload_lfs_files(repo_id, additions=[operation], free_memory=False)
        return operation

    def commit(
        self,
        repo_id: str,
        operations: Sequence[Any],
        small: Iterable[tuple[str, bytes]],
        *,
        message: str,
        description: str,
        parent: str,
    ) -> str:
        """One commit on main with everything, only if main still stands at `parent`; returns its sha."""
        from huggingface_hub import CommitOperationAdd

        additions = [*operations, *(CommitOperationAdd(name, content) for name, content in small)]
        with _translated(repo_id, writing=True):
            info = self._api.create_commit(
                repo_id, additions, commit_message=message, commit_description=description, parent_commit=parent
            )
        return str(info.oid)

    def find_commit(self, repo_id: str, needle: str) -> str | None:
        """The sha of the newest commit on main whose title holds `needle`."""
        with _translated(repo_id):
            for commit in self._api.list_repo_commits(repo_id):
                if needle in commit.title:
                    return str(commit.commit_id)
        return None

    def url(self, repo_id: str) -> str:
        return f"{self.endpoint}/{repo_id}"

    # --- plumbing ----------------------------------------------------------------------------------------

    def _retrying_range(self, repo_id: str, sha: str, path: str, start: int, end: int) -> bytes:
        last: HubmergeError | None = None
        for attempt in range(5):
            try:
                return self.read_range(repo_id, sha, path, start, end)
            except HubUnavailableError as error:
                last = error
                time.sleep(min(0.5 * 2**attempt, 8.0))
        assert last is not None
        raise last

    @contextmanager
    def _open(self, repo_id: str, sha: str, path: str, headers: Mapping[str, str], where: str) -> Iterator[Any]:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils._headers import build_hf_headers
        from huggingface_hub.utils._http import get_session, hf_raise_for_status

        url = hf_hub_url(repo_id, path, revision=sha, endpoint=self.endpoint)
        own = build_hf_headers(token=self._token, library_name="hubmerge") | {"Accept-Encoding": "identity"}
        with _translated(where, pinned=True):
            for _ in range(_MAX_REDIRECTS):
                self._refuse_private_network(url, where)
                same_host = urlsplit(url).netloc == urlsplit(self.endpoint).netloc
                sent = {**own, **headers} if same_host else {"Accept-Encoding": "identity", **headers}
                with get_session().stream("GET", url, headers=sent, follow_redirects=False, timeout=60) as response:
                    if response.is_redirect:
                        url = urljoin(url, response.headers["location"])
                        continue
                    if response.status_code >= 400:
                        response.read()
                        hf_raise_for_status(response)
                    yield response
                    return
            raise HubUnavailableError("too many redirects", where=where)

    def _refuse_private_network(self, url: str, where: str) -> None:
        parts = urlsplit(url)
        if parts.netloc == urlsplit(self.endpoint).netloc or self._loopback:
            return
        if parts.scheme != "https" or not parts.hostname:
            raise HubUnavailableError("the Hub redirects to something that is not https", where=where)
        for info in socket.getaddrinfo(parts.hostname, parts.port or 443, proto=socket.IPPROTO_TCP):
            if not ipaddress.ip_address(info[4][0]).is_global:
                raise HubUnavailableError("the Hub redirects into a private network", where=where, got=parts.hostname)


def _read_capped(response: Any, cap: int, where: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    for part in response.iter_bytes(_COPY_BYTES):
        size += len(part)
        if size > cap:
            raise FormatError(
                "the server sends more than was asked for", where=where, expected=f"{cap} bytes", got="more"
            )
        parts.append(part)
    return b"".join(parts)


@contextmanager
def _translated(where: str, *, writing: bool = False, pinned: bool = False) -> Iterator[None]:
    """The client's errors as ours; nothing of a request's headers reaches a message."""
    import httpx2
    from huggingface_hub import errors

    def reason(error: Exception) -> str:
        message = getattr(error, "server_message", None) or str(error).split("\n")[0]
        return message[:200]

    try:
        yield
    except errors.GatedRepoError:
        raise GatedError(
            "a gated repo", where=where, next_step="Ask for access on its page, then sign in with that account."
        ) from None
    except errors.DisabledRepoError:
        raise SourceNotFoundError("a disabled repo", where=where) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        if pinned:
            raise SourceChangedError(
                "a pinned source is no longer there",
                where=where,
                got=reason(error),
                next_step="Its owner removed or rewrote it; pin another one.",
            ) from None
        what = (
            "no such repo, or one that you may not read"
            if isinstance(error, errors.RepositoryNotFoundError)
            else "no such revision or file"
        )
        raise SourceNotFoundError(
            what, where=where, next_step="Check its name, and sign in if it is private."
        ) from None
    except errors.HFValidationError as error:
        raise SourceNotFoundError("not a repo id", where=where, got=reason(error)) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status == 401:
            raise LoginError("the token is not valid or has expired", where=where, next_step="Sign in again.") from None
        if status == 403:
            raise PermissionDeniedError(
                "the token may not do this" if writing else "access is denied",
                where=where,
                got=reason(error),
                next_step="Choose a namespace you can write to.",
            ) from None
        raise HubUnavailableError(
            "the Hub answered with an error",
            where=where,
            got=f"{status}: {reason(error)}",
            next_step="Try again later.",
        ) from None
    except (httpx2.HTTPError, OSError) as error:
        if isinstance(error, HubmergeError):
            raise
        if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
            raise  # a local file, not the network
        raise HubUnavailableError(
            "the Hub cannot be reached",
            where=where,
            got=f"{type(error).__name__}: {reason(error)}",
            next_step="Check the connection and HF_ENDPOINT.",
        ) from None

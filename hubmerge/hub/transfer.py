"""Reads files of the Hub: ranges, small files, and verified downloads that go on where they broke off.

This module does so instead of the client, because it does not trust the answers. A range needs 206 with exactly that
`Content-Range`, no byte is read beyond the request, and compressed answers are refused, so no server can fill memory or
disk. Redirects are followed by hand: credentials go to the endpoint only, never to another origin, and no redirect
leads from a public Hub into a private network. (Between the check of an address and the connection its name could be
rebound. TLS to that name then fails, which is why https is required. What a proxy alone can look up is left to it.)

A download appends to `NAME.partial`, so a broken connection or a killed process costs only the bytes not yet written.
The file gets its name after its sha256 was compared with the one that the Hub states. When a later run asks for it, it
loses the name until it was verified again. A file that was damaged meanwhile is fetched once more.

What a breakable Hub reads ends with the next bytes that come, or with the pause, once it is broken off. A server that
says nothing is waited for up to _TIMEOUT_S; commands and jobs, whose process can be ended, do not wait that long.
"""

import hashlib
import io
import ipaddress
import os
import re
import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from hubmerge.errors import CorruptError, FormatError, HubUnavailableError
from hubmerge.hub.cache import ClientCache
from hubmerge.hub.errors import Patience, TransientHubError, translated
from hubmerge.hub.names import FileInfo, blob_id, stated_digest
from hubmerge.machine.disk_errors import written
from hubmerge.settings import Settings

if TYPE_CHECKING:
    from huggingface_hub import HfApi

SMALL_FILE_BYTES = 64 * 1024 * 1024  # tokenizers reach 30 MB; only weights are larger
COPY_BYTES = 1024 * 1024
_ERROR_BODY_BYTES = 64 * 1024
_MAX_REDIRECTS = 4
_TIMEOUT_S = 60.0  # without a single byte
_DIGEST = re.compile(r'(?:W/)?"?([0-9a-f]{40}|[0-9a-f]{64})"?')
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # leads to any IPv4 address, private ones too


class BreakableFile(io.BufferedReader):
    """A file that the client uploads from; `check` is called with the place in it before every read, and may
    raise to break the upload off.

    The client reads 64 KiB at a time, and goes back to the start of a part before it tries that part again.
    """

    def __init__(self, path: Path, check: Callable[[int], None]) -> None:
        super().__init__(io.FileIO(path))
        self._check = check

    def read(self, size: int | None = -1, /) -> bytes:
        self._check(self.tell())
        return super().read(size)


class _At(NamedTuple):
    """A file at a commit."""

    repo_id: str
    sha: str
    path: str

    def __str__(self) -> str:
        return f"{self.path} in {self.repo_id}@{self.sha[:12]}"


class HubReading:
    """The requests that read files; `Hub` inherits them. Files in the client's cache are not fetched again."""

    endpoint: str
    repo_type: Literal["model", "dataset"]
    patience: Patience
    _api: "HfApi"
    _token: str | bool  # False: anonymous
    _cache: ClientCache | None

    def connect(self) -> None:
        """Load the client now; this sends no request."""
        assert self._api is not None

    def _here(self, repo_id: str, sha: str, path: str, size: int | None = None) -> Path | None:
        return None if self._cache is None else self._cache.find(repo_id, sha, path, size)

    def read_range(self, repo_id: str, sha: str, path: str, start: int, end: int) -> bytes:
        """Bytes start … end−1 of a file; 206 with that very range is required, never more is read."""
        if (here := self._here(repo_id, sha, path)) is not None:
            with suppress(OSError), here.open("rb") as file:  # it may be gone, or another user's
                file.seek(start)
                if len(found := file.read(end - start)) == end - start:
                    return found
        at = _At(repo_id, sha, path)
        return self.patience.repeat(lambda: b"".join(self._range(at, start, end)))

    def read_range_into(self, repo_id: str, sha: str, path: str, start: int, out: memoryview) -> None:
        """As `read_range`, into `out`, which decides the number of bytes. After an error its content is undefined."""

        def read() -> None:
            filled = 0
            for part in self._range(_At(repo_id, sha, path), start, start + len(out)):
                out[filled : filled + len(part)] = part
                filled += len(part)

        self.patience.repeat(read)

    def read_file(self, repo_id: str, sha: str, path: str, max_bytes: int = SMALL_FILE_BYTES) -> bytes:
        """A whole small file; FormatError above `max_bytes`, CorruptError when it is not what the Hub's ETag names."""
        if (here := self._here(repo_id, sha, path)) is not None:
            with suppress(OSError):
                if here.stat().st_size <= max_bytes:
                    stated, digest = _digests(content := here.read_bytes(), here.name)
                    if digest == stated:
                        return content
        at = _At(repo_id, sha, path)

        def read() -> bytes:
            with self._open(at, {}) as (response, etag):
                content = b"".join(_capped(response, max_bytes, at))
            stated, digest = _digests(content, etag)
            if digest != stated:
                raise _corrupt("a file does not match the digest that the Hub states", at, f"{stated[:16]}…", digest)
            return content

        return self.patience.repeat(read)

    def download(self, repo_id: str, sha: str, file: FileInfo, folder: Path, progress: Callable[[int], None]) -> Path:
        """Fetch the missing part of one file to `folder/sha/path`, and verify all of it. No one may read it meanwhile.

        Returns its path, which is the client's where its cache holds the file. `progress` is called with the number of
        bytes as they arrive, first with those that lay there already.

        Raises CorruptError when the bytes are others than the Hub announced, DiskError when they do not fit.
        """
        if file.here is not None and is_sound(file.here, file, self.patience.check):
            progress(file.size)
            return file.here
        at = _At(repo_id, sha, file.path)
        target = folder / sha / _safe(at)
        partial = target.with_name(target.name + ".partial")
        with written("a download cannot be written", str(partial)):
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # what lies there is verified again: disks and users change files
                os.replace(target, partial)
            with open(partial, "a+b") as out:
                from_before = out.tell()
                stated, _ = stated_digest(file)
                digest = self._fill(at, file, out, progress)
                if from_before and stated and digest != stated:  # what lay there may be to blame
                    out.truncate(0)
                    digest = self._fill(at, file, out, progress)
                out.flush()
                os.fsync(out.fileno())
        if stated and digest != stated:
            partial.unlink()
            raise _corrupt("a downloaded file does not match its checksum", at, f"{stated[:16]}…", digest)
        with written("a download cannot be written", str(target)):
            os.replace(partial, target)
        return target

    def _fill(self, at: _At, file: FileInfo, out: BinaryIO, progress: Callable[[int], None]) -> str:
        """Complete the partial file `out`; returns the digest of all of it, of the kind that is stated."""
        _, digest = stated_digest(file)
        out.seek(0)
        while chunk := out.read(COPY_BYTES):
            self.patience.check()  # gigabytes may lie there
            digest.update(chunk)
        offset, size = out.tell(), file.size
        if offset > size:
            out.truncate(0)
            offset, (_, digest) = 0, stated_digest(file)
        progress(offset)
        failures, failed_at = 0, offset
        while offset < size:
            try:
                # closed at once when writing fails, so that the connection is not left to the garbage collector
                with closing(self._range(at, offset, size)) as parts:
                    for part in parts:
                        out.write(part)
                        digest.update(part)
                        offset += len(part)
                        progress(len(part))
            except TransientHubError as error:
                # a server that drops the line after every byte is not waited for
                failures = 1 if offset - failed_at >= COPY_BYTES else failures + 1
                failed_at = offset
                self.patience.pause(failures, error)
        return str(digest.hexdigest())

    def _range(self, at: _At, start: int, end: int) -> Generator[bytes, None, None]:
        if start >= end:
            return
        with self._open(at, {"Range": f"bytes={start}-{end - 1}"}) as (response, _):
            wanted = f"bytes {start}-{end - 1}/"
            got = response.headers.get("content-range", "")
            if response.status_code != 206 or not got.startswith(wanted):
                raise HubUnavailableError(
                    "the server did not answer the byte range",
                    where=str(at),
                    expected=f"206 {wanted}…",
                    got=f"{response.status_code} {got[:80]}".strip(),
                    next_step="Run again; if it stays, look for a proxy on the way that drops ranges.",
                )
            size = 0
            for part in _capped(response, end - start, at):
                self.patience.check()
                size += len(part)
                yield part
        if size != end - start:
            raise TransientHubError(
                "the connection closed early", where=str(at), expected=f"{end - start} bytes", got=str(size)
            )

    @contextmanager
    def _open(self, at: _At, headers: Mapping[str, str]) -> Iterator[tuple[Any, str]]:
        """The answer to a download, and the ETag that the endpoint itself states for the file."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils._headers import build_hf_headers
        from huggingface_hub.utils._http import get_session

        self.connect()
        url = hf_hub_url(at.repo_id, at.path, revision=at.sha, repo_type=self.repo_type, endpoint=self.endpoint)
        plain = {"Accept-Encoding": "identity", **headers}
        etag = ""
        own = build_hf_headers(token=self._token, library_name="hubmerge") | plain
        with translated(str(at), pinned=True):
            for _ in range(_MAX_REDIRECTS + 1):
                self._refuse_private_network(url, at)
                sent = own if _origin(url) == _origin(self.endpoint) else plain
                streamed = get_session().stream("GET", url, headers=sent, follow_redirects=False, timeout=_TIMEOUT_S)
                with streamed as response:
                    if sent is own:  # storage elsewhere has ETags of its own making
                        stated = response.headers
                        etag = stated.get("x-linked-etag") or stated.get("etag") or etag
                    if response.is_redirect:
                        url = urljoin(url, response.headers["location"])
                        continue
                    refuse_failure(response)
                    if response.headers.get("content-encoding", "identity") != "identity":
                        raise HubUnavailableError(
                            "the server compresses what must come as it is",
                            where=str(at),
                            got=response.headers["content-encoding"][:40],
                        )
                    yield response, etag
                    return
            raise HubUnavailableError("too many redirects", where=str(at), got=f"more than {_MAX_REDIRECTS}")

    def _refuse_private_network(self, url: str, at: _At) -> None:
        if _origin(url) == _origin(self.endpoint):
            return
        parts = urlsplit(url)
        host = parts.hostname or ""
        if Settings(endpoint=self.endpoint).is_loopback:
            # a Hub on this machine may send us to another port of it, and nowhere else
            if not Settings(endpoint=url).is_loopback:
                raise HubUnavailableError("the local Hub redirects to another machine", where=str(at), got=host)
            return
        if parts.scheme != "https" or not host:
            raise HubUnavailableError("the Hub redirects to something that is not https", where=str(at), got=host)
        if not _is_public(url) and _is_public(self.endpoint):
            raise HubUnavailableError("the Hub redirects into a private network", where=str(at), got=host)


def refuse_failure(response: Any) -> None:
    """Raise the client's error for a status of 400 or more, having read no more than the start of its text."""
    import httpx2
    from huggingface_hub.utils._http import hf_raise_for_status

    if response.status_code < 400:
        return
    body = b""
    # what is compressed stays unread: few bytes could fill the memory
    plain = response.headers.get("content-encoding", "identity") == "identity"
    for part in response.iter_raw(_ERROR_BODY_BYTES) if plain else ():
        body += part
        if len(body) >= _ERROR_BODY_BYTES:
            break
    headers = {k: v for k, v in response.headers.items() if k not in ("content-encoding", "content-length")}
    hf_raise_for_status(
        httpx2.Response(
            response.status_code, headers=headers, content=body[:_ERROR_BODY_BYTES], request=response.request
        )
    )


def _digests(content: bytes, stated: str) -> tuple[str, str]:
    """The digest that an ETag or a name in the client's cache states, and that of `content`, a sha256 or the id of a
    git blob; two equal ones where none is stated, as by the names of a cache without links."""
    match = _DIGEST.fullmatch(stated)
    if match is None:
        return "", ""
    return match[1], hashlib.sha256(content).hexdigest() if len(match[1]) == 64 else blob_id(content)


def is_sound(path: Path, file: FileInfo, check: Callable[[], None]) -> bool:
    """Whether `path` holds the bytes of `file` by size and, where one is stated, digest; `check` may break it off."""
    (stated, digest), size = stated_digest(file), 0
    try:
        with path.open("rb") as opened:
            while chunk := opened.read(COPY_BYTES):
                check()
                digest.update(chunk)
                size += len(chunk)
    except OSError:
        return False
    return size == file.size and stated in (None, digest.hexdigest())


def _corrupt(what: str, at: _At, expected: str, digest: str) -> CorruptError:
    next_step = "Run again; if it stays, the repo is damaged."
    return CorruptError(what, where=str(at), expected=expected, got=f"{digest[:16]}…", next_step=next_step)


def _capped(response: Any, cap: int, at: _At) -> Iterator[bytes]:
    size = 0
    # parts are taken as they come; gathering larger ones would lose the last when the connection breaks
    for part in response.iter_raw():
        size += len(part)
        if size > cap:
            raise FormatError(
                "the server sends more than was asked for", where=str(at), expected=f"{cap} bytes", got="more"
            )
        yield part


def _is_public(url: str) -> bool:
    """Whether all addresses of a URL's host belong to the Internet. A name that only a proxy can look up is taken for
    one of it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        found = socket.getaddrinfo(host, parts.port or 443, proto=socket.IPPROTO_TCP)
    except socket.gaierror:
        if {parts.scheme, "all"} & getproxies().keys() and not proxy_bypass(host):
            return True
        raise
    for info in found:
        address = ipaddress.ip_address(str(info[4][0]).partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        if not mapped.is_global or mapped.is_multicast or address in _NAT64:
            return False
    return True


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or ""), parts.port or (443 if parts.scheme == "https" else 80)


def _safe(at: _At) -> PurePosixPath:
    """The file's path as one that stays below its folder."""
    path, pure = at.path, PurePosixPath(at.path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\\" in path or "\0" in path:
        raise FormatError("a file name that leads elsewhere", where=str(at), got=ascii(path)[:120])
    return pure

"""Requests that change a repo: creating it, uploads ahead of a commit, the commit.

A file's bytes are uploaded to a repo before the commit that names it. Another thread can break a transfer off
(`breakable`). In an upload the client reads the file through an object that raises, or its Xet session is aborted. A
read ends with its next bytes.
"""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from hubmerge.errors import SourceNotFoundError
from hubmerge.hub.errors import TooLateError, translated
from hubmerge.hub.transfer import BreakableFile, HubReading

Answer = TypeVar("Answer")
_WATCHED_EVERY_S = 0.5  # how far an upload to Xet is


class HubWriting(HubReading):
    """The requests that change a repo, beside those that read files; `Hub` inherits them."""

    def _ask(self, where: str, request: Callable[[], Answer], *, writing: bool = False, pinned: bool = False) -> Answer:
        """The answer to a request of the client, with errors in our words, repeated while they may pass."""

        def ask() -> Answer:
            with translated(where, writing=writing, pinned=pinned):
                return request()

        return self.patience.repeat(ask)

    def create_repo(self, repo_id: str, *, private: bool) -> bool:
        """Create the repo unless it exists; an existing repo keeps its visibility.

        True only where the Hub says that this request created it. It is False too where an answer was lost.
        """
        from huggingface_hub.errors import HfHubHTTPError

        def ask() -> bool:
            try:
                self._api.create_repo(repo_id, private=private, repo_type=self.repo_type)
            except HfHubHTTPError as error:
                status = error.response.status_code
                # a token that may not create repos can be one that may write to those that are there
                if status == 409 or (
                    status in (401, 402, 403) and self._api.repo_exists(repo_id, repo_type=self.repo_type)
                ):
                    return False
                raise
            return True

        return self._ask(repo_id, ask, writing=True)

    def preupload(
        self,
        repo_id: str,
        path: Path,
        name: str,
        *,
        sha256: str | None = None,
        sent: Callable[[int], None] | None = None,
    ) -> Any:
        """Upload one file's bytes ahead of the commit; returns the operation that the commit takes.

        Bytes that the Hub already holds are not sent again. `sha256`: of the file where it is known, so that the
        client need not read the file for it. `sent` is told how far into the file the upload is; it may raise to break
        the upload off.
        """
        from huggingface_hub import CommitOperationAdd

        operation = CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(path))
        if sha256 is not None:
            operation.upload_info.sha256 = bytes.fromhex(sha256)

        def upload() -> Any:
            with translated(repo_id, writing=True), self._may_break_off(repo_id, operation, path, sent):
                self._api.preupload_lfs_files(
                    repo_id, additions=[operation], repo_type=self.repo_type, free_memory=False
                )
            return operation

        # the client repeats what else may pass, with the same address
        return self.patience.repeat(upload, TooLateError)

    @contextmanager
    def _may_break_off(
        self, repo_id: str, operation: Any, path: Path, sent: Callable[[int], None] | None
    ) -> Iterator[None]:
        self.patience.check()
        if _goes_to_xet():
            raised: list[BaseException] = []
            try:
                with _watched(path, sent or (lambda position: None), raised):
                    yield
            except (RuntimeError, OSError, KeyboardInterrupt) as error:  # the last: an end that comes at some moments
                if raised:
                    raise raised[0] from None
                self.patience.check()
                if "/xet-write-token/" in str(error):
                    self._ask_for_xet_token(repo_id)
                raise
            if raised:
                raise raised[0]
            return

        def check(position: int) -> None:
            self.patience.check()
            if sent is not None:
                sent(position)

        with BreakableFile(path, check) as file:
            operation.path_or_fileobj = file
            try:
                yield
            finally:
                operation.path_or_fileobj = str(path)

    def _ask_for_xet_token(self, repo_id: str) -> None:
        """Raise the Hub's refusal of a token for Xet with its words, of which hf_xet tells the status alone."""
        from huggingface_hub.utils._http import get_session, hf_raise_for_status

        url = f"{self.endpoint}/api/{self.repo_type}s/{repo_id}/xet-write-token/main"
        hf_raise_for_status(get_session().get(url, headers=self._api._build_hf_headers()))

    def is_uploaded(self, operation: Any) -> bool:
        """Whether the commit needs only the digest of a preuploaded file."""
        return bool(operation._is_uploaded and operation._upload_mode == "lfs")

    def uploaded(self, name: str, size: int, sha256: str) -> Any:
        """The commit's operation for a file whose bytes were preuploaded, without the file."""
        from huggingface_hub import CommitOperationAdd
        from huggingface_hub.lfs import UploadInfo

        operation = CommitOperationAdd(path_in_repo=name, path_or_fileobj=b"")
        operation.upload_info = UploadInfo(size=size, sample=b"", sha256=bytes.fromhex(sha256))
        operation._upload_mode = "lfs"
        operation._is_uploaded = True
        return operation

    def missing_uploads(self, repo_id: str, files: Sequence[tuple[str, int]]) -> set[str]:
        """The files (sha256, size) whose bytes the repo lacks, for example because it was created anew."""
        from huggingface_hub.lfs import UploadInfo, post_lfs_batch_info

        infos = [UploadInfo(size=size, sample=b"", sha256=bytes.fromhex(sha256)) for sha256, size in files]

        def ask() -> set[str]:
            token: Any = self._token  # False, where None would be the login of another Hub
            known, refused, _ = post_lfs_batch_info(infos, token, self.repo_type, repo_id, endpoint=self.endpoint)
            # the Hub answers with what to do about an object: nothing, when it is there
            return {a["oid"] for a in known if a.get("actions")} | {r["oid"] for r in refused}

        try:
            return self._ask(repo_id, ask, writing=True) if infos else set()
        except SourceNotFoundError:
            return {sha256 for sha256, _ in files}

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

        files = [CommitOperationAdd(name, content) for name, content in small]
        with translated(repo_id, writing=True):
            # asked for here, since the client would silently leave out what a .gitignore among them, or there, names
            self._api.preupload_lfs_files(
                repo_id, additions=files, repo_type=self.repo_type, free_memory=False, gitignore_content="\n"
            )
            info = self._api.create_commit(
                repo_id,
                [*operations, *files],
                commit_message=message,
                commit_description=description,
                parent_commit=parent,
                repo_type=self.repo_type,
            )
        return str(info.oid)

    def breakable(self) -> Self:
        """The same Hub for threads whose reads, uploads and pauses another thread can end."""
        twin = copy.copy(self)
        twin.patience = replace(self.patience, stopped=threading.Event())
        return twin

    def hang_up(self) -> None:
        """Begin nothing more, and end what a breakable Hub reads: with the next bytes that come."""
        assert self.patience.stopped is not None
        self.patience.stopped.set()

    def break_off(self) -> None:
        """`hang_up`, and end the upload at its next 64 KiB; call it again until the upload has ended.

        Uploads to Xet use no file object; all of this process end together.
        """
        self.hang_up()
        if _goes_to_xet():
            _abort_xet()


@contextmanager
def _watched(path: Path, sent: Callable[[int], None], raised: list[BaseException]) -> Iterator[None]:
    """Tell `sent` from a thread how far the file is read, since hf_xet tells nobody. What it raises ends all uploads to
    Xet, and stands in `raised`."""
    over = threading.Event()

    def watch() -> None:
        position = 0
        try:
            while not over.wait(_WATCHED_EVERY_S):
                position = max(position, bytes_read(path))  # it is closed before all of it is sent
                sent(position)
        except BaseException as error:  # noqa: BLE001  (it is raised by the upload's own thread)
            raised.append(error)
            _abort_xet()

    watching = threading.Thread(target=watch, name="hubmerge-watch", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _abort_xet() -> None:
    from huggingface_hub.utils._xet import abort_xet_session

    abort_xet_session()  # type: ignore[no-untyped-call]


def bytes_read(path: Path) -> int:
    """How far this process has read into a file that it holds open, whoever opened it; 0 where the system does not
    tell."""
    with suppress(OSError, ValueError, IndexError):
        path = path.resolve()
        for opened in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if opened.readlink() == path:
                    return int(Path("/proc/self/fdinfo", opened.name).read_text().split()[1])
    return 0


def _goes_to_xet() -> bool:
    """Whether the client uploads through hf_xet, which takes paths and no file objects."""
    from huggingface_hub.utils._runtime import is_xet_available

    return bool(is_xet_available())

"""The one door to the Hub: every request of hubmerge goes through `Hub`, and every answer is typed.

Only the modules of this room import the client, huggingface_hub: this one, writing.py (requests that change a repo),
transfer.py (bytes of files, read by hand because the answers are not trusted) and errors.py (the client's errors in our
words, and which of them are worth a retry).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from hubmerge.errors import FormatError, HubUnavailableError, LoginError
from hubmerge.hub.cache import ClientCache
from hubmerge.hub.errors import (
    WINDOW_S,
    Patience,
    asked_pause_s,
    checked_endpoint,
    checked_token,
    quiet_client,
)
from hubmerge.hub.names import FileInfo, is_hub_id, is_sha, stated_license
from hubmerge.hub.names import RepoState as RepoState
from hubmerge.hub.transfer import refuse_failure
from hubmerge.hub.writing import Answer, HubWriting
from hubmerge.settings import DEFAULT_ENDPOINT, Settings, ask_this_machine_directly, limit_uploads

if TYPE_CHECKING:
    from huggingface_hub import HfApi

RepoType = Literal["model", "dataset"]
CONNECT_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 300.0  # a commit of many files is answered when it is done
MAX_FILES = 100_000  # of a repo; the Hub advises against more
MAX_COMMITS = 1000  # of a repo's history that one question looks through
MAX_REFS = 10  # branches and tags of a repo whose histories one question looks through

_one_thread = threading.Lock()


@dataclass(frozen=True)
class RepoSummary:
    """One line of a search."""

    id: str
    downloads: int
    likes: int
    tags: tuple[str, ...]
    last_modified: str


@dataclass(frozen=True)
class Candidate:
    """A model that a search by lineage found, at the head of its main branch."""

    id: str
    sha: str
    tags: tuple[str, ...]
    private: bool
    gated: bool


@dataclass(frozen=True)
class TreeFile:
    """A file as a commit's tree names it."""

    path: str
    size: int  # bytes
    oid: str  # git blob id; of the pointer where the content is in LFS
    sha256: str | None  # of the content, where it is in LFS


@dataclass(frozen=True)
class Identity:
    """The owner of a token, and where the token may write."""

    name: str
    namespaces: tuple[str, ...]
    may_write: bool = True  # False for a token of the role `read`; what a fine-grained one may do, only a try tells


class Hub(HubWriting):
    """The repos of one type on the Hub at `endpoint`, read with `token`, or with the token that `login` finds, or
    anonymously."""

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        token: str | None = None,
        *,
        patience: Patience | None = None,
        repo_type: RepoType = "model",
        login: Callable[[], str | None] = lambda: None,
        cache: ClientCache | None = None,
    ) -> None:
        self.endpoint = checked_endpoint(endpoint)
        self.repo_type: RepoType = repo_type
        self._given = checked_token(token)
        self._login = login
        self._cache = cache
        self.patience = patience or Patience()

    @cached_property
    def _token(self) -> str | bool:  # type: ignore[override]
        """The token, looked up at the first request. False: anonymous, even if the client would find a token."""
        return self._given or checked_token(self._login()) or False

    @cached_property
    def _api(self) -> "HfApi":  # type: ignore[override]
        """The client, loaded at the first request; a merge of local folders makes none."""
        from huggingface_hub import HfApi, constants

        if Settings(endpoint=self.endpoint).is_loopback:
            constants.HF_HUB_DISABLE_XET = True  # the embedded Hub speaks plain LFS
        ask_this_machine_directly()
        _limit_waiting()
        limit_uploads()
        return HfApi(endpoint=self.endpoint, token=self._token, library_name="hubmerge")

    @property
    def datasets(self) -> "Hub":
        """The same Hub with the same token, for dataset repos."""
        return Hub(self.endpoint, self.token, patience=self.patience, repo_type="dataset")

    @property
    def token(self) -> str | None:
        """The token, for libraries that talk to the Hub by themselves (datasets)."""
        return self._token if isinstance(self._token, str) else None

    def __repr__(self) -> str:
        return f"Hub({self.endpoint!r}, token={'set' if self._given else 'none'})"

    # --- reading -----------------------------------------------------------------------------------------

    def whoami(self) -> Identity:
        """The token's user; LoginError when there is none or it is no longer valid."""
        if not self._token:
            raise LoginError(
                f"you are not signed in at {self.endpoint}",
                expected="a token that may write",
                got="none",
                next_step="Sign in: in the app, with HF_TOKEN, or at huggingface.co with `hf auth login`.",
            )

        def ask() -> Identity:
            answer = self._api.whoami()
            roles = (None, "admin", "write", "contributor")
            orgs = [o for o in answer.get("orgs", []) if o.get("roleInOrg") in roles]
            role = ((answer.get("auth") or {}).get("accessToken") or {}).get("role")
            return Identity(answer["name"], (answer["name"], *(o["name"] for o in orgs)), role != "read")

        return self._ask(self.endpoint, ask)

    def repo_state(self, repo_id: str, revision: str | None = None) -> RepoState:
        """The repo at `revision` (default branch if None), its files with sizes and LFS hashes."""
        from huggingface_hub import is_offline_mode
        from huggingface_hub.utils._http import get_session, hf_raise_for_status
        from huggingface_hub.utils._validators import validate_repo_id

        where = f"{repo_id}@{revision}" if revision else repo_id
        pinned = is_sha(revision)
        if self._cache is not None and is_offline_mode():
            return self._cache.state(repo_id, revision)

        def ask() -> RepoState:
            validate_repo_id(repo_id)
            at = f"/revision/{quote(revision, safe='')}" if revision else ""
            url = f"{self.endpoint}/api/{self.repo_type}s/{repo_id}{at}"
            # the client's own repo_info fails at a card whose model-index or tags are not what it expects
            headers = self._api._build_hf_headers()  # first, since loading the client closes its sessions
            answer = get_session().get(url, headers=headers, params={"blobs": True})
            hf_raise_for_status(answer)
            info = answer.json()
            id, sha = info.get("id"), info.get("sha")
            if not is_sha(sha) or not is_hub_id(id):
                raise HubUnavailableError("the Hub states no commit", where=where, got=ascii((id, sha))[:120])
            if pinned and sha != revision:
                what = "the Hub states another commit"
                raise HubUnavailableError(what, where=where, expected=str(revision), got=sha)
            listed = info.get("siblings") or ()
            if len(listed) > MAX_FILES:
                raise FormatError("too many files in a repo", where=where, expected=f"at most {MAX_FILES}")
            files = {f.path: replace(f, here=self._here(id, sha, f.path, f.size)) for f in map(_file_info, listed)}
            card = stated if isinstance(stated := info.get("cardData"), dict) else {}
            private, gated = bool(info.get("private")), bool(info.get("gated"))
            return RepoState(id, sha, files, private, gated, stated_license(card), card)

        return self._ask(where, ask, pinned=pinned)

    def head(self, repo_id: str) -> str:
        """The commit that main stands at, and nothing else of the repo."""

        def ask() -> str:
            sha = self._api.repo_info(repo_id, repo_type=self.repo_type, expand="sha").sha
            if not is_sha(sha):
                raise HubUnavailableError("the Hub states no commit", where=repo_id, got=ascii(sha)[:120])
            return str(sha)

        return self._ask(repo_id, ask)

    def tree(self, repo_id: str, sha: str) -> Mapping[str, TreeFile]:
        """Every file of a commit by path; for repos of many small files, which `repo_state` lists slowly."""

        def ask() -> dict[str, TreeFile]:
            found: Any = self._api.list_repo_tree(repo_id, recursive=True, revision=sha, repo_type=self.repo_type)
            files = (entry for entry in found if hasattr(entry, "blob_id"))
            return {f.path: TreeFile(f.path, f.size, f.blob_id, f.lfs.sha256 if f.lfs else None) for f in files}

        return self._ask(f"{repo_id}@{sha}", ask, pinned=True)

    def search_models(self, text: str, limit: int = 10, *, tags: Sequence[str] = ()) -> list[RepoSummary]:
        """Models whose id holds `text` and that carry all `tags`, most downloaded first."""

        def read(m: Any) -> RepoSummary:
            return RepoSummary(m.id, m.downloads or 0, m.likes or 0, tuple(m.tags or ()), str(m.last_modified or ""))

        return self._models(read, search=text or None, filter=list(tags) or None, sort="downloads", limit=limit)

    def _models(self, read: Callable[[Any], Answer], **query: Any) -> list[Answer]:
        return self._ask("the search", lambda: [read(m) for m in self._api.list_models(**query) if is_hub_id(m.id)])

    def find_models(self, *, tags: Sequence[str] = (), author: str | None = None, limit: int = 1000) -> list[Candidate]:
        """Models that carry all `tags` (`base_model:finetune:org/base`, for instance), last changed first."""

        def read(m: Any) -> Candidate:
            return Candidate(m.id, m.sha or "", tuple(m.tags or ()), bool(m.private), bool(m.gated))

        expand = ["sha", "lastModified", "tags", "private", "gated"]
        wanted = {"filter": list(tags) or None, "author": author, "limit": limit}
        return self._models(read, sort="last_modified", expand=expand, **wanted)

    def find_commit(self, repo_id: str, needle: str) -> str | None:
        """The sha of the newest commit on main whose title holds `needle`."""

        def ask() -> str | None:
            commits = self._api.list_repo_commits(repo_id, repo_type=self.repo_type)
            return next((str(commit.commit_id) for commit in commits if needle in commit.title), None)

        return self._ask(repo_id, ask)

    def is_on_branch_or_tag(self, repo_id: str, sha: str) -> bool:
        """Whether a branch or a tag holds a commit. One that none holds may be of a pull request, which anybody opens.

        Looks through the histories of MAX_REFS of them.
        """

        def ask() -> bool:
            refs = self._api.list_repo_refs(repo_id, repo_type=self.repo_type)
            heads = [ref.target_commit for ref in (*refs.branches, *refs.tags)]
            histories = (commit["id"] for head in heads[:MAX_REFS] for commit in self._history(repo_id, head))
            return sha in heads or sha in histories

        return self._ask(repo_id, ask)

    def _history(self, repo_id: str, sha: str) -> Iterator[Any]:
        """The newest MAX_COMMITS commits up to `sha`, as the Hub tells them."""
        from huggingface_hub.utils._headers import build_hf_headers
        from huggingface_hub.utils._pagination import paginate

        headers = build_hf_headers(token=self._token, library_name="hubmerge")
        url = f"{self.endpoint}/api/{self.repo_type}s/{repo_id}/commits/{sha}"
        return islice(paginate(url, params={}, headers=headers), MAX_COMMITS)

    def url(self, repo_id: str) -> str:
        return f"{self.endpoint}/{'datasets/' if self.repo_type == 'dataset' else ''}{repo_id}"


def _file_info(sibling: Any) -> FileInfo:
    sha256 = sibling["lfs"]["sha256"] if sibling.get("lfs") else None
    found = FileInfo(sibling["rfilename"], sibling.get("size") or 0, sha256, blob=sibling.get("blobId"))
    if not (isinstance(found.path, str) and isinstance(found.size, int) and isinstance(found.sha256, str | None)):
        raise TypeError("a file without a name, a size or a digest")
    return found


def eval_results(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The content of an `.eval_results/*.yaml` file; the entries have the client's names (`EvalResultEntry`)."""
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    return eval_result_entries_to_yaml([EvalResultEntry(**entry) for entry in entries])


def _limit_waiting() -> None:
    """Give the client timeouts, since it waits for ever by default.

    This is done once, as it closes connections: a thread that asks just then finds no client. Neither `cache` nor
    `cached_property` keeps several threads from beginning at once, the latter since Python 3.12.
    """
    with _one_thread:
        _set_timeouts()


@cache
def _set_timeouts() -> None:
    import httpx2
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory
    from huggingface_hub.utils.tqdm import disable_progress_bars

    def limit(request: httpx2.Request) -> None:
        # several of the client's questions ask outright to wait for ever
        longest = httpx2.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S).as_dict()
        asked = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {**longest, **{name: s for name, s in asked.items() if s is not None}}

    def refuse_long_pause(response: httpx2.Response) -> None:
        # the client would sleep for whatever a server asks for, before each of several more tries
        if (asked_pause_s(response.headers) or 0.0) > WINDOW_S:
            refuse_failure(response)

    def new_client() -> httpx2.Client:
        made = default_client_factory()
        hooks = made.event_hooks
        made.event_hooks = {"request": [*hooks["request"], limit], "response": [*hooks["response"], refuse_long_pause]}
        return made

    set_client_factory(new_client)
    quiet_client()
    disable_progress_bars()  # how far it is, our own observers tell

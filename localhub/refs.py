"""Branches, tags, history, and the rewriting of history: super-squash and the removal of large files."""

import re

from starlette.responses import Response

from localhub import webhooks
from localhub.access import Repo
from localhub.commits import Operation, apply, commit_ref
from localhub.http_errors import bad_request, conflict, forbidden, revision_not_found
from localhub.protocol import Call, Json, Router, list_of, optional_text, text_of
from localhub.repos import commit_to
from localhub.tree import MAIN, Message

router = Router()
_REF_NAME = re.compile(
    r"(?!.*(?:\.\.|//|@\{|/\.|\.lock(?:/|$)))[^\x00-\x20\x7f~^:?*\[\\/.-][^\x00-\x20\x7f~^:?*\[\\]*(?<![/.])"
)
_COMMITS_PER_PAGE = 50


def _is_ref_name(name: str) -> bool:
    """Whether git would take it, and it reads like no commit and no ref of another kind."""
    return bool(_REF_NAME.fullmatch(name)) and not re.match(r"refs/|(?:HEAD|[0-9a-fA-F]{40})\Z", name)


@router.on("GET", "/api/{T}/{id}/refs")
def list_refs(call: Call) -> Json:
    repo = call.readable()
    kinds = {"branches": "refs/heads/", "converts": "refs/convert/", "tags": "refs/tags/"}
    if call.flag("include_prs"):
        kinds["pullRequests"] = "refs/pr/"
    found: dict[str, list[Json]] = {kind: [] for kind in kinds}
    for ref, sha in _refs(call, repo).items():
        for kind, prefix in kinds.items():
            if ref.startswith(prefix):
                found[kind].append({"name": ref.removeprefix(prefix), "ref": ref, "targetCommit": sha})
    return found


def _refs(call: Call, repo: Repo) -> dict[str, str]:
    """The head of every ref, main first."""
    rows = call.store.rows("SELECT name, sha FROM refs WHERE repo = ? ORDER BY name != ?, name", repo.id, MAIN)
    return {row["name"]: row["sha"] for row in rows}


def _add_ref(call: Call, repo: Repo, ref: str, sha: str, message: str | None = None) -> Json:
    if call.hub.trees.head(repo.id, ref):
        raise conflict(f"Reference {ref} already exists")
    call.store.change("INSERT INTO refs VALUES (?, ?, ?, ?)", repo.id, ref, sha, message)
    webhooks.queue_refs(call.hub, repo, ref, None, sha)
    return {}


def _drop_ref(call: Call, repo: Repo, ref: str, shown: str) -> Json:
    sha = call.hub.trees.head(repo.id, ref)
    if sha is None:
        raise revision_not_found(shown)
    call.store.change("DELETE FROM refs WHERE repo = ? AND name = ?", repo.id, ref)
    webhooks.queue_refs(call.hub, repo, ref, sha, None)
    return {}


@router.on("POST", "/api/{T}/{id}/branch/{branch}")
def create_branch(call: Call) -> Json:
    repo, branch, body = call.writable(), call.parts["branch"], call.json()
    if not _is_ref_name(branch):
        raise bad_request("Invalid reference for a branch")
    if body.get("emptyBranch"):
        raise bad_request("this Hub makes no empty branches")
    sha = call.hub.trees.resolve(repo.id, optional_text(body, "startingPoint") or "main")
    return _add_ref(call, repo, f"refs/heads/{branch}", sha)


@router.on("DELETE", "/api/{T}/{id}/branch/{branch}")
def delete_branch(call: Call) -> Json:
    repo, branch = call.writable(), call.parts["branch"]
    if f"refs/heads/{branch}" == MAIN:
        raise forbidden(f"Cannot delete {MAIN}")
    return _drop_ref(call, repo, f"refs/heads/{branch}", branch)


@router.on("POST", "/api/{T}/{id}/tag/{rev}")
def create_tag(call: Call) -> Json:
    repo, body = call.writable(), call.json()
    sha = call.commit_of(repo)
    tag = text_of(body, "tag")
    if not _is_ref_name(tag):
        raise bad_request(f"Invalid tag name: {tag!r}")
    return _add_ref(call, repo, f"refs/tags/{tag}", sha, optional_text(body, "message"))


@router.on("DELETE", "/api/{T}/{id}/tag/{tag}")
def delete_tag(call: Call) -> Json:
    return _drop_ref(call, call.writable(), f"refs/tags/{call.parts['tag']}", call.parts["tag"])


@router.on("GET", "/api/{T}/{id}/commits/{rev}")
def list_commits(call: Call) -> Response:
    repo = call.readable()
    sha = call.commit_of(repo)
    start, size = call.window(_COMMITS_PER_PAGE)
    commits = call.hub.trees.history(repo.id, sha, start=start, limit=size + 1)
    formatted = "formatted" in call.query.get("expand[]", []) + call.query.get("expand", [])
    items: list[Json] = []
    for commit in commits[:size]:
        words = {"title": commit.title, "message": commit.description}
        authors = [{"user": commit.author, "avatar": ""}]
        item = {"id": commit.sha, **words, "authors": authors, "date": commit.date}
        items.append(item | {"formatted": words} if formatted else item)
    return call.page(items, more=len(commits) > size)


@router.on("POST", "/api/{T}/{id}/super-squash/{ref}")
def super_squash(call: Call) -> Json:
    """Replace the history of a branch or pull request by one commit with the same files."""
    repo = call.writable()
    message = optional_text(call.json(), "message") or "Super-squash branch"
    title, _, description = message.partition("\n")
    ref, head = commit_ref(call.hub, repo, call.parts["ref"])
    files = {path: entry.file for path, entry in call.hub.trees.at(repo.id, head).items()}
    squashed = Message(title, call.signed_in().user.name, description.strip())
    sha = commit_to(call.hub, repo, files, squashed, ref=ref, parent=None)
    webhooks.queue_refs(call.hub, repo, ref, head, sha)
    return {}


@router.on("GET", "/api/{T}/{id}/lfs-files")
def list_lfs_files(call: Call) -> Response:
    """The large files at the head of any branch or pull request, main first, each once."""
    repo = call.writable()
    found: dict[str, Json] = {}
    for ref, sha in _refs(call, repo).items():
        for path, entry in call.hub.trees.at(repo.id, sha).items():
            if oid := entry.sha256:
                file = {"fileOid": oid, "filename": path, "oid": oid, "ref": ref, "size": entry.size}
                found.setdefault(oid, {**file, "pushedAt": repo.modified_at})
    files = list(found.values())
    start, size = call.window(1000)
    return call.page(files[start : start + size], more=start + size < len(files))


@router.on("POST", "/api/{T}/{id}/lfs-files/batch")
def delete_lfs_files(call: Call) -> Json:
    """Delete large files from every branch and pull request that holds them; earlier commits have them no more."""
    repo, me = call.writable(), call.signed_in()
    deletions = call.json().get("deletions")
    doomed = {*map(str, list_of(deletions, "sha"))} if isinstance(deletions, dict) else None
    if not doomed:
        raise bad_request("deletions.sha must be a list of file ids")
    for ref, head in _refs(call, repo).items():
        if not ref.startswith("refs/tags/"):
            tree = call.hub.trees.at(repo.id, head)
            gone = [Operation(path, None) for path, entry in tree.items() if entry.sha256 in doomed]
            apply(call.hub, repo, gone, Message("Delete LFS files", me.user.name), ref=ref, head=head)
    for sha256 in doomed:
        call.store.change("DELETE FROM repo_objects WHERE repo = ? AND sha256 = ?", repo.id, sha256)
    return {}

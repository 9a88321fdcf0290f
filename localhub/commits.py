"""Commits: card validation, preupload, and the commit itself.

A commit arrives as lines of JSON: a header, then files, large files by digest, and deletions, whose order
matters. The contents become blobs first, outside of any transaction; then one transaction compares the head
with the expected parent, applies the operations to the head's tree, writes the commit, moves the ref and
queues the webhooks. A mistake in any line leaves the repo as it was.
"""

import base64
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from starlette.responses import JSONResponse, Response

from localhub import webhooks, xet
from localhub.access import Repo, can_take_part, can_write, require_write
from localhub.cards import card_problems
from localhub.discussions import add_event, open_discussion
from localhub.http_errors import HubError, bad_request, entry_not_found, forbidden, revision_not_found, unprocessable
from localhub.lfs import has
from localhub.patterns import MOST_CHARACTERS, check_work, decide, ignore_rules, lfs_rules
from localhub.protocol import Call, Hub, Json, Router, items_of, optional_text, optional_whole, parse_json, text_of
from localhub.repos import commit_to
from localhub.store import Store, git_blob_sha1, lfs_pointer
from localhub.tree import File, Message, Tree, check_path, folders
from localhub.users import Identity

router = Router()
SAMPLE_BYTES = 512
_NAMED = 10
_MOST_LINES = 100_000
_MOST_FILES = 1000  # the client asks for 256
_STALE_PARENT = "The branch was updated since you opened this page. Please refresh and try again."


@router.on("POST", "/api/validate-yaml", atomic=False)
def validate_yaml(call: Call) -> Response:
    errors, warnings = card_problems(text_of(call.json(), "content"))
    found = {"errors": errors, "warnings": warnings}
    body: Json = {kind: [{"message": message} for message in messages] for kind, messages in found.items()}
    if errors:
        body["error"] = "\n".join(f"- Error: {message}" for message in errors)
    return JSONResponse(body, 400 if errors else 200)


def commit_ref(hub: Hub, repo: Repo, revision: str) -> tuple[str, str]:
    """The branch or pull request that a commit may extend, and its head."""
    for ref in (f"refs/heads/{revision}", revision):
        if ref.startswith(("refs/heads/", "refs/pr/")) and (head := hub.trees.head(repo.id, ref)):
            return ref, head
    raise revision_not_found(revision)


def _may_commit(call: Call, repo: Repo, ref: str, *, create_pr: bool) -> Identity:
    """The caller, who may write to the repo, open a pull request, or add to their own one."""
    me = call.signed_in()
    if create_pr and not can_write(call.users, me, repo) and not can_take_part(me):
        raise forbidden("This token may not open pull requests")
    own = "SELECT 1 FROM discussions WHERE repo = ? AND author = ? AND 'refs/pr/' || num = ?"
    if not create_pr and not (can_take_part(me) and call.store.row(own, repo.id, me.user.name, ref)):
        require_write(call.users, me, repo)
    return me


@router.on("POST", "/api/{T}/{id}/preupload/{rev}", atomic=False)
def preupload(call: Call) -> Json:
    repo = call.readable()
    ref, head = commit_ref(call.hub, repo, call.parts["rev"])
    _may_commit(call, repo, ref, create_pr=call.flag("create_pr"))
    body, tree = call.json(), call.hub.trees.at(repo.id, head)

    def stored(path: str) -> str:
        entry = tree.get(path)
        if entry is None or entry.sha256:
            return ""
        with call.store.git_path(entry.oid).open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_CHARACTERS // 2)

    files = items_of(body, "files")
    if len(files) > _MOST_FILES:
        raise bad_request(f"At most {_MOST_FILES} files at a time")
    attributes, ignoring = stored(".gitattributes"), optional_text(body, "gitIgnore") or stored(".gitignore")
    check_work(attributes + ignoring, [text_of(item, "path") for item in files])
    large, ignored = lfs_rules(attributes), ignore_rules(ignoring)
    answers: list[Json] = []
    for item in files:
        path, size = check_path(text_of(item, "path")), optional_whole(item, "size")
        if size is None:
            raise bad_request("size must be a number")
        sample = _base64(text_of(item, "sample"))
        is_large = decide(large, path) or size > call.hub.limits.regular_bytes or is_binary(sample)
        answer: Json = {"path": path, "uploadMode": "lfs" if is_large else "regular"}
        answer |= {"shouldIgnore": decide(ignored, path), "oid": tree[path].etag if path in tree else None}
        answers.append(answer)
    return {"files": answers}


@dataclass(frozen=True)
class Operation:
    """One line of a commit: a file at a path, or its deletion."""

    path: str
    file: File | None
    folder: bool = False


@router.on("POST", "/api/{T}/{id}/commit/{rev}", body="large")
def commit(call: Call) -> Json:
    repo = call.readable()
    create_pr = call.flag("create_pr")
    ref, _ = commit_ref(call.hub, repo, call.parts["rev"])
    me = _may_commit(call, repo, ref, create_pr=create_pr)
    header, operations = _parse(call, repo, call.body)
    title, _, rest = text_of(header, "summary").partition("\n")
    description = "\n\n".join(filter(None, (rest.strip(), optional_text(header, "description"))))
    parent = optional_text(header, "parentCommit") or ""
    with call.store.write():
        _, head = commit_ref(call.hub, repo, call.parts["rev"])
        pull_request: int | None = None
        if create_pr:
            head = call.hub.trees.resolve(repo.id, parent) if parent else head
            pull_request = open_discussion(call.hub, repo, me, title, description, base=ref, head=head)
            ref = f"refs/pr/{pull_request}"
        elif parent and not head.startswith(parent.lower()):
            raise HubError(412, _STALE_PARENT)
        message = Message(title, me.user.name, description)
        sha = apply(call.hub, repo, operations, message, ref=ref, head=head, announce=not create_pr)
    page = f"{call.endpoint}/{repo.path}"
    answer: Json = {"success": True, "commitOid": sha, "commitUrl": f"{page}/commit/{sha}", "hookOutput": ""}
    if pull_request is not None:
        answer["pullRequestUrl"] = f"{page}/discussions/{pull_request}"
    return answer


def apply(
    hub: Hub,
    repo: Repo,
    operations: list[Operation],
    message: Message,
    *,
    ref: str,
    head: str,
    announce: bool = True,
) -> str:
    """Commit operations on top of `head`; one that changes nothing makes no commit."""
    changes = _changes(hub.trees.at(repo.id, head), operations)
    if not changes:
        return head
    sha = commit_to(hub, repo, changes, message, ref=ref, parent=head)
    if ref.startswith("refs/pr/"):
        subject = {"subject": message.title, "oid": sha}
        add_event(hub, repo, int(ref.removeprefix("refs/pr/")), "commit", message.author, subject)
    webhooks.queue_refs(hub, repo, ref, head if announce else None, sha)
    return sha


def _parse(call: Call, repo: Repo, body: IO[bytes]) -> tuple[Json, list[Operation]]:
    """The header and the operations of a commit; the contents of its files are stored on the way."""
    header: Json | None = None
    operations: list[Operation] = []
    binary: list[str] = []
    for key, value in _lines(body, call.hub.limits.line_bytes):
        if key == "header":
            header = value
            continue
        path = text_of(value, "path")
        if key == "file":
            text = text_of(value, "content")
            content = _base64(text) if value.get("encoding") == "base64" else text.encode()
            if len(content) > call.hub.limits.regular_bytes:
                raise unprocessable(f"{path} is too large for a regular file; upload it with LFS")
            if is_binary(content):
                binary.append(path)
            errors = card_problems(content.decode("utf-8", "replace"))[0] if path == "README.md" else ()
            if errors:
                listed = "\n".join(f"- {message}" for message in errors)
                raise bad_request(f"Invalid metadata in README.md.\n{listed}")
            operations.append(Operation(check_path(path), File(call.store.put_git(content), len(content))))
        elif key == "lfsFile":
            operations.append(Operation(check_path(path), _large_file(call.store, repo, value)))
        elif key in ("deletedFile", "deletedFolder"):
            operations.append(Operation(path.rstrip("/"), None, folder=key == "deletedFolder" or path.endswith("/")))
        else:
            raise bad_request(f"Unknown key {key!r}: add a line with `file`, `lfsFile` or `deletedFile`")
    if header is None:
        raise bad_request("The commit has no header")
    if binary:
        named = ", ".join(binary[:_NAMED]) + (f" and {len(binary) - _NAMED} more" if len(binary) > _NAMED else "")
        raise bad_request(
            "Your commit was rejected because it contains binary files as regular ones. Upload them with LFS or Xet,"
            f" as `hf upload` does. Offending files: {named}"
        )
    return header, operations


def is_binary(content: bytes) -> bool:
    """Whether a file is none of text, by the beginning that a client sends ahead for it."""
    return b"\0" in content[:SAMPLE_BYTES]


def _lines(body: IO[bytes], limit: int) -> Iterator[tuple[str, Json]]:
    count = 0
    while line := body.readline(limit + 1):
        count += 1
        if count > _MOST_LINES:
            raise HubError(413, f"A commit has at most {_MOST_LINES} lines; make several")
        if len(line) > limit:
            raise HubError(413, f"A line of a commit has at most {limit} bytes; upload large files with LFS")
        if not line.strip():
            continue
        item = parse_json(line)
        value = item.get("value") if isinstance(item, dict) else None
        if not isinstance(value, dict):
            raise bad_request("Every line must be JSON with a key and a value")
        yield text_of(item, "key"), value


def _base64(content: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except ValueError as error:
        raise bad_request("The content is not base64") from error


def _large_file(store: Store, repo: Repo, value: Json) -> File:
    sha256 = text_of(value, "oid")
    if not has(store, repo.id, sha256) and not xet.take(store, repo, sha256):
        raise unprocessable(f"The LFS object {sha256} was not uploaded to {repo.full_name}")
    size = store.lfs_path(sha256).stat().st_size
    return File(git_blob_sha1(lfs_pointer(sha256, size)), size, sha256)


def _changes(tree: Tree, operations: list[Operation]) -> dict[str, File | None]:
    """The changes that the operations, in order, make in the tree."""
    before = {path: entry.file for path, entry in tree.items()}
    working = dict(before)
    touched: dict[str, None] = {}
    below: dict[str, dict[str, None]] = defaultdict(dict)  # by folder, what is or was in it: many may be deleted
    for path in (*working, *(operation.path for operation in operations if operation.file is not None)):
        for folder in folders([path]):
            below[folder][path] = None
    for operation in operations:
        path = operation.path
        if operation.file is not None:
            working[path] = operation.file
            touched[path] = None
            continue
        whole = path in working and not operation.folder
        gone = [path] if whole else [known for known in below.get(path, ()) if known in working]
        if not gone:
            raise entry_not_found(f"A file with this name doesn't exist: {path}")
        for known in gone:
            del working[known]
            touched[known] = None
    if clash := sorted(folders(working) & working.keys()):
        raise unprocessable(f"{clash[0]} cannot be a file and a folder")
    return {path: working.get(path) for path in touched if working.get(path) != before.get(path)}

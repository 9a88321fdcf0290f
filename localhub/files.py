"""Reading files: tree listings, paths-info, and downloads with ranges.

Downloads answer directly, without a redirect: ETag is the git blob id or the sha256, so a client cache
keyed by it is content-addressed, and `X-Repo-Commit` names the commit that the revision meant. What users
uploaded is never served as a page that could run scripts next to the sign-in form.
"""

import hashlib
import mimetypes
from collections import defaultdict
from sqlite3 import Row
from urllib.parse import quote

from starlette.responses import FileResponse, RedirectResponse, Response

from localhub.access import Repo
from localhub.http_errors import entry_not_found
from localhub.protocol import Call, Json, Router
from localhub.store import lfs_pointer
from localhub.tree import Entry, Tree, folders

router = Router()
_PAGE, _EXPANDED_PAGE = 1000, 50
_SAFE_TYPES = (
    *("image/png", "image/svg+xml", "image/jpeg", "image/gif", "image/webp"),
    *("application/json", "application/pdf"),
)


class _BlobResponse(FileResponse):
    chunk_size = 1024 * 1024


def tree_ids(tree: Tree) -> dict[str, str]:
    """The git tree id of every folder, by path; the root is ""."""
    children: dict[str, list[tuple[bytes, bytes]]] = defaultdict(list)

    def add(path: str, mode: bytes, oid: str) -> None:
        parent, _, name = path.rpartition("/")
        # git sorts a folder as if its name ended in a slash
        order = name.encode() + (b"/" if mode == b"40000" else b"")
        children[parent].append((order, mode + b" " + name.encode() + b"\0" + bytes.fromhex(oid)))

    for path, entry in tree.items():
        add(path, b"100644", entry.oid)
    ids: dict[str, str] = {}
    for folder in sorted({*folders(tree), ""}, key=lambda path: (-path.count("/"), path == "", path)):
        body = b"".join(line for _, line in sorted(children[folder]))
        ids[folder] = hashlib.sha1(b"tree %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
        if folder:
            add(folder, b"40000", ids[folder])
    return ids


def lfs_info(entry: Entry, key: str) -> Json:
    """The description of a large file; its hash is `oid` in trees and `sha256` among siblings."""
    sha256 = entry.sha256 or ""
    return {key: sha256, "size": entry.size, "pointerSize": len(lfs_pointer(sha256, entry.size))}


def _entries(call: Call, repo: Repo, tree: Tree, paths: list[str], *, expand: bool) -> list[Json]:
    """The JSON of files and folders, in the order of `paths`."""
    ids = tree_ids(tree) if any(path not in tree for path in paths) else {}
    last: dict[str, Row] = {}  # by path, the commit that changed it or something below it
    if expand:
        changed: dict[str, list[str]] = defaultdict(list)
        for path, file in tree.items():
            changed[file.commit].append(path)
        # in the order in which they came, whatever the clock said at each
        for row in call.store.rows("SELECT sha, title, date FROM commits WHERE repo = ? ORDER BY rowid", repo.id):
            found = changed.get(row["sha"], [])
            last |= dict.fromkeys([*found, *folders(found)], row)
    items: list[Json] = []
    for path in paths:
        entry = tree.get(path)
        item: Json
        if entry is None:
            item = {"type": "directory", "oid": ids[path], "size": 0, "path": path}
        else:
            item = {"type": "file", "oid": entry.oid, "size": entry.size, "path": path}
            if entry.sha256:
                item["lfs"] = lfs_info(entry, "oid")
        if expand:
            item["lastCommit"] = {"id": last[path]["sha"], "title": last[path]["title"], "date": last[path]["date"]}
            if entry:
                unscanned = {"status": "unscanned"}
                item["securityFileStatus"] = {**unscanned, "avScan": unscanned, "pickleImportScan": unscanned}
        items.append(item)
    return items


@router.on("GET", "/api/{T}/{id}/tree/{rev}")
@router.on("GET", "/api/{T}/{id}/tree/{rev}/{path*}")
def list_tree(call: Call) -> Response:
    repo, folder = call.readable(), call.parts.get("path", "").strip("/")
    sha = call.commit_of(repo)
    tree = call.hub.trees.at(repo.id, sha)
    prefix = f"{folder}/" if folder else ""
    known = {*tree, *folders(tree)}
    if folder and (folder not in known or folder in tree):
        raise entry_not_found(f'{folder} does not exist on "{call.parts["rev"]}"', commit=sha)
    recursive, expand = call.flag("recursive"), call.flag("expand")
    paths = sorted(path for path in known if path.startswith(prefix) and (recursive or "/" not in path[len(prefix) :]))
    most = _EXPANDED_PAGE if expand else _PAGE
    start, size = call.window(most, most=most)
    items = _entries(call, repo, tree, paths[start : start + size], expand=expand)
    return call.page(items, more=start + size < len(paths))


@router.on("POST", "/api/{T}/{id}/paths-info/{rev}", atomic=False)
def paths_info(call: Call) -> list[Json]:
    """The same entries for named paths; what does not exist is left out."""
    repo = call.readable()
    form = call.form()
    wanted, expand = form.get("paths", []), form.get("expand", ["false"])[-1].lower() == "true"
    tree = call.hub.trees.at(repo.id, call.commit_of(repo))
    known = {*tree, *folders(tree)}
    return _entries(call, repo, tree, [path for path in wanted if path in known], expand=expand)


@router.on("GET", "/{P}{id}/resolve/{rev}/{path*}")
def resolve(call: Call) -> Response:
    repo = call.readable()
    if repo.full_name.lower() != call.parts["id"].lower():
        revision = quote(call.parts["rev"], safe="")
        return RedirectResponse(f"/{repo.path}/resolve/{revision}/{quote(call.parts['path'])}", 307)
    call.require_files(repo)
    sha, path = call.commit_of(repo), call.parts["path"]
    entry = call.hub.trees.at(repo.id, sha).get(path)
    kept = "SELECT 1 FROM repo_objects WHERE repo = ? AND sha256 = ?"  # a large one may have been deleted for good
    if entry is None or (entry.sha256 and not call.store.row(kept, repo.id, entry.sha256)):
        raise entry_not_found(f"Entry not found: {path}", commit=sha)
    file = call.store.lfs_path(entry.sha256) if entry.sha256 else call.store.git_path(entry.oid)
    name = path.rpartition("/")[2]
    ascii_name = name.encode("ascii", "replace").decode().replace('"', "_")
    headers = {
        "ETag": f'"{entry.etag}"',
        "X-Repo-Commit": sha,
        "Content-Disposition": f"inline; filename*=UTF-8''{quote(name)}; filename=\"{ascii_name}\";",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    if entry.sha256:
        headers |= {"X-Linked-Size": str(entry.size), "X-Linked-ETag": f'"{entry.sha256}"'}
    served = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if served not in _SAFE_TYPES:  # a drawing's script is stopped by the sandbox
        is_text = served.startswith("text/") or served.endswith(("xml", "javascript"))
        served = "text/plain; charset=utf-8" if is_text else "application/octet-stream"
    return _BlobResponse(file, headers=headers, media_type=served)

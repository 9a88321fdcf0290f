"""Discussions and pull requests.

A pull request is a discussion with a ref `refs/pr/N` that starts at the head of its base branch. Merging
puts the changes between the point where it left the base and its head onto the base as one commit; a path
that both sides changed differently is a conflict.
"""

import json
import sqlite3

from localhub import webhooks
from localhub.access import Repo, can_write
from localhub.http_errors import bad_request, conflict, forbidden, not_found
from localhub.protocol import Call, Hub, Json, Router, optional_text, text_of
from localhub.repos import commit_to
from localhub.store import new_id, now
from localhub.tree import MAIN, Changes, File, Message, Tree, folders
from localhub.users import Identity

router = Router()
_PAGE = 50
_DEFAULT_COMMENT = "_No description provided._"


def add_event(hub: Hub, repo: Repo, num: int, kind: str, author: str, data: Json) -> sqlite3.Row:
    """Append to a discussion."""
    [row] = hub.store.change(
        "INSERT INTO events (id, repo, num, type, author, date, data) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING *",
        *(new_id(), repo.id, num, kind, author, now(), json.dumps(data)),
    )
    return row


def _words(text: str, author: str) -> Json:
    return {"raw": text, "html": "", "updatedAt": now(), "author": {"name": author}}


def _say(hub: Hub, repo: Repo, num: int, text: str, author: str) -> sqlite3.Row:
    """Add a comment."""
    data = {"edited": False, "hidden": False, "latest": _words(text, author), "history": [], "numEdits": 0}
    return add_event(hub, repo, num, "comment", author, data)


def open_discussion(
    hub: Hub,
    repo: Repo,
    me: Identity,
    title: str,
    description: str,
    *,
    base: str | None = None,
    head: str | None = None,
    draft: bool = False,
) -> int:
    """A new discussion, or with `base` and `head` a pull request; its number."""
    [row] = hub.store.change(
        "INSERT INTO discussions SELECT ?, coalesce(max(num), 0) + 1, ?, ?, ?, ?, ?, ?, NULL"
        " FROM discussions WHERE repo = ? RETURNING num",
        *(repo.id, title, "draft" if draft else "open", base is not None, me.user.name, now(), base, repo.id),
    )
    num = int(row["num"])
    if base is not None:
        hub.store.change("INSERT INTO refs (repo, name, sha) VALUES (?, ?, ?)", repo.id, f"refs/pr/{num}", head)
    _say(hub, repo, num, description or _DEFAULT_COMMENT, me.user.name)
    return num


def _summary(repo: Repo, row: sqlite3.Row) -> Json:
    return {
        "num": row["num"],
        "title": row["title"],
        "author": {"name": row["author"]},
        "createdAt": row["date"],
        "status": row["status"],
        "isPullRequest": bool(row["pull_request"]),
        "repo": {"name": repo.full_name, "type": repo.type},
    }


def _event(row: sqlite3.Row) -> Json:
    return {
        "id": row["id"],
        "type": row["type"],
        "createdAt": row["date"],
        "author": {"name": row["author"]},
        "data": json.loads(row["data"]),
    }


@router.on("GET", "/api/{T}/{id}/discussions")
def list_discussions(call: Call) -> Json:
    repo, query = call.readable(), call.query
    where = ["repo = ?"]
    values: list[object] = [repo.id]
    kind, status, author = (query.get(name, [""])[-1] for name in ("type", "status", "author"))
    if kind in ("discussion", "pull_request"):
        where.append(f"pull_request = {int(kind == 'pull_request')}")
    if status in ("open", "closed"):
        where.append("status IN ('open', 'draft')" if status == "open" else "status IN ('closed', 'merged')")
    if author:
        where.append("author = ?")
        values.append(author)
    rows = call.store.rows(
        f"SELECT * FROM discussions WHERE {' AND '.join(where)} ORDER BY num DESC",  # noqa: S608  (constant parts)
        *values,
    )
    start = call.integer("p", 0, most=10**6) * _PAGE
    page = [_summary(repo, row) for row in rows[start : start + _PAGE]]
    return {"discussions": page, "count": len(rows), "start": start}


@router.on("POST", "/api/{T}/{id}/discussions")
def create_discussion(call: Call) -> Json:
    repo, body = call.readable(), call.json()
    me = call.participant()
    title = text_of(body, "title").strip()
    if not 3 <= len(title) <= 200:
        raise bad_request("A title has 3 to 200 characters")
    description = (optional_text(body, "description") or "").strip()
    if not body.get("pullRequest"):
        return {"num": open_discussion(call.hub, repo, me, title, description)}
    head = call.hub.trees.head(repo.id)
    num = open_discussion(call.hub, repo, me, title, description, base=MAIN, head=head, draft=True)
    webhooks.queue_refs(call.hub, repo, f"refs/pr/{num}", None, head)
    return {"num": num}


def _discussion(call: Call, repo: Repo) -> sqlite3.Row:
    number = call.parts["num"]
    row = call.store.row("SELECT * FROM discussions WHERE repo = ? AND num = ?", repo.id, number)
    if row is None:
        raise not_found(f"Discussion {number} not found")
    return row


@router.on("GET", "/api/{T}/{id}/discussions/{num}")
def details(call: Call) -> Json:
    repo = call.readable()
    row = _discussion(call, repo)
    events = call.store.rows("SELECT * FROM events WHERE repo = ? AND num = ? ORDER BY place", repo.id, row["num"])
    answer = {**_summary(repo, row), "events": [_event(event) for event in events]}
    if row["pull_request"]:
        conflicts = row["status"] in ("open", "draft") and _merge_plan(call.hub, repo, row)[1]
        answer |= {
            "changes": {"base": row["base"], "mergeCommitId": row["merged"]},
            "filesWithConflicts": conflicts or [],
        }
    return answer


@router.on("POST", "/api/{T}/{id}/discussions/{num}/comment")
def comment(call: Call) -> Json:
    repo, me, text = call.readable(), call.participant(), text_of(call.json(), "comment")
    row = _discussion(call, repo)
    event = _say(call.hub, repo, row["num"], text, me.user.name)
    return {"newMessage": _event(event)}


def _owned(call: Call, repo: Repo, row: sqlite3.Row) -> Identity:
    """The caller, who wrote the discussion or comment or may write to the repo."""
    me = call.participant()
    if row["author"] != me.user.name and not can_write(call.users, me, repo):
        raise forbidden("Only the author or someone with write access may do this")
    return me


@router.on("POST", "/api/{T}/{id}/discussions/{num}/title")
def rename(call: Call) -> Json:
    repo, title = call.readable(), text_of(call.json(), "title").strip()
    row = _discussion(call, repo)
    me = _owned(call, repo, row)
    call.store.change("UPDATE discussions SET title = ? WHERE repo = ? AND num = ?", title, repo.id, row["num"])
    data = {"from": row["title"], "to": title}
    event = add_event(call.hub, repo, row["num"], "title-change", me.user.name, data)
    return {"newTitle": _event(event)}


@router.on("POST", "/api/{T}/{id}/discussions/{num}/status")
def change_status(call: Call) -> Json:
    repo, body = call.readable(), call.json()
    status, row = text_of(body, "status"), _discussion(call, repo)
    me = _owned(call, repo, row)
    if status not in ("open", "closed"):
        raise bad_request("status must be open or closed")
    if row["status"] == "merged":
        raise bad_request("A merged pull request cannot change its status")
    return {"newStatus": _event(_set_status(call, repo, row["num"], status, me, body))}


def _set_status(call: Call, repo: Repo, num: int, status: str, me: Identity, body: Json) -> sqlite3.Row:
    """Change it, after the comment that the body may hold."""
    if body.get("comment"):
        _say(call.hub, repo, num, text_of(body, "comment"), me.user.name)
    call.store.change("UPDATE discussions SET status = ? WHERE repo = ? AND num = ?", status, repo.id, num)
    return add_event(call.hub, repo, num, "status-change", me.user.name, {"status": status})


def _merge_plan(hub: Hub, repo: Repo, row: sqlite3.Row) -> tuple[Changes, list[str]]:
    """The changes that merging would make on the base, and the paths in conflict."""
    base, head = hub.trees.head(repo.id, row["base"]), hub.trees.head(repo.id, f"refs/pr/{row['num']}")
    if base is None or head is None:
        return {}, [row["base"]]
    on_base = {commit.sha for commit in hub.trees.history(repo.id, base)}
    fork = next((commit.sha for commit in hub.trees.history(repo.id, head) if commit.sha in on_base), None)
    old: Tree = hub.trees.at(repo.id, fork) if fork else {}
    ours, theirs = hub.trees.at(repo.id, base), hub.trees.at(repo.id, head)
    changes: dict[str, File | None] = {}
    conflicts: list[str] = []
    for path in sorted({*old, *theirs}):
        before, after, present = (tree[path].etag if path in tree else None for tree in (old, theirs, ours))
        if before == after or after == present:
            continue
        if present != before:
            conflicts.append(path)
        changes[path] = theirs[path].file if path in theirs else None
    merged = {path for path in {*ours, *changes} if changes.get(path, True)}
    return changes, [*conflicts, *sorted(folders(merged) & merged)]  # what would be a file and a folder


@router.on("POST", "/api/{T}/{id}/discussions/{num}/merge")
def merge(call: Call) -> Json:
    repo, body = call.writable(), call.json()
    me = call.participant()
    row = _discussion(call, repo)
    if not row["pull_request"] or row["status"] != "open":
        raise bad_request("Only an open pull request can be merged")
    changes, conflicts = _merge_plan(call.hub, repo, row)
    if conflicts:
        raise conflict(f"The pull request has conflicts in {', '.join(conflicts)}")
    old, base = call.hub.trees.head(repo.id, row["base"]), row["base"]
    message = Message(f"{row['title']} (#{row['num']})", me.user.name)
    sha = commit_to(call.hub, repo, changes, message, ref=base, parent=old)
    call.store.change("UPDATE discussions SET merged = ? WHERE repo = ? AND num = ?", sha, repo.id, row["num"])
    _set_status(call, repo, row["num"], "merged", me, body)
    webhooks.queue_refs(call.hub, repo, base, old, sha)
    return {"mergeCommitId": sha}


@router.on("POST", "/api/{T}/{id}/discussions/{num}/comment/{comment}/edit")
def edit_comment(call: Call) -> Json:
    repo, text = call.readable(), text_of(call.json(), "content")
    row = call.store.row(
        "SELECT * FROM events WHERE repo = ? AND num = ? AND id = ? AND type = 'comment'",
        *(repo.id, call.parts["num"], call.parts["comment"]),
    )
    if row is None:
        raise not_found("Comment not found")
    me = _owned(call, repo, row)
    data = json.loads(row["data"])
    data["history"].append(data["latest"])
    data |= {"edited": True, "numEdits": data["numEdits"] + 1, "latest": _words(text, me.user.name)}
    sql = "UPDATE events SET data = ? WHERE place = ? RETURNING *"
    [event] = call.store.change(sql, json.dumps(data), row["place"])
    return {"updatedComment": _event(event)}

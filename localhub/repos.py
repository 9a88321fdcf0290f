"""Repos as a whole: create, delete, move, settings, and what is derived from their head.

Every change is one transaction that also queues the webhook deliveries it causes.
"""

import json
import re

from localhub import webhooks
from localhub.access import PREFIX, Repo, can_create, repo_key, repo_of_row, require_manage
from localhub.cards import SDKS, derive
from localhub.http_errors import bad_request, conflict, forbidden
from localhub.patterns import initial_gitattributes
from localhub.protocol import Call, Hub, Json, Router, optional_text, text_of
from localhub.store import REPO_TABLES, now
from localhub.tree import MAIN, Changes, File, Fixed, Message
from localhub.users import Identity

router = Router()
_NAME = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_DERIVED_FILE_BYTES = 2 * 1024 * 1024


def add_repo(
    hub: Hub,
    me: Identity,
    repo_type: str,
    namespace: str,
    name: str,
    *,
    visibility: str | None = None,
    sdk: str | None = None,
    fixed: Fixed | None = None,
) -> Repo:
    """A new repo with its first commit, inside the caller's transaction."""
    owner = _namespace(hub, me, namespace, name)
    org = hub.users.org(owner)
    visibility = visibility or ("private" if org and org.private_by_default else "public")
    if visibility not in ("public", "private"):
        raise bad_request("visibility must be public or private")
    if repo_type == "space" and sdk not in SDKS:
        raise bad_request(f"A Space needs an sdk: {', '.join(SDKS)}")
    key = _free_key(hub, repo_type, f"{owner}/{name}")
    [row] = hub.store.change(
        "INSERT INTO repos (type, ns, name, key, visibility, creator, app, created_at, modified_at, sdk)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING *",
        *(repo_type, owner, name, key, visibility, me.user.name, me.app, now(), now()),
        sdk if repo_type == "space" else None,
    )
    hub.store.change("DELETE FROM aliases WHERE key = ?", key)  # the id now means this repo, not a moved one
    files = {".gitattributes": initial_gitattributes(repo_type).encode()}
    if repo_type == "space":
        files["README.md"] = f"---\ntitle: {name}\nsdk: {sdk}\npinned: false\n---\n".encode()
    changes = {path: File(hub.store.put_git(content), len(content)) for path, content in files.items()}
    repo = repo_of_row(row)
    commit_to(hub, repo, changes, Message("initial commit", me.user.name, fixed=fixed), ref=MAIN, parent=None)
    webhooks.queue(hub, repo, "create", "repo")
    return repo


def commit_to(hub: Hub, repo: Repo, changes: Changes, message: Message, *, ref: str, parent: str | None) -> str:
    """`Trees.commit`, with what the repo derives from the head of main."""
    sha = hub.trees.commit(repo.id, changes, message, ref=ref, parent=parent)
    if ref == MAIN:
        _refresh(hub, repo)
    return sha


def _namespace(hub: Hub, me: Identity, namespace: str, name: str) -> str:
    """The namespace, in its own spelling, where the caller may have a repo of that name."""
    owner = hub.users.namespace(namespace)
    if owner is None or not can_create(hub.users, me, owner):
        raise forbidden(f'You don\'t have the rights to create a repo under the namespace "{namespace}"')
    if not _NAME.fullmatch(name):
        raise bad_request(f"Invalid repo name: {name!r}")
    return owner


def _free_key(hub: Hub, repo_type: str, full_name: str) -> str:
    """The key of an id that no repo has."""
    key = repo_key(repo_type, full_name)
    row = hub.store.row("SELECT ns, name FROM repos WHERE key = ?", key)
    if row:
        taken = f"{row['ns']}/{row['name']}"
        url = f"{hub.endpoint}/{PREFIX[repo_type]}{taken}"
        raise conflict(f"A {repo_type} repository called {taken} already exists", url=url, name=taken)
    return key


def _refresh(hub: Hub, repo: Repo) -> None:
    """Derive card, tags and size again from the head of main."""
    head = hub.trees.head(repo.id)
    tree = hub.trees.at(repo.id, head) if head else {}

    def text(path: str) -> str:
        entry = tree.get(path)
        if entry is None or entry.sha256 or entry.size > _DERIVED_FILE_BYTES:
            return ""
        return hub.store.git_path(entry.oid).read_text("utf-8", errors="replace")

    derived = derive(repo.type, text("README.md"), text("config.json"), tree, repo.sdk)
    storage = sum(entry.size for entry in tree.values())
    hub.store.change(
        "UPDATE repos SET card = ?, config = ?, library = ?, pipeline_tag = ?, storage = ?, modified_at = ?"
        " WHERE id = ?",
        *(json.dumps(derived.card), json.dumps(derived.config), derived.library, derived.pipeline_tag),
        *(storage, now(), repo.id),
    )
    hub.store.change("DELETE FROM repo_tags WHERE repo = ?", repo.id)
    tags = [(repo.id, place, tag) for place, tag in enumerate(derived.tags)]
    hub.store.connection().executemany("INSERT INTO repo_tags VALUES (?, ?, ?)", tags)


def _type(body: Json) -> str:
    """The type of repo that a body means."""
    repo_type = optional_text(body, "type") or "model"
    if repo_type not in PREFIX:
        raise bad_request("type must be model, dataset or space")
    return repo_type


def _named(call: Call, body: Json) -> tuple[str, str, str]:
    """Type, namespace and name that a create or delete request means."""
    name, namespace = text_of(body, "name"), optional_text(body, "organization")
    if not namespace and "/" in name:
        namespace, _, name = name.partition("/")
    return _type(body), namespace or call.signed_in().user.name, name


@router.on("POST", "/api/repos/create")
def create(call: Call) -> Json:
    body = call.json()
    repo_type, namespace, name = _named(call, body)
    if body.get("secrets") or body.get("variables"):
        raise bad_request("this Hub runs no Spaces, so it keeps no secrets or variables; create the Space without them")
    visibility = optional_text(body, "visibility") or _asked_private(body)
    if body.get("files") or body.get("license"):
        raise bad_request("this Hub creates a repo without files and a license; commit them to it")
    me, sdk = call.signed_in(), optional_text(body, "sdk")
    repo = add_repo(call.hub, me, repo_type, namespace, name, visibility=visibility, sdk=sdk)
    return {"url": f"{call.endpoint}/{repo.path}", "name": repo.full_name, "id": repo.object_id}


def _target(call: Call, repo_type: str, full_name: str) -> Repo:
    """A repo named in a body, which the caller may move and delete."""
    repo = call.repo(repo_type, full_name)
    require_manage(call.users, call.identity, repo)
    return repo


@router.on("DELETE", "/api/repos/delete")
def delete(call: Call) -> Json:
    repo_type, namespace, name = _named(call, call.json())
    repo = _target(call, repo_type, f"{namespace}/{name}")
    webhooks.queue(call.hub, repo, "delete", "repo")
    call.store.change("DELETE FROM repos WHERE id = ?", repo.id)
    for table in REPO_TABLES:
        call.store.change(f"DELETE FROM {table} WHERE repo = ?", repo.id)  # noqa: S608  (a constant name)
    return {}


@router.on("POST", "/api/repos/move")
def move(call: Call) -> Json:
    body = call.json()
    repo_type, target = _type(body), text_of(body, "toRepo")
    repo = _target(call, repo_type, text_of(body, "fromRepo"))
    namespace, _, name = target.partition("/")
    owner = _namespace(call.hub, call.signed_in(), namespace, name)
    old = repo_key(repo_type, repo.full_name)
    if (new := repo_key(repo_type, f"{owner}/{name}")) != old:
        _free_key(call.hub, repo_type, f"{owner}/{name}")
    call.store.change("UPDATE repos SET ns = ?, name = ?, key = ? WHERE id = ?", owner, name, new, repo.id)
    call.store.change("DELETE FROM aliases WHERE key = ?", new)
    if new != old:
        call.store.change("INSERT OR REPLACE INTO aliases VALUES (?, ?)", old, repo.id)
    moved = {"name": f"{owner}/{name}", "owner": {"id": webhooks.owner_id(call.users, owner)}}
    webhooks.queue(call.hub, repo, "move", "repo", movedTo=moved)
    return {"url": f"{call.endpoint}/{PREFIX[repo_type]}{owner}/{name}"}


def _asked_private(body: Json) -> str | None:
    """The visibility that the older key of a body means."""
    private = body.get("private")
    if private is not None and not isinstance(private, bool):
        raise bad_request("private must be true or false")
    return None if private is None else "private" if private else "public"


@router.on("PUT", "/api/{T}/{id}/settings")
def settings(call: Call) -> Json:
    repo, body = call.writable(), call.json()
    visibility = optional_text(body, "visibility") or _asked_private(body) or repo.visibility
    gated = body.get("gated", repo.gated or False)
    if visibility not in ("public", "private") or gated not in ("auto", "manual", False):
        raise bad_request("visibility must be public or private, gated must be auto, manual or false")
    values = (visibility, gated or "", repo.id)
    [row] = call.store.change("UPDATE repos SET visibility = ?, gated = ? WHERE id = ? RETURNING *", *values)
    config = {"private": visibility == "private"}
    webhooks.queue(call.hub, repo_of_row(row), "update", "repo.config", updatedConfig=config)
    return {"visibility": visibility, "private": visibility == "private", "gated": gated}


@router.on("GET", "/api/{T}/{id}/auth-check")
def auth_check(call: Call) -> Json:
    call.require_files(call.readable())
    return {}

"""Repos as rows, and who may do what with them.

Reading: anyone for a public repo; the owner and the members of the owning organisation for a private one.
Writing: the owner; organisation admins and writers; contributors where they created the repo.
The files of a gated repo are for members of its namespace and for those whose request was accepted.

A token can only take away: `read` tokens write nothing, an OAuth token allows what its scopes say (docs/localhub.md)
and reaches only those organisations that the person picked when signing in.
"""

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from localhub.http_errors import HubError, forbidden
from localhub.store import Store
from localhub.users import Identity, Org, OrgRole, Users

TYPES = {"models": "model", "datasets": "dataset", "spaces": "space"}
PREFIX = {"model": "", "dataset": "datasets/", "space": "spaces/"}


@dataclass(frozen=True)
class Repo:
    id: int
    type: str  # model, dataset or space
    ns: str
    name: str
    visibility: str  # public or private; in an older data folder a Space may be neither
    gated: str  # "", auto or manual
    creator: str
    app: str | None  # the OAuth client through which it was created
    created_at: str
    modified_at: str
    sdk: str | None
    storage: int
    card: dict[str, Any]
    config: dict[str, Any]
    pipeline_tag: str | None
    library: str | None

    @property
    def full_name(self) -> str:
        return f"{self.ns}/{self.name}"

    @property
    def path(self) -> str:
        """Its place below the endpoint, e.g. datasets/ns/name."""
        return PREFIX[self.type] + self.full_name

    @property
    def private(self) -> bool:
        return self.visibility != "public"

    @property
    def object_id(self) -> str:
        return f"{self.id:024x}"


def repo_key(repo_type: str, full_name: str) -> str:
    return f"{repo_type}/{full_name}".lower()


def repo_of_row(row: sqlite3.Row) -> Repo:
    values = {name: row[name] for name in Repo.__dataclass_fields__}
    values |= {name: json.loads(row[name]) for name in ("card", "config")}
    return Repo(**values)


def tags_of(store: Store, repo: Repo) -> list[str]:
    return [row["tag"] for row in store.rows("SELECT tag FROM repo_tags WHERE repo = ? ORDER BY place", repo.id)]


def find_repo(store: Store, repo_type: str, full_name: str) -> Repo | None:
    """The repo of that id, in any case, or the one that had this id before it was moved."""
    key = repo_key(repo_type, full_name)
    row = store.row("SELECT * FROM repos WHERE key = ?", key) or store.row(
        "SELECT repos.* FROM repos JOIN aliases ON aliases.repo = repos.id WHERE aliases.key = ?", key
    )
    return repo_of_row(row) if row else None


def role_in(users: Users, identity: Identity | None, namespace: str) -> str | None:
    """The caller's role in a namespace: `admin` of their own, their role in an organisation, or none."""
    if identity is None:
        return None
    if identity.user.name.lower() == namespace.lower():
        return "admin"
    org = users.org(namespace)
    if org is None or (identity.role == "oauth" and org.name not in identity.orgs):
        return None
    return org.members.get(identity.user.name)


def orgs_shown(users: Users, identity: Identity) -> list[tuple[Org, OrgRole]]:
    """The organisations that the token tells of, with the person's role in each."""
    known = users.orgs_of(identity.user.name)
    if identity.role != "oauth":
        return known
    return [(org, role) for org, role in known if org.name in identity.orgs and "read-memberships" in identity.scopes]


def _scope(identity: Identity, repo: Repo | None, *wanted: str) -> bool:
    """Whether the token itself allows it; `repo` is None for the creation of one."""
    if identity.role != "oauth":
        return True
    if identity.scopes & {*wanted, "manage-repos"}:
        return True
    return "contribute-repos" in identity.scopes and (repo is None or repo.app == identity.app)


def _reads_own(users: Users, identity: Identity | None, repo: Repo) -> bool:
    """Whether it is one of the person's repos, and the token reads those."""
    if identity is None or role_in(users, identity, repo.ns) is None:
        return False
    return _scope(identity, repo, "read-repos", "write-repos")


def can_read(users: Users, identity: Identity | None, repo: Repo) -> bool:
    return not repo.private or _reads_own(users, identity, repo)


def can_write(users: Users, identity: Identity | None, repo: Repo) -> bool:
    if identity is None or identity.role == "read" or not _scope(identity, repo, "write-repos"):
        return False
    role = role_in(users, identity, repo.ns)
    return role in ("admin", "write") or (role == "contributor" and repo.creator == identity.user.name)


def can_create(users: Users, identity: Identity, namespace: str) -> bool:
    if identity.role == "read" or not _scope(identity, None):
        return False
    return role_in(users, identity, namespace) in ("admin", "write", "contributor")


def can_take_part(identity: Identity | None) -> bool:
    """Whether the token may open discussions and pull requests, and comment."""
    if identity is None or identity.role == "read":
        return False
    wanted = {"write-discussions", "write-repos", "manage-repos"}
    return identity.role != "oauth" or bool(identity.scopes & wanted)


def require_files(store: Store, users: Users, identity: Identity | None, repo: Repo) -> None:
    """Refuse the files of a gated repo to those who were not let in, and to a token that leaves gated repos out."""
    if not repo.gated:
        return
    restricted = f"Access to {repo.type} {repo.full_name} is restricted"
    if identity is None:
        raise HubError(401, f"{restricted}. Please log in.", "GatedRepo")
    if _reads_own(users, identity, repo):
        return
    if identity.role == "oauth" and "gated-repos" not in identity.scopes:
        raise HubError(
            403,
            f"{restricted} and this sign-in does not include gated repositories."
            " Please enable access to public gated repositories (scope gated-repos).",
            "GatedRepo",
        )
    member = role_in(users, Identity(identity.user, "read"), repo.ns) is not None  # whatever the token reaches
    accepted = "SELECT 1 FROM access_requests WHERE repo = ? AND user = ? AND status = 'accepted'"
    if not member and not store.row(accepted, repo.id, identity.user.name):
        raise HubError(
            403,
            f"{restricted} and you are not in the authorized list. Ask for access on the page of the repo.",
            "GatedRepo",
        )


def require_write(users: Users, identity: Identity | None, repo: Repo) -> None:
    if identity is None:
        raise HubError(401, "Invalid username or password.")
    if not can_write(users, identity, repo):
        raise forbidden(f"You don't have write access to {repo.type} {repo.full_name} with this token.")


def require_manage(users: Users, identity: Identity | None, repo: Repo) -> None:
    require_write(users, identity, repo)
    if identity is None or not _scope(identity, repo):
        raise forbidden(f"This token may not move or delete {repo.type} {repo.full_name} (scope manage-repos).")


def require_read(users: Users, identity: Identity | None, repo: Repo | None) -> Repo:
    """A missing repo and one that the caller may not see get the same answer, so that existence does not leak."""
    if repo is None or not can_read(users, identity, repo):
        raise HubError(401 if identity is None else 404, "Repository not found", "RepoNotFound")
    return repo

"""Accounts: whoami, and who is let into gated repos."""

from localhub.access import Repo, orgs_shown
from localhub.http_errors import bad_request, not_found
from localhub.protocol import Call, Json, Router, optional_text, text_of
from localhub.store import now
from localhub.users import object_id

router = Router()
_STATUSES = ("pending", "accepted", "rejected")
_CREATED = "2026-01-01T00:00:00.000Z"  # of every token


@router.on("GET", "/api/whoami-v2")
def whoami(call: Call) -> Json:
    me = call.signed_in()
    orgs: list[Json] = []
    for org, role in orgs_shown(call.users, me):
        named = {
            "type": "org",
            "id": object_id("org", org.name),
            "name": org.name,
            "fullname": org.fullname or org.name,
        }
        orgs.append({**named, "email": None, "avatarUrl": "", "isEnterprise": False, "roleInOrg": role})
    email = me.user.email if me.role != "oauth" or "email" in me.scopes else ""
    kind, role_of_token = ("oauth", "fineGrained") if me.role == "oauth" else ("access_token", me.role)
    return {
        "type": "user",
        "id": object_id("user", me.user.name),
        "name": me.user.name,
        "fullname": me.user.fullname or me.user.name,
        "email": email or None,
        "emailVerified": bool(email),
        "isPro": False,
        "canPay": False,
        "avatarUrl": "",
        "orgs": orgs,
        "auth": {"type": kind, "accessToken": {"displayName": me.role, "role": role_of_token, "createdAt": _CREATED}},
    }


@router.on("DELETE", "/api/{T}/{id}/like")
def unlike(call: Call) -> Json:
    """Nothing is done but to tell of a repo that is missing, since nothing can be liked here."""
    call.readable()
    call.signed_in()
    return {}


@router.on("GET", "/api/users/{user}/likes")
def liked(call: Call) -> list[Json]:
    return []


def _request_id(repo: Repo, user: str) -> str:
    return object_id("access", repo.id, user)


@router.on("GET", "/api/{T}/{id}/user-access-request/{status}")
def access_requests(call: Call) -> list[Json]:
    repo, status = call.writable(), call.parts["status"]
    if status not in _STATUSES:
        raise not_found("There is no such list")
    rows = call.store.rows("SELECT * FROM access_requests WHERE repo = ? AND status = ?", repo.id, status)
    return [
        {
            "requestId": _request_id(repo, user.name),
            "user": {
                "_id": object_id("user", user.name),
                "user": user.name,
                "name": user.name,
                "fullname": user.fullname or user.name,
                "email": user.email or None,
                "avatarUrl": "",
            },
            "status": status,
            "timestamp": row["date"],
        }
        for row in rows
        if (user := call.users.user(row["user"]))
    ]


@router.on("POST", "/api/{T}/{id}/user-access-request/grant")
def grant_access(call: Call) -> Json:
    """Let a user in who did not ask."""
    repo = call.writable()
    user = call.users.user(text_of(call.json(), "user"))
    if user is None:
        raise not_found("User not found")
    if not repo.gated:
        raise bad_request("This repo is not gated")
    sql = "INSERT OR IGNORE INTO access_requests VALUES (?, ?, 'accepted', ?) RETURNING 1"
    if not call.store.change(sql, repo.id, user.name, now()):
        raise bad_request(f"{user.name} already has a request")
    return {}


@router.on("POST", "/api/{T}/{id}/user-access-request/handle")
def handle_access(call: Call) -> Json:
    """Move a request, named by its user or its id, to another list."""
    repo, body = call.writable(), call.json()
    if not repo.gated:
        raise bad_request("This repo is not gated")
    status = text_of(body, "status")
    if status not in _STATUSES:
        raise bad_request(f"status must be one of {', '.join(_STATUSES)}")
    named = {optional_text(body, "user"), optional_text(body, "requestId")}
    rows = call.store.rows("SELECT user, status FROM access_requests WHERE repo = ?", repo.id)
    found = [row for row in rows if named & {row["user"], _request_id(repo, row["user"])}]
    if not found or found[0]["status"] == status:
        raise not_found(f"No request of that user, or it is already {status}")
    sql = "UPDATE access_requests SET status = ? WHERE repo = ? AND user = ?"
    call.store.change(sql, status, repo.id, found[0]["user"])
    return {}

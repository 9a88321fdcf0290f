"""The API's view of a repo, and the search over all repos.

Listings page through one SQL query; its conditions include what the caller may see, so a page is never short
and never leaks. Filters of the real Hub that a local one does not know (who serves a model, its number of
parameters, what a Space uses) are refused rather than ignored.
"""

import json
from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from localhub.access import TYPES, Repo, repo_of_row, role_in, tags_of
from localhub.files import lfs_info
from localhub.http_errors import bad_request
from localhub.protocol import Call, Json, Router

router = Router()
_SORTS = {
    **dict.fromkeys(("lastModified", "last_modified"), "modified_at"),
    **dict.fromkeys(("createdAt", "created_at"), "created_at"),
    # nothing of these is counted: the newest first
    **dict.fromkeys(("downloads", "likes", "trendingScore", "trending_score"), "id"),
}
_REFUSED = ("apps", "datasets", "inference", "inference_provider", "linked", "models", "num_parameters")
_MOST_CONDITIONS = 200  # the database takes 1,000
_PAGE = 1000


def _properties(call: Call, repo: Repo, sha: str | None, *, blobs: bool = False) -> dict[str, Callable[[], Any]]:
    """Every property that can be shown, each computed when asked for."""
    store = call.store

    def siblings() -> list[Json]:
        items: list[Json] = []
        for path, entry in sorted(call.hub.trees.at(repo.id, sha).items()) if sha else ():
            item: Json = {"rfilename": path}
            if blobs:
                item |= {"size": entry.size, "blobId": entry.oid}
                if entry.sha256:
                    item["lfs"] = lfs_info(entry, "sha256")
            items.append(item)
        return items

    properties: dict[str, Callable[[], Any]] = {
        "author": lambda: repo.ns,
        "sha": lambda: sha,
        "lastModified": lambda: repo.modified_at,
        "createdAt": lambda: repo.created_at,
        "private": lambda: repo.private,
        "gated": lambda: repo.gated or False,
        "disabled": lambda: False,
        **dict.fromkeys(("downloads", "downloadsAllTime", "likes", "trendingScore"), lambda: 0),
        "tags": lambda: tags_of(store, repo),
        "cardData": lambda: repo.card,
        "usedStorage": lambda: repo.storage,
        "siblings": siblings,
    }
    if repo.type == "model":
        properties |= {
            "pipeline_tag": lambda: repo.pipeline_tag,
            "library_name": lambda: repo.library,
            "config": lambda: repo.config,
            "model-index": lambda: repo.card.get("model-index"),
            "spaces": list,
        }
    elif repo.type == "dataset":
        properties["description"] = lambda: repo.card.get("description")
    else:
        properties["sdk"] = lambda: repo.sdk
    return properties


_SHORT = ("private", "gated", "downloads", "likes", "trendingScore", "tags", "createdAt")
_SHORT_OF = {"model": ("pipeline_tag", "library_name"), "dataset": (), "space": ("sdk",)}
_FULL = ("author", "sha", "lastModified", "disabled", "siblings")
_NOT_IN_INFO = ("downloadsAllTime", "trendingScore")


def _show(repo: Repo, properties: dict[str, Callable[[], Any]], keys: list[str]) -> Json:
    item: Json = {"_id": repo.object_id, "id": repo.full_name}
    if repo.type == "model":
        item["modelId"] = repo.full_name
    return item | {key: properties[key]() for key in keys if key in properties}


def _expand(call: Call) -> list[str]:
    """The keys that the request asks for; none: it asks for the usual ones."""
    keys = call.query.get("expand", []) + call.query.get("expand[]", [])
    return [part for key in keys for part in key.split(",")]


@router.on("GET", "/api/{T}/{id}")
@router.on("GET", "/api/{T}/{id}/revision/{rev}")
def info(call: Call) -> Json:
    repo = call.readable()
    properties = _properties(call, repo, call.commit_of(repo), blobs=call.flag("blobs"))
    return _show(repo, properties, _expand(call) or [key for key in properties if key not in _NOT_IN_INFO])


@router.on("GET", "/api/{T}")
def search(call: Call) -> Response:
    query = call.query
    if refused := [name for name in _REFUSED if name in query]:
        raise bad_request(f"A local Hub cannot filter by {', '.join(refused)}")
    where, values = ["type = ?"], [TYPES[call.parts["T"]]]
    visible, owned = _visible(call)
    where.append(visible)
    values += owned
    for term in " ".join(query.get("search", [])).split():
        where.append("instr(lower(ns || '/' || name), ?)")
        values.append(term.lower())
    if authors := query.get("author"):
        where.append("ns = ? COLLATE NOCASE")
        values.append(authors[-1])
    tags = [tag for text in query.get("filter", []) for tag in text.split(",")]
    tags += [f"dataset:{name}" for name in query.get("trained_dataset", [])]
    for tag in [*tags, *query.get("pipeline_tag", [])]:
        where.append("EXISTS (SELECT 1 FROM repo_tags WHERE repo = repos.id AND tag = ?)")
        values.append(tag)
    if "gated" in query:
        where.append("gated != ''" if call.flag("gated") else "gated = ''")
    sort = query.get("sort", ["trendingScore"])[-1]
    if sort not in _SORTS:
        raise bad_request(f"Cannot sort by {sort}; sort by {', '.join(_SORTS)}")
    if len(where) > _MOST_CONDITIONS:
        raise bad_request(f"A search has at most {_MOST_CONDITIONS} words and filters")
    start, size = call.window(_PAGE)
    condition = " AND ".join(where)
    rows = call.store.rows(
        f"SELECT * FROM repos WHERE {condition} ORDER BY {_SORTS[sort]} DESC, id DESC LIMIT ? OFFSET ?",  # noqa: S608
        *values,
        size + 1,
        start,
    )
    items = [_listed(call, repo_of_row(row)) for row in rows[:size]]
    return call.page(items, more=len(rows) > size)


def _listed(call: Call, repo: Repo) -> Json:
    full = call.flag("full")
    keys = [*_SHORT, *_SHORT_OF[repo.type], *(_FULL if full else ())]
    if call.flag("cardData") or (full and repo.type != "model"):
        keys.append("cardData")
    if call.flag("config"):
        keys.append("config")
    properties = _properties(call, repo, call.hub.trees.head(repo.id))
    return _show(repo, properties, _expand(call) or keys)


def _visible(call: Call) -> tuple[str, list[Any]]:
    """The SQL condition for what the caller may see in a listing, as `can_read` has it for one repo."""
    me = call.identity
    if me is None:
        return "visibility = 'public'", []
    names = [me.user.name, *(org.name for org in call.users.orgs)]
    mine = [name for name in names if role_in(call.users, me, name) is not None]
    whole = me.role != "oauth" or bool(me.scopes & {"read-repos", "write-repos", "manage-repos"})
    app = me.app if "contribute-repos" in me.scopes else None
    condition = "(visibility = 'public' OR (ns IN (SELECT value FROM json_each(?)) AND (? OR app = ?)))"
    return condition, [json.dumps(mine), whole, app]

"""Large files: the LFS batch, the upload of whole files and of parts, completion, verification.

An upload URL holds a random id and needs no token, because the client sends none there. The bytes are
hashed on their way into DATA/tmp; only content whose sha256 is the promised one becomes an object, and an
object belongs to the repos to which it was uploaded. So nobody can commit, by its digest alone, what they
never had. A URL takes its content again, so that a client whose answer was lost can repeat itself.
"""

import hashlib
import json
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from localhub.access import Repo, can_take_part, require_write
from localhub.http_errors import HubError, bad_request, not_found, unprocessable
from localhub.protocol import Call, Json, Router, items_of, list_of
from localhub.store import Store, now

router = Router()
MEDIA_TYPE = "application/vnd.git-lfs+json"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LARGEST = 2**40  # bytes of one file
_MOST_PARTS = 50_000  # of all files that are asked for at a time
_WRITE_BYTES = 4 * 1024 * 1024  # collected before a thread hashes and writes them


def _objects(body: Json) -> list[tuple[str, int]]:
    objects: list[tuple[str, int]] = []
    for item in items_of(body, "objects"):
        oid, size = item.get("oid"), item.get("size")
        known = isinstance(oid, str) and _SHA256.fullmatch(oid)
        if not known or isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= _LARGEST:
            raise unprocessable("An object needs a sha256 as oid and a size")
        objects.append((str(oid), size))
    return objects


def has(store: Store, repo: int, sha256: str) -> bool:
    """Whether a large file was uploaded to the repo."""
    return store.row("SELECT 1 FROM repo_objects WHERE repo = ? AND sha256 = ?", repo, sha256) is not None


def uploadable(call: Call) -> Repo:
    """The repo, if the caller may upload to it, as for a pull request. Only commits make objects visible."""
    repo = call.readable()
    if not can_take_part(call.signed_in()):
        require_write(call.users, call.identity, repo)
    return repo


@router.on("POST", "/{P}{id}.git/info/lfs/objects/batch")
def batch(call: Call) -> Response:
    repo, body = call.readable(), call.json()
    if body.get("operation") != "upload":
        raise bad_request("Only the upload operation is served; files are downloaded from their resolve URL")
    uploadable(call)
    limits, answers, in_all = call.hub.limits, [], 0
    takes_parts = "multipart" in list_of(body, "transfers")
    for oid, size in _objects(body):
        answer: dict[str, Any] = {"oid": oid, "size": size}
        if not has(call.store, repo.id, oid):
            upload = secrets.token_hex(24)
            in_parts = takes_parts and size > limits.multipart_bytes
            call.store.change(
                "INSERT INTO uploads (id, repo, sha256, size, part_size, date) VALUES (?, ?, ?, ?, ?, ?)",
                *(upload, repo.id, oid, size, limits.part_bytes if in_parts else None, now()),
            )
            href = f"{call.endpoint}/lfs-uploads/{repo.id}/{upload}"
            header: dict[str, str] = {}
            if in_parts:
                in_all += (count := -(-size // limits.part_bytes))
                if in_all > _MOST_PARTS:
                    raise unprocessable(f"These files have more than {_MOST_PARTS} parts; ask for fewer at a time")
                parts = {f"{part:05d}": f"{href}/{part}" for part in range(1, count + 1)}
                header = {"chunk_size": str(limits.part_bytes), **parts}
            verify = {"href": f"{call.endpoint}/{repo.path}.git/info/lfs/verify", "header": {}}
            answer["actions"] = {"upload": {"href": href, "header": header}, "verify": verify}
        answers.append(answer)
    return JSONResponse({"transfer": "basic", "objects": answers}, media_type=MEDIA_TYPE)


def _upload(call: Call) -> Any:
    """The upload that the URL names, which belongs to one repo."""
    row = call.store.row("SELECT * FROM uploads WHERE id = ? AND repo = ?", call.parts["upload"], call.parts["repo"])
    if row is None:
        raise not_found("This upload is unknown")
    return row


async def _receive(call: Call, target: Path, limit: int) -> tuple[str, int]:
    """Write the body to `target`; its sha256 and size. Hashing and writing run in a thread."""
    digest, size, held = hashlib.sha256(), 0, bytearray()

    def flush() -> None:
        digest.update(held)
        file.write(held)
        held.clear()

    with target.open("wb") as file:
        async for chunk in call.request.stream():
            size += len(chunk)
            if size > limit:
                raise HubError(413, f"The upload is larger than the promised {limit} bytes")
            held += chunk
            if len(held) >= _WRITE_BYTES:
                await run_in_threadpool(flush)
        await run_in_threadpool(flush)
    return digest.hexdigest(), size


def _keep(call: Call, upload: Any, temporary: Path, sha256: str, size: int) -> None:
    """Make a received file an object of the repo, if it is what was promised."""
    if (sha256, size) != (upload["sha256"], upload["size"]):
        raise HubError(400, f"Expected {upload['size']} bytes of sha256 {upload['sha256']}, got {size} of {sha256}")
    call.store.put_lfs(temporary, sha256)
    call.store.change(
        "INSERT OR IGNORE INTO repo_objects SELECT id, ? FROM repos WHERE id = ?",  # unless it was deleted meanwhile
        *(sha256, upload["repo"]),
    )


@router.on("PUT", "/lfs-uploads/{repo}/{upload}", body="stream")
async def put_whole(call: Call) -> Response:
    upload = await run_in_threadpool(_upload, call)
    with call.store.temporary() as received:
        sha256, size = await _receive(call, received, upload["size"])
        await run_in_threadpool(_keep, call, upload, received, sha256, size)
    return Response(headers={"ETag": f'"{sha256}"'})


@router.on("PUT", "/lfs-uploads/{repo}/{upload}/{part}", body="stream")
async def put_part(call: Call) -> Response:
    upload = await run_in_threadpool(_upload, call)
    part = call.parts["part"]
    if upload["part_size"] is None or not re.fullmatch(r"[1-9][0-9]{0,4}", part):
        raise not_found("This upload has no such part")
    with call.store.temporary() as received:
        sha256, _ = await _receive(call, received, upload["part_size"])
        received.replace(call.store.part(upload["id"], int(part)))
    return Response(headers={"ETag": f'"{sha256}"'})


@router.on("POST", "/lfs-uploads/{repo}/{upload}", atomic=False)
def complete(call: Call) -> Response:
    """Join the parts in order and check the whole."""
    upload, body = _upload(call), call.json()
    count = -(-upload["size"] // upload["part_size"]) if upload["part_size"] else 0
    numbers = [item.get("partNumber") for item in items_of(body, "parts")]
    parts = [call.store.part(upload["id"], number) for number in range(1, count + 1)]
    if not count or sorted(map(str, numbers)) != sorted(map(str, range(1, count + 1))):
        raise bad_request(f"The upload has {count} parts, the request names {json.dumps(numbers)}")
    try:
        with call.store.temporary() as joined:
            with joined.open("wb") as target:
                for part in parts:
                    with part.open("rb") as source:
                        shutil.copyfileobj(source, target, _WRITE_BYTES)
            with joined.open("rb") as whole:
                sha256 = hashlib.file_digest(whole, "sha256").hexdigest()
            _keep(call, upload, joined, sha256, joined.stat().st_size)
    except FileNotFoundError as error:
        # an earlier try, or one beside this, may have joined them and lost its answer
        if not has(call.store, upload["repo"], upload["sha256"]):
            missing = [number for number, part in enumerate(parts, 1) if not part.exists()]
            raise bad_request(f"Parts {missing} were not uploaded") from error
    for part in parts:
        part.unlink(missing_ok=True)
    return JSONResponse({}, media_type=MEDIA_TYPE)


@router.on("POST", "/{P}{id}.git/info/lfs/verify", atomic=False)
def verify(call: Call) -> Response:
    repo, body = uploadable(call), call.json()
    known = has(call.store, repo.id, str(body.get("oid")))
    if not known or call.store.lfs_path(str(body["oid"])).stat().st_size != body.get("size"):
        raise not_found("The object was not uploaded, or has another size")
    return JSONResponse({}, media_type=MEDIA_TYPE)

"""Xet storage for uploads: the client's own library keeps what it sends in a folder of this machine, one an upload.

Where the address of the storage names a folder (`local://`), hf_xet writes there what it would send: chunks, and shards
that name every file by its Xet hash and its sha256. A commit asks for a file by its sha256; then the library puts it
together from its chunks. So a client on this machine uploads by the same code as to huggingface.co.
"""

import hashlib
import os
import secrets
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from localhub.access import Repo
from localhub.http_errors import bad_request
from localhub.lfs import uploadable
from localhub.protocol import Call, Json, Router
from localhub.store import Store

router = Router()
_TOKEN_S = 3600
_RECORD = 48  # bytes of each record of a shard; its files begin after one
_VERIFIED, _HAS_SHA256 = 1 << 31, 1 << 30  # flags of a file: what follows its segments


@router.on("GET", "/api/{T}/{id}/xet-write-token/{rev}")
def write_token(call: Call) -> Json:
    repo = uploadable(call)
    folder = _folder(call.store, repo) / secrets.token_hex(8)  # its own, since a process locks it to its end
    folder.mkdir(parents=True)
    return {"casUrl": f"local://{folder}", "exp": _until(), "accessToken": "local"}


def take(store: Store, repo: Repo, sha256: str) -> bool:
    """Make a file that was uploaded to the repo by hf_xet an object of it; False where there is none."""
    for shard in _folder(store, repo).glob("*/xet/xorbs/shards/*.mdb"):
        with suppress(struct.error):  # a shard that was cut short
            for xet_hash, size, own_sha256 in _files(shard.read_bytes()):
                if own_sha256 == sha256:
                    _put_together(store, shard.parents[3], xet_hash, size, sha256)
                    store.change("INSERT OR IGNORE INTO repo_objects VALUES (?, ?)", repo.id, sha256)
                    return True
    return False


def _put_together(store: Store, storage: Path, xet_hash: str, size: int, sha256: str) -> None:
    from hf_xet import XetFileInfo, XetSession

    with store.temporary() as target, tempfile.TemporaryDirectory(dir=storage) as unlocked:
        shutil.copytree(storage / "xet", Path(unlocked, "xet"), copy_function=_copied)
        endpoint = {"endpoint": f"local://{unlocked}", "token": "local", "token_expiry_unix_secs": _until()}
        with XetSession().new_file_download_group(**endpoint) as group:
            group.start_download_file(XetFileInfo(xet_hash, size), str(target))
        with target.open("rb") as file:
            if (found := hashlib.file_digest(file, "sha256").hexdigest()) != sha256:
                raise bad_request(f"The storage calls a file of sha256 {found} one of {sha256}")
        store.put_lfs(target, sha256)


def _copied(source: str, target: str) -> None:
    """The database, which the uploading process locks to its end, is copied; the bytes are linked."""
    (shutil.copyfile if source.endswith(".redb") else os.link)(source, target)


def _until() -> int:
    return int(time.time()) + _TOKEN_S


def _folder(store: Store, repo: Repo) -> Path:
    return store.data_dir / "xet" / str(repo.id)


def _files(shard: bytes) -> Iterator[tuple[str, int, str]]:
    """(Xet hash, size, sha256) of every file that a shard lists with its sha256."""
    at = _RECORD
    while (xet_hash := _hash(shard, at)) != "f" * 64:
        flags, segments = struct.unpack_from("<II", shard, at + 32)
        size = sum(struct.unpack_from("<I", shard, at + _RECORD * (1 + n) + 36)[0] for n in range(segments))
        at += _RECORD * (1 + segments * (2 if flags & _VERIFIED else 1))
        if flags & _HAS_SHA256:
            yield xet_hash, size, _hash(shard, at)
            at += _RECORD


def _hash(shard: bytes, at: int) -> str:
    """Four little-endian numbers as hexadecimal digits."""
    return "".join(f"{number:016x}" for number in struct.unpack_from("<4Q", shard, at))

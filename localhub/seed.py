"""Fill a local Hub from folders, through the storage layer that a commit over HTTP also ends in.

Seeding is idempotent: a file whose content is already at the head is no change, and a commit without
changes is not made. Files that the head has and the folder lacks stay.

Datasets have the ids of their originals and, on a fresh Hub, the same shas on every machine, so that two runs of
one suite name the same revisions. Their organisations belong to a user who has no token: nobody's own list of
namespaces grows by them.
"""

import hashlib
import shutil
import sqlite3
from pathlib import Path

from hubmerge.errors import HubUnavailableError, SourceNotFoundError
from localhub.access import Repo, find_repo
from localhub.commits import SAMPLE_BYTES, Operation, apply, is_binary
from localhub.http_errors import HubError
from localhub.patterns import decide, initial_gitattributes, lfs_rules
from localhub.protocol import Hub
from localhub.repos import add_repo
from localhub.store import git_blob_sha1, lfs_pointer
from localhub.tree import MAIN, File, Fixed, Message, check_path
from localhub.users import Identity, Org, User, Users

ZOO_OWNER = "ada"
ZOO_MODELS = {"zoo/base": "base", "zoo/math-agent": "math", "zoo/tool-agent": "tool", "zoo/mem-agent": "mem"}
ZOO_DATASET, ZOO_DATA = "zoo/held-out", "eval"

MIRROR = "mirror"
# dataset id → its folder in examples/datasets, and who commits it
DATASETS = {
    "openai/gsm8k": ("gsm8k", MIRROR),
    "openai/openai_humaneval": ("humaneval", MIRROR),
    "hubmerge/bfcl-v4": ("bfcl", MIRROR),
    "zoo/facts": ("facts", ZOO_OWNER),
    "zoo/questions": ("questions", ZOO_OWNER),  # to calibrate with
}
_SEEDED = "2025-01-01T00:00:00.000Z"


def examples() -> Path:
    """The folder of examples: inside the package where a wheel was installed, beside it in a checkout."""
    root = Path(__file__).resolve().parents[1]
    inside = root / "hubmerge" / "examples"
    return inside if inside.is_dir() else root / "examples"


def seed_folder(
    hub: Hub,
    repo_id: str,
    repo_type: str,
    folder: Path,
    *,
    author: str,
    message: str,
    stable: bool = False,
) -> str:
    """Commit the files of a folder to a repo, made if need be, and return the head of main.

    Hidden files are left out. The shas of a `stable` repo follow from its content alone, and its commits have a fixed
    date.
    """
    user = hub.users.user(author)
    if user is None or not folder.is_dir():
        raise SourceNotFoundError(
            "nothing to seed from", where=repo_id, expected="a folder and a known author", got=f"{folder}, {author}"
        )
    me = Identity(user, "write")
    namespace, _, name = repo_id.partition("/")
    fixed = Fixed(f"{repo_type}s/{repo_id}", _SEEDED) if stable else None
    sdk = "gradio" if repo_type == "space" else None
    try:
        with hub.store.write():
            repo = find_repo(hub.store, repo_type, repo_id)
            repo = repo or add_repo(hub, me, repo_type, namespace, name, sdk=sdk, fixed=fixed)
            files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
            shown = [path for path in files if not any(part.startswith(".") for part in path.split("/"))]
            operations = [Operation(check_path(path), _keep(hub, repo, path, folder / path)) for path in shown]
            head = hub.trees.resolve(repo.id, "main")
            return apply(hub, repo, operations, Message(message, user.name, fixed=fixed), ref=MAIN, head=head)
    except (HubError, OSError, sqlite3.Error) as error:
        raise HubUnavailableError(
            "a repo cannot be seeded",
            where=f"{repo_id} from {folder}",
            got=str(error),
            next_step="Correct that and start again.",
        ) from error


def _keep(hub: Hub, repo: Repo, path: str, source: Path) -> File:
    """Store one file, as a large one where an upload would make it one."""
    with source.open("rb") as file:
        binary = is_binary(file.read(SAMPLE_BYTES))
        size = source.stat().st_size
        rules = lfs_rules(initial_gitattributes(repo.type))
        if not size or not (binary or size > hub.limits.regular_bytes or decide(rules, path)):
            return File(hub.store.put_git(source.read_bytes()), size)
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if not hub.store.lfs_path(sha256).exists():
        with hub.store.temporary() as temporary:
            shutil.copyfile(source, temporary)
            hub.store.put_lfs(temporary, sha256)
    hub.store.change("INSERT OR IGNORE INTO repo_objects VALUES (?, ?)", repo.id, sha256)
    return File(git_blob_sha1(lfs_pointer(sha256, size)), size, sha256)


def seed_zoo(hub: Hub, zoo_dir: Path) -> dict[str, str]:
    """The repos of the zoo, each with the head of its main branch."""
    weights, questions = "Add the trained weights", "Add the held-out questions"
    heads = {
        repo_id: seed_folder(hub, repo_id, "model", zoo_dir / folder, author=ZOO_OWNER, message=weights)
        for repo_id, folder in ZOO_MODELS.items()
    }
    heads[ZOO_DATASET] = seed_folder(
        hub, ZOO_DATASET, "dataset", zoo_dir / ZOO_DATA, author=ZOO_OWNER, message=questions, stable=True
    )
    return heads


def seed_datasets(hub: Hub, datasets_dir: Path) -> dict[str, str]:
    """The datasets of tasks and merges, each with the head of its main branch; `with_mirrors` made room for them."""
    return {
        repo_id: seed_folder(
            hub, repo_id, "dataset", datasets_dir / folder, author=author, message="Add the data", stable=True
        )
        for repo_id, (folder, author) in DATASETS.items()
    }


def with_mirrors(users: Users) -> Users:
    """`users`, and the owners of the datasets' namespaces where nobody has that name."""
    missing: dict[str, Org] = {}
    for repo_id, (_, author) in DATASETS.items():
        namespace = repo_id.partition("/")[0]
        if author == MIRROR and users.namespace(namespace) is None:
            missing[namespace] = Org(name=namespace, members={MIRROR: "admin"})
    if not missing:
        return users
    mirror = () if users.user(MIRROR) else (User(name=MIRROR, fullname="Copies of public datasets"),)
    return users.model_copy(update={"users": (*users.users, *mirror), "orgs": (*users.orgs, *missing.values())})

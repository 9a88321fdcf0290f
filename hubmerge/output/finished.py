"""Writes, reads and publishes a finished folder, which is one with a manifest."""

import json
import os
import re
import shutil
from collections.abc import Mapping, Set
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hubmerge.engine.progress import Observer
from hubmerge.engine.sink import MANIFEST, WORK
from hubmerge.errors import CorruptError, GatedError, RecipeError, SourceNotFoundError, TargetExistsError
from hubmerge.hub.client import Hub
from hubmerge.hub.transfer import SMALL_FILE_BYTES
from hubmerge.machine.disk_errors import writing
from hubmerge.output.card import card_of
from hubmerge.output.publish import Published, Shard, Target, find_published, license_stays, publish
from hubmerge.output.report import Parent, Report
from hubmerge.plan.licenses import choose, strictest
from hubmerge.text.wording import counted, json_file, named

_NO_NAME = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_OF_TOOLS = frozenset((WORK, ".git", ".cache"))  # folders in a user's folder; the Hub takes none of them
_HIDDEN_OF_REPOS = frozenset((".gitattributes", ".gitignore", ".eval_results"))


def write_folder(folder: Path, files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> None:
    """Write all files around the finished shards; the manifest comes last and makes the folder complete."""
    for name, content in files.items():
        _replace(folder / name, content)
    _replace(folder / MANIFEST, json_file(manifest))


def _replace(path: Path, content: bytes) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def load_report(folder: Path) -> Report:
    """The report of a complete folder; RecipeError when it is none."""
    try:
        return Report.from_json(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise RecipeError(
            "not a finished merge",
            where=str(folder),
            expected=MANIFEST,
            next_step="Name the folder of a merge; an unfinished one goes on when the same command is given again.",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(folder, error) from None


def _damaged(folder: Path, error: Exception) -> RecipeError:
    where, again, got = str(folder / MANIFEST), "Merge again into a new folder; nothing was touched.", repr(error)[:200]
    if isinstance(error, ValidationError):
        [first, *_] = error.errors(include_url=False, include_input=False)
        got = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:200]
    return RecipeError("the manifest is damaged", where=where, got=got, next_step=again)


def finished_report(folder: Path, identity: str, *, keep_work: bool = False) -> Report:
    """The report of this merge, after its working folder was removed; TargetExistsError where the folder holds another
    finished merge, CorruptError where shards are gone. `keep_work`: as that holds what was uploaded."""
    report = load_report(folder)
    if report.identity != identity:
        raise TargetExistsError(
            "another finished merge is here",
            where=str(folder),
            expected=identity[:12],
            got=report.identity[:12],
            next_step="Choose another folder; nothing was touched.",
        )
    if not keep_work:
        if gone := [f.name for f in report.files if not (folder / f.name).is_file()]:
            raise CorruptError(
                "a finished merge whose shards are gone",
                where=str(folder),
                expected="all that its manifest names",
                got=f"no {named(gone)}",
                next_step="Put them back, or move this folder away: the same command then merges anew.",
            )
        shutil.rmtree(folder / WORK, ignore_errors=True)  # left by a kill between the manifest and the end
    return report


def publish_folder(
    target: Target,
    folder: Path,
    hub: Hub,
    observer: Observer,
    extra: Mapping[str, bytes] | None = None,
    uploaded: Set[str] = frozenset(),
    license_choice: str | None = None,
) -> Published:
    """Publish a complete folder and the files `extra` in one commit; repeatable. The folder stays as it is.

    Card and manifest tell of the target where they were made for a folder. `uploaded`: shards whose bytes the target
    holds already. `license_choice` is needed where the merge has none; RecipeError where it is missing, or less strict
    than the parents'.
    """
    report = load_report(folder)
    data = [(str(rows["data"]), bool(rows.get("private"))) for rows in report.sensitivities]
    parents = ((p.id, p.private or _is_private(p, hub)) for p in report.parents)
    target.refuse_to_expose(chain(data, parents))
    stated = replace(report, target=report.target or target.repo)
    if license_choice is not None or report.license.get("id", "unknown") == "unknown":
        known = strictest([p.license for p in report.parents])
        stated = replace(stated, license=choose(known, license_choice).as_dict())
    again = license_choice is not None and find_published(hub, target, report.identity) is not None
    if again and (told := license_stays(hub, target.repo, license_choice)):
        observer.warning(told)
    observer.stage("publish")
    shards = [Shard(f.name, f.size, f.sha256, None if f.name in uploaded else folder / f.name) for f in report.files]
    weights, small = {f.name for f in report.files}, {}
    hidden: dict[str, None] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        below = path.relative_to(folder)
        if str(below) in weights or _OF_TOOLS.intersection(below.parts):
            continue
        if found := [p for p in below.parts if p.startswith(".") and p not in _HIDDEN_OF_REPOS]:
            hidden[found[0]] = None  # such as .env, whose secrets nobody could take back
            continue
        if _NO_NAME.search(str(below)):
            raise RecipeError(
                "a file whose name the Hub does not take",
                where=str(folder),
                got=str(below),
                next_step="Rename it or remove it; nothing was published.",
            )
        if (size := path.stat().st_size) > SMALL_FILE_BYTES:  # somebody's, such as the same model in another format
            shards.append(Shard(str(below), size, "", path))
        else:
            small[str(below)] = path.read_bytes()
    if hidden:
        observer.warning(f"hidden files are not published: {', '.join(ascii(name)[1:-1][:80] for name in hidden)}")
    if stated != report:
        try:
            small |= _restated(report, stated, small, hub.endpoint)
        except ValueError as error:
            raise _damaged(folder, error) from None
    agents = sum(parent.role == "agent" for parent in report.parents)
    title = f"Merge {counted(agents, 'agent')} with {report.method['title']}"
    return publish(hub, target, report.identity, title, shards, {**small, **(extra or {})}, observer)


def _is_private(parent: Parent, hub: Hub) -> bool:
    """Whether a parent is private now: a merge that was made offline could not know it."""
    try:
        return parent.kind == "hub" and hub.repo_state(parent.id).private
    except (SourceNotFoundError, GatedError):  # gone since, of another Hub, or not private
        return False


def _restated(before: Report, after: Report, files: Mapping[str, bytes], endpoint: str) -> dict[str, bytes]:
    """Manifest and card with another license or target; a user's own text in the card stays. ValueError where no card
    can be made of the manifest."""
    text = files.get("README.md", b"").decode(errors="replace").replace("\r\n", "\n")
    old, new = (card_of(report, files, endpoint).splitlines() for report in (before, after))
    for kind, i1, i2, j1, j2 in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if kind != "equal":
            text = text.replace("\n".join(old[i1:i2]), "\n".join(new[j1:j2]), 1)
    return {MANIFEST: json_file(after.to_json())} | ({"README.md": text.encode()} if "README.md" in files else {})

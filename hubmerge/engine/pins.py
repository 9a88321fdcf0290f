"""The commits that an unfinished merge began with: the same command goes on with them when a branch has moved on.

A folder says them itself, in its journal or its manifest. A run works in a folder named by what it merges, commits
included, so that a file beside it, named by recipe and target, leads from the command to the folder. A model that the
recipe names by a commit is never taken at another one, and local folders have no other versions to go on with.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hubmerge.engine.distributed import Ranks
from hubmerge.engine.journal import Journal, pins_of
from hubmerge.engine.sink import MANIFEST
from hubmerge.errors import HubmergeError, SourceChangedError
from hubmerge.hub.client import Hub
from hubmerge.machine.disk_errors import writing, written
from hubmerge.plan.plan import Plan
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.recipe import Recipe

NEWEST_ELSEWHERE = "To begin with the newest, merge into another folder."
_COMMIT = re.compile(r"[0-9a-f]{40}")

Pins = Sequence[Mapping[str, str]]  # of the base and the agents: kind, id, sha, requested
Commits = Sequence[str | None]  # the same, for `prepare`; None: as the recipe says

T = TypeVar("T")


def pins_in(folder: Path) -> Pins | None:
    """What the merge in `folder` was begun with, finished or not; None where there is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return _checked(manifest["parents"])
    except (FileNotFoundError, NotADirectoryError):
        return _checked(Journal.models_in(folder))
    except (ValueError, KeyError, TypeError, RecursionError):  # whoever opens it says so
        return None


def commits_for(recipe: Recipe, pins: Pins | None, present_id: Callable[[str], str]) -> Commits:
    """Where to take the recipe's models; nothing where the pins are of other models or branches.

    `present_id`: what a repo is called that the recipe may name by an earlier id, or in other letters.
    """
    names = (recipe.base, *(agent.model for agent in recipe.agents))
    if pins is None or len(pins) != len(names):
        return ()
    found: list[str | None] = []
    for name, pin in zip(names, pins, strict=True):
        if name.local or _COMMIT.fullmatch(name.revision or ""):
            found.append(None)
        elif (pin["kind"], pin["requested"]) != ("hub", name.revision or "main"):
            return ()
        elif pin["id"] == name.id or pin["id"] == present_id(name.id):
            found.append(pin["sha"])
        else:
            return ()
    return found if any(found) else ()


def going_on(
    pins: Pins | None,
    recipe: Recipe,
    prepare: Callable[[Commits], T],
    *,
    hub: Hub,
    ranks: Ranks,
    warn: Callable[[str], None],
    newest: str,
) -> T:
    """What `prepare` makes of the recipe's models, at the commits of rank 0's `pins` where it has them.

    `newest`: how to begin with the newest ones instead, for whoever is told that a branch has moved on, or is refused
    since a commit is gone.
    """
    commits: Commits = ranks.first(list(commits_for(recipe, pins, partial(_present_id, hub))))
    if not commits:
        return prepare(())
    try:
        prepared = prepare(commits)
    except SourceChangedError as error:
        problems = [replace(problem, next_step=newest) for problem in error.problems]
        raise SourceChangedError(error.what, problems=problems) from None
    if ranks.rank == 0 and (moved := _moved_on(recipe, commits, hub)):
        warn(f"the merge stays with the versions that it began with: {', '.join(moved)}. {newest}")
    return prepared


def _present_id(hub: Hub, repo_id: str) -> str:
    try:
        return hub.repo_state(repo_id).id
    except HubmergeError:  # whoever opens it says so
        return repo_id


def _moved_on(recipe: Recipe, commits: Commits, hub: Hub) -> list[str]:
    """The models whose branches are elsewhere by now, at the commits where they are taken."""
    names = (recipe.base, *(agent.model for agent in recipe.agents))

    def elsewhere(name: ModelName, commit: str | None) -> bool:
        try:
            return commit is not None and hub.repo_state(name.id, name.revision).sha != commit
        except HubmergeError:  # the branch is gone, or cannot be asked for: the commits are what counts
            return True

    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(elsewhere, names, commits))
    found = [f"{name.id}@{str(commit)[:12]}" for name, commit, has in zip(names, commits, answers, strict=True) if has]
    return list(dict.fromkeys(found))


class RunPins:
    """The file beside the folders of runs that leads from recipes and a target to their unfinished run.

    `newest`: its pins are not wanted.
    """

    def __init__(self, runs: Path, recipes: Sequence[Recipe], target: str, *, newest: bool = False) -> None:
        key = json.dumps([[recipe.to_dict() for recipe in recipes], target], sort_keys=True)
        self._runs = runs
        self._path = runs / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
        self._known = self._read()
        self.pins: Pins | None = None if newest else self._known.get("models")

    def _read(self) -> dict[str, Any]:
        text = b""  # where there is none
        try:
            with written("the file of a run cannot be read", str(self._path)), suppress(FileNotFoundError):
                text = self._path.read_bytes()
            found = json.loads(text)
            name, pins = found["folder"], _checked(found["models"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return {}
        plain = isinstance(name, str) and re.fullmatch(r"[\w-]+", name)
        return {"folder": name, "models": pins} if plain and pins else {}

    def older_run(self, folder: str) -> Path | None:
        """The folder of an older run that will never be gone on with, when one begins to work in `folder`."""
        older = self._runs / self._known.get("folder", folder)
        return older if older.name != folder and older.is_dir() else None

    def begin(self, folder: str, plan: Plan) -> None:
        """A run is about to work in `folder`."""
        self.pins = pins_of(m.ref for m in plan.models)
        line = {"folder": folder, "models": self.pins}
        if line != self._known:
            with writing(self._path):
                self._runs.mkdir(parents=True, exist_ok=True)
                temporary = self._path.with_suffix(".tmp")
                temporary.write_text(json.dumps(line), encoding="utf-8")
                temporary.replace(self._path)
            self._known = line

    def end(self) -> None:
        """The command is done."""
        self._path.unlink(missing_ok=True)


def _checked(pins: Any) -> Pins | None:
    fields = ("kind", "id", "sha", "requested")
    if not pins or not isinstance(pins, list) or not all(isinstance(pin, dict) for pin in pins):
        return None
    if not all(isinstance(pin.get(name), str) for pin in pins for name in fields):
        return None
    return [{name: pin[name] for name in fields} for pin in pins]

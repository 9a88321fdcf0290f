"""What a dataset is and must be: digests of its content, and the suites' file of pins (docs/evaluation.md).

Equal data give equal digests, whatever the commit. The files of a split are found as `datasets` finds them: by the
patterns of the subset in the card's `configs`. Where it does not say which files a split has, every file counts but
documents. So the digest may change with data that no task reads, but it always changes with data that the task reads.
The way in which rows are parsed counts too: the subset's entry in `configs`, and its features in `dataset_info`.
"""

import hashlib
import json
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hubmerge.errors import EvaluationError
from hubmerge.evaluation.result import first_reason
from hubmerge.evaluation.tasks.base import Rows
from hubmerge.hub.client import TreeFile
from hubmerge.hub.names import is_hub_id
from hubmerge.settings import DEFAULT_ENDPOINT
from hubmerge.text.plain_yaml import dump_plain_yaml, load_plain_yaml

PINS = Path(__file__).with_name("pins.yaml")
_LEGACY_INFOS = "dataset_infos.json"  # features of datasets from before there were cards with them


class DatasetPin(BaseModel):
    """A dataset's commit on a Hub, its content, or both."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    hub: str = DEFAULT_ENDPOINT  # where the revision is known; of other Hubs it says nothing
    content: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None  # `dataset_digest` of it

    @model_validator(mode="after")
    def _pins_something(self) -> "DatasetPin":
        if self.revision is None and self.content is None:
            raise ValueError("a revision or a content is needed")
        return self

    @property
    def words(self) -> str:
        if self.revision is None:
            return f"by content, {str(self.content)[:12]}"
        where = "" if self.hub == DEFAULT_ENDPOINT else f" on {self.hub}"
        return f"at commit {self.revision}{where}" + (", and by content" if self.content else "")


Pins = Mapping[str, DatasetPin]


@cache
def own_pins() -> Pins:
    """The pins that this package was made with."""
    return read_pins(PINS)


def read_pins(path: Path) -> Pins:
    """The pins in a file, by dataset id; EvaluationError says what is wrong with it."""

    class File(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True)
        datasets: dict[str, DatasetPin]

    try:
        found = File.model_validate(load_plain_yaml(path.read_text("utf-8"))).datasets
        if strange := next((name for name in found if not is_hub_id(name)), None):
            raise ValueError(f"{strange[:80]!r} is no dataset's id")
    except (OSError, ValueError) as error:
        raise EvaluationError(
            "the file of pins cannot be read",
            where=str(path),
            expected="a full commit, 40 hex digits, or a content, 64, for each dataset",
            got=first_reason(error),
        ) from None
    return found


def write_pins(path: Path, pins: Pins) -> None:
    """Write the pins in a file, below the words that it begins with; EvaluationError where it cannot be written."""
    known = path.read_text("utf-8") if path.exists() else PINS.read_text("utf-8")
    words = "".join(takewhile(lambda line: line.startswith("#"), known.splitlines(keepends=True)))
    plain = {name: pins[name].model_dump(exclude_defaults=True) for name in sorted(pins)}
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            new = Path(folder) / path.name
            new.write_text(words + dump_plain_yaml({"datasets": plain}), encoding="utf-8")
            new.replace(path)
    except OSError as error:
        raise EvaluationError(
            "the file of pins cannot be written",
            where=str(path),
            got=error.strerror or str(error),
            next_step="Run it in a clone, whose file it changes, or name another one with --file.",
        ) from None


# --- content -----------------------------------------------------------------------------------------------


def content_digest(rows: Rows, splits: Collection[str], card: Mapping[str, Any], tree: Mapping[str, TreeFile]) -> str:
    """sha256 (hex) over what a task reads of `splits`; `tree` and `card` are those of one commit."""
    entry = _of_subset(card.get("configs"), rows.subset)
    files = {tree[path] for path in _paths(splits, entry, tree)}
    if _LEGACY_INFOS in tree:
        files.add(tree[_LEGACY_INFOS])
    features = _of_subset(card.get("dataset_info"), rows.subset).get("features")
    return _digest(files, config=entry, features=features)


def dataset_digest(card: Mapping[str, Any], tree: Mapping[str, TreeFile]) -> str:
    """sha256 (hex) over all data of a commit, whichever task reads them, and over how its card says to parse them."""
    return _digest((file for file in tree.values() if not _is_document(file.path)), configs=card.get("configs"))


def _digest(files: Iterable[TreeFile], **parsing: Any) -> str:
    content = {"files": sorted([f.path, f.sha256 or f"git {f.oid}"] for f in files), **parsing}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _of_subset(entries: Any, subset: str | None) -> Mapping[str, Any]:
    """The entry of a subset in `configs` or `dataset_info`, which holds a list, or one entry alone."""
    found = [e for e in (entries if isinstance(entries, list) else [entries]) if isinstance(e, dict)]
    named = [e for e in found if e.get("config_name", "default") == (subset or "default")]
    return next(iter(named or (found if len(found) == 1 else ())), {})


def _paths(splits: Collection[str], entry: Mapping[str, Any], tree: Mapping[str, Any]) -> Sequence[str]:
    folder = str(entry.get("data_dir") or "").strip("/")
    matched: dict[str, list[str]] = {}
    for split, patterns in _patterns(entry.get("data_files"), splits).items():
        placed = (f"{folder}/{pattern}" if folder else pattern for pattern in patterns)
        # `*` matches slashes too, since one file too many does no harm
        cleaned = [pattern.removeprefix("./").replace("**/", "*") for pattern in placed]
        matched[split] = [path for path in tree if any(fnmatchcase(path, pattern) for pattern in cleaned)]
    if set(matched) >= set(splits) and all(matched.values()):
        return [path for found in matched.values() for path in found]
    return [path for path in tree if not _is_document(path)]


def _patterns(data_files: Any, splits: Collection[str]) -> dict[str, list[str]]:
    """Split → patterns, of the splits that are named; one pattern or a list of them serves every split."""
    if isinstance(data_files, str):
        data_files = [data_files]
    if isinstance(data_files, dict):
        data_files = [{"split": split, "path": path} for split, path in data_files.items()]
    if not isinstance(data_files, list):
        return {}
    if all(isinstance(p, str) for p in data_files):
        return {split: list(data_files) for split in splits}
    found: dict[str, list[str]] = {}
    for each in data_files:
        if not isinstance(each, dict) or each.get("split") not in tuple(splits):
            continue
        path = each.get("path")
        found.setdefault(each["split"], []).extend(map(str, path if isinstance(path, list) else [path]))
    return found


def _is_document(path: str) -> bool:
    name = path.rpartition("/")[2].lower()
    return name.startswith((".git", "readme", "license", "citation")) or name.endswith((".md", ".pdf", ".py"))

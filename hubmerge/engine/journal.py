"""The journal of a merge into one folder: what is durable, so that a resumed merge repeats only what has no line.

Lines of JSON, each sealed with a checksum, in the order in which things happened:

    plan        which merge this is, and of which commits
    probed      statistics of some tensors; they count once probe says that those of all tensors are there
    thresholds  what a threshold's passes have found
    shard       a shard is a file; uploaded: its bytes are at the target; lost: neither

A kill tears the last line, a full disk may leave half a line before a whole one, and a machine that loses power may
leave zeros. What comes after the first line that is not sound is as if it had never been written: it is repeated.
"""

import hashlib
import json
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from hubmerge.engine.sink import WORK, FinishedShard, has_size, sound
from hubmerge.errors import TargetExistsError
from hubmerge.machine.disk_errors import writing, written
from hubmerge.plan.plan import Plan
from hubmerge.recipe.model_name import ModelRef
from hubmerge.sources.folder import UnchangedFolders
from hubmerge.statistics.statistics import SCHEMA, Tally

_JOURNAL = "journal.jsonl"  # of rank 0
_OF_RANK = "journal-{}.jsonl"  # of the other processes of a merge
_FORM = 5  # its version
_TENSORS_A_LINE = 256  # about 5 MB of tallies
_SEAL = ', "crc32": "'


class Journal:
    """Append-only record of what a merge into one folder has made durable.

    Nothing is recorded that was made of local folders which are no longer as they were pinned.
    """

    def __init__(self, folder: Path, plan: Plan, *, uploads: bool, rank: int) -> None:
        self._folder = folder
        self._path = folder / WORK / (_OF_RANK.format(rank) if rank else _JOURNAL)
        self._identity = plan_identity(plan)
        self._refs = [m.ref for m in plan.models]
        self._folders = UnchangedFolders(plan.models)
        self._begun = False
        self._probed: dict[str, Tally] = {}  # while the lines are read
        self.statistics: Mapping[str, Tally] | None = None  # in plan order
        self.thresholds: Mapping[str, tuple[float, ...]] | None = None
        self.shards: dict[str, FinishedShard] = {}
        self.uploaded: set[str] = set()  # shards that the target holds; their files are no longer needed
        self.on_shard: Callable[[FinishedShard], None] | None = None  # called when a shard has its line
        self.resumed = False  # an earlier run was cut short
        self._uploads = uploads
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path, plan: Plan, *, uploads: bool = False, rank: int = 0) -> Self:
        """The journal of `folder` for this plan; `uploads`: shards are uploaded and deleted one by one.

        It knows what all journals there say, and adds to that of process `rank`; rank 0 is the first to open its own.
        Shards of the right size are believed until `verify` reads them. Raises TargetExistsError when the folder holds
        something else.
        """
        journal = cls(folder, plan, uploads=uploads, rank=rank)
        if journals := sorted((folder / WORK).glob("journal*.jsonl")):  # rank 0's comes last: it ends the probe
            for one in journals:
                journal._read(one)
            for name, shard in journal._here():
                if not has_size(folder / name, shard):
                    del journal.shards[name]
            journal.resumed = journal._begun
        else:
            if folder.exists() and any(p for p in folder.iterdir() if p.name != WORK):
                raise TargetExistsError(
                    "the output folder is not empty",
                    where=str(folder),
                    next_step="Choose another folder; nothing was touched.",
                )
            with writing(journal._path):
                journal._path.parent.mkdir(parents=True, exist_ok=True)
        if not rank and not journal._begun:
            journal._append()
        return journal

    @staticmethod
    def verify(journals: "Sequence[Journal]", tell: Callable[[int, int], None]) -> None:
        """Read all shards that are files, and believe no longer in those that have other bytes than their lines say.

        `tell(done, total)` is told bytes of all of them, in this thread, and may raise to break it off.
        """
        files = [(journal, name, shard) for journal in journals for name, shard in journal._here()]
        kept = sound([(journal._folder / name, shard) for journal, name, shard in files], tell)
        for (journal, name, _), is_kept in zip(files, kept, strict=True):
            if not is_kept:
                del journal.shards[name]

    @staticmethod
    def is_in(folder: Path) -> bool:
        return (folder / WORK / _JOURNAL).is_file()

    @staticmethod
    def models_in(folder: Path) -> list[dict[str, str]] | None:
        """The models of the unfinished merge in `folder` as they were pinned, if one was begun there."""
        try:
            with open(folder / WORK / _JOURNAL, "rb") as file:
                line, _ = next(sound_lines(file), ({}, 0))
        except OSError:
            return None
        return line.get("models")

    def add_statistics(self, tensors: Mapping[str, Tally]) -> None:
        """The probe has counted all tensors."""
        self._folders.check()
        names = list(tensors)
        for start in range(0, len(names), _TENSORS_A_LINE):
            part = names[start : start + _TENSORS_A_LINE]
            self._append({"event": "probed", "tensors": {name: tensors[name].to_json() for name in part}})
        self._append({"event": "probe", "tensors": len(tensors)})
        self.statistics = dict(tensors)

    def add_thresholds(self, thresholds: Mapping[str, tuple[float, ...]]) -> None:
        self._folders.check()
        self.thresholds = dict(thresholds)
        self._append({"event": "thresholds", "tensors": {n: list(v) for n, v in thresholds.items()}})

    def add_shard(self, shard: FinishedShard) -> None:
        self._folders.check()
        self.shards[shard.filename] = shard
        self._append({"event": "shard", **shard.to_json()})
        if self.on_shard is not None:
            self.on_shard(shard)

    def add_uploaded(self, filename: str) -> None:
        """The target holds the bytes of this shard."""
        self.uploaded.add(filename)
        self._append({"event": "uploaded", "filename": filename})

    def forget(self, filenames: Iterable[str]) -> None:
        """These shards are lost, on both sides."""
        for filename in filenames:
            self.uploaded.discard(filename)
            self.shards.pop(filename, None)
            self._append({"event": "lost", "filename": filename})

    def close(self) -> None:
        """The merge is complete: the working folder goes. Where shards were uploaded it is needed until the commit."""
        if not self._uploads:
            shutil.rmtree(self._folder / WORK, ignore_errors=True)

    def _append(self, *lines: Mapping[str, Any]) -> None:
        """Behind the line that says which merge this is, which a journal begins with."""
        with self._lock, writing(self._path), open(self._path, "ab", buffering=0) as file:
            if not self._begun:
                lines = ({"event": "plan", "identity": self._identity, "models": pins_of(self._refs)}, *lines)
            left = memoryview("".join(map(sealed, lines)).encode())
            end = file.tell()
            try:
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except BaseException:  # a part of a line would hide what is appended later
                with suppress(OSError):
                    file.truncate(end)
                raise
            self._begun = True

    def _read(self, path: Path) -> None:
        """Line by line, since all of them together may take more memory than the merge."""
        length, own = 0, path == self._path
        with written("the journal cannot be read", str(path)), open(path, "rb") as file:
            for line, end in sound_lines(file):
                self._take(line)
                self._begun |= own
                length = end
            if not own:  # whoever works there looks after it
                return
            whole = file.seek(0, os.SEEK_END)
            file.seek(0)
            nothing_sound = not length and path.name == _JOURNAL
            if nothing_sound and (b"\n" in file.read() or any(p for p in self._folder.iterdir() if p.name != WORK)):
                raise TargetExistsError(
                    "the journal of an unfinished merge is damaged, or of another version of hubmerge",
                    where=str(self._path),
                    next_step="Choose another folder, or remove this one.",
                )
        if length < whole:  # a kill in the middle of a line, or damage: what is no longer said is repeated
            with writing(self._path), open(self._path, "r+b") as file:
                file.truncate(length)
        self._probed = {}  # of a probe that was cut short

    def _here(self) -> list[tuple[str, FinishedShard]]:
        """The shards that are files."""
        return [(name, shard) for name, shard in self.shards.items() if name not in self.uploaded]

    def _take(self, line: Mapping[str, Any]) -> None:
        match line["event"]:
            case "plan":  # it comes first
                if line["identity"] != self._identity:
                    raise self._another(line)
            case "probed":
                self._probed |= {n: Tally.from_json(t) for n, t in line["tensors"].items()}
            case "probe":
                self.statistics = self._probed
            case "thresholds":
                self.thresholds = {n: tuple(v) for n, v in line["tensors"].items()}
            case "shard":
                self.shards[line["filename"]] = FinishedShard.from_json(line)
            case "uploaded":
                if self._uploads:
                    self.uploaded.add(line["filename"])
            case "lost":
                self.uploaded.discard(line["filename"])
                self.shards.pop(line["filename"], None)

    def _another(self, line: Mapping[str, Any]) -> TargetExistsError:
        """The folder holds the merge of another plan, perhaps of the same recipe before a source moved on."""
        theirs = [(str(pin["id"]), str(pin["sha"])) for pin in line.get("models", ()) if isinstance(pin, dict)]
        ours = [(ref.id, ref.sha) for ref in self._refs]
        if [name for name, _ in theirs] == [name for name, _ in ours] and theirs != ours:
            moved = [n for n, (old, new) in enumerate(zip(theirs, ours, strict=True)) if old != new]
            again = all(self._refs[n].kind == "hub" for n in moved)
            return TargetExistsError(
                "an unfinished merge of other versions of the models is here",
                where=str(self._folder),
                expected=", ".join("@".join(ours[n]) for n in moved),
                got=", ".join("@".join(theirs[n]) for n in moved),
                next_step="To go on with it, name those versions in the recipe; or choose another folder."
                if again
                else "The models have changed since: choose another folder.",
            )
        return TargetExistsError(
            "another merge is unfinished here",
            where=str(self._folder),
            expected=self._identity[:12],
            got=str(line["identity"])[:12],
            next_step="Choose another folder, or remove this one.",
        )


def pins_of(refs: Iterable[ModelRef]) -> list[dict[str, str]]:
    """Which models a merge was begun with, as plain data: the base and the agents."""
    return [{"kind": r.kind, "id": r.id, "sha": r.sha, "requested": r.requested} for r in refs]


def plan_identity(plan: Plan) -> str:
    """What a resumed merge must agree on: inputs, recipe, rounding and the layout of the shards."""
    # the journal holds tallies, so those of another schema are another merge's
    digest = hashlib.sha256(f"{plan.identity}\0{plan.rounding}\0{SCHEMA}.{_FORM}".encode())
    for shard in plan.shards:
        digest.update(shard.filename.encode() + b"\0" + shard.header)
    return digest.hexdigest()


def sealed(line: Mapping[str, Any]) -> str:
    """A line as it is written, with its line break."""
    text = json.dumps(line)
    return f'{text[:-1]}{_SEAL}{zlib.crc32(text.encode()):08x}"}}\n'


def sound_lines(raw: Iterable[bytes]) -> Iterator[tuple[dict[str, Any], int]]:
    """The lines before the first one that is not sound, and how many bytes end with each."""
    length = 0
    for text in raw:
        content, _, seal = text.rpartition(_SEAL.encode())
        if seal != b'%08x"}\n' % zlib.crc32(content + b"}"):
            return
        length += len(text)
        yield json.loads(content + b"}"), length

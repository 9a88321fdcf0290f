"""An unfinished merge of which something was damaged meanwhile: what is not as it was written is made again."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from line import Line, Watcher

from hubmerge.engine import journal as journal_module
from hubmerge.engine.journal import Journal, sealed, sound_lines
from hubmerge.errors import DiskError, RecipeError, TargetExistsError
from hubmerge.output.finished import load_report
from localhub.process import LocalHubProcess


def of_lines(text: bytes, change: Callable[[list[bytes]], list[bytes]]) -> bytes:
    return b"".join(change(text.splitlines(keepends=True)))


def with_a_changed_digest(text: bytes) -> bytes:
    before, key, after = text.rpartition(b'"sha256": "')
    return before + key + (b"0" if after[:1] != b"0" else b"1") + after[1:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "lost power": lambda text: text + bytes(4096),
    "garbage": lambda text: text + b"\xff\xfe not a line\n",
    "deep nesting": lambda text: text + b"[" * 100_000 + b"\n",
    "lost power before a line": lambda text: of_lines(text, lambda ls: [*ls[:2], bytes(len(ls[2])) + b"\n", *ls[3:]]),
    "a line of somebody else": lambda text: text + b'{"event": "shard", "filename": "../x"}\n',
    "half a line before a whole one": lambda text: of_lines(text, lambda ls: [*ls[:-1], ls[-1][:100], ls[-1]]),
    # in lines that are read as before, so that only their seals tell
    "a changed count": lambda text: text.replace(b'"changed": ', b'"changed": 1', 1),
    "a changed digest": with_a_changed_digest,
}


@pytest.fixture(scope="module")
def merges(
    faulty_hub: LocalHubProcess,
    family: dict[str, Any],
    undisturbed: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Line, Line]:
    """One that is whole, and one of which all shards are there and the rest is not."""

    def stop() -> None:
        raise KeyboardInterrupt

    folders = (tmp_path_factory.mktemp(name) for name in ("whole", "unfinished"))
    whole, unfinished = (Line(faulty_hub, folder, dict(family), "ada/journal") for folder in folders)
    assert whole.to_folder() == undisturbed
    unfinished.watcher.at = {"card": stop}
    with pytest.raises(KeyboardInterrupt):
        unfinished.to_folder()
    return whole, unfinished


@pytest.fixture
def unfinished(merges: tuple[Line, Line], tmp_path: Path) -> Line:
    """A copy of the unfinished one."""
    folder = tmp_path / "unfinished"
    shutil.copytree(merges[1].folder, folder)
    return replace(merges[1], folder=folder, watcher=Watcher())


def journal_of(line: Line) -> Path:
    return line.out / ".hubmerge" / "journal.jsonl"


def damage(line: Line, how: str) -> None:
    path = journal_of(line)
    before = path.read_bytes()
    path.write_bytes(DAMAGES[how](before))
    assert path.read_bytes() != before


@pytest.mark.parametrize("how", DAMAGES)
def test_what_a_damaged_journal_no_longer_says_is_repeated(
    unfinished: Line, merges: tuple[Line, Line], undisturbed: dict[str, str], how: str
) -> None:
    damage(unfinished, how)
    assert unfinished.to_folder() == undisturbed
    assert load_report(unfinished.out).statistics == load_report(merges[0].out).statistics


@pytest.mark.parametrize("how", [*DAMAGES][:3])
def test_what_is_written_after_the_damage_counts_for_the_run_that_follows(unfinished: Line, how: str) -> None:
    damage(unfinished, how)
    plan = unfinished.prepare().plan
    Journal.open(unfinished.out, plan).add_thresholds({"a": (0.5,)})
    assert Journal.open(unfinished.out, plan).thresholds == {"a": (0.5,)}


@pytest.mark.parametrize(
    "first", [b"garbage\n", b'{"event": "plan", "identity": "x", "models": []}\n', b'{"event": "pla']
)
def test_a_journal_that_does_not_say_whose_it_is_is_refused_and_nothing_touched(unfinished: Line, first: bytes) -> None:
    journal = journal_of(unfinished)
    others = journal.read_bytes().splitlines(keepends=True)[1:] if first.endswith(b"\n") else []
    journal.write_bytes(b"".join([first, *others]))
    before = {p: p.read_bytes() for p in unfinished.out.rglob("*") if p.is_file() and p.name != "lock"}
    with pytest.raises(TargetExistsError, match="damaged"):
        unfinished.to_folder()
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_finished_shard_that_rots_before_the_merge_is_resumed_is_made_again(
    unfinished: Line, undisturbed: dict[str, str]
) -> None:
    shard = next(unfinished.out.glob("*.safetensors"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert unfinished.to_folder() == undisturbed


def test_a_line_that_the_disk_refuses_does_not_hide_those_that_other_threads_write_after_it(
    unfinished: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal = Journal.open(unfinished.out, unfinished.prepare().plan)
    before = journal_of(unfinished).read_bytes()
    with monkeypatch.context() as context:
        context.setattr(journal_module, "os", SimpleNamespace(**{**vars(os), "fsync": fsync}))
        with pytest.raises(DiskError):
            journal.add_thresholds({})
    journal.add_uploaded("x")
    after = journal_of(unfinished).read_bytes()
    *_, (last, length) = sound_lines(after.splitlines(keepends=True))
    assert last == {"event": "uploaded", "filename": "x"}
    assert after == before + sealed(last).encode()
    assert length == len(after)


def test_a_cache_that_is_a_file_is_named_without_a_word_of_threads(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    (line.folder / "inputs").write_text("somebody's")
    with caplog.at_level(logging.WARNING), pytest.raises(DiskError, match="Not a directory"):
        line.to_folder()
    assert not caplog.records


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", '{"parents": 1}', "", "\x00"])
def test_a_damaged_manifest_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "hubmerge.json").write_text(text)
    with pytest.raises(RecipeError, match=r"damaged.*new folder"):
        load_report(tmp_path)

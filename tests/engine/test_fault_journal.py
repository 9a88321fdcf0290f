"""An unfinished merge of which something was damaged meanwhile: what is not as it was written is made again."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from line import Line

from hubmerge.engine import journal as journal_module
from hubmerge.engine.journal import Journal, sealed, sound_lines
from hubmerge.errors import DiskError, RecipeError, TargetExistsError
from hubmerge.output.finished import load_report


def lose_power(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(4096))


def lose_power_before_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], bytes(len(lines[2]) - 1) + b"\n", *lines[3:]]))


def append_garbage(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\xff\xfe not a line\n")


def append_a_line_of_somebody_else(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"event": "shard", "filename": "../x"}\n')


def nest_deeply(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"[" * 100_000 + b"\n")


def leave_half_a_line_before_a_whole_one(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], lines[-1][:100], lines[-1]]))


def change_a_count(path: Path) -> None:
    """In a line that is read as before, so that only its seal tells."""
    text = path.read_text()
    assert '"changed": ' in text
    path.write_text(text.replace('"changed": ', '"changed": 1', 1))


def change_a_digest(path: Path) -> None:
    before, key, after = path.read_text().rpartition('"sha256": "')
    path.write_text(before + key + ("0" if after[0] != "0" else "1") + after[1:])


@pytest.fixture
def unfinished(line: Line) -> Line:
    """All shards are there, the rest is not."""

    def stop() -> None:
        raise KeyboardInterrupt

    line.watcher.at = {"card": stop}
    with pytest.raises(KeyboardInterrupt):
        line.to_folder()
    return line


def journal_of(line: Line) -> Path:
    return line.folder / "out" / ".hubmerge" / "journal.jsonl"


@pytest.mark.parametrize(
    "damage",
    [
        lose_power,
        lose_power_before_a_line,
        append_garbage,
        append_a_line_of_somebody_else,
        nest_deeply,
        leave_half_a_line_before_a_whole_one,
        change_a_count,
        change_a_digest,
    ],
)
def test_what_a_damaged_journal_no_longer_says_is_repeated(
    unfinished: Line, undisturbed: dict[str, str], damage: Callable[[Path], None]
) -> None:
    damage(journal_of(unfinished))
    assert unfinished.to_folder() == undisturbed
    resumed = load_report(unfinished.folder / "out")
    unfinished.folder = unfinished.folder / "whole"
    unfinished.to_folder()
    assert resumed.statistics == load_report(unfinished.folder / "out").statistics


@pytest.mark.parametrize("damage", [lose_power, append_garbage, nest_deeply])
def test_what_is_written_after_the_damage_counts_for_the_run_that_follows(
    unfinished: Line, damage: Callable[[Path], None]
) -> None:
    damage(journal_of(unfinished))
    plan = unfinished.prepare().plan
    Journal.open(unfinished.folder / "out", plan).add_thresholds({"a": (0.5,)})
    assert Journal.open(unfinished.folder / "out", plan).thresholds == {"a": (0.5,)}


@pytest.mark.parametrize("first", [b"garbage\n", b'{"event": "plan", "identity": "x", "models": []}\n'])
def test_a_journal_that_does_not_say_whose_it_is_is_refused_and_nothing_touched(unfinished: Line, first: bytes) -> None:
    journal = journal_of(unfinished)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([first, *lines[1:]]))
    before = {p: p.read_bytes() for p in (unfinished.folder / "out").rglob("*") if p.is_file() and p.name != "lock"}
    with pytest.raises(TargetExistsError, match="damaged"):
        unfinished.to_folder()
    assert all(path.read_bytes() == content for path, content in before.items())


def test_finished_shards_without_a_journal_line_at_all_are_somebody_elses(unfinished: Line) -> None:
    journal_of(unfinished).write_bytes(b'{"event": "pla')
    with pytest.raises(TargetExistsError, match="damaged"):
        unfinished.to_folder()


def test_a_finished_shard_that_rots_before_the_merge_is_resumed_is_made_again(
    unfinished: Line, undisturbed: dict[str, str]
) -> None:
    for shard in (unfinished.folder / "out").glob("*.safetensors"):
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
        break
    assert unfinished.to_folder() == undisturbed


def test_a_line_that_the_disk_refuses_does_not_hide_those_that_other_threads_write_after_it(
    unfinished: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        @staticmethod
        def fsync(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal = Journal.open(unfinished.folder / "out", unfinished.prepare().plan)
    before = journal_of(unfinished).read_bytes()
    with monkeypatch.context() as context:
        context.setattr(journal_module, "os", FullDisk())
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

"""The journal and the writer of shards: what is said to be durable is; what is not, or was damaged meanwhile, is made
again; nothing is left."""

import errno
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from line import threads_left
from stream_helpers import bytes_of, family_plan, run, tallies

from hubmerge.engine import journal as journal_module
from hubmerge.engine import sink
from hubmerge.engine.journal import Journal, sealed, sound_lines
from hubmerge.engine.sink import WORK, FinishedShard, ShardWriter
from hubmerge.engine.stream import MergeResult
from hubmerge.errors import DiskError, RecipeError, SourceChangedError, TargetExistsError
from hubmerge.output.finished import load_report
from hubmerge.plan.plan import Plan
from hubmerge.statistics.statistics import Tally, zero_tally


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return family_plan(tmp_path_factory.mktemp("family"), "ram_plus", max_shard_bytes=12_000)


@pytest.fixture(scope="module")
def whole(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MergeResult]:
    """A merge of which all shards are there and the rest is not."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return out, run(plan, out)


@pytest.fixture
def unfinished(whole: tuple[Path, MergeResult], tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(whole[0], tmp_path / "out"))


def journal_of(out: Path) -> Path:
    return out / WORK / "journal.jsonl"


def opened(tmp_path: Path, plan: Plan, *, uploads: bool = False) -> Journal:
    (tmp_path / "out").mkdir(exist_ok=True)
    journal = Journal.open(tmp_path / "out", plan, uploads=uploads)
    Journal.verify([journal], lambda done, total: None)
    return journal


def finished(tmp_path: Path, plan: Plan, number: int) -> FinishedShard:
    """A shard with its file."""
    shard = plan.shards[number]
    content = bytes([number]) * shard.size
    (tmp_path / "out" / shard.filename).write_bytes(content)
    return FinishedShard(shard.filename, shard.size, sha256(content).hexdigest(), None, {})


def told(journal: Journal) -> tuple[object, ...]:
    """What a journal says, as it was told it or as it read it."""
    known = journal.statistics and {name: tally.to_json() for name, tally in journal.statistics.items()}
    return known, journal.thresholds, journal.shards, journal.uploaded


def test_a_journal_that_is_opened_again_says_what_it_was_told(tmp_path, plan):
    tally = zero_tally(3)
    names = [t.name for t in plan.tensors()]
    journal = opened(tmp_path, plan, uploads=True)

    def both() -> tuple[object, ...]:
        again = told(opened(tmp_path, plan, uploads=True))
        assert told(journal) == again
        return again

    assert both()[0] is None
    journal.add_statistics(dict.fromkeys(names, tally))
    assert both()[0] == {n: tally.to_json() for n in names}
    journal.add_thresholds({names[0]: (0.5, 0.25)})
    assert both()[1] == {names[0]: (0.5, 0.25)}
    shards = [finished(tmp_path, plan, number) for number in (0, 1, 2)]
    for shard in shards:
        journal.add_shard(shard)
        assert both()[2] == {s.filename: s for s in shards[: shards.index(shard) + 1]}
    for shard in shards[:2]:
        journal.add_uploaded(shard.filename)
    (tmp_path / "out" / shards[1].filename).unlink()  # a kill may leave the first one's
    assert both()[2:] == ({s.filename: s for s in shards}, {s.filename for s in shards[:2]})
    journal.forget([shards[0].filename])
    assert both()[2:] == ({s.filename: s for s in shards[1:]}, {shards[1].filename})


def test_tallies_take_several_short_lines_that_count_once_all_are_there(tmp_path, plan, monkeypatch):
    monkeypatch.setattr(journal_module, "_TENSORS_A_LINE", 3)
    journal = opened(tmp_path, plan)
    tallies = {t.name: zero_tally(3) for t in plan.tensors()}
    journal.add_statistics(tallies)
    path = journal_of(tmp_path / "out")
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 2 + -(-len(tallies) // 3)
    path.write_bytes(b"".join(lines[:-1]))
    again = opened(tmp_path, plan)
    assert again.statistics is None
    again.add_statistics(tallies)
    assert [*(opened(tmp_path, plan).statistics or {})] == [*tallies]


@pytest.mark.parametrize("other", ["method", "form"])
def test_another_merge_is_not_gone_on_with(tmp_path, plan, monkeypatch, other):
    out = tmp_path / "out"
    if other == "method":
        run(family_plan(tmp_path, "linear"), out)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(journal_module, "_FORM", journal_module._FORM - 1)
            opened(tmp_path, plan)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(TargetExistsError, match=f"another merge is unfinished here in {out}: "):
        opened(tmp_path, plan)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_shard_whose_file_is_gone_cut_short_or_rotten_is_made_again(tmp_path, plan, unfinished):
    whole = bytes_of(unfinished, plan)
    gone, short, rotten, *others = (unfinished / s.filename for s in plan.shards)
    gone.unlink()
    os.truncate(short, plan.shards[1].size - 1)
    rotten.write_bytes(bytes([rotten.read_bytes()[0] ^ 1]) + rotten.read_bytes()[1:])
    assert set(opened(tmp_path, plan).shards) == {path.name for path in others}
    run(plan, unfinished)
    assert bytes_of(unfinished, plan) == whole


DAMAGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "lost power": lambda lines: [*lines, bytes(4096)],
    "garbage": lambda lines: [*lines, b"\xff\xfe not a line\n"],
    "deep nesting": lambda lines: [*lines, b"[" * 100_000 + b"\n"],
    "lost power before a line": lambda lines: [*lines[:2], bytes(len(lines[2])) + b"\n", *lines[3:]],
    "a line of somebody else": lambda lines: [*lines, b'{"event": "shard", "filename": "../x"}\n'],
    "half a line before a whole one": lambda lines: [*lines[:-1], lines[-1][:100], lines[-1]],
    # in lines that are read as before, so that only their seals tell
    "a changed count": lambda lines: [line.replace(b'"changed": ', b'"changed": 1', 1) for line in lines],
    "a changed digest": lambda lines: [*lines[:-1], lines[-1].replace(b'"sha256": "', b'"sha256": "0', 1)],
}


def damage(out: Path, how: str) -> None:
    path = journal_of(out)
    before = path.read_bytes()
    path.write_bytes(b"".join(DAMAGES[how](before.splitlines(keepends=True))))
    assert path.read_bytes() != before


@pytest.mark.parametrize("how", DAMAGES)
def test_what_a_damaged_journal_no_longer_says_is_repeated(plan, unfinished, whole, how):
    damage(unfinished, how)
    assert tallies(run(plan, unfinished)) == tallies(whole[1])
    assert bytes_of(unfinished, plan) == bytes_of(whole[0], plan)


@pytest.mark.parametrize("how", [*DAMAGES][:3])
def test_what_is_written_after_the_damage_counts_for_the_run_that_follows(plan, unfinished, how):
    damage(unfinished, how)
    Journal.open(unfinished, plan).add_thresholds({"a": (0.5,)})
    assert Journal.open(unfinished, plan).thresholds == {"a": (0.5,)}


@pytest.mark.parametrize(
    "first", [b"garbage\n", b'{"event": "plan", "identity": "x", "models": []}\n', b'{"event": "pla']
)
def test_a_journal_that_does_not_say_whose_it_is_is_refused_and_nothing_touched(plan, unfinished, first):
    journal = journal_of(unfinished)
    others = journal.read_bytes().splitlines(keepends=True)[1:] if first.endswith(b"\n") else []
    journal.write_bytes(b"".join([first, *others]))
    before = {p: p.read_bytes() for p in unfinished.rglob("*") if p.is_file()}
    with pytest.raises(TargetExistsError, match="damaged"):
        run(plan, unfinished)
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_cache_that_is_a_file_is_named_without_a_word_of_threads(line, caplog):
    (line.folder / "inputs").write_text("somebody's")
    with caplog.at_level(logging.WARNING), pytest.raises(DiskError, match="Not a directory"):
        line.to_folder()
    assert not caplog.records


def test_a_line_that_the_disk_refuses_does_not_hide_those_that_are_written_after_it(plan, unfinished, monkeypatch):
    journal = Journal.open(unfinished, plan)
    before = journal_of(unfinished).read_bytes()
    with monkeypatch.context() as context:
        context.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(DiskError):
            journal.add_thresholds({})
    journal.add_uploaded("x")
    after = journal_of(unfinished).read_bytes()
    *_, (last, length) = sound_lines(after.splitlines(keepends=True))
    assert last == {"event": "uploaded", "filename": "x"}
    assert after == before + sealed(last).encode()
    assert length == len(after)


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", '{"parents": 1}', "", "\x00"])
def test_a_damaged_manifest_is_named_with_what_to_do(tmp_path, text):
    (tmp_path / "hubmerge.json").write_text(text)
    with pytest.raises(RecipeError, match=r"damaged.*new folder"):
        load_report(tmp_path)


def test_a_shard_that_was_uploaded_and_deleted_is_made_again_where_a_folder_is_wanted(tmp_path, plan, unfinished):
    whole, shard = bytes_of(unfinished, plan), plan.shards[0].filename
    opened(tmp_path, plan, uploads=True).add_uploaded(shard)
    (unfinished / shard).unlink()
    again = opened(tmp_path, plan, uploads=True)
    assert (again.uploaded, shard in again.shards) == ({shard}, True)
    run(plan, unfinished)
    assert bytes_of(unfinished, plan) == whole


def test_reading_finished_shards_again_is_broken_off_within_a_block(tmp_path, monkeypatch):
    shard = FinishedShard("large", 4 * 10**9, "0" * 64, None, {})
    with open(tmp_path / "large", "wb") as file:
        file.truncate(shard.size)  # it holds nothing
    hashed: list[int] = []

    def tell(done: int, total: int) -> None:
        if done:  # all threads have been started
            raise KeyboardInterrupt

    monkeypatch.setattr(sink, "TELLING_S", 0.01)
    monkeypatch.setattr(sink, "hashlib", SimpleNamespace(sha256=lambda: Mock(update=lambda b: hashed.append(len(b)))))
    with pytest.raises(KeyboardInterrupt):
        sink.sound([(tmp_path / "large", shard)] * 3, tell)
    assert 0 < sum(hashed) < shard.size


@pytest.mark.parametrize("event", ["probe", "thresholds", "shard"])
def test_nothing_is_recorded_that_was_made_of_a_folder_that_has_changed(tmp_path, event):
    plan = family_plan(tmp_path, "ram_plus")
    journal = opened(tmp_path, plan)
    shard = finished(tmp_path, plan, 0)
    path = journal_of(tmp_path / "out")
    before = path.read_bytes()
    os.utime(tmp_path / "agent1" / "model.safetensors", ns=(0, 0))
    tallies: dict[str, Tally] = {"lm_head.weight": zero_tally(3)}
    with pytest.raises(SourceChangedError):
        {
            "probe": lambda: journal.add_statistics(tallies),
            "thresholds": lambda: journal.add_thresholds({"lm_head.weight": (1.0,)}),
            "shard": lambda: journal.add_shard(shard),
        }[event]()
    assert path.read_bytes() == before
    assert told(journal) == (None, None, {}, set())


def test_one_line_is_written_at_a_time(tmp_path, plan, monkeypatch):
    """A shard is finished in one thread while another one's upload is noted."""
    journal = opened(tmp_path, plan)
    locked: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda file: locked.append(journal._lock.locked()))
    journal.add_uploaded("a")
    journal.add_thresholds({})
    assert locked == [True, True]


def test_the_hash_is_of_all_bytes_however_late_hashing_is(tmp_path, plan, monkeypatch):
    class Late:
        def __init__(self) -> None:
            self._digest = hashlib.new("sha256")
            self.hexdigest = self._digest.hexdigest

        def update(self, data: memoryview) -> None:
            time.sleep(0.1)
            self._digest.update(data)

    monkeypatch.setattr(sink.hashlib, "sha256", Late)
    shard = plan.shards[0]
    with ShardWriter(tmp_path / "out", shard) as writer:
        writer.write(bytes(range(256)) * ((shard.size - len(shard.header)) // 256))
        writer.write(b"x" * ((shard.size - len(shard.header)) % 256))
        size, sha256 = writer.finish()
    content = (tmp_path / "out" / shard.filename).read_bytes()
    assert (size, sha256) == (len(content), hashlib.new("sha256", content).hexdigest())


@pytest.mark.parametrize("keep", [True, False])
def test_a_writer_that_is_left_early_leaves_no_file_no_descriptor_and_no_thread(tmp_path, plan, keep):
    (tmp_path / "out").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt):
        interrupted(ShardWriter(tmp_path / "out", plan.shards[0], keep=keep))
    assert len(os.listdir("/proc/self/fd")) <= before
    assert [p.name for p in (tmp_path / "out").rglob("*")] == [WORK] * keep
    assert threads_left() == []


def interrupted(writing: ShardWriter) -> None:
    with writing:
        writing.write(b"some")
        raise KeyboardInterrupt

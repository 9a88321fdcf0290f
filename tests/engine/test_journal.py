"""The journal and the writer of shards: what is said to be durable is, what is not is made again, nothing is left."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from line import threads_left
from stream_helpers import bytes_of, family_plan, plan_of, run

from hubmerge.engine import journal as journal_module
from hubmerge.engine import sink
from hubmerge.engine.journal import Journal
from hubmerge.engine.sink import WORK, FinishedShard, ShardWriter
from hubmerge.errors import SourceChangedError, TargetExistsError
from hubmerge.plan.plan import Plan
from hubmerge.statistics.statistics import Tally, zero_tally


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return family_plan(tmp_path, "ram_plus", max_shard_bytes=12_000)


def opened(
    tmp_path: Path, plan: Plan, *, uploads: bool = False, tell: Callable[[int, int], None] = lambda done, total: None
) -> Journal:
    (tmp_path / "out").mkdir(exist_ok=True)
    journal = Journal.open(tmp_path / "out", plan, uploads=uploads)
    Journal.verify([journal], tell)
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


def test_a_journal_that_is_opened_again_says_what_it_was_told(tmp_path: Path, plan: Plan) -> None:
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


def test_tallies_take_several_short_lines_that_count_once_all_are_there(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_TENSORS_A_LINE", 3)
    journal = opened(tmp_path, plan)
    tallies = {t.name: zero_tally(3) for t in plan.tensors()}
    journal.add_statistics(tallies)
    path = tmp_path / "out" / WORK / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 2 + -(-len(tallies) // 3)
    assert opened(tmp_path, plan).statistics is not None
    path.write_bytes(b"".join(lines[:-1]))
    again = opened(tmp_path, plan)
    assert again.statistics is None
    again.add_statistics(tallies)
    assert [*(opened(tmp_path, plan).statistics or {})] == [*tallies]


@pytest.mark.parametrize("other", ["method", "form", "no models"])
def test_another_merge_is_not_gone_on_with(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    out, work = tmp_path / "out", tmp_path / "out" / WORK
    if other == "method":
        run(plan_of(tmp_path, "linear"), out)
    elif other == "form":
        with monkeypatch.context() as patch:
            patch.setattr(journal_module, "_FORM", journal_module._FORM - 1)
            opened(tmp_path, plan)
    else:
        work.mkdir(parents=True)
        (work / "journal.jsonl").write_text(journal_module.sealed({"event": "plan", "identity": "0" * 64}))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(TargetExistsError, match=f"another merge is unfinished here in {out}: "):
        opened(tmp_path, plan)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_shard_whose_file_is_gone_or_cut_short_is_made_again(tmp_path: Path, plan: Plan) -> None:
    run(plan, tmp_path / "out")
    whole = bytes_of(tmp_path / "out", plan)
    (tmp_path / "out" / plan.shards[0].filename).unlink()
    os.truncate(tmp_path / "out" / plan.shards[1].filename, plan.shards[1].size - 1)
    assert set(opened(tmp_path, plan).shards) == {s.filename for s in plan.shards[2:]}
    run(plan, tmp_path / "out")
    assert bytes_of(tmp_path / "out", plan) == whole


def test_a_shard_that_was_uploaded_and_deleted_is_made_again_where_a_folder_is_wanted(
    tmp_path: Path, plan: Plan
) -> None:
    journal = opened(tmp_path, plan, uploads=True)
    shard = finished(tmp_path, plan, 0)
    journal.add_shard(shard)
    journal.add_uploaded(shard.filename)
    (tmp_path / "out" / shard.filename).unlink()
    assert opened(tmp_path, plan, uploads=True).shards == {shard.filename: shard}
    as_folder = opened(tmp_path, plan)
    assert not as_folder.shards
    assert not as_folder.uploaded


def test_reading_finished_shards_again_is_broken_off_within_a_block(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path, plan)
    large = 4 * 10**9  # of which the file holds nothing
    for shard in plan.shards[:3]:
        journal.add_shard(FinishedShard(shard.filename, large, "0" * 64, None, {}))
        with open(tmp_path / "out" / shard.filename, "wb") as file:
            file.truncate(large)
    hashed: list[int] = []

    def tell(done: int, total: int) -> None:
        if done:  # all threads have been started
            raise KeyboardInterrupt

    monkeypatch.setattr(sink, "TELLING_S", 0.01)
    monkeypatch.setattr(sink, "hashlib", SimpleNamespace(sha256=lambda: Mock(update=lambda b: hashed.append(len(b)))))
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path, plan, tell=tell)
    assert 0 < sum(hashed) < large
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("event", ["probe", "thresholds", "shard"])
def test_nothing_is_recorded_that_was_made_of_a_folder_that_has_changed(tmp_path: Path, plan: Plan, event: str) -> None:
    journal = opened(tmp_path, plan)
    shard = finished(tmp_path, plan, 0)
    path = tmp_path / "out" / WORK / "journal.jsonl"
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


def test_one_line_is_written_at_a_time(tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard is finished in one thread while another one's upload is noted."""
    journal = opened(tmp_path, plan)
    locked: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda file: locked.append(journal._lock.locked()))
    journal.add_uploaded("a")
    journal.add_thresholds({})
    assert locked == [True, True]


def test_the_hash_is_of_all_bytes_however_late_hashing_is(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_writer_that_is_left_early_leaves_no_file_no_descriptor_and_no_thread(
    tmp_path: Path, plan: Plan, keep: bool
) -> None:
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

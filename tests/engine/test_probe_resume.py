"""A probe that was broken off goes on where it was: what it had counted is not read again, and nothing else differs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stream_helpers import NOWHERE, SIZES, StopAfter, bytes_of, plan_of, run, write_family

from hubmerge.engine import first_passes, journal
from hubmerge.engine.chunks import Silent
from hubmerge.engine.journal import Journal
from hubmerge.engine.sink import WORK
from hubmerge.engine.stream import StreamOptions, Variant, merge_variants
from hubmerge.errors import TargetExistsError
from hubmerge.plan.plan import PlannedTensor
from hubmerge.sources.reader import LocalOrFetched, TensorReader
from hubmerge.statistics.statistics import Tally

ELEMENTS = sum(map(prod, SIZES.values()))


class Reading(Silent):
    """What the probe says of its progress, which tensors it announces, and which were read while it ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[str] = []
        self.probed: list[tuple[int, int]] = []
        self.announced: list[list[str]] = []
        self.totals: list[int] = []  # elements counted so far
        consumed, expect = TensorReader.consumed, TensorReader.expect

        def note(reader: TensorReader, tensor: object, elements: int) -> None:
            self.read.append(tensor.name)  # type: ignore[attr-defined]
            consumed(reader, tensor, elements)  # type: ignore[arg-type]

        def note_announced(reader: TensorReader, tensors: Sequence[PlannedTensor], *, again: bool) -> None:
            self.announced.append([t.name for t in tensors])
            expect(reader, tensors, again=again)

        monkeypatch.setattr(TensorReader, "consumed", note)
        monkeypatch.setattr(TensorReader, "expect", note_announced)

    def counted(self, total: Tally) -> None:
        self.totals.append(total.elements)

    def progress(self, stage: str, done: int, total: int) -> None:
        if stage == "probe":
            self.probed.append((done, total))


@pytest.mark.parametrize("stop_at", [2, 4, 6, 7])
def test_tensors_that_were_counted_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    monkeypatch.setattr(first_passes, "KEEPING_S", 0.0)
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram_plus", max_shard_bytes=12_000)
    whole = run(plan, tmp_path / "whole")
    out = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        run(plan, out, observer=StopAfter(stop_at))
    lines = lines_of(out)
    counted = {name for line in lines if line["event"] == "probed" for name in line["tensors"]}
    assert counted
    assert not any(line["event"] == "probe" for line in lines)
    with monkeypatch.context() as patch:
        reading = Reading(patch)
        resumed = run(plan, out, resume=True, observer=reading)
    known = sum(t.elements for t in plan.tensors() if t.name in counted)
    assert min(done for done, _ in reading.probed) > known
    assert reading.probed[-1] == (ELEMENTS, ELEMENTS)
    assert reading.totals[0] > known
    assert reading.totals[-1] == ELEMENTS
    assert reading.announced[0] == [t.name for t in plan.tensors() if t.name not in counted]
    chunks = {t.name: -(-t.elements // 4096) for t in plan.tensors()}
    for name in counted:  # once, when it is merged
        assert reading.read.count(name) == chunks[name], name
    assert bytes_of(out, plan) == bytes_of(tmp_path / "whole", plan)
    assert {n: t.to_json() for n, t in resumed.statistics.tensors.items()} == {
        n: t.to_json() for n, t in whole.statistics.tensors.items()
    }
    assert [*resumed.statistics.tensors] == [*whole.statistics.tensors] == [t.name for t in plan.tensors()]


def lines_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / WORK / "journal.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("keeping_s", [0.0, 1e9])
def test_every_tally_is_written_once_and_a_short_line_says_that_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeping_s: float
) -> None:
    monkeypatch.setattr(first_passes, "KEEPING_S", keeping_s)
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram_plus", max_shard_bytes=12_000)
    whole = run(plan, tmp_path / "out")
    written = (tmp_path / "out" / WORK / "journal.jsonl").read_text().splitlines()
    lines = [json.loads(text) for text in written]
    names = [name for line in lines if line["event"] == "probed" for name in line["tensors"]]
    assert sorted(names) == sorted(whole.statistics.tensors)
    [end] = [text for text, line in zip(written, lines, strict=True) if line["event"] == "probe"]
    assert len(end) < 100


def test_many_tallies_take_several_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_TENSORS_A_LINE", 3)
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram_plus")
    whole = run(plan, tmp_path / "out")
    kept = Journal.open(tmp_path / "out", plan, resume=True)
    lines = [json.loads(text) for text in (tmp_path / "out" / WORK / "journal.jsonl").read_text().splitlines()]
    assert max(len(line["tensors"]) for line in lines if line["event"] == "probed") == 3
    assert kept.statistics is not None
    assert [(n, t.to_json()) for n, t in kept.statistics.items()] == [
        (n, t.to_json()) for n, t in whole.statistics.tensors.items()
    ]


def test_a_journal_of_the_previous_form_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram_plus")
    with monkeypatch.context() as patch:
        patch.setattr(journal, "_FORM", journal._FORM - 1)
        run(plan, tmp_path / "out")
    with pytest.raises(TargetExistsError, match=f"another merge is unfinished here in {tmp_path / 'out'}: "):
        Journal.open(tmp_path / "out", plan, resume=True)


def test_every_few_seconds_the_tensors_counted_meanwhile_are_written_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes on by a second whenever it is read: after each tensor, and after each writing."""
    seconds = count()
    monkeypatch.setattr(first_passes, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(first_passes, "KEEPING_S", 2)
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram_plus")
    run(plan, tmp_path / "out")
    written = [list(line["tensors"]) for line in lines_of(tmp_path / "out") if line["event"] == "probed"]
    names = [t.name for t in plan.tensors() if t.elements]
    pairs = [names[i : i + 2] for i in range(0, len(names) - 1, 2)]
    assert written == [*pairs, names[-1:], ["model.layers.1.empty"]], "what is left follows at the end"


def test_each_of_several_merges_knows_by_itself_what_their_common_probe_has_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_passes, "KEEPING_S", 0.0)
    write_family(tmp_path)
    plans = [plan_of(tmp_path, "ram_plus", parameters={"r": r}, max_shard_bytes=12_000) for r in (0.1, 0.3)]
    outs = [tmp_path / "0", tmp_path / "1"]
    probing = sum(t.elements > 0 for t in plans[0].tensors())

    def broken_off(calls: int) -> list[list[dict[str, Any]]]:
        journals = []
        for plan, out in zip(plans, outs, strict=True):
            out.mkdir(exist_ok=True)
            journals.append(Journal.open(out, plan, resume=True))
        with TensorReader(plans[0].models, LocalOrFetched(NOWHERE, tmp_path / "cache")) as reader:
            variants = [Variant(*each) for each in zip(plans, journals, outs, strict=True)]
            with pytest.raises(KeyboardInterrupt):
                merge_variants(variants, reader, StreamOptions(10**6, 2), StopAfter(calls))
        return [lines_of(out) for out in outs]

    for calls, event in ((4, "probed"), (probing, "probe")):
        first, second = broken_off(calls)
        found = [[line["tensors"] for line in lines if line["event"] == event] for lines in (first, second)]
        assert found[0] == found[1] != []

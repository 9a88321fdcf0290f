"""A probe that was broken off goes on where it was: what it had counted is not read again, and nothing else differs."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
from stream_helpers import SIZES, StopAfter, bytes_of, plan_of, run, write_family

from hubmerge import first_passes
from hubmerge.chunks import Silent
from hubmerge.sink import WORK
from hubmerge.sources.reader import TensorReader

ELEMENTS = sum(map(prod, SIZES.values()))


class Reading(Silent):
    """What the probe says of its progress, and which tensors were read while it ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[str] = []
        self.probed: list[tuple[int, int]] = []
        consumed = TensorReader.consumed

        def note(reader: TensorReader, tensor: object, elements: int) -> None:
            self.read.append(tensor.name)  # type: ignore[attr-defined]
            consumed(reader, tensor, elements)  # type: ignore[arg-type]

        monkeypatch.setattr(TensorReader, "consumed", note)

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
    lines = [json.loads(line) for line in (out / WORK / "journal.jsonl").read_text().splitlines()]
    counted = {name for line in lines if line["event"] == "probed" for name in line["tensors"]}
    assert counted
    assert not any(line["event"] == "probe" for line in lines)
    with monkeypatch.context() as patch:
        reading = Reading(patch)
        resumed = run(plan, out, resume=True, observer=reading)
    known = sum(t.elements for t in plan.tensors() if t.name in counted)
    assert min(done for done, _ in reading.probed) > known
    assert reading.probed[-1] == (ELEMENTS, ELEMENTS)
    chunks = {t.name: -(-t.elements // 4096) for t in plan.tensors()}
    for name in counted:  # once, when it is merged
        assert reading.read.count(name) == chunks[name], name
    assert bytes_of(out, plan) == bytes_of(tmp_path / "whole", plan)
    assert {n: t.to_json() for n, t in resumed.statistics.tensors.items()} == {
        n: t.to_json() for n, t in whole.statistics.tensors.items()
    }
    assert list(resumed.statistics.tensors) == list(whole.statistics.tensors)


def test_a_whole_probe_writes_what_it_counted_on_the_way_only_every_few_seconds(tmp_path: Path) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram_plus")
    run(plan, tmp_path / "out")
    events = [
        json.loads(line)["event"] for line in (tmp_path / "out" / WORK / "journal.jsonl").read_text().splitlines()
    ]
    assert events.count("probe") == 1
    assert "probed" not in events

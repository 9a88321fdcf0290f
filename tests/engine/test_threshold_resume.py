"""Passes for a threshold over the model that were broken off go on where they were, and find the same thresholds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from builders import tensor, write_model
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_helpers import NOWHERE, StopAfter, plan_of

from hubmerge.engine import first_passes
from hubmerge.engine.chunks import Silent, StreamOptions
from hubmerge.engine.first_passes import find_thresholds
from hubmerge.engine.journal import Journal
from hubmerge.engine.ranked import Ranked, addable, joined
from hubmerge.engine.sink import WORK
from hubmerge.plan.plan import Plan
from hubmerge.sources.reader import LocalOrFetched, TensorReader

COUNTS = {"a": 5000, "b": 4096, "c": 1, "d": 9000, "e": 0}
LONG, SHORT = 1e-3, 2.0**-12  # steps of the differences: two passes, one


@pytest.fixture(autouse=True)
def _kept_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_passes, "KEEPING_S", 0.0)


def plan_with(folder: Path, steps: float) -> Plan:
    rng = np.random.default_rng(0)
    write_model(folder / "base", {name: tensor(np.zeros(count), "F32") for name, count in COUNTS.items()})
    for k in range(2):
        updates = {  # of other sizes in every tensor, so that none can be left out of the ranking
            name: tensor(rng.integers(-100, 100, count) * steps * 2.0**place, "F32")
            for place, (name, count) in enumerate(COUNTS.items())
        }
        write_model(folder / f"agent{k}", updates)
    return plan_of(folder, "ties", agents=2, parameters={"density": 0.3})


class Counting(LocalOrFetched):
    """Notes how many elements of which tensor are read."""

    def __init__(self, cache: Path) -> None:
        super().__init__(NOWHERE, cache)
        self.read: Counter[str] = Counter()

    def consumed(self, name: str, elements: int) -> None:
        self.read[name] += elements


def found_in(plan: Plan, out: Path, observer: Silent | StopAfter) -> tuple[dict[str, tuple[float, ...]], Counter[str]]:
    """The thresholds, and what was read for them; as the stream does it, with the journal of `out`."""
    journal = Journal.open(out, plan, resume=True)
    store = Counting(out / "cache")
    with TensorReader(plan.models, store) as reader:
        options = StreamOptions(4096, 2, backend="eager")
        found = find_thresholds(plan, reader, options, observer, journal.ranked, journal.keep_ranked)
    return dict(found), store.read


@pytest.mark.parametrize(
    ("steps", "stop_at", "again"),  # a pass has seven chunks: a a b c d d d
    [(SHORT, 2, "bcd"), (SHORT, 4, "d"), (LONG, 3, "cdabcd"), (LONG, 6, "dabcd"), (LONG, 8, "abcd"), (LONG, 11, "d")],
)
def test_what_was_counted_before_a_kill_is_not_read_again(
    tmp_path: Path, steps: float, stop_at: int, again: str
) -> None:
    plan = plan_with(tmp_path, steps)
    whole, read = found_in(plan, tmp_path / "whole", Silent())
    assert read == elements_of("abcdabcd" if steps == LONG else "abcd")
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        found_in(plan, out, StopAfter(stop_at))
    resumed, read = found_in(plan, out, Silent())
    assert resumed == whole
    assert read == elements_of(again)


def elements_of(names: str) -> Counter[str]:
    return Counter({name: names.count(name) * COUNTS[name] for name in names})


@pytest.mark.parametrize("steps", [SHORT, LONG])
def test_any_number_of_kills_reads_every_tensor_once_a_pass(tmp_path: Path, steps: float) -> None:
    plan = plan_with(tmp_path, steps)
    whole, _ = found_in(plan, tmp_path / "whole", Silent())
    out, kills = tmp_path / "out", 0
    while True:
        try:
            found, _ = found_in(plan, out, StopAfter(3))
            break
        except KeyboardInterrupt:
            kills += 1
            assert kills < 20
    assert kills >= 2
    assert found == whole


def test_what_is_kept_is_small_and_goes_when_the_thresholds_are_known(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, LONG)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        found_in(plan, out, StopAfter(9))
    kept = out / WORK / "ranked.json"
    assert kept.stat().st_size < 2_000
    assert len((out / WORK / "journal.jsonl").read_text().splitlines()) == 1
    journal = Journal.open(out, plan, resume=True)
    assert journal.ranked is not None
    assert journal.ranked.keys
    journal.add_thresholds({"a": (1.0, 2.0)})
    assert not kept.exists()
    assert Journal.open(out, plan, resume=True).ranked is None


@settings(max_examples=50, deadline=None)
@given(
    places=st.lists(st.integers(0, 100_000), unique=True),
    bins=st.dictionaries(st.tuples(st.integers(0, 31), st.integers(0, 65_535)), st.integers(1, 2**50)),
    keys=st.lists(st.tuples(st.integers(0, 65_535), st.integers(1, 2**40))),
)
def test_what_is_kept_comes_back_as_it_was(
    places: list[int], bins: dict[tuple[int, int], int], keys: list[tuple[int, int]]
) -> None:
    counts = np.array([(*place, bins[place]) for place in sorted(bins)], np.int64).reshape(-1, 3)
    one = Ranked(tuple(keys), np.array(sorted(places), np.int64), counts)
    again = Ranked.from_json(json.loads(json.dumps(one.to_json())))
    assert again.keys == one.keys
    assert np.array_equal(again.places, one.places)
    assert np.array_equal(again.counts, one.counts)


def ranked(places: Sequence[int], counts: Sequence[Sequence[int]] = (), keys: Sequence[tuple[int, int]] = ()) -> Ranked:
    return Ranked(tuple(keys), np.array(places, np.int64), np.array(counts, np.int64).reshape(-1, 3))


def test_what_several_processes_know_is_added_up_where_it_can_be() -> None:
    both = joined([ranked([0, 4], [(0, 7, 3), (1, 1, 1)]), ranked([2], [(0, 7, 2), (0, 9, 1)])])
    assert both.places.tolist() == [0, 2, 4]
    assert both.counts.tolist() == [[0, 7, 5], [0, 9, 1], [1, 1, 1]]
    assert addable([ranked([0, 4]), ranked([4]), ranked([1])]) == [True, False, True]
    key = [(5, 1)]
    assert addable([ranked([0, 4]), ranked([4], keys=key), ranked([], keys=key)]) == [False, True, True]
    assert joined([ranked([0, 4]), ranked([1], [(0, 1, 1)], key)]).keys == ((5, 1),)
    assert joined([ranked([]), ranked([])]).counts.tolist() == []

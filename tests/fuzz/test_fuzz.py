"""Every parser of strangers' bytes reads or refuses its seeds, what once broke it, and damaged ones."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fuzz_damage import Edit, damaged
from fuzz_seeds import HERE, kept, seeds
from fuzz_targets import TARGETS

MOST_S = 2.0  # of CPU, for one input
EDITS = st.lists(st.tuples(*[st.integers(0, 2**16 - 1)] * 3), min_size=1, max_size=4)


def tried(name: str, data: bytes) -> None:
    begin = time.process_time()
    TARGETS[name].run(data)
    assert time.process_time() - begin < MOST_S


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_what_once_broke_a_parser_are_read_or_refused(name: str):
    for seed in seeds(name):
        tried(name, seed)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_read_or_refused(name: str):
    known = seeds(name)

    @settings(max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, len(known) - 1), EDITS)
    def run(which: int, edits: list[Edit]) -> None:
        tried(name, damaged(known[which], TARGETS[name].kind, edits))

    run()


def test_a_target_notices_a_parser_that_breaks(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("fuzz_targets.parse_adapter_config", broken)
    with pytest.raises(KeyError):
        tried("adapter_config", seeds("adapter_config")[0])


def test_every_kept_input_belongs_to_a_target():
    assert {path.name for path in (HERE / "corpus").iterdir()} <= TARGETS.keys()
    assert any(kept(name) for name in TARGETS)

"""Every parser of strangers' bytes reads or refuses its seeds, what once broke it, and damaged ones."""

import os
import time

import pytest
from fuzz_damage import Edit, damaged
from fuzz_seeds import HERE, seeds
from fuzz_targets import TARGETS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MOST_S = 2.0  # of CPU, for one input
EDITS = st.lists(st.tuples(*[st.integers(0, 2**16 - 1)] * 3), min_size=1, max_size=4)
QUIET = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
BY_HAND = int(os.environ.get("HUBMERGE_FUZZ", 0))


@pytest.mark.timeout(0 if BY_HAND else 300)
@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_reads_or_refuses_what_once_broke_it_and_damaged_input(name):
    known, kind = seeds(name), TARGETS[name].kind

    def tried(data: bytes) -> None:
        begin = time.process_time()
        TARGETS[name].run(data)
        assert time.process_time() - begin < MOST_S

    @settings(QUIET, max_examples=BY_HAND or 120, derandomize=not BY_HAND)
    @given(st.integers(0, len(known) - 1), EDITS)
    def run(which: int, edits: list[Edit]) -> None:
        tried(damaged(known[which], kind, edits))

    for seed in known:
        tried(seed)
    run()


def test_every_kept_input_belongs_to_a_target():
    assert {path.name for path in (HERE / "corpus").iterdir()} <= TARGETS.keys()

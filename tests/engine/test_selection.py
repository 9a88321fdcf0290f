"""Streaming selection against sorting, for every rank and any chunking."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_helpers import select

from hubmerge.engine.definition import ChunkInputs
from hubmerge.methods.base import Threshold

F = np.float32


def chunks_of(base: np.ndarray, agents: list[np.ndarray], size: int) -> list[ChunkInputs]:
    return [
        ChunkInputs(tuple(x[start : start + size] for x in (base, *agents)), ("F32",) * (1 + len(agents)), start)
        for start in range(0, len(base), size)
    ]


def selected(threshold: Threshold, base: np.ndarray, agents: list[np.ndarray], size: int) -> tuple[float, ...]:
    return select(threshold, len(agents), chunks_of(base, agents, size))


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1.0, 1e-45]),
        min_size=1,
        max_size=200,
    ),
    share=st.floats(0.001, 1.0),
    size=st.sampled_from([1, 7, 64, 1000]),
)
def test_the_selected_magnitude_is_the_one_that_sorting_finds(values, share, size):
    agents = [np.array(values, dtype=F), np.array(values[::-1], dtype=F) * F(1e-3)]
    threshold = Threshold("delta", "tensor", lambda n: max(1, int(share * n)))
    rank = threshold.rank_of(0, len(values))
    got = selected(threshold, np.zeros_like(agents[0]), agents, size)
    assert got == tuple(float(np.sort(np.abs(agent))[::-1][rank - 1]) for agent in agents)


def test_private_magnitudes_of_all_agents_are_ranked_together():
    base = np.zeros(6, dtype=F)
    a = np.array([1.0, 0.0, 5.0, 3.0, 0.0, 0.0], dtype=F)
    b = np.array([0.0, 2.0, 5.0, 0.0, 4.0, 0.0], dtype=F)
    # private: 1, 2, 3, 4 (element 2 is shared, element 5 unchanged); the lower median is 2
    got = selected(Threshold("private", "tensor", lambda n: n - (n - 1) // 2), base, [a, b], 2)
    assert got == (2.0, 2.0)
    # where there is nothing to rank
    assert selected(Threshold("private", "tensor", lambda n: 1), base, [base, base], 2) == (0.0, 0.0)

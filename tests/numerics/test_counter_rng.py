"""Draws are a function of seed, purpose, tensor and index, the same on every machine, and look random."""

from __future__ import annotations

import merge_reference
import pytest

from hubmerge.numerics.counter_rng import draws, make_key


def test_these_draws_never_change():
    # a published merge can be made again only while they stay
    assert draws(make_key(0, "rounding", "model.norm.weight"), 0, 4).tolist() == [
        0xAE7B6C19F11B2B7F,
        0x54EEF3807CB2B6A1,
        0x6E940261388FF461,
        0xD60253D2FE4854C7,
    ]


@pytest.mark.parametrize("start", [0, 1, 2**32 - 2, 2**40 - 3])
def test_draws_are_the_reference_at_every_index(start: int):
    key = make_key(3, "drop", "agent", "w")
    assert draws(key, start, 5).tolist() == [merge_reference.draw(key.first, key.second, start + i) for i in range(5)]

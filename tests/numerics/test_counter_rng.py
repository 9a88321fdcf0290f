"""Draws are a function of seed, purpose, tensor and index, the same on every machine, and look random."""

import hashlib

import merge_reference
import pytest

from hubmerge.numerics.counter_rng import Key, draws, make_key


def test_a_round_is_splitmix64_as_published():
    # the first outputs of SplitMix64 seeded with 0, as in the reference implementation's test vectors
    state, outputs = 0, []
    for _ in range(3):
        state = (state + merge_reference.GOLDEN) % 2**64
        outputs.append(merge_reference.splitmix(state))
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_the_key_is_a_digest_of_seed_and_identity():
    digest = hashlib.blake2b(b"(7, 'rounding', 'w')", digest_size=16, person=b"hubmerge-rng").digest()
    assert make_key(7, "rounding", "w") == Key(
        int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    )


def test_these_draws_never_change():
    # a published merge can be made again only while they stay
    assert draws(make_key(0, "rounding", "model.norm.weight"), 0, 4).tolist() == [
        0xAE7B6C19F11B2B7F,
        0x54EEF3807CB2B6A1,
        0x6E940261388FF461,
        0xD60253D2FE4854C7,
    ]


@pytest.mark.parametrize("start", [0, 1, 2**32 - 2, 2**40 - 3])
def test_draws_are_the_reference_at_every_index(start):
    key = make_key(3, "drop", "agent", "w")
    assert draws(key, start, 5).tolist() == [merge_reference.draw(key.first, key.second, start + i) for i in range(5)]

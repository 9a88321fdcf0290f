"""The passes over a chunk: one block after the other through all the arithmetic of a chunk."""

from __future__ import annotations

import numpy as np
from numba import njit

from hubmerge.engine.compiled.adapters import INNER, call_code
from hubmerge.engine.compiled.counts import (
    active_flags,
    count_inputs,
    count_overlaps,
    differences,
    flush,
    overlaps,
    sum_result,
)
from hubmerge.engine.compiled.kernel_loops import INPUTS_WORD, N_WORD, OUT_WORD
from hubmerge.engine.compiled.layout import FLUSH
from hubmerge.engine.compiled.rounding import copy, finish_part
from hubmerge.engine.compiled.rounding_loops import draw_uniform
from hubmerge.engine.counting import BLOCK, GROUP, LANES

_ROWS = GROUP * LANES  # elements of a group of rows
_PART = 512  # elements from draws to output, in the first cache level even where rows are many


@njit(**INNER)
def probe_pass(rows16, rows32, half, n, epsilon, counters, sums, workspace):
    """Counts of n elements of the models that lie at the addresses `rows16` (BF16, or F16 if `half`) or else `rows32`
    (F32) into `counters` (chunk_arrays.Counters), sums per block into sums[:, blocks];
    `workspace` is chunk_arrays.Workspace's."""
    inputs, scaled, singles, _, active, positive, exactly, _, short, long, found, scratch, tail = workspace
    deltas, base = inputs[: counters[0].shape[0]], singles[0]
    for block in range((n + BLOCK - 1) // BLOCK):
        if block > 0 and block % FLUSH == 0:
            flush(counters[5], counters[6])
        start = block * BLOCK
        m = min(n - start, BLOCK)
        padded = (m + _ROWS - 1) // _ROWS * _ROWS
        differences(
            rows16, rows32, half, start, m, padded, epsilon, base, deltas, active, positive, short, long,
            found, tail,
        )  # fmt: skip
        overlaps(active, padded // 64, exactly)
        count_inputs(
            rows16, rows32, half, start, deltas, m, padded, active, positive, exactly, short, long, found,
            counters, sums[:, block], scaled, scratch,
        )  # fmt: skip
    return 0


@njit(**INNER)
def overlap_pass(rows16, rows32, half, n, epsilon, by_overlap, workspace):
    """by_overlap[K, K+1] of n elements of the models, as probe_pass counts it."""
    inputs, _, singles, _, active, positive, exactly, _, short, long, found, _, tail = workspace
    deltas = inputs[: by_overlap.shape[0]]
    for start in range(0, n, BLOCK):
        m = min(n - start, BLOCK)
        padded = (m + _ROWS - 1) // _ROWS * _ROWS
        active_flags(
            rows16, rows32, half, start, m, padded, epsilon, singles[0], deltas, active, positive, short, long,
            found, tail,
        )  # fmt: skip
        overlaps(active, padded // 64, exactly)
        count_overlaps(active, exactly, padded // 64, by_overlap)
    return 0


@njit(**INNER)
def merge_pass(
    apply, loop_words, rows16, rows32, half, n, epsilon, with_inputs, dtype, recode, stochastic, has_other, first,
    second, index, counters, in_sums, counts, out_sums, out16, out32, uniform_keys, sensitivities, workspace,
):  # fmt: skip
    """Merges n elements into out16 (dtype FLOAT16 or BFLOAT16) or out32 (FLOAT32), and counts the inputs (as
    probe_pass) and the result. `recode`: the base is stored in another dtype than the output's 16 bits. `apply` is the
    address of a kernel's loop, `loop_words` what it is called with: inputs and delta (singles[1]) of `workspace`."""
    inputs, scaled, singles, unused, active, positive, exactly, flags, short, long, found, scratch, tail = workspace
    agents, draws = counters[0].shape[0], uniform_keys.shape[0]
    deltas = inputs[:agents]
    base, delta, step, other_step = singles[0], singles[1], singles[6], singles[7]
    for block in range((n + BLOCK - 1) // BLOCK):
        start = block * BLOCK
        m = min(n - start, BLOCK)
        padded = (m + _ROWS - 1) // _ROWS * _ROWS
        differences(
            rows16, rows32, half, start, m, padded, epsilon, base, deltas, active, positive, short, long,
            found, tail,
        )  # fmt: skip
        overlaps(active, padded // 64, exactly)
        if with_inputs:
            if block > 0 and block % FLUSH == 0:
                flush(counters[5], counters[6])
            count_inputs(
                rows16, rows32, half, start, deltas, m, padded, active, positive, exactly, short, long, found,
                counters, in_sums[:, block], scaled, scratch,
            )  # fmt: skip
        for place in range(0, m, _PART):
            at, few = start + place, min(m - place, _PART)
            for k in range(draws):
                draw_uniform(uniform_keys[k, 0], uniform_keys[k, 1], index + at, few, inputs[agents + k, place:])
            for k in range(sensitivities.shape[0]):
                copy(sensitivities[k, at : at + few], few, inputs[agents + draws + k, place:])
            if _apply(apply, loop_words, place, few) != 0:
                return -1
            finish_part(
                dtype, recode, stochastic, has_other, first, second, index + at, singles, place, few, out16[at:],
                out32[at:], unused, counts,
            )  # fmt: skip
        sum_result(
            deltas, found, active, exactly, flags, delta, step, other_step, m, padded, has_other, out_sums[:, block],
            scaled, scratch[0],
        )  # fmt: skip
    return 0


@njit(**INNER)
def _apply(apply, loop_words, place, n):
    """A kernel's loop over n elements from `place` of its rows; its status."""
    ahead = np.uint64(4 * place)
    loop_words[N_WORD] = np.uint64(n)
    loop_words[INPUTS_WORD] += ahead
    loop_words[OUT_WORD] += ahead
    status = call_code(apply, loop_words)
    loop_words[INPUTS_WORD] -= ahead
    loop_words[OUT_WORD] -= ahead
    return status

"""The passes over a chunk: one block after the other through all the arithmetic of a chunk."""

from __future__ import annotations

import numpy as np
from numba import njit

from hubmerge.compiled.adapters import INNER, call_code
from hubmerge.compiled.counts import count_inputs, differences, flush, overlaps, sum_result
from hubmerge.compiled.kernel_loops import N_WORD
from hubmerge.compiled.layout import BFLOAT16, FLOAT32, FLUSH
from hubmerge.compiled.rounding import finish, round_f16
from hubmerge.compiled.rounding_loops import (
    draw_uniform,
    finish_nearest,
    finish_nearest_and_other,
    finish_stochastic,
    finish_stochastic_and_other,
)
from hubmerge.compiled.vector_loops import GROUP
from hubmerge.counting import BLOCK, LANES

_ROWS = GROUP * LANES  # elements of a group of rows


@njit(**INNER)
def probe_pass(raw16, raw32, half, n, epsilon, counters, sums, workspace):
    """Counts of n elements into `counters` (chunk_arrays.Counters), sums per block into sums[:, blocks];
    `workspace` is chunk_arrays.Workspace's."""
    inputs, scaled, singles, _, active, positive, exactly, _, kept, found, scratch = workspace
    deltas, base, spare = inputs[: counters[0].shape[0]], singles[0], singles[8]
    for block in range((n + BLOCK - 1) // BLOCK):
        if block > 0 and block % FLUSH == 0:
            flush(counters[5], counters[6])
        start = block * BLOCK
        m = min(n - start, BLOCK)
        padded = (m + _ROWS - 1) // _ROWS * _ROWS
        differences(
            raw16, raw32, half, start, m, padded, epsilon, base, deltas, active, positive, kept, found, spare
        )  # fmt: skip
        overlaps(active, padded // 64, exactly)
        count_inputs(
            raw16, raw32, half, start, deltas, m, padded, active, positive, exactly, kept, found, counters,
            sums[:, block], scaled, scratch,
        )  # fmt: skip
    return 0


@njit(**INNER)
def merge_pass(
    apply, loop_words, raw16, raw32, half, n, epsilon, with_inputs, dtype, recode, stochastic, has_other, first,
    second, index, counters, in_sums, counts, out_sums, out16, out32, uniform_keys, sensitivities, workspace,
):  # fmt: skip
    """Merges n elements into out16 (dtype FLOAT16 or BFLOAT16) or out32 (FLOAT32), and counts the inputs (as
    probe_pass) and the result. `recode`: the base is stored in another dtype than the output's 16 bits. `apply` is the
    address of a kernel's loop, `loop_words` what it is called with: inputs and delta (singles[1]) of `workspace`."""
    inputs, scaled, singles, unused, active, positive, exactly, flags, kept, found, scratch = workspace
    agents, draws = counters[0].shape[0], uniform_keys.shape[0]
    deltas = inputs[:agents]
    base, delta, exact, stored, other = singles[0], singles[1], singles[2], singles[3], singles[4]
    stored_base, step, other_step, spare = singles[5], singles[6], singles[7], singles[8]
    alone, shared = flags[0], flags[1]
    for block in range((n + BLOCK - 1) // BLOCK):
        start = block * BLOCK
        stop = min(n, start + BLOCK)
        m = stop - start
        padded = (m + _ROWS - 1) // _ROWS * _ROWS
        differences(
            raw16, raw32, half, start, m, padded, epsilon, base, deltas, active, positive, kept, found, spare
        )  # fmt: skip
        overlaps(active, padded // 64, exactly)
        if with_inputs:
            if block > 0 and block % FLUSH == 0:
                flush(counters[5], counters[6])
            count_inputs(
                raw16, raw32, half, start, deltas, m, padded, active, positive, exactly, kept, found, counters,
                in_sums[:, block], scaled, scratch,
            )  # fmt: skip
        for k in range(draws):
            draw_uniform(uniform_keys[k, 0], uniform_keys[k, 1], index + start, m, inputs[agents + k])
        for k in range(sensitivities.shape[0]):
            _copy(sensitivities[k, start:stop], m, inputs[agents + draws + k])
        loop_words[N_WORD] = np.uint64(m)
        if call_code(apply, loop_words) != 0:
            return -1
        if dtype == BFLOAT16:
            place, into = index + start, out16[start:stop]
            if has_other and stochastic:
                finish_stochastic_and_other(
                    base, delta, m, recode, first, second, place, into, step, other_step, counts
                )  # fmt: skip
            elif has_other:
                finish_nearest_and_other(base, delta, m, recode, first, second, place, into, step, other_step, counts)
            elif stochastic:
                finish_stochastic(base, delta, m, recode, first, second, place, into, step, other_step, counts)
            else:
                finish_nearest(base, delta, m, recode, first, second, place, into, step, other_step, counts)
        else:
            for i in range(m):
                exact[i] = base[i] if delta[i] == np.float32(0) else base[i] + delta[i]
            if dtype == FLOAT32:
                _copy(exact, m, stored)
                _copy(exact, m, out32[start:stop])
            else:
                round_f16(exact, m, stochastic, first, second, index + start, stored, out16[start:stop])
            if recode:
                round_f16(base, m, False, first, second, 0, stored_base, unused)
            finish(base, stored_base if recode else base, exact, stored, m, step, counts)
            if has_other:
                round_f16(exact, m, not stochastic, first, second, index + start, other, unused)
                for i in range(m):
                    other_step[i] = other[i] - base[i]
        sum_result(
            deltas, found, active, exactly, delta, step, other_step, m, padded, has_other, out_sums[:, block], scaled,
            alone, shared, scratch[0],
        )  # fmt: skip
    return 0


@njit(**INNER)
def _copy(source, n, target):
    """target[:n] = source[:n], which numba would prepare for arrays that overlap."""
    for i in range(n):
        target[i] = source[i]

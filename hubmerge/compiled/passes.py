"""The passes over a chunk: one block after the other through all the arithmetic of a chunk."""

from __future__ import annotations

import numpy as np
from numba import njit

from hubmerge.compiled.adapters import INNER, call_code
from hubmerge.compiled.counts import count_inputs, differences, flush, overlaps, sum_result
from hubmerge.compiled.kernel_loops import N_WORD
from hubmerge.compiled.layout import BFLOAT16, FLOAT32, FLUSH
from hubmerge.compiled.rounding import draw_uniform, finish, round_to
from hubmerge.compiled.vector_loops import finish_bf16
from hubmerge.compiled.vectors import VECTOR
from hubmerge.counting import BLOCK, GROUP, LANES

_ROWS = GROUP * LANES  # elements of a group of rows


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
    base, delta, exact, stored, other = singles[0], singles[1], singles[2], singles[3], singles[4]
    stored_base, step, other_step = singles[5], singles[6], singles[7]
    for block in range((n + BLOCK - 1) // BLOCK):
        start = block * BLOCK
        stop = min(n, start + BLOCK)
        m = stop - start
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
        for k in range(draws):
            draw_uniform(uniform_keys[k, 0], uniform_keys[k, 1], index + start, m, inputs[agents + k])
        for k in range(sensitivities.shape[0]):
            _copy(sensitivities[k, start:stop], m, inputs[agents + draws + k])
        loop_words[N_WORD] = np.uint64(m)
        if call_code(apply, loop_words) != 0:
            return -1
        if dtype == BFLOAT16 and not stochastic and not recode and m % VECTOR == 0:
            finish_bf16(base, delta, m, out16[start:stop], exact, step, counts)
        else:
            for i in range(m):
                exact[i] = base[i] if delta[i] == np.float32(0) else base[i] + delta[i]
            if dtype == FLOAT32:
                _copy(exact, m, stored)
                _copy(exact, m, out32[start:stop])
            else:
                round_to(dtype, exact, m, stochastic, first, second, index + start, stored, out16[start:stop])
            if recode:
                round_to(dtype, base, m, False, first, second, 0, stored_base, unused)
            finish(base, stored_base if recode else base, exact, stored, m, step, counts)
        if has_other:
            round_to(dtype, exact, m, not stochastic, first, second, index + start, other, unused)
            for i in range(m):
                other_step[i] = other[i] - base[i]
        sum_result(
            deltas, found, active, exactly, flags, delta, step, other_step, m, padded, has_other, out_sums[:, block],
            scaled, scratch[0],
        )  # fmt: skip
    return 0


@njit(**INNER)
def _copy(source, n, target):
    """target[:n] = source[:n], which numba would prepare for arrays that overlap."""
    for i in range(n):
        target[i] = source[i]

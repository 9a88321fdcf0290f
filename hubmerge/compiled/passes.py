"""The passes over a chunk: one block after the other through all the arithmetic of a chunk.

What is called here lies in modules that `_kept` names: machine code stays between processes, and changes of a module
that it does not name would go unnoticed.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from hubmerge import counting, histogram
from hubmerge.compiled import counts as block_counts
from hubmerge.compiled import pass_types, rounding, vector_code, vector_loops
from hubmerge.compiled.counts import FLUSH, count_inputs, differences, flush, overlaps, sum_result
from hubmerge.compiled.kept_code import kept
from hubmerge.compiled.pass_types import MERGE, STRICT
from hubmerge.compiled.rounding import BFLOAT16, FLOAT32, draw_uniform, finish, round_to
from hubmerge.compiled.vector_loops import GROUP, VECTOR, finish_bf16
from hubmerge.counting import BLOCK, LANES

_WIDTH = BLOCK + 112  # of scratch rows, which would share cache sets if they lay a power of two apart
_ROWS = GROUP * LANES  # elements of a group of rows
_WORDS = BLOCK // 64
_kept = partial(kept, block_counts, rounding, vector_loops, vector_code, pass_types, counting, histogram)


@_kept(**STRICT)
def probe_pass(raw16, raw32, half, n, epsilon, counters, sums):
    """Counts of n elements into `counters` (compiled.InputCounters), sums per block into sums[:, blocks]."""
    agents = counters[0].shape[0]
    base, spare = np.empty(_WIDTH, np.float32), np.empty(_WIDTH, np.float32)
    deltas, scaled = np.empty((agents, _WIDTH), np.float32), np.empty((agents, _WIDTH), np.float32)
    active, positive = np.empty((agents, _WORDS), np.uint64), np.empty((agents, _WORDS), np.uint64)
    exactly = np.empty((agents + 1, _WORDS), np.uint64)
    kept, found = np.empty((agents, 2, _WIDTH), np.uint32), np.empty((agents, 4), np.int64)
    scratch = np.empty((2, max(agents, 8)))
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


# The signature is given so that the machine code can be kept on disk: `apply` is a pointer, not a part of it.
@_kept(signature=MERGE, **STRICT)
def merge_pass(
    apply, raw16, raw32, half, n, epsilon, per_agent, constants, with_inputs, dtype, recode, stochastic, has_other,
    first, second, index, counters, in_sums, counts, out_sums, out16, out32, uniform_keys, sensitivities,
):  # fmt: skip
    """Merges n elements into out16 (dtype FLOAT16 or BFLOAT16) or out32 (FLOAT32), and counts the inputs (as
    probe_pass) and the result. `recode`: the base is stored in another dtype than the output's 16 bits."""
    agents = per_agent.shape[0]
    draws = uniform_keys.shape[0]
    inputs = np.empty((agents + draws + sensitivities.shape[0], _WIDTH), np.float32)
    deltas, scaled = inputs[:agents], np.empty((agents, _WIDTH), np.float32)
    singles = np.empty((9, _WIDTH), np.float32)
    base, delta, exact, stored, other = singles[0], singles[1], singles[2], singles[3], singles[4]
    stored_base, step, other_step, spare = singles[5], singles[6], singles[7], singles[8]
    unused = np.empty(BLOCK, np.uint16)
    active, positive = np.empty((agents, _WORDS), np.uint64), np.empty((agents, _WORDS), np.uint64)
    exactly = np.empty((agents + 1, _WORDS), np.uint64)
    alone, shared = np.empty(_WORDS, np.uint64), np.empty(_WORDS, np.uint64)
    kept, found = np.empty((agents, 2, _WIDTH), np.uint32), np.empty((agents, 4), np.int64)
    scratch = np.empty((2, max(agents, 8)))
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
            inputs[agents + draws + k, :m] = sensitivities[k, start:stop]
        apply(inputs, per_agent, constants, m, delta)
        if dtype == BFLOAT16 and not stochastic and not recode and m % VECTOR == 0:
            finish_bf16(base, delta, m, out16[start:stop], exact, step, counts)
        else:
            for i in range(m):
                exact[i] = base[i] if delta[i] == np.float32(0) else base[i] + delta[i]
            if dtype == FLOAT32:
                stored[:m] = exact[:m]
                out32[start:stop] = exact[:m]
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
            deltas, found, active, exactly, delta, step, other_step, m, padded, has_other, out_sums[:, block], scaled,
            alone, shared, scratch[0],
        )  # fmt: skip

"""How compiled code is compiled: its settings, and the types of a method's loop and of the merging pass.

numba imports what it knows of functions as arguments when the first one is given, and that module adds to the table in
which another thread may be looking up an argument's type at this moment. So it is imported here.
"""

from __future__ import annotations

from typing import Any

import numba.experimental.function_type  # noqa: F401 (see below)
from numba import types

STRICT: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": False}
INNER = STRICT | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # of what only compiled code calls

# inputs[rows, ≥ n], per_agent[K, columns], constants, n, out[≥ n]
APPLY = types.void(
    types.float32[:, ::1], types.float32[:, ::1], types.float32[::1], types.int64, types.float32[::1]
)  # fmt: skip
COUNTERS = types.Tuple(
    (
        types.int64[:, ::1], types.int64[:, ::1], types.int64[:, ::1], types.int64[:, ::1],
        types.uint32[:, :, ::1], types.uint64[:, :, ::1], types.int64[:, :, ::1], types.int64[:, ::1],
    )
)  # fmt: skip
MERGE = types.void(
    types.FunctionType(APPLY),
    types.uint16[:, ::1], types.float32[:, ::1], types.boolean, types.int64, types.float32, types.float32[:, ::1],
    types.float32[::1], types.boolean, types.int64, types.boolean, types.boolean, types.boolean,
    types.uint64, types.uint64, types.int64, COUNTERS, types.float64[:, ::1], types.int64[::1],
    types.float64[:, ::1], types.uint16[::1], types.float32[::1], types.uint64[:, ::1], types.float32[:, ::1],
)  # fmt: skip

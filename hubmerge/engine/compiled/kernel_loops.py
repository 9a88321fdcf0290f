"""The loop over elements around a method's kernel, as machine code that stays between processes.

A method's kernel is the very function that runs eagerly. Called with symbols it tells its steps (kernel_trace.py),
which become the loop (trace_loops.py). A kernel that looks at values has no such trace: around it a loop is generated,
in which the values of an element and the scalars are named and the compiler sees no array of pointers; only then is it
vectorised, for a few agents. Compiling takes 0.1 to 0.4 s, so the code is kept (kept_code.py) under the trace, or under
the loop's text and the kernel's meaning (kernel_meaning.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from hubmerge.engine.compiled import kept_code
from hubmerge.engine.compiled.kernel_meaning import meaning_of
from hubmerge.engine.compiled.kernel_trace import Known, Trace, trace_of
from hubmerge.engine.compiled.machine_code import OWN_WORDS, Code, Kind, ObjectCode, length

# inputs[rows, ≥ n], per_agent[K, columns], constants, n, out[≥ n]
LOOP: tuple[Kind, ...] = ("float32[2]", "float32[2]", "float32[1]", "int64", "float32[1]")
# where a call's words say the addresses of inputs and out, and n
INPUTS_WORD, N_WORD, OUT_WORD = (OWN_WORDS + length(LOOP[:k]) for k in (0, 3, 4))

# a kernel's loop over five agents or more stays a loop otherwise, and then that over elements is not vectorised
_UNROLL_THRESHOLD = 8000
_one_loads = threading.Lock()


def kernel_loop(kernel: Callable[..., Any], agents: int, inputs: int, columns: Known, constants: Known) -> Code:
    """The compiled loop, for `inputs` rows: the deltas and the method's extras."""
    with _one_loads:  # the first chunks of all threads ask at once
        return _loop(kernel, agents, inputs, columns, constants)


def is_kept(kernel: Callable[..., Any], agents: int, inputs: int, columns: Known, constants: Known) -> bool:
    """Whether `kernel_loop` finds it."""
    if (trace := trace_of(kernel, agents, inputs, columns, constants)) is not None:
        meaning: str | None = repr(trace)
    else:
        meaning = _meaning(kernel, _source(agents, inputs, len(columns), len(constants)))
    return meaning is not None and kept_code.is_kept("kernel_loop", LOOP, meaning, kept_code.folders())


@cache
def _loop(kernel: Callable[..., Any], agents: int, inputs: int, columns: Known, constants: Known) -> Code:
    return loop_from(kept_code.folders(), kernel, agents, inputs, columns, constants)


def loop_from(
    folders: Sequence[Path], kernel: Callable[..., Any], agents: int, inputs: int, columns: Known, constants: Known
) -> Code:
    """`kernel_loop`, its machine code from `folders` or compiled and kept there."""
    if (trace := trace_of(kernel, agents, inputs, columns, constants)) is not None:
        return kept_code.code_of("kernel_loop", LOOP, repr(trace), folders, partial(_compile_trace, trace))
    source = _source(agents, inputs, len(columns), len(constants))
    meaning = _meaning(kernel, source)

    def compile_now(digest: str) -> ObjectCode:
        from numba import njit

        from hubmerge.engine.compiled.adapters import INNER, named, object_code

        scope: dict[str, Any] = {"__name__": __name__, "kernel": njit(**INNER)(named(kernel, f"kernel_{digest}"))}
        exec(source, scope)  # noqa: S102 (the text is made from four integers)
        loop = njit(**INNER)(named(scope["loop"], f"loop_{digest}"))
        return object_code(loop, "kernel_loop", LOOP, digest, _UNROLL_THRESHOLD)

    places = folders if meaning is not None else ()
    return kept_code.code_of("kernel_loop", LOOP, meaning or uuid4().hex, places, compile_now)


def _compile_trace(trace: Trace, digest: str) -> ObjectCode:
    from hubmerge.engine.compiled.adapters import object_code
    from hubmerge.engine.compiled.trace_loops import loop_of

    return object_code(loop_of(trace), "kernel_loop", LOOP, digest)


def _meaning(kernel: Callable[..., Any], source: str) -> str | None:
    """All that decides the code of a kernel that is not traced; None where that cannot be told."""
    meaning = meaning_of(kernel)
    return None if meaning is None else f"{source}\n{meaning}"


def _source(agents: int, inputs: int, columns: int, constants: int) -> str:
    rows = "; ".join(f"r{k} = inputs[{k}]" for k in range(inputs))
    element = ", ".join(f"r{k}[i]" for k in range(inputs))
    scalars = ", ".join("(" + "".join(f"per_agent[{k}, {c}], " for c in range(columns)) + ")" for k in range(agents))
    shared = "".join(f"constants[{c}], " for c in range(constants))
    return (
        f"def loop(inputs, per_agent, constants, n, out):\n"
        f"    {rows}\n"
        f"    scalars = ({scalars},)\n"
        f"    shared = ({shared})\n"
        f"    for i in range(n):\n"
        f"        out[i] = kernel(({element},), scalars, shared)\n"
        f"    return 0\n"
    )

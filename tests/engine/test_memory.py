"""Peak memory is a constant: of any element-wise method, up to 8 agents, on any machine, however many its cores."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from memory_helpers import AGENTS, IMPORTED, PROMISED, Family, merge, merge_once, planned, predicted

from benchmarks.metering import measure
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.prediction import Machine, predict
from hubmerge.methods import registry

ELEMENT_WISE = [name for name, method in registry().items() if not method.needs_whole("mlp.weight", (2, 2))]
THREADS = (1, 2, 16, 64, 256)
LARGE, HUGE = "synthetic:llama-405b?layers=10", "synthetic:llama-405b"


def test_the_constant_is_what_imports_take() -> None:
    modules = "hubmerge.cli.merge, hubmerge.engine.fast, hubmerge.line, hubmerge.engine.prediction"
    assert measure([sys.executable, "-c", f"import {modules}"]).peak_rss_bytes >= IMPORTED


@pytest.mark.parametrize("method", ELEMENT_WISE)
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_the_plan_of_any_model_says_no_more_than_was_promised(method: str, backend: str) -> None:
    for dtype in ("bfloat16", "float32"):
        plan = planned(method, AGENTS, LARGE, dtype=dtype)
        for threads in THREADS:
            options = StreamOptions(threads=threads, backend=backend)  # type: ignore[arg-type]
            assert predict(plan, Machine(threads), options).memory_bytes <= PROMISED, (threads, dtype)


def test_not_even_of_the_largest_model_on_a_new_machine() -> None:
    """With the fast pass to be built first, and the tallies of a thousand tensors."""
    plan = planned("ram_quantile", AGENTS, HUGE)
    for threads in (2, 256):
        assert predict(plan, Machine(threads, to_build=True)).memory_bytes <= PROMISED


# where fewer cores run sixteen threads, results wait less, and so do less of them
@pytest.mark.parametrize(
    ("method", "threads", "most", "parameters"),
    [
        *((m, 2, 1.25, {}) for m in ELEMENT_WISE),
        ("ties", 16, 1.5, {}),
        ("ram_quantile", 16, 1.5, {}),
        ("ram_plus", 2, 1.25, {"scope": "tensor"}),
        ("ram_plus", 16, 1.5, {"scope": "tensor"}),
    ],
    ids=str,
)
def test_no_merge_of_eight_agents_takes_more_nor_much_less_than_was_predicted(
    method: str,
    threads: int,
    most: float,
    parameters: dict[str, str],
    long_family: Family,
    short_family: Family,
    tmp_path: Path,
) -> None:
    merge_once(short_family.recipe(method, parameters=parameters), tmp_path)
    recipe = long_family.recipe(method, parameters=parameters)
    peak, said = merge(recipe, tmp_path, "--threads", str(threads)), predicted(recipe, threads)
    assert peak <= PROMISED
    assert 0.75 <= said / peak <= most, (said, peak)

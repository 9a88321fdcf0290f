"""How often the inputs are read for a threshold: once where its key names it, and the shard store is told so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from builders import tensor, write_model
from safetensors.numpy import load_file
from stream_helpers import NOWHERE, plan_of

from hubmerge.engine.chunks import StreamOptions
from hubmerge.engine.first_passes import find_thresholds
from hubmerge.engine.progress import Unobserved
from hubmerge.sources.reader import LocalOrFetched, Read, TensorReader

COUNT = 5000
NAMES = ("a", "b")


class Noting(LocalOrFetched):
    """A store that notes what it is told."""

    def __init__(self, cache: Path) -> None:
        super().__init__(NOWHERE, cache)
        self.expected: list[list[str]] = []  # per pass
        self.consumed_elements: Counter[str] = Counter()

    def expect(self, reads: Sequence[Read], *, again: bool) -> None:
        self.expected.append([r.name for r in reads])

    def consumed(self, name: str, elements: int) -> None:
        self.consumed_elements[name] += elements


class Watching(Unobserved):
    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        self.seen.append((done, total))


def thresholds(folder: Path, steps: float, scope: str) -> tuple[dict[str, tuple[float, ...]], Noting, Watching]:
    """Two agents whose updates are multiples of `steps`, over a base of zeros."""
    rng = np.random.default_rng(0)
    write_model(folder / "base", {name: tensor(np.zeros(COUNT), "F32") for name in NAMES})
    for k in range(2):
        updates = {name: tensor(rng.integers(-100, 100, COUNT) * steps, "F32") for name in NAMES}
        write_model(folder / f"agent{k}", updates)
    plan = plan_of(folder, "ties", agents=2, parameters={"density": 0.3, "trim_scope": scope})
    store, watching = Noting(folder / "cache"), Watching()
    with TensorReader(plan.models, store) as reader:
        found = dict(find_thresholds(plan, reader, StreamOptions(4096, 2), watching))
    return found, store, watching


@pytest.mark.parametrize("scope", ["model", "tensor"])
@pytest.mark.parametrize(("steps", "passes"), [(2.0**-12, 1), (1e-3, 2)])
def test_short_differences_take_one_pass_and_long_ones_two(
    tmp_path: Path, scope: str, steps: float, passes: int
) -> None:
    found, store, watching = thresholds(tmp_path, steps, scope)
    for k in range(2):
        parts = {n: np.abs(np.float32(v)) for n, v in agent_values(tmp_path, k).items()}
        for name in NAMES:
            ranked = np.sort(parts[name] if scope == "tensor" else np.concatenate(list(parts.values())))[::-1]
            assert found[name][k] == float(ranked[int(0.3 * len(ranked)) - 1])
    # what is announced is what the store is told to be over, or it would keep and fetch for a pass that never comes
    assert Counter({n: e // COUNT for n, e in store.consumed_elements.items()}) == Counter(
        name for names in store.expected for name in names
    )
    if scope == "model":
        assert store.expected == [list(NAMES)] * passes
    else:
        assert store.expected == [["a", "a", "b", "b"]]
    assert watching.seen[-1] == (4 * COUNT, 4 * COUNT)
    assert [done for done, _ in watching.seen] == sorted(done for done, _ in watching.seen)


def agent_values(folder: Path, k: int) -> dict[str, np.ndarray]:
    return dict(load_file(folder / f"agent{k}" / "model.safetensors"))

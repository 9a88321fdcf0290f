"""A method in a file of its own: the example that the pages name is merged as they say, with nothing else changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders import f32, random_base, read_model, sparse_agent, write_model

import hubmerge
from hubmerge import methods

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "methods"


@pytest.fixture
def own_file(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder of examples as if its file lay beside the other methods."""
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(EXAMPLES)])
    methods.registry.cache_clear()
    yield
    methods.registry.cache_clear()


@pytest.mark.usefixtures("own_file")
def test_a_method_in_one_file_merges_at_once_and_says_the_same_of_every_element(tmp_path: Path) -> None:
    base = random_base(0)
    models = {"base": base, "one": sparse_agent(base, 0.3, 1), "two": sparse_agent(base, 0.3, 2)}
    for name, tensors in models.items():
        write_model(tmp_path / name, tensors)
    agents = [{"model": str(tmp_path / "one"), "weight": 0.5}, str(tmp_path / "two")]
    recipe = {"base": str(tmp_path / "base"), "agents": agents, "method": "magmax", "dtype": "float32"}
    hubmerge.merge(recipe, out=tmp_path / "out")
    merged = read_model(tmp_path / "out")
    for name, stored in base.items():
        start = f32(stored)
        updates = [(f32(models["one"][name]) - start) * np.float32(0.5), f32(models["two"][name]) - start]
        for got, old, *found in zip(*(a.ravel() for a in (f32(merged[name]), start, *updates)), strict=True):
            largest = max(abs(u) for u in found)
            equal = [u for u in found if abs(u) == largest]
            assert got == np.float32(old + np.float32(sum(equal)) / np.float32(len(equal)))


@pytest.mark.usefixtures("own_file")
def test_a_method_in_one_file_is_listed_with_the_others() -> None:
    assert methods.get_method("magmax").title == "MagMax"
    assert "magmax" in methods.registry()

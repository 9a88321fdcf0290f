"""A method in a file of its own: the example that the pages name is merged as they say, with nothing else changed."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from builders import f32, random_base, read_model, sparse_agent, write_model

import hubmerge
from hubmerge import methods
from hubmerge.engine import definition, fast
from hubmerge.errors import InternalError
from hubmerge.methods.base import one_by_one
from hubmerge.methods.wudi import Wudi
from hubmerge.numerics.counter_rng import make_key

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "methods"


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Makes the methods in a folder lie beside the others."""

    def extend(folder: Path) -> None:
        monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(folder)])
        methods.registry.cache_clear()

    yield extend
    methods.registry.cache_clear()


def test_a_method_in_one_file_is_listed_merges_at_once_and_says_the_same_of_every_element(tmp_path, beside):
    beside(EXAMPLES)
    assert methods.registry()["magmax"].title == "MagMax"
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


@pytest.mark.parametrize("merge", [definition.merge_chunk, fast.merge_chunk, None], ids=["definition", "fast", "whole"])
@pytest.mark.parametrize("slip", [lambda d: d * np.float64(2), lambda d: d[:1], lambda d: 1.0])
def test_a_method_that_gives_other_arrays_than_it_gets_is_refused(merge, slip):
    chunk = definition.ChunkInputs((np.zeros(5000, np.float32), np.ones(5000, np.float32)), ("F32",) * 2, 0)
    rule = definition.Rule(lambda inputs, *_: slip(inputs[0]), (), ((),), (), 1e-5, "nearest", both_roundings=False)
    act = partial(merge or fast.merge_chunk, chunk, rule, "F32", make_key(0, "x"), with_inputs=False)
    if merge is None:
        act = partial(
            definition.whole_update, chunk, replace(rule, whole=lambda deltas, _: slip(deltas[0])), one_by_one
        )
    with pytest.raises(InternalError, match=r"gives other arrays than it gets .* expected float32 \[5000\]"):
        act()


COMPLETE = (EXAMPLES / "magmax.py").read_text("utf-8")
OWN = COMPLETE.replace("import Method", "import Method, Parameters").replace(
    "class MagMax(Method):",
    "class P(Parameters):\n    x: float = __import__('pydantic').Field(default=0, ge=1)\n\n\n"
    "class MagMax(Method):\n    parameters = P\n    of_agent = ('x', 'y')\n    of_tensor = ('z',)",
)
WHOLE = "    def needs_whole(self, name, shape):\n        return True\n\n    @staticmethod\n    def kernel"


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (COMPLETE.replace("    summary = ", "    words = "), "no summary"),
        (COMPLETE.replace("    @staticmethod\n    def kernel", WHOLE), "no merge_whole, operations, floats"),
        (COMPLETE.replace('name = "magmax"', 'name = "linear"'), "the name linear, which Linear has"),
        (OWN, "of_agent or of_tensor with y, z, which is no parameter; a default of x that its own bounds refuse: 0"),
    ],
)
def test_a_method_that_is_not_complete_is_refused_with_what_it_lacks(text, missing, tmp_path, beside, monkeypatch):
    assert text != COMPLETE
    (tmp_path / "own_method.py").write_text(text)
    monkeypatch.delitem(sys.modules, "hubmerge.methods.own_method", raising=False)
    beside(tmp_path)
    said = f"is not complete in hubmerge.methods.own_method.MagMax: .* got {missing}\\."
    with pytest.raises(InternalError, match=said):
        methods.registry()


def test_a_method_of_whole_tensors_that_gives_other_arrays_is_named_itself(tmp_path, monkeypatch):
    """Not the method whose kernel it borrows."""
    for seed, name in enumerate(("base", "one", "two")):
        write_model(tmp_path / name, random_base(seed))
    monkeypatch.setattr(Wudi, "merge_whole", lambda self, deltas, scope, each: deltas[0].astype(np.float64))
    recipe = {"base": str(tmp_path / "base"), "agents": [str(tmp_path / "one"), str(tmp_path / "two")]}
    with pytest.raises(InternalError, match=r"in test_own_method\..*<lambda>: expected float32"):
        hubmerge.merge({**recipe, "method": "wudi"}, out=tmp_path / "out")

"""Whole processes whose peak memory is measured, beside what their plan says."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stream_helpers import sensitivity_metadata

from benchmarks.metering import NOWHERE, measure, merging
from benchmarks.synthetic import small_shape, write_family
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.prediction import Machine, predict
from hubmerge.line import Request, prepare
from hubmerge.plan.plan import Plan
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.recipe import Recipe
from hubmerge.sensitivity.file import weights_digest, write_tensors
from hubmerge.sources.open import open_model
from hubmerge.sources.synthetic import DecoderShape

IMPORTED = 56_000_000  # a process that has imported what a merge needs takes this and somewhat more
PROMISED = IMPORTED + 512_000_000
AGENTS = 8
LONG = small_shape(layers=1, hidden=1024, intermediate=1024, key_value=64, vocabulary=10_240)  # 40 small chunks
SHORT = small_shape(layers=1, hidden=64, intermediate=128, key_value=16, vocabulary=512)


@dataclass(frozen=True)
class Family:
    """A base and AGENTS agents with their sensitivities.

    Their updates are of every magnitude there is, so that they are counted in every bin: the most that counting takes.
    """

    folder: Path
    shape: DecoderShape

    @classmethod
    def written(cls, folder: Path, shape: DecoderShape) -> "Family":
        write_family(shape, folder, tuple(0.1 * (k + 1) for k in range(AGENTS)))
        half = np.random.default_rng(0).random(sum(prod(dims) for _, dims in shape.tensors())) < 0.5
        for k, name in enumerate(("base", *(f"agent{k}" for k in range(AGENTS)))):
            _of_every_magnitude(folder / name / "model.safetensors", half, seed=k)
        return cls(folder, shape)

    def recipe(self, method: str, agents: int = AGENTS, **more: Any) -> Recipe:
        names: list[Any] = [str(self.folder / f"agent{k}") for k in range(agents)]
        if method in ("fisher", "sar"):
            names = [{"model": name, "sensitivity": self._sensitivity(name)} for name in names]
        return Recipe.model_validate({"base": str(self.folder / "base"), "agents": names, "method": method, **more})

    def _sensitivity(self, name: str) -> str:
        path = Path(f"{name}.sensitivity.safetensors")
        if not path.is_file():
            model = open_model(ModelName.parse(name), NOWHERE, allow_local=True)
            metadata = sensitivity_metadata(Path(name).name, model.ref.sha, weights_digest(model))
            shapes = dict(self.shape.tensors())
            parts = ((n, np.linspace(0, 1, prod(s), dtype=np.float32)) for n, s in shapes.items())
            write_tensors(path, shapes, metadata.to_strings(), parts)
        return str(path)


def _of_every_magnitude(path: Path, where: NDArray[np.bool_], seed: int) -> None:
    """Elements `where` so: 0 in the base (seed 0), in an agent mostly 0, else ±2^-17 to ±2^14, as in float16."""
    data, rng = path.read_bytes(), np.random.default_rng(seed)
    begin = 8 + int.from_bytes(data[:8], "little")
    bits, count = np.frombuffer(data, np.uint16, offset=begin).copy(), int(where.sum())
    signs, exponents, digits = rng.integers(0, 2, count), rng.integers(110, 141, count), rng.integers(0, 128, count)
    written = rng.random(count) < 0.3 * (seed > 0)
    bits[where] = np.where(written, signs << 15 | exponents << 7 | digits, 0)
    path.write_bytes(data[:begin] + bits.tobytes())


def merge(recipe: Recipe, folder: Path, *flags: str, environment: Mapping[str, str] | None = None) -> int:
    """Peak resident bytes of a process that merges `recipe`."""
    folder.mkdir(parents=True, exist_ok=True)
    path, out = folder / "recipe.yaml", folder / "out"
    path.write_text(recipe.to_yaml())
    command = [sys.executable, *merging(path, "--out", str(out), *flags)]
    try:
        return measure(command, environment).peak_rss_bytes
    finally:
        shutil.rmtree(out, ignore_errors=True)


def predicted(recipe: Recipe, threads: int) -> int:
    plan = prepare(recipe, NOWHERE, Request(allow_local=True)).plan
    return predict(plan, Machine(2), StreamOptions(threads=threads)).memory_bytes


def inspected(path: Path) -> dict[str, Any]:
    """What the command says of a recipe or sweep."""
    command = [sys.executable, "-m", "hubmerge", "inspect", str(path), "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def planned(method: str, agents: int, base: str, **more: object) -> Plan:
    """Of a synthetic base, with the sensitivities of its agents in files."""
    parent = "&" if "?" in base else "?"
    file = {"sensitivity": "./s.safetensors"} if method in ("fisher", "sar") else {}
    named = [{"model": f"{base}{parent}agent={k + 1}&density=0.1", **file} for k in range(agents)]
    content = {"base": base, "agents": named, "method": method}
    recipe = Recipe.model_validate({**content, **more})
    return prepare(recipe, NOWHERE, Request(allow_local=True, calibrate="not")).plan

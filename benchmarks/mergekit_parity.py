"""The same documents through mergekit and through hubmerge, and by how much the results differ.

    python -m benchmarks.mergekit_parity [--out docs/data/mergekit_parity.json]

mergekit runs in an environment of its own (`tests/mergekit/install.sh`), all documents in one process. The models are
small Llamas: three agents that move a tenth to a half of the elements, in places to exactly opposite sides, by
magnitudes that differ from each other, so that a trim has one answer.
"""

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from hubmerge.engine.options import StreamOptions
from hubmerge.hub.client import Hub
from hubmerge.line import Request, merge_to_folder, prepare
from hubmerge.recipe.file import recipe_from_yaml

PYTHON = Path(".cache/mergekit/bin/python")
DENSITIES = (0.1, 0.4, 0.5)
LAYERS, HIDDEN, INTERMEDIATE, VOCABULARY = 2, 64, 96, 128

Values = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Case:
    """One document. `weights`: the agents', and the base's where it is a model too."""

    name: str
    method: str
    weights: tuple[float, float, float] | None = None
    base_weight: float | None = None
    density: float | None = None
    parameters: tuple[tuple[str, Any], ...] = ()
    stored: str = "float32"  # how the models are stored, and computed with
    out_dtype: str | None = None

    def document(self, models: Path) -> str:
        folder = models / self.stored
        lines = [f"merge_method: {self.method}", f"base_model: {folder / 'base'}", "models:"]
        if self.base_weight is not None:
            lines.append(f"  - {{model: {folder / 'base'}, parameters: {{weight: {self.base_weight}}}}}")
        for k in range(len(DENSITIES)):
            own = {"weight": self.weights[k]} if self.weights else {}
            own |= {"density": self.density} if self.density is not None else {}
            lines.append(f"  - {{model: {folder / f'agent{k}'}, parameters: {json.dumps(own)}}}")
        lines.append(f"parameters: {json.dumps(dict(self.parameters))}")
        lines.append(f"dtype: {self.stored}")
        lines += [f"out_dtype: {self.out_dtype}"] if self.out_dtype else []
        return "\n".join(lines) + "\n"


CASES = (
    Case("linear", "linear", (0.5, 0.3, 0.4), 0.0),
    Case("linear, the base too", "linear", (0.5, 0.3, 0.4), 0.7),
    Case("linear, not normalized", "linear", (0.5, 0.25, 0.15), 0.1, parameters=(("normalize", False),)),
    Case("task_arithmetic", "task_arithmetic", (0.6, 0.4, 0.5), parameters=(("lambda", 0.8),)),
    Case("task_arithmetic, normalized", "task_arithmetic", (0.6, 0.4, 0.5), parameters=(("normalize", True),)),
    Case("ties", "ties", (0.5, 0.5, 0.5), density=0.3, parameters=(("lambda", 0.9), ("int8_mask", True))),
    Case("ties, not trimmed", "ties", (1.0, 1.0, 1.0)),
    Case("ties, weighted", "ties", (0.5, 0.3, 0.7), density=0.3),
    Case("ties, summed", "ties", (0.5, 0.3, 0.7), density=0.3, parameters=(("normalize", False),)),
    Case("dare_linear, nothing dropped", "dare_linear", (0.6, 0.4, 0.5), density=1.0),
    Case("dare_ties, nothing dropped", "dare_ties", (0.6, 0.4, 0.5)),
    Case("dare_ties, nothing dropped, normalized", "dare_ties", (0.6, 0.4, 0.5), parameters=(("normalize", True),)),
    Case("ram", "ram"),
    Case("ramplus_tl", "ramplus_tl"),
    Case("ramplus_tl, r 0.5, alpha 1", "ramplus_tl", parameters=(("r", 0.5), ("alpha", 1.0), ("epsilon", 1e-4))),
    Case("ram, stored as bfloat16", "ram", out_dtype="bfloat16"),
    Case("linear, all in bfloat16", "linear", (0.5, 0.3, 0.4), 0.0, stored="bfloat16"),
    Case("task_arithmetic, all in bfloat16", "task_arithmetic", (0.6, 0.4, 0.5), stored="bfloat16"),
    Case("ram, all in bfloat16", "ram", stored="bfloat16"),
)

_DRIVER = """
import json, sys, importlib.metadata, yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions
options = MergeOptions(quiet=True, write_model_card=False, num_threads=1, lora_merge_cache=sys.argv[2])
for document, out in json.loads(sys.argv[1]):
    with open(document) as file:
        run_merge(MergeConfiguration.model_validate(yaml.safe_load(file)), out, options)
print(json.dumps({name: importlib.metadata.version(name) for name in ("mergekit", "torch")}))
"""


def shapes(layers: int = LAYERS) -> dict[str, tuple[int, ...]]:
    result: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for i in range(layers):
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            result[f"model.layers.{i}.self_attn.{part}.weight"] = (HIDDEN, HIDDEN)
        result[f"model.layers.{i}.mlp.gate_proj.weight"] = (INTERMEDIATE, HIDDEN)
        result[f"model.layers.{i}.mlp.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
        result[f"model.layers.{i}.mlp.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
        result[f"model.layers.{i}.input_layernorm.weight"] = (HIDDEN,)
        result[f"model.layers.{i}.post_attention_layernorm.weight"] = (HIDDEN,)
    return {**result, "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}


def make_family(
    seed: int = 0, layers: int = LAYERS
) -> tuple[dict[str, NDArray[np.float32]], list[dict[str, NDArray[np.float32]]]]:
    """A base and its agents, float32."""
    rng = np.random.default_rng(seed)
    base: dict[str, NDArray[np.float32]] = {}
    agents: list[dict[str, NDArray[np.float32]]] = [{} for _ in DENSITIES]
    for name, shape in shapes(layers).items():
        values = rng.normal(1.0 if "norm" in name else 0.0, 0.02, shape).astype(np.float32)
        opposite = rng.random(shape) < 0.05
        values[opposite] = 0.0  # so that ±d around them is exact
        base[name] = values
        steps = [rng.normal(0.0, 3e-3, shape) * (rng.random(shape) < density) for density in DENSITIES]
        d = np.abs(rng.normal(0.0, 3e-3, shape)) + 1e-3
        steps[0][opposite], steps[1][opposite], steps[2][opposite] = d[opposite], -d[opposite], 0.0
        for agent, step in zip(agents, steps, strict=True):
            agent[name] = (values + step).astype(np.float32)
    return base, agents


def write_families(folder: Path, layers: int = LAYERS) -> None:
    """`folder`/float32 and `folder`/bfloat16, each with base, agent0, agent1, agent2."""
    base, agents = make_family(layers=layers)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    }
    for stored in ("float32", "bfloat16"):
        dtype = np.dtype(np.float32 if stored == "float32" else ml_dtypes.bfloat16)
        for name, tensors in (("base", base), *((f"agent{k}", agent) for k, agent in enumerate(agents))):
            model = folder / stored / name
            model.mkdir(parents=True)
            save_file(
                {n: v.astype(dtype) for n, v in tensors.items()}, model / "model.safetensors", metadata={"format": "pt"}
            )
            (model / "config.json").write_text(json.dumps({**config, "dtype": stored}))


def run_hubmerge(document: str, out: Path) -> Values:
    hub = Hub("http://127.0.0.1:9")  # nobody listens: all models are folders
    prepared = prepare(recipe_from_yaml(document), hub, Request(license="apache-2.0", allow_local=True))
    merge_to_folder(prepared, hub, out, StreamOptions(cache=out / "cache"))
    return read(out)


def run_mergekit(documents: Sequence[tuple[str, Path]], work: Path, python: Path = PYTHON) -> dict[str, str]:
    """Merge each document to its folder; the versions that ran."""
    jobs = []
    for number, (document, out) in enumerate(documents):
        path = work / f"document{number}.yaml"
        path.write_text(document)
        jobs.append([str(path), str(out)])
    done = subprocess.run(
        [str(python), "-c", _DRIVER, json.dumps(jobs), str(work / "adapted")],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(work / "home")},
    )
    if done.returncode:
        raise RuntimeError(f"mergekit failed:\n{done.stderr[-4000:]}")
    versions: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return versions


def read(folder: Path) -> Values:
    """Every tensor of a folder as float32."""
    return {
        name: value.astype(np.float32)
        for path in sorted(folder.glob("*.safetensors"))
        for name, value in load_file(path).items()
    }


@dataclass(frozen=True)
class Difference:
    largest: float  # |hubmerge − mergekit|
    largest_ulps: float  # in units in the last place of the largest among the models' elements and the result's
    elements: int
    different: int  # elements that are not the very same

    @classmethod
    def between(cls, ours: Values, theirs: Values, models: Sequence[Values], bits: int) -> "Difference":
        """`bits`: of the significand that the results are stored with (24 for float32, 8 for bfloat16)."""
        if ours.keys() != theirs.keys():
            raise ValueError(f"other tensors: {sorted(ours.keys() ^ theirs.keys())}")
        gaps, ulps = [], []
        for name, value in ours.items():
            gap = np.abs(value.astype(np.float64) - theirs[name])
            size = np.max([np.abs(m[name]) for m in (*models, theirs)], axis=0)
            gaps.append(gap.ravel())
            ulps.append((gap / np.spacing(size.astype(np.float32)) / 2.0 ** (24 - bits)).ravel())
        gap, ulp = np.concatenate(gaps), np.concatenate(ulps)
        return cls(float(gap.max()), float(ulp.max()), gap.size, int(np.count_nonzero(gap)))


def compare(cases: Sequence[Case], work: Path, python: Path = PYTHON) -> tuple[dict[str, str], dict[str, Difference]]:
    """Every case through both; the versions of mergekit and torch, and the differences by case."""
    models = work / "models"
    write_families(models)
    documents = [case.document(models) for case in cases]
    theirs = [work / "mergekit" / str(i) for i in range(len(cases))]
    versions = run_mergekit(list(zip(documents, theirs, strict=True)), work, python)
    found = {}
    for i, case in enumerate(cases):
        ours = run_hubmerge(documents[i], work / "hubmerge" / str(i))
        bits = 8 if "bfloat16" in (case.stored, case.out_dtype) else 24
        inputs = [read(folder) for folder in sorted((models / case.stored).iterdir())]
        found[case.name] = Difference.between(ours, read(theirs[i]), inputs, bits)
    return versions, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/mergekit_parity.json"))
    parser.add_argument("--python", type=Path, default=PYTHON, help="of the environment that has mergekit")
    options = parser.parse_args()
    if not options.python.exists():
        raise SystemExit(f"no mergekit in {options.python}; install it with tests/mergekit/install.sh")
    with tempfile.TemporaryDirectory() as work:
        versions, found = compare(CASES, Path(work), options.python)
    rows = [
        {
            "case": case.name,
            "method": case.method,
            "max_abs_difference": found[case.name].largest,
            "max_ulps": found[case.name].largest_ulps,
            "elements": found[case.name].elements,
            "different": found[case.name].different,
        }
        for case in CASES
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"versions": versions, "cases": rows}, indent=2) + "\n")
    for row in rows:
        print(
            f"{row['case']:<34} {row['max_abs_difference']:>10.3g} {row['max_ulps']:>8.3g} ulp  {row['different']:>6}"
        )


if __name__ == "__main__":
    main()

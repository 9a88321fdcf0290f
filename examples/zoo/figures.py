"""What is known about the shipped zoo in numbers, and the command that measures it and writes figures.json.

    python examples/zoo/figures.py [--zoo examples/zoo]

Density is the share of elements whose task vector, the difference of two bfloat16 checkpoints taken in
float32, exceeds EPSILON in absolute value; `unique` is the share that only this agent changed; `changed_by[k]`
is the share that exactly k agents changed. Accuracies are exact matches of greedy completions in float32.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

if not __package__:  # run as a file: its own folder, which is first on the path, is the wrong root
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from examples.zoo.domains import HELD_OUT_SIZES, Split
from examples.zoo.evaluate import Score, evaluate_model
from examples.zoo.train import AGENT_NAMES, BASE_NAME

EPSILON = 1e-5  # absolute |agent - base|
ZOO_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Figures:
    """Shares are fractions of one."""

    parameters: int
    epsilon: float
    density: dict[str, float]
    unique: dict[str, float]
    changed_by: tuple[float, ...]
    scores: dict[Split, dict[str, dict[str, Score]]]  # split -> model -> domain

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Figures":
        raw = json.loads(text)
        raw["changed_by"] = tuple(raw["changed_by"])
        raw["scores"] = {
            split: {
                model: {name: Score(**score) for name, score in domains.items()} for model, domains in models.items()
            }
            for split, models in raw["scores"].items()
        }
        return cls(**raw)


def changed(base: dict[str, Tensor], agent: dict[str, Tensor], epsilon: float) -> Tensor:
    """bool [parameters], the tensors flattened in the base's order."""
    return torch.cat([((agent[k].float() - base[k].float()).abs() > epsilon).flatten() for k in base])


def measure(zoo: Path) -> Figures:
    weights = {name: load_file(zoo / name / "model.safetensors") for name in (BASE_NAME, *AGENT_NAMES)}
    masks = {name: changed(weights[BASE_NAME], weights[name], EPSILON) for name in AGENT_NAMES}
    counts = torch.stack(list(masks.values())).sum(dim=0)
    return Figures(
        parameters=len(counts),
        epsilon=EPSILON,
        density={name: share(mask) for name, mask in masks.items()},
        unique={name: share(mask & (counts == 1)) for name, mask in masks.items()},
        changed_by=tuple(share(counts == k) for k in range(len(masks) + 1)),
        scores={
            split: {name: evaluate_model(str(zoo / name), zoo / "eval", split=split) for name in weights}
            for split in HELD_OUT_SIZES
        },
    )


def share(mask: Tensor) -> float:
    return int(mask.sum()) / mask.numel()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the zoo and write its figures.json.")
    parser.add_argument("--zoo", type=Path, default=ZOO_FOLDER, help="folder with base, agents and eval")
    zoo = parser.parse_args(arguments).zoo
    disable_progress_bar()
    (zoo / "figures.json").write_text(measure(zoo).to_json(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

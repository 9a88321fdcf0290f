"""Tiny models, pairs, and the naive Fisher: one torch.autograd.grad per pair, everything in memory."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from builders import llama_shapes, random_base, tokenizer_files, write_model
from plan_helpers import opened
from transformers import AutoModelForCausalLM, AutoTokenizer

from hubmerge.hub.client import Hub
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.sensitivity.compute import compute_sensitivity
from hubmerge.sensitivity.file import SensitivityFile
from hubmerge.sensitivity.pairs import Pair

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"
SPEC = CalibrationSpec(data="./pairs.jsonl", prompt="question", answer="answer", max_pairs=8, max_tokens=32)
PAIRS = (
    Pair("w3 w4 w5", "w6 w7", 1),
    Pair("w9", "w8 w8 w3", 2),
    Pair("w10 w11 w12 w13", "w14", 3),
    Pair("w3 w30", "w31 w32 w33", 4),
    Pair("w20 w21 w5", "w39 w4", 5),
)


def llama(folder: Path, *, tied: bool = False, seed: int = 0, **changes: Any) -> Path:
    """A two-layer Llama in bfloat16 with weights large enough for gradients of all sizes."""
    tensors = random_base(seed, sizes=llama_shapes(tied=tied), scale=0.3)
    return write_model(folder, tensors, **changes)


def save(network: Any, folder: Path, vocab: int = 40) -> Path:
    """A transformers model as save_pretrained stores it, with the word-level tokenizer."""
    network.save_pretrained(folder)
    for name, content in tokenizer_files(vocab).items():
        (folder / name).write_bytes(content)
    return folder


def zoo_recipe(data: Path | str, **changes: Any) -> dict[str, Any]:
    """Two agents of the zoo, weighed by three rows of `data`."""
    return {
        "base": str(ZOO / "base"),
        "agents": [str(ZOO / "math"), str(ZOO / "tool")],
        "method": "fisher",
        "calibration": {"data": str(data), "prompt": "prompt", "answer": "answer", "max_pairs": 3},
        "dtype": "bfloat16",
        **changes,
    }


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    return network, AutoTokenizer.from_pretrained(folder)


def compute(folder: Path, out: Path, pairs: Sequence[Pair] = PAIRS, **options: Any) -> SensitivityFile:
    """The sensitivity file of a local model."""
    return compute_sensitivity(opened(folder), pairs, out, **{"spec": SPEC, "hub": Hub(), **options})


def naive_fisher(network: Any, tokenizer: Any, pairs: Sequence[Pair]) -> dict[str, torch.Tensor]:
    """Mean over pairs of the squared gradient of the likelihood of the answer and the EOS, by parameter name."""
    parameters = dict(network.named_parameters())
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for pair in pairs:
        prompt = tokenizer(pair.prompt).input_ids
        answer = [*tokenizer(pair.answer, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        logits = network(input_ids=torch.tensor([prompt + answer])).logits[0, -len(answer) - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(answer), reduction="sum")
        for name, gradient in zip(
            parameters, torch.autograd.grad(loss, list(parameters.values()), allow_unused=True), strict=True
        ):
            if gradient is not None:
                sums[name] += gradient * gradient
    return {name: total / len(pairs) for name, total in sums.items()}

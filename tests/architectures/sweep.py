"""One architecture through the whole line: saved by transformers, merged, loaded by its class, compared."""

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny import families, tiny_config
from tiny_exceptions import CHANGES, CLASSES, IGNORED
from tiny_inputs import candidates

from hubmerge.engine.stream import StreamOptions
from hubmerge.hub.client import Hub
from hubmerge.line import Request, merge_to_folder, prepare
from hubmerge.recipe.recipe import recipe_from_dict

NOWHERE = Hub("http://127.0.0.1:9")
SHARDS = 3


@dataclass(frozen=True)
class Kind:
    """One class of a model type, and what is asked of its small configuration."""

    model_type: str
    name: str
    task: str
    changes: Mapping[str, Any]
    ignore: tuple[str, ...]


# transformers' folders, each with the class that it is known by
FAMILIES = {
    family: Kind(model_type, CLASSES.get(family, name), task, CHANGES.get(family, {}), IGNORED.get(family, ()))
    for family, (model_type, name, task) in families().items()
}


def built(kind: Kind) -> Any:
    """The small model, with random weights; bfloat16 for language models."""
    config = tiny_config(kind.model_type, kind.changes)
    torch.manual_seed(0)
    model = getattr(transformers, kind.name)(config).eval()
    return model.to(torch.bfloat16) if kind.task == "CAUSAL_LM" else model


def saved(model: Any, folder: Path) -> list[Path]:
    """The model, as transformers saves it in several shards, and two agents: folders."""
    base, *agents = (folder / name for name in ("base", "one", "two"))
    total = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    model.save_pretrained(base, max_shard_size=max(total // SHARDS, 1000))
    for number, agent in enumerate(agents, 1):
        shutil.copytree(base, agent)
        for path in agent.glob("*.safetensors"):
            generator = torch.Generator().manual_seed(number)
            tensors = load_file(path)
            for key, tensor in tensors.items():
                if tensor.is_floating_point():
                    noise = torch.randn(tensor.shape, generator=generator) * 0.05
                    tensors[key] = (tensor.float() * (1 + noise * (noise > 0))).to(tensor.dtype)
            save_file(tensors, path, {"format": "pt"})
    return [base, *agents]


def outputs(model: Any) -> tuple[tuple[str, ...], list[torch.Tensor]]:
    """What the model gives for the first inputs that it takes: their names, and all tensors in order."""
    for inputs in candidates(model):
        floats = {k: v.to(model.dtype) if v.is_floating_point() else v for k, v in inputs.items()}
        try:
            torch.manual_seed(0)
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = list(_tensors(model(**floats)))
        except Exception:
            continue
        if any(t.is_floating_point() and t.numel() for t in found):
            return tuple(inputs), found
    return (), []


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def swept(kind: Kind, folder: Path) -> str:
    """The whole line for one class: the inputs for which the result gives what its base's config.json gives for the
    same weights, or "" where no inputs were found and configuration, modules and weights were compared.

    AssertionError where anything differs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folders = saved(built(kind), folder)
    out, (base, *agents) = folder / "out", map(str, folders)
    recipe = recipe_from_dict({"base": base, "agents": agents, "method": "ram", "ignore": list(kind.ignore)})
    prepared = prepare(recipe, NOWHERE, Request(allow_local=True, license="mit"))
    merge_to_folder(prepared, NOWHERE, out, StreamOptions(cache=folder / "cache"))
    # the same weights, described by the base's own files
    own = folder / "own"
    shutil.copytree(folders[0], own, ignore=shutil.ignore_patterns("*.safetensors*"))
    for path in out.glob("*.safetensors*"):
        shutil.copy(path, own / path.name)
    (ours, ours_info), (theirs, theirs_info) = (_loaded(kind, at) for at in (out, own))
    assert ours_info == theirs_info == {}, ours_info
    assert type(ours) is type(theirs) is getattr(transformers, kind.name)
    a, b = _config(ours), _config(theirs)
    assert a == b, {k: (a.get(k), b.get(k)) for k in {*a, *b} if a.get(k) != b.get(k)}
    assert str(ours) == str(theirs)
    first, second = ours.state_dict(), theirs.state_dict()
    assert first.keys() == second.keys()
    assert [n for n in first if first[n].dtype != second[n].dtype or not _equal(first[n], second[n])] == []
    before, after = _stored(folders[0]), _stored(out)
    assert {n: t.dtype for n, t in before.items()} == {n: t.dtype for n, t in after.items()}
    assert any(not _equal(before[n], after[n]) for n in before), "the merge changed nothing"
    names, found = outputs(ours)
    expected = outputs(theirs)[1]
    assert len(found) == len(expected)
    assert all(_equal(x, y) for x, y in zip(found, expected, strict=True)), f"other outputs for {names}"
    return ", ".join(names)


def _loaded(kind: Kind, folder: Path) -> tuple[Any, dict[str, list[str]]]:
    """The model of a folder by its class, and what transformers missed or did not expect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, info = getattr(transformers, kind.name).from_pretrained(
            folder, output_loading_info=True, local_files_only=True
        )
    return model.eval(), {k: sorted(map(str, v)) for k, v in info.items() if v}


def _stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: t for path in folder.glob("*.safetensors") for name, t in load_file(path).items()}


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, as numbers: what was never set may be NaN in both."""
    if a.shape != b.shape or not a.is_floating_point():
        return torch.equal(a, b)
    return torch.equal(torch.isnan(a), torch.isnan(b)) and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))


def _config(model: Any) -> dict[str, Any]:
    table = json.loads(model.config.to_json_string(use_diff=False))
    return {k: v for k, v in table.items() if k != "_name_or_path"}

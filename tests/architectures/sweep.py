"""One architecture through the whole line: saved by transformers, merged, loaded by its class, compared.

python tests/architectures/sweep.py          all of them, in some minutes; writes the tables of docs/architectures.md
python tests/architectures/sweep.py llama    these families
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny import families, tiny_config
from tiny_exceptions import CHANGES, CLASSES, IGNORED, NOT_BUILT

from hubmerge.engine.stream import StreamOptions
from hubmerge.hub.client import Hub
from hubmerge.line import Request, merge_to_folder, prepare
from hubmerge.recipe.recipe import recipe_from_dict

NOWHERE = Hub("http://127.0.0.1:9")
SHARDS = 3
PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"


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
SWEPT = [family for family in FAMILIES if family not in NOT_BUILT]


def saved(kind: Kind, folder: Path) -> list[Path]:
    """The small model with random weights (bfloat16 for language models), as transformers saves it in several shards,
    and two agents: folders."""
    config = tiny_config(kind.model_type, kind.changes)
    torch.manual_seed(0)
    model = getattr(transformers, kind.name)(config).eval()
    model = model.to(torch.bfloat16) if kind.task == "CAUSAL_LM" else model
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


def swept(family: str, folder: Path) -> None:
    """The whole line for one class. AssertionError where the result is not what the base's own config.json makes of the
    same weights."""
    kind = FAMILIES[family]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folders = saved(kind, folder)
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


def page() -> str:
    """docs/architectures.md with all families in its two tables."""
    text = PAGE.read_text(encoding="utf-8")
    counted = f"{len(SWEPT)} families of\ntransformers {transformers.__version__}."
    text = re.sub(r"\d+ families of\ntransformers [\w.]+\.(?= )", counted, text)
    built = "".join(f"| `{family}` | `{FAMILIES[family].name}` |\n" for family in SWEPT)
    others = "".join(f"| `{f}` | `{FAMILIES[f].name}` | {why} |\n" for f, why in sorted(NOT_BUILT.items()))
    for columns, rows in (("family | class", built), ("family | class | why", others)):
        begin = text.index("\n", text.index(f"| {columns} |\n|---") + len(columns) + 5) + 1
        text = text[:begin] + rows + text[text.index("\n\n", begin) + 1 :]
    return text


def main(only: list[str]) -> None:
    for family in only or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                swept(family, Path(folder))
            except Exception as error:
                if family in SWEPT:
                    print(f"{family}: {type(error).__name__}: {error}"[:500])
            else:
                if family in NOT_BUILT:
                    print(f"{family}: merges, though tiny_exceptions.py says: {NOT_BUILT[family]}")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

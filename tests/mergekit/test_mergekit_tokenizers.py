"""Documents with a tokenizer source, held against mergekit where it is installed: equal tokens with equal rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from builders import T, f32, llama_config, random_base, sparse_agent, tensor, tokenizer_files, write_model
from mergekit_reference import INSTALLED, needs_mergekit

from benchmarks.mergekit_parity import Values, read, run_hubmerge, run_mergekit

TABLES = ("model.embed_tokens.weight", "lm_head.weight")
ADDED = {"agent0": {"<tool>": 40, "</tool>": 41}, "agent1": {"<think>": 40}}


def write_models(folder: Path) -> Path:
    """A base of 40 tokens, and two agents that add two and one."""
    base = {n: tensor(f32(t), "F32") for n, t in random_base(0).items()}
    write_model(folder / "base", base, config=llama_config(base))
    for seed, (name, added) in enumerate(ADDED.items(), 1):
        rng = np.random.default_rng(seed)
        tensors: dict[str, T] = dict(sparse_agent(base, 0.3, seed))
        for table in TABLES:
            values = f32(tensors[table])
            more = rng.normal(0, 0.02, (len(added), values.shape[1])).astype(np.float32)
            tensors[table] = tensor(np.concatenate([values, more]), "F32")
        write_model(folder / name, tensors, files=tokenizer_files(40, added), config=llama_config(tensors))
    return folder


def document(folder: Path, source: str) -> str:
    listed = "".join(f"  - {{model: {folder / n}, parameters: {{weight: 0.5}}}}\n" for n in ADDED)
    return (
        f"merge_method: task_arithmetic\nbase_model: {folder / 'base'}\nmodels:\n{listed}dtype: float32\n"
        f"tokenizer: {{source: {source}}}\n"
    )


def ids_of(folder: Path) -> dict[str, int]:
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return {**content["model"]["vocab"], **{t["content"]: t["id"] for t in content["added_tokens"]}}


def by_token(tensors: Values, ids: dict[str, int], table: str) -> dict[str, list[float]]:
    return {token: tensors[table][row].tolist() for token, row in ids.items()}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("tokenizers"))


@pytest.mark.slow
@needs_mergekit
def test_each_token_has_the_row_that_it_has_in_mergekit_s_merge(models: Path, tmp_path: Path):
    documents = {source: document(models, source) for source in ("union", "base", str(models / "agent0"))}
    theirs = [(text, tmp_path / "theirs" / str(i)) for i, text in enumerate(documents.values())]
    run_mergekit(theirs, tmp_path, INSTALLED)
    for i, text in enumerate(documents.values()):
        out, other = tmp_path / "ours" / str(i), theirs[i][1]
        merged, reference = run_hubmerge(text, out), read(other)
        ids, other_ids = ids_of(out), ids_of(other)
        assert set(ids) == set(other_ids)
        for name in reference:
            if name not in TABLES:
                np.testing.assert_allclose(merged[name], reference[name], rtol=0, atol=1e-7)
                continue
            rows = by_token(reference, other_ids, name)
            for token, row in by_token(merged, ids, name).items():
                np.testing.assert_allclose(row, rows[token], rtol=0, atol=1e-7, err_msg=token)

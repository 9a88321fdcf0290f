"""What surrounds the weights is copied file by file from a list: nothing that runs code or names code comes along."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plan_helpers
import pytest
from builders import llama_config, llama_shapes, random_base, sparse_agent, write_model

from hubmerge.output.finished import write_folder
from hubmerge.plan.files import folder_files
from hubmerge.plan.plan import Plan
from hubmerge.recipe.file import recipe_from_yaml
from hubmerge.sources.base import Model

BASE = random_base(0, sizes=llama_shapes(layers=1))
AGENTS = (sparse_agent(BASE, 0.1, 1), sparse_agent(BASE, 0.1, 2))


def plan_of(
    folder: Path,
    *,
    base_files: Mapping[str, bytes] | None = None,
    agent_files: Mapping[str, bytes] | None = None,
    agent_names: tuple[str, str] = ("a", "b"),
    config: Mapping[str, Any] | None = None,
    max_shard_bytes: int = 2**31,
) -> Plan:
    base = write_model(folder / "base", BASE, config=config, files=base_files)
    agents = [write_model(folder / n, t, files=agent_files) for n, t in zip(agent_names, AGENTS, strict=True)]
    return plan_helpers.plan_of(base, *agents, max_shard_bytes=max_shard_bytes)


def read(model: Model, path: str) -> bytes | None:
    return (Path(model.ref.id) / path).read_bytes()


def companions(folder: Path, **more: Any) -> tuple[dict[str, bytes], list[str]]:
    return folder_files(plan_of(folder, **more), read)


# --- config.json -------------------------------------------------------------------------------------------------


def test_left_out_keys_stand_in_the_plans_warnings(tmp_path):
    config = {**llama_config(BASE), "custom_generate": "org/evil", "_name_or_path": "/home/me/x"}
    plan = plan_of(tmp_path, config=config)
    files, notes = folder_files(plan, read)
    written = json.loads(files["config.json"])
    assert written == {k: v for k, v in llama_config(BASE).items() if k != "torch_dtype"} | {"dtype": "bfloat16"}
    assert "config.json: custom_generate left out (names code, or a place to load something from)" in plan.warnings
    assert notes == []


def test_half_a_character_in_a_label_is_written_as_it_was_read(tmp_path):
    config = {**llama_config(BASE), "id2label": {"0": "\ud800"}, "label2id": {"\ud800\\": 0}}
    more = {"tokenizer_config.json": b'{"pad_token": "\\udfff", "auto_map": {"AutoTokenizer": "x--y.Z"}}'}
    files, notes = companions(tmp_path, config=config, base_files=more)
    written = json.loads(files["config.json"])
    assert (written["id2label"], written["label2id"]) == (config["id2label"], config["label2id"])
    assert json.loads(files["tokenizer_config.json"]) == {"pad_token": "\udfff"}
    assert [note.partition(":")[0] for note in notes] == ["tokenizer_config.json"]


# --- other files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000, b'"auto_map"x'])
def test_a_file_that_cannot_be_checked_is_left_out_with_a_note(tmp_path, content):
    files, notes = companions(tmp_path, base_files={"special_tokens_map.json": content})
    assert "special_tokens_map.json" not in files
    assert notes == ["special_tokens_map.json: left out (not JSON)"]


def test_the_licenses_of_all_parents_are_kept(tmp_path):
    files, notes = companions(
        tmp_path,
        base_files={"LICENSE": b"base", "NOTICE.txt": b"base notice", "LICENSE-MODEL.md": b"model"},
        agent_files={"LICENSE": b"agent", "USE_POLICY.md": b"policy", "MODEL_LICENSE": b"weights"},
    )
    found = {n: c for n, c in files.items() if "LICEN" in n or "NOTICE" in n or "POLICY" in n}
    assert found == {
        "LICENSE": b"base",
        "NOTICE.txt": b"base notice",
        "LICENSE-MODEL.md": b"model",
        "licenses/a/LICENSE": b"agent",
        "licenses/a/USE_POLICY.md": b"policy",
        "licenses/b/LICENSE": b"agent",
        "licenses/b/USE_POLICY.md": b"policy",
        "licenses/a/MODEL_LICENSE": b"weights",
        "licenses/b/MODEL_LICENSE": b"weights",
    }
    assert notes == []


def test_labels_that_come_out_alike_do_not_overwrite_each_other(tmp_path):
    files, _ = companions(tmp_path, agent_files={"LICENSE": b"x"}, agent_names=("my agent", "my*agent"))
    assert {n for n in files if n.startswith("licenses/")} == {
        "licenses/my--agent/LICENSE",
        "licenses/my--agent-2/LICENSE",
    }


def test_the_index_names_every_tensor_with_its_shard_and_the_true_size(tmp_path):
    plan = plan_of(tmp_path, max_shard_bytes=2000)
    files, _ = folder_files(plan, read)
    index = json.loads(files["model.safetensors.index.json"])
    assert len(plan.shards) > 1
    assert index["weight_map"] == {t.name: s.filename for s in plan.shards for t in s.tensors}
    assert index["metadata"]["total_size"] == sum(t.raw.nbytes for t in BASE.values())
    assert set(index["weight_map"]) == set(BASE)
    assert "model.safetensors.index.json" not in companions(tmp_path / "one shard")[0]


def test_the_recipe_beside_the_weights_is_the_pinned_one(tmp_path):
    plan = plan_of(tmp_path)
    files, _ = folder_files(plan, read)
    assert recipe_from_yaml(files["recipe.yaml"].decode()) == plan.recipe


# --- the folder --------------------------------------------------------------------------------------------------


def test_the_manifest_is_written_last(tmp_path, monkeypatch):
    order: list[str] = []
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        order.append(target.name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    write_folder(tmp_path / "out", {"config.json": b"{}", "licenses/a/LICENSE": b"x"}, {"identity": "0"})
    assert order == ["config.json", "LICENSE", "hubmerge.json"]
    assert not list((tmp_path / "out").rglob("*.tmp"))
    assert json.loads((tmp_path / "out" / "hubmerge.json").read_text()) == {"identity": "0"}


def test_a_manifest_with_a_number_that_is_no_json_leaves_no_manifest(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_folder(tmp_path, {"config.json": b"{}"}, {"x": float("nan")})
    assert not (tmp_path / "hubmerge.json").exists()

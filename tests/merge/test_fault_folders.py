"""Local folders that change while they are merged, folders that two processes want, and ones that cannot be."""

import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from builders import recipe_dict, write_parents
from line import Watcher
from plan_helpers import NOWHERE

from hubmerge.cli.main import main
from hubmerge.engine.sink import MANIFEST, sole_owner
from hubmerge.engine.stream import StreamOptions
from hubmerge.errors import FolderInUseError, SourceChangedError, SourceNotFoundError, TargetExistsError
from hubmerge.line import Prepared, Request, merge_to_folder, merge_to_folders, merge_to_hub, prepare, prepare_variants
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sources.open import open_model

SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return write_parents(tmp_path, shards=2)


@pytest.fixture
def recipe(models: list[Path]) -> dict[str, Any]:
    return recipe_dict(models[0], models[1:], "ram_plus")


def checked(recipe: dict[str, Any]) -> Prepared:
    return prepare(recipe_from_dict(recipe), NOWHERE, Request(allow_local=True))


def merge(prepared: Prepared, folder: Path, observer: Watcher) -> None:
    merge_to_folder(prepared, NOWHERE, folder / "out", StreamOptions(cache=folder / "cache"), observer)


def replace_shard(shard: Path) -> None:
    """By one of the same size and header, as another training run's would be."""
    other = shard.parent.with_name("two") / SHARD
    assert other.stat().st_size == shard.stat().st_size
    new = shard.with_name("new")
    shutil.copy(other, new)
    new.replace(shard)


def flip_a_bit(shard: Path) -> None:
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)


@pytest.mark.parametrize(
    "change",
    [replace_shard, flip_a_bit, Path.unlink, lambda shard: os.truncate(shard, 100)],
    ids=["replaced", "a bit flipped", "removed", "truncated"],
)
def test_a_shard_that_changes_while_it_is_merged_is_noticed_and_nothing_made_of_it_is_kept(
    models, recipe, tmp_path, change
):
    out = tmp_path / "out"
    observer = Watcher()
    observer.at["merge"] = lambda: change(models[1] / SHARD)
    with pytest.raises(SourceChangedError, match=SHARD):
        merge(checked(recipe), tmp_path, observer)
    assert not (out / MANIFEST).exists()
    journal = [json.loads(line) for line in (out / ".hubmerge" / "journal.jsonl").read_text().splitlines()]
    assert not [line for line in journal if line["event"] == "shard"]


def test_a_folder_that_changed_between_plan_and_merge_is_noticed(models, recipe, tmp_path):
    prepared = checked(recipe)
    flip_a_bit(models[1] / SHARD)
    with pytest.raises(SourceChangedError, match="one"):
        merge(prepared, tmp_path, Watcher())


def test_a_tokenizer_that_goes_meanwhile_is_a_changed_source(models, recipe, tmp_path):
    observer = Watcher()
    observer.at["card"] = lambda: (models[0] / "tokenizer.json").unlink()
    with pytest.raises(SourceChangedError, match=r"tokenizer\.json"):
        merge(checked(recipe), tmp_path, observer)


def test_a_second_process_into_the_same_folder_is_refused_and_the_first_goes_on(recipe_file, tmp_path, refused):
    out = tmp_path / "out"
    with sole_owner(out):
        assert "E_IN_USE" in refused("merge", recipe_file, "--out", out)
        assert not [*out.iterdir()]
    assert main(["merge", str(recipe_file), "--out", str(out)]) == 0


def test_a_finished_folder_whose_shards_somebody_deleted_is_not_called_finished(recipe_file, tmp_path, refused):
    command = ["merge", str(recipe_file), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    (tmp_path / "out" / "model.safetensors").unlink()
    told = refused(*command)
    assert "E_CORRUPT: a finished merge whose shards are gone" in told
    assert "no model.safetensors" in told


def test_a_second_run_of_the_same_merge_waits_for_no_lock_and_takes_nothing_away(line):
    prepared, out = line.prepare(), line.out
    with sole_owner(out), pytest.raises(FolderInUseError) as error:
        merge_to_hub(prepared, line.hub, out, StreamOptions(cache=line.inputs), Watcher())
    assert error.value.retryable
    assert not line.api.repo_exists(line.target)


def test_an_unfinished_merge_of_an_older_version_says_which_to_name(line, own):
    base, older = line.recipe["base"], line.prepare().plan.base.ref.sha

    line.watcher.at["merge"] = Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        line.to_folder()
    line.api.upload_file(path_or_fileobj=b"{}", path_in_repo="extra.json", repo_id=base)
    with pytest.raises(TargetExistsError, match=r"other versions of the models.*name those versions") as error:
        line.to_folder()
    assert f"{base}@{older}" in str(error.value)
    line.recipe = {**line.recipe, "base": f"{base}@{older}"}
    line.to_folder()
    assert (line.out / MANIFEST).is_file()


def test_a_variant_s_folder_with_other_content_is_refused_before_the_first_pass(recipe, tmp_path):
    recipes = [recipe_from_dict(recipe | {"parameters": {"epsilon": epsilon}}) for epsilon in (1e-5, 1e-3)]
    outs = [tmp_path / "first", tmp_path / "second"]
    outs[1].mkdir()
    (outs[1] / "theirs.txt").write_text("theirs")
    merges = zip(prepare_variants(recipes, NOWHERE, Request(allow_local=True)), outs, strict=True)
    with pytest.raises(TargetExistsError, match="second"):
        merge_to_folders([*merges], NOWHERE, StreamOptions(cache=tmp_path / "cache"))
    assert not [*outs[0].glob("*.safetensors")]


@pytest.mark.parametrize("where", ["file", "file/below", "x" * 300])
def test_an_output_that_can_be_no_folder_is_refused(recipe_file, tmp_path, refused, where):
    (tmp_path / "file").write_text("somebody's")
    assert refused("merge", recipe_file, "--out", tmp_path / where).startswith("hubmerge: E_DISK: ")
    assert (tmp_path / "file").read_text() == "somebody's"


@pytest.mark.parametrize("name", ["~nobody-of-that-name/model", "/" + "x" * 300])
def test_a_folder_that_cannot_be_named_is_a_missing_source(name):
    with pytest.raises(SourceNotFoundError, match=r"cannot be read|no such folder"):
        open_model(ModelName.parse(name), NOWHERE, allow_local=True)

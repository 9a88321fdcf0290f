"""`hubmerge init` writes a recipe that merges, and the schema of recipes says what reading them says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from builders import llama_config, random_base, sparse_agent, write_model

from hubmerge.cli.main import main
from hubmerge.errors import RecipeError
from hubmerge.methods import registry
from hubmerge.recipe.file import load_recipe
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.recipe.schema import SCHEMA_URL, recipe_schema

DOCS = Path(__file__).resolve().parents[2] / "docs"
Refused = Callable[..., str]


@pytest.fixture
def here(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(recipe_file.parent)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return recipe_file.parent


@pytest.mark.parametrize("method", [None, *registry()])
def test_what_init_writes_is_a_recipe_of_the_schema_with_every_default_told(
    here: Path, capsys: pytest.CaptureFixture[str], method: str | None
) -> None:
    assert main(["init", "base", "./one", "two", *(["--method", method] if method else [])]) == 0
    text, told = capsys.readouterr()
    assert "E_INCOMPATIBLE" not in told
    assert "cannot be merged" not in text
    assert ("put your own data here" in text) == (method in ("fisher", "sar"))
    assert text.startswith(f"# yaml-language-server: $schema={SCHEMA_URL}\n")
    jsonschema.validate(yaml.safe_load(text), recipe_schema())
    (here / "new.yaml").write_text(text)
    recipe = load_recipe(here / "new.yaml")
    assert [str(recipe.base), *(str(a.model) for a in recipe.agents)] == ["./base", "./one", "./two"]
    assert recipe.method == (method or "ram_plus")
    if "calibration:" not in text:
        assert main(["inspect", "new.yaml"]) == 0
    # with the comments taken off, the parameters are those that are taken without them
    shown = re.sub(r"(?m)^# ?(parameters:|  )", r"\1", text).replace("parameters:  # the defaults", "parameters:")
    (here / "shown.yaml").write_text(shown)
    assert load_recipe(here / "shown.yaml").parameters == recipe.parameters


def test_paths_are_written_as_the_file_that_holds_them_needs_them(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "recipes").mkdir()
    assert main(["init", "base", str(here / "one"), "./two", "--out", "recipes/new.yaml"]) == 0
    assert "hubmerge merge recipes/new.yaml" in capsys.readouterr().out
    recipe = load_recipe(here / "recipes" / "new.yaml")
    assert [str(recipe.base), *(str(a.model) for a in recipe.agents)] == ["../base", str(here / "one"), "../two"]
    assert main(["merge", "recipes/new.yaml", "--out", "out"]) == 0


def test_a_recipe_behind_a_link_to_a_folder_finds_its_models(here: Path) -> None:
    (here / "far" / "away").mkdir(parents=True)
    (here / "linked").symlink_to(here / "far" / "away")
    assert main(["init", "base", "one", "./two", "--out", "linked/new.yaml"]) == 0
    assert str(load_recipe(here / "linked" / "new.yaml").base) == "../../base"
    assert main(["inspect", "linked/new.yaml"]) == 0


def test_a_file_that_is_there_is_never_overwritten(here: Path, refused: Refused) -> None:
    (here / "kept.yaml").write_text("mine")
    (here / "dangling.yaml").symlink_to(here / "nowhere")
    command = ("init", "base", "one", "two", "--out")
    for name in ("kept.yaml", "dangling.yaml"):
        assert refused(*command, name).startswith("hubmerge: E_TARGET_EXISTS: the recipe is there already")
    assert (here / "kept.yaml").read_text() == "mine"
    assert not (here / "nowhere").exists()
    assert "the recipe cannot be written" in refused(*command, "no/such/folder.yaml")


def test_models_that_cannot_be_opened_leave_no_recipe_and_those_that_do_not_fit_say_so_in_it(
    here: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    refused("init", "base", "one", "too", "--out", "new.yaml")
    assert not (here / "new.yaml").exists()
    agent = sparse_agent(random_base(0), 0.1, 5)
    write_model(here / "qwen", agent, config=llama_config(agent, architectures=["Qwen\x1b[2JForCausalLM"]))
    assert main(["init", "base", "one", "qwen", "--out", "new.yaml"]) == 0
    text = (here / "new.yaml").read_text()
    assert "# It cannot be merged as it stands: E_INCOMPATIBLE: another architecture" in text
    assert "\x1b" not in text
    assert "E_INCOMPATIBLE" in capsys.readouterr().err
    assert load_recipe(here / "new.yaml").method == "ram_plus"


@pytest.mark.usefixtures("here")
def test_one_agent_is_a_beginning_and_a_wrong_method_is_refused(
    refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "base", "one"]) == 0
    assert "# - org/another-agent  # a merge needs two" in capsys.readouterr().out
    assert "Did you mean ties?" in refused("init", "base", "one", "--method", "tie")


# --- the schema --------------------------------------------------------------------------------------------------


def test_the_published_schema_is_the_one_of_the_models() -> None:
    assert json.loads((DOCS / "recipe.schema.json").read_text(encoding="utf-8")) == recipe_schema(), "run `make docs`"
    jsonschema.Draft202012Validator.check_schema(recipe_schema())


GOOD: dict[str, Any] = {"base": "org/base", "agents": ["org/a", {"model": "org/b", "weight": 0.5}], "method": "ram"}
BAD: tuple[dict[str, Any], ...] = (
    {"method": "ram_pluss"},
    {"agnets": []},
    {"agents": []},
    {"agents": "org/a"},
    {"agents": ["org/a"] * 33},
    {"agents": [{"weight": 1}]},
    {"agents": [{"model": "org/a", "wieght": 1}]},
    {"agents": [{"model": "org/a", "weight": "1"}]},
    {"parameters": {"r": 0.1}},
    {"method": "ram_plus", "parameters": {"r": -1}},
    {"method": "ties", "parameters": {"density": 2}},
    {"dtype": "int8"},
    {"rounding": "up"},
    {"seed": -1},
    {"calibration": {"data": "x"}},
    {"calibration": {"data": "x", "prompt": "q", "answer": "a", "max_pairs": 0}},
)


@pytest.mark.parametrize("change", BAD, ids=str)
def test_the_schema_refuses_what_reading_refuses(change: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        recipe_from_dict({**GOOD, **change})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**GOOD, **change}, recipe_schema())


@pytest.mark.parametrize("method", sorted(registry()))
def test_the_schema_takes_what_a_recipe_writes(method: str) -> None:
    full = {"calibration": {"data": "d", "prompt": "q", "answer": "a"}, "dtype": "bfloat16", "rounding": "nearest"}
    for more in ({}, full, {"ignore": ["v_head.*"], "parameters": None, "dtype": None}):
        recipe = recipe_from_dict({**GOOD, **more, "method": method})
        jsonschema.validate({**GOOD, **more, "method": method}, recipe_schema())
        jsonschema.validate(recipe.to_dict(), recipe_schema())


def test_the_schema_takes_numbers_that_differ_from_tensor_to_tensor() -> None:
    rules = [{"filter": "mlp", "layers": [0, 8], "value": [0, 1]}, {"value": 0.5}]
    for weight in (0.5, [0, 0.5, 1], rules):
        agents = [{"model": "org/a", "weight": weight, "parameters": {"density": weight}}, "org/b"]
        content = {**GOOD, "agents": agents, "method": "ties", "parameters": {"lambda": weight, "trim_scope": "tensor"}}
        content |= {"tokenizer": "base"}
        if weight != 0.5:
            agents[0]["parameters"] = {"density": [1, 0.5]}  # type: ignore[index]
        jsonschema.validate(recipe_from_dict(content).to_dict(), recipe_schema())
    for weight in ([], [{"filter": "mlp"}], {"value": 1}, [{"value": 1, "more": 2}]):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**GOOD, "agents": [{"model": "org/a", "weight": weight}, "org/b"]}, recipe_schema())

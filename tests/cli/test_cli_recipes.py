"""Recipes as files: paths begin at the recipe, a folder comes before a model of the same name, slips are recognised."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from hubmerge.cli.main import main
from hubmerge.errors import RecipeError
from hubmerge.recipe.file import load_recipe, recipe_from_yaml
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.recipe.sweep import load_sweep, sweep_from_dict
from hubmerge.sensitivity.pairs import load_pairs

GOOD: dict[str, Any] = {"base": "org/base", "agents": ["org/a", "org/b"], "method": "ram"}


def problems(content: Any) -> list[Any]:
    with pytest.raises(RecipeError) as caught:
        recipe_from_yaml(content, "r.yaml") if isinstance(content, str) else recipe_from_dict(content, "r.yaml")
    return list(caught.value.problems)


# --- where relative paths begin ----------------------------------------------------------------------------------


@pytest.fixture
def below(recipe_file: Path) -> Path:
    """A recipe in a folder beside its models, with relative paths."""
    path = recipe_file.parent / "recipes" / "merge.yaml"
    path.parent.mkdir()
    path.write_text("base: ../base\nagents: [../one, ../two]\nmethod: ram\n")
    return path


def test_paths_begin_at_the_recipe_wherever_the_command_is_started(
    below: Path, recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["merge", str(recipe_file), "--out", str(tmp_path / "absolute")]) == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number, (cwd, name) in enumerate(
        ((elsewhere, below), (tmp_path, below.relative_to(tmp_path)), (below.parent, Path(below.name)))
    ):
        monkeypatch.chdir(cwd)
        out = tmp_path / f"out{number}"
        assert main(["merge", str(name), "--out", str(out)]) == 0
        made, expected = ((each / "model.safetensors").read_bytes() for each in (out, tmp_path / "absolute"))
        assert made == expected
        manifests = [json.loads((folder / "hubmerge.json").read_text()) for folder in (out, tmp_path / "absolute")]
        assert manifests[0]["identity"] == manifests[1]["identity"]
        text = "".join((out / file).read_text() for file in ("recipe.yaml", "README.md", "hubmerge.json"))
        assert str(tmp_path) not in text, "what is published names no folder that the recipe does not name"


def test_a_path_that_leads_somewhere_from_the_working_folder_only_is_refused_with_the_one_to_write(
    below: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    below.write_text("base: ./base\nagents: [../one, ../two]\nmethod: ram\n")
    message = refused("inspect", below)
    assert "E_SOURCE: no such folder in" in message
    assert "write ../base." in message


def test_sweeps_calibration_data_and_sensitivity_files_are_found_from_there_too(below: Path, tmp_path: Path) -> None:
    (below.parent / "pairs.jsonl").write_text('{"q": "2+2", "a": "4"}\n')
    below.write_text(
        "base: ../base\nagents: [../one, {model: ../two, sensitivity: files/two.safetensors}]\n"
        "calibration: {data: ./pairs.jsonl, prompt: q, answer: a}\nsweep: [{method: [ram, linear]}]\n"
    )
    for _, recipe in load_sweep(below).variants:
        assert recipe.calibration is not None
        pairs = load_pairs(recipe.calibration, path_of=recipe.path_of)
        assert [(p.prompt, p.answer) for p in pairs] == [("2+2", "4")]
        assert recipe.path_of(str(recipe.agents[1].sensitivity)) == below.parent / "files" / "two.safetensors"
    assert main(["inspect", str(below)]) == 0
    assert main(["sweep", str(below), "--out", str(tmp_path / "swept")]) == 0


def test_a_recipe_on_standard_input_begins_in_the_working_folder(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe_file.parent)
    for command in (["inspect", "-"], ["probe", "-"], ["merge", "-", "--out", "out"]):
        monkeypatch.setattr("sys.stdin", io.StringIO("base: ./base\nagents: [./one, ./two]\nmethod: ram\n"))
        assert main(command) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("base: ./base\nagents: [./one, ./two]\nsweep: [{method: ram}]\n"))
    assert main(["inspect", "-"]) == 0


# --- a folder or a model on the Hub ------------------------------------------------------------------------------


def test_an_existing_folder_comes_before_a_model_of_the_hub_and_the_user_is_told(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ada: HfApi
) -> None:
    here = recipe_file.parent
    (here / "exp").mkdir()
    (here / "one").rename(here / "exp" / "agent0")
    written = here / "mixed.yaml"
    written.write_text("base: base\nagents: [exp/agent0, ./two]\nmethod: ram\n")
    monkeypatch.chdir(here.parent)
    assert main(["inspect", str(written)]) == 0
    told = capsys.readouterr().out
    assert f"exp/agent0 is taken for the folder {here}/exp/agent0; write exp/agent0@main for the model on the" in told
    recipe = load_recipe(written)
    assert [note.partition(" ")[0] for note in recipe.notes] == ["base", "exp/agent0"]
    assert [recipe.base.local, *(a.model.local for a in recipe.agents)] == [True, True, True]
    assert load_recipe(written) == recipe
    again = recipe_from_yaml(recipe.to_yaml())
    assert again.agents[0].model.local, "written out, it stays a folder"
    written.write_text("base: base\nagents: [exp/agent0@main, ./two]\nmethod: ram\n")
    assert main(["inspect", str(written)]) == 1
    assert "E_SOURCE: no such repo" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["模型", "bin/a b", "agent (v2)", "a\u202e\x1b[2Jb"])
def test_a_folder_whose_name_could_be_none_of_the_hub_is_answered_with_what_to_write(name: str) -> None:
    content = {**GOOD, "base": name, "agents": ["org/a", {"model": name}]}
    assert [problem.where for problem in problems(content)] == ["r.yaml → base", "r.yaml → agent 2 → model"]
    for problem in problems(content):
        assert f"as a folder it is written {'./' + name!r}" in problem.what
        assert problem.what.isprintable()
        assert problem.got == repr(name), "what was written, in no other form"


@pytest.mark.parametrize("name", ["org/name@a..b", "https://example.org/a", "./" + 5000 * "x", "~\0"])
def test_a_name_that_is_none_is_shown_as_it_was_written(name: str) -> None:
    [problem] = problems({**GOOD, "base": name})
    assert problem.where == "r.yaml → base"
    assert problem.got == repr(name)[:120]


def test_a_recipe_that_is_no_file_never_means_a_folder(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (recipe_file.parent / "org" / "base").mkdir(parents=True)
    monkeypatch.chdir(recipe_file.parent)
    assert not recipe_from_dict(GOOD).base.local
    assert not recipe_from_yaml(json.dumps(GOOD)).base.local


# --- slips, beside those of mistakes.py ----------------------------------------------------------------------------


def test_a_slip_in_calibration_is_one_problem_that_names_what_was_meant() -> None:
    calibration = {"data": "./x", "prompt": "q", "answer": "a", "max_pair": 3}
    [problem] = problems({**GOOD, "calibration": calibration})
    assert (problem.where, problem.next_step) == ("r.yaml → calibration → max_pair", "Did you mean max_pairs?")
    assert "max_pairs" in problem.expected


def test_entries_are_counted_from_1() -> None:
    assert problems({**GOOD, "agents": [3, "org/b"]})[0].where == "r.yaml → agent 1"
    with pytest.raises(RecipeError) as caught:
        sweep_from_dict({"base": "org/base", "agents": ["org/a"], "sweep": [{"method": "ram"}, 3]}, "s.yaml")
    assert caught.value.problems[0].where == "s.yaml → sweep 2"
    mergekit = "merge_method: ram\nbase_model: org/b\nmodels: [{model: org/a}, 3]\n"
    assert [p.where for p in problems(mergekit)] == ["r.yaml → model 2"]

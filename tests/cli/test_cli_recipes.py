"""Recipes as files: where paths begin, what `hubmerge init` writes, slips that are recognised, and the schema."""

import io
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from builders import llama_config, random_base, sparse_agent, write_model
from processes import ROOT, python

from hubmerge.cli.main import main
from hubmerge.errors import RecipeError
from hubmerge.methods import registry
from hubmerge.recipe.file import load_recipe, recipe_from_yaml
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.recipe.schema import SCHEMA_URL, recipe_schema
from hubmerge.recipe.sweep import load_sweep, sweep_from_dict
from hubmerge.sensitivity.pairs import load_pairs

GOOD: dict[str, Any] = {"base": "org/base", "agents": ["org/a", {"model": "org/b", "weight": 0.5}], "method": "ram"}

SCHEMA = jsonschema.Draft202012Validator(recipe_schema())


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


def test_paths_begin_at_the_recipe_wherever_the_command_is_started(below, recipe_file, tmp_path, monkeypatch):
    assert main(["merge", str(recipe_file), "--out", str(tmp_path / "absolute")]) == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number, (cwd, name) in enumerate(((elsewhere, below), (below.parent, Path(below.name)))):
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
    below, tmp_path, monkeypatch, refused
):
    monkeypatch.chdir(tmp_path)
    below.write_text("base: ./base\nagents: [../one, ../two]\nmethod: ram\n")
    message = refused("inspect", below)
    assert "E_SOURCE: no such folder in" in message
    assert "write ../base." in message


def test_sweeps_calibration_data_and_sensitivity_files_are_found_from_there_too(below, tmp_path):
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


def test_what_a_shell_leaves_of_the_users_own_folder_is_that_folder(recipe_file, tmp_path, monkeypatch):
    """A shell puts it in for `--out ~/merged` alone."""
    monkeypatch.setenv("HOME", str(recipe_file.parent))
    monkeypatch.chdir(tmp_path)
    assert main(["merge", f"~/{recipe_file.name}", "--out=~/merged"]) == 0
    assert (recipe_file.parent / "merged" / "hubmerge.json").is_file()
    assert not (tmp_path / "~").exists()


def test_a_recipe_on_standard_input_begins_in_the_working_folder(recipe_file, monkeypatch):
    monkeypatch.chdir(recipe_file.parent)
    for command in (["inspect", "-"], ["probe", "-"], ["merge", "-", "--out", "out"]):
        monkeypatch.setattr("sys.stdin", io.StringIO("base: ./base\nagents: [./one, ./two]\nmethod: ram\n"))
        assert main(command) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("base: ./base\nagents: [./one, ./two]\nsweep: [{method: ram}]\n"))
    assert main(["inspect", "-"]) == 0


# --- a folder or a model on the Hub ------------------------------------------------------------------------------


def test_an_existing_folder_comes_before_a_model_of_the_hub_and_the_user_is_told(
    recipe_file, monkeypatch, done, refused, ada
):
    here = recipe_file.parent
    (here / "exp").mkdir()
    (here / "one").rename(here / "exp" / "agent0")
    written = here / "mixed.yaml"
    written.write_text("base: base\nagents: [exp/agent0, ./two]\nmethod: ram\n")
    monkeypatch.chdir(here.parent)
    told = done("inspect", written).out
    assert f"exp/agent0 is taken for the folder {here}/exp/agent0; write exp/agent0@main for the model on the" in told
    recipe = load_recipe(written)
    assert [note.partition(" ")[0] for note in recipe.notes] == ["base", "exp/agent0"]
    assert [recipe.base.local, *(a.model.local for a in recipe.agents)] == [True, True, True]
    assert load_recipe(written) == recipe
    again = recipe_from_yaml(recipe.to_yaml())
    assert again.agents[0].model.local, "written out, it stays a folder"
    written.write_text("base: base\nagents: [exp/agent0@main, ./two]\nmethod: ram\n")
    assert "E_SOURCE: no such repo" in refused("inspect", written)


@pytest.mark.parametrize("name", ["模型", "bin/a b", "agent (v2)", "a\u202e\x1b[2Jb"])
def test_a_folder_whose_name_could_be_none_of_the_hub_is_answered_with_what_to_write(name):
    content = {**GOOD, "base": name, "agents": ["org/a", {"model": name}]}
    assert [problem.where for problem in problems(content)] == ["r.yaml → base", "r.yaml → agent 2 → model"]
    for problem in problems(content):
        assert f"as a folder it is written {'./' + name!r}" in problem.what
        assert problem.what.isprintable()
        assert problem.got == repr(name), "what was written, in no other form"


def test_a_recipe_that_is_no_file_never_means_a_folder(recipe_file, monkeypatch):
    (recipe_file.parent / "org" / "base").mkdir(parents=True)
    monkeypatch.chdir(recipe_file.parent)
    assert not recipe_from_dict(GOOD).base.local
    assert not recipe_from_yaml(json.dumps(GOOD)).base.local


DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def here(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(recipe_file.parent)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return recipe_file.parent


@pytest.mark.parametrize("method", [None, *registry()])
def test_what_init_writes_is_a_recipe_of_the_schema_with_every_default_told(here, done, method):
    text, told = done("init", "base", "./one", "two", *(["--method", method] if method else []))
    assert "E_INCOMPATIBLE" not in told
    assert "cannot be merged" not in text
    assert ("put your own data here" in text) == (method in ("fisher", "sar"))
    assert text.startswith(f"# yaml-language-server: $schema={SCHEMA_URL}\n")
    SCHEMA.validate(yaml.safe_load(text))
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


def test_paths_are_written_as_the_file_that_holds_them_needs_them(here, done):
    (here / "my recipes").mkdir()
    told = done("init", "base", here / "one", "./two", "--out", "my recipes/new.yaml").out
    assert "`hubmerge merge 'my recipes/new.yaml' --out" in told, "a shell takes it"
    recipe = load_recipe(here / "my recipes" / "new.yaml")
    assert [str(recipe.base), *(str(a.model) for a in recipe.agents)] == ["../base", str(here / "one"), "../two"]
    assert main(["merge", "my recipes/new.yaml", "--out", "out"]) == 0
    (here / "far" / "away").mkdir(parents=True)
    (here / "linked").symlink_to(here / "far" / "away")
    done("init", "base", "one", "./two", "--out", "linked/new.yaml")
    assert str(load_recipe(here / "linked" / "new.yaml").base) == "../../base"


def test_a_file_that_is_there_is_never_overwritten(here, refused):
    (here / "kept.yaml").write_text("mine")
    (here / "dangling.yaml").symlink_to(here / "nowhere")
    command = ("init", "base", "one", "two", "--out")
    for name in ("kept.yaml", "dangling.yaml"):
        assert refused(*command, name).startswith("hubmerge: E_TARGET_EXISTS: the recipe is there already")
    assert (here / "kept.yaml").read_text() == "mine"
    assert not (here / "nowhere").exists()
    assert "the recipe cannot be written" in refused(*command, "no/such/folder.yaml")


def test_a_disk_that_is_full_leaves_no_half_of_a_recipe(here):
    script = (
        "import resource, sys\nfrom hubmerge.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\nsys.exit(main(sys.argv[1:]))"
    )
    told = python("-c", script, "init", "base", "one", "two", "--out", "new.yaml", folder=here, PYTHONPATH=str(ROOT))
    assert (told.returncode, told.stderr.count("the recipe cannot be written")) == (1, 1)
    assert not (here / "new.yaml").exists()


def test_models_that_cannot_be_opened_leave_no_recipe_and_those_that_do_not_fit_say_so_in_it(here, refused, done):
    refused("init", "base", "one", "too", "--out", "new.yaml")
    assert not (here / "new.yaml").exists()
    agent = sparse_agent(random_base(0), 0.1, 5)
    write_model(here / "qwen", agent, config=llama_config(agent, architectures=["Qwen\x1b[2JForCausalLM"]))
    told = done("init", "base", "one", "qwen", "--out", "new.yaml").err
    text = (here / "new.yaml").read_text()
    assert "# It cannot be merged as it stands: E_INCOMPATIBLE: another architecture" in text
    assert "\x1b" not in text
    assert "E_INCOMPATIBLE" in told
    assert load_recipe(here / "new.yaml").method == "ram_plus"


@pytest.mark.usefixtures("here")
def test_one_agent_is_a_beginning_and_a_wrong_method_is_refused(refused, done):
    assert "# - org/another-agent  # a merge needs two" in done("init", "base", "one").out
    assert "Did you mean ties?" in refused("init", "base", "one", "--method", "tie")


# --- the schema --------------------------------------------------------------------------------------------------


def test_the_published_schema_is_the_one_of_the_models():
    assert json.loads((DOCS / "recipe.schema.json").read_text(encoding="utf-8")) == recipe_schema(), "run `make docs`"
    jsonschema.Draft202012Validator.check_schema(recipe_schema())


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
def test_the_schema_refuses_what_reading_refuses(change):
    with pytest.raises(RecipeError):
        recipe_from_dict({**GOOD, **change})
    with pytest.raises(jsonschema.ValidationError):
        SCHEMA.validate({**GOOD, **change})


def test_the_schema_takes_what_a_recipe_writes():
    full = {"calibration": {"data": "d", "prompt": "q", "answer": "a"}, "dtype": "bfloat16", "rounding": "nearest"}
    for method in registry():
        for more in (full, {"ignore": ["v_head.*"], "parameters": None, "dtype": None}):
            recipe = recipe_from_dict({**GOOD, **more, "method": method})
            SCHEMA.validate({**GOOD, **more, "method": method})
            SCHEMA.validate(recipe.to_dict())


def test_the_schema_takes_numbers_that_differ_from_tensor_to_tensor():
    rules = [{"filter": "mlp", "layers": [0, 8], "value": [0, 1]}, {"value": 0.5}]
    for weight in (0.5, [0, 0.5, 1], rules):
        agents = [{"model": "org/a", "weight": weight, "parameters": {"density": weight}}, "org/b"]
        content = {**GOOD, "agents": agents, "method": "ties", "parameters": {"lambda": weight, "trim_scope": "tensor"}}
        content |= {"tokenizer": "base"}
        if weight != 0.5:
            agents[0]["parameters"] = {"density": [1, 0.5]}  # type: ignore[index]
        SCHEMA.validate(recipe_from_dict(content).to_dict())
    for weight in ([], [{"filter": "mlp"}], {"value": 1}, [{"value": 1, "more": 2}]):
        with pytest.raises(jsonschema.ValidationError):
            SCHEMA.validate({**GOOD, "agents": [{"model": "org/a", "weight": weight}, "org/b"]})


@pytest.mark.parametrize("name", ["org/name@a..b", "https://example.org/a", "./" + 5000 * "x", "~\0"])
def test_a_name_that_is_none_is_shown_as_it_was_written(name):
    [problem] = problems({**GOOD, "base": name})
    assert problem.where == "r.yaml → base"
    assert problem.got == repr(name)[:120]


def test_a_slip_in_calibration_is_one_problem_that_names_what_was_meant():
    calibration = {"data": "./x", "prompt": "q", "answer": "a", "max_pair": 3}
    [problem] = problems({**GOOD, "calibration": calibration})
    assert (problem.where, problem.next_step) == ("r.yaml → calibration → max_pair", "Did you mean max_pairs?")
    assert "max_pairs" in problem.expected


def test_entries_are_counted_from_1():
    assert problems({**GOOD, "agents": [3, "org/b"]})[0].where == "r.yaml → agent 1"
    with pytest.raises(RecipeError) as caught:
        sweep_from_dict({"base": "org/base", "agents": ["org/a"], "sweep": [{"method": "ram"}, 3]}, "s.yaml")
    assert caught.value.problems[0].where == "s.yaml → sweep 2"
    mergekit = "merge_method: ram\nbase_model: org/b\nmodels: [{model: org/a}, 3]\n"
    assert [p.where for p in problems(mergekit)] == ["r.yaml → model 2"]

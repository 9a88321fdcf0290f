"""The library: what `import hubmerge` offers, how little it costs, and the page that shows it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from processes import ROOT, act_as_ada, printed_by

import hubmerge
from hubmerge.cli.main import main
from hubmerge.evaluation.runner import EvaluateOptions
from localhub.process import LocalHubProcess

OFFERED = ("inspect", "probe", "merge", "publish", "evaluate", "leaderboard")
RECIPE = {"base": "zoo/base", "agents": ["zoo/math-agent", "zoo/tool-agent"], "method": "ram"}


@pytest.fixture
def place(zoo_hub: LocalHubProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of user ada of an embedded Hub."""
    act_as_ada(monkeypatch, zoo_hub, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_import_hubmerge_imports_nothing_that_it_does_not_use():
    heavy = "{'torch', 'gradio', 'transformers', 'numpy', 'pydantic', 'huggingface_hub', 'yaml'}"
    script = f"import sys, hubmerge\nprint(sorted({heavy} & set(sys.modules)), hubmerge.__version__)"
    assert printed_by(script).strip() == f"[] {hubmerge.__version__}"


def test_the_names_mean_functions_whatever_was_imported_before():
    modules = (
        "line library cli.merge cli.inspect cli.probe cli.evaluate board.leaderboard evaluation.runner output.publish"
    )
    script = (
        f"import hubmerge, {', '.join(f'hubmerge.{name}' for name in modules.split())}\n"
        "from hubmerge import board, leaderboard, line, merge\n"
        f"assert {OFFERED} == tuple(getattr(hubmerge, name).__name__ for name in {OFFERED})\n"
        f"assert all(callable(getattr(hubmerge, name)) for name in {OFFERED})\n"
        "assert set(hubmerge.__all__) <= set(dir(hubmerge))\n"
        "print(hubmerge.merge.__module__)"
    )
    assert printed_by(script).strip() == "hubmerge.library"


def test_a_name_that_is_not_offered_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'mrege'"):
        hubmerge.mrege  # noqa: B018


def test_every_function_says_what_it_raises():
    for name in OFFERED:
        words = getattr(hubmerge, name).__doc__
        assert "Raises" in words, name


def test_recipes_are_mappings_files_or_recipes(place):
    (place / "recipe.yaml").write_text(json.dumps(RECIPE))
    plan = hubmerge.inspect(RECIPE)
    assert plan.identity == hubmerge.inspect("recipe.yaml").identity == hubmerge.inspect(plan.recipe).identity
    zoo = ROOT / "examples" / "zoo"
    (place / "base").symlink_to(zoo / "base")
    written = hubmerge.inspect({**RECIPE, "base": "./base", "agents": [str(zoo / "math"), str(zoo / "tool")]})
    paths = {"base": Path("base"), "agents": [zoo / "math", {"model": zoo / "tool"}]}
    assert hubmerge.inspect({**RECIPE, **paths}).recipe == written.recipe
    with pytest.raises(hubmerge.HubmergeError, match=r"no such folder in \./mergd"):
        hubmerge.evaluate(Path("mergd"), "zoo")


def test_what_is_returned_shows_itself_in_one_line(place):
    plan, statistics, report = hubmerge.inspect(RECIPE), hubmerge.probe(RECIPE), hubmerge.merge(RECIPE, "merged")
    merge = f"{plan.identity[:16]}: %s of 2 agents"
    assert repr(plan).startswith(f"<Plan {merge % 'ram'} on zoo/base, {plan.elements:,} parameters>")
    one = {**RECIPE, "agents": RECIPE["agents"][:1], "method": "linear", "parameters": {"base_weight": 1}}
    assert " of 1 agent on" in repr(hubmerge.inspect(one))
    assert repr(report).startswith(f"<Report {merge % 'RAM'}, {plan.elements:,} parameters>")
    [math, _] = statistics.total.density
    assert f" math-agent changed {math:.2%}," in repr(statistics)
    assert all(len(repr(value)) < 200 for value in (plan, statistics, report))


def test_a_merge_goes_to_one_place(place):
    with pytest.raises(hubmerge.HubmergeError, match="E_RECIPE: a merge goes to a folder or to a repo"):
        hubmerge.merge(RECIPE)  # type: ignore[call-overload]
    with pytest.raises(hubmerge.HubmergeError, match="expected one of out and to"):
        hubmerge.merge(RECIPE, "out", to="ada/both")  # type: ignore[call-overload]


def test_who_asks_for_a_gpu_that_is_not_there_is_told(place, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.warns(UserWarning, match="finds no CUDA device"):
        hubmerge.merge(RECIPE, "out", options=hubmerge.StreamOptions(device="cuda"))
    with pytest.raises(hubmerge.HubmergeError, match="E_DEVICE: there is no such device: expected auto, cpu, cuda"):
        hubmerge.StreamOptions(device="cuda:0")  # type: ignore[arg-type]
    with pytest.raises(hubmerge.HubmergeError, match="got gpu"):
        hubmerge.evaluate("zoo/base", "zoo", options=EvaluateOptions(device="gpu"))  # type: ignore[arg-type]


def test_the_command_and_the_library_make_the_same_folder(place):
    (place / "recipe.yaml").write_text(json.dumps(RECIPE))
    assert main(["merge", "recipe.yaml", "--out", "by-command", "--license", "apache-2.0"]) == 0
    hubmerge.merge(RECIPE, "by-library", license="apache-2.0")
    for name in ("model.safetensors", "config.json", "recipe.yaml", "tokenizer.json"):
        assert (place / "by-command" / name).read_bytes() == (place / "by-library" / name).read_bytes()


def examples() -> str:
    """The page's code, with every line at its own number."""
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    blocks = re.finditer(r"^```python\n(.*?)^```", page, re.M | re.S)
    lines = [""] * (page.count("\n") + 1)
    for block in blocks:
        start = page.count("\n", 0, block.start(1))
        code = block.group(1).splitlines()
        lines[start : start + len(code)] = code
    return "\n".join(lines) + "\n"


@pytest.mark.slow
def test_the_examples_of_the_page_run(place, capsys):
    names: dict[str, Any] = {}
    exec(compile(examples(), str(ROOT / "docs" / "library.md"), "exec"), names)
    said = capsys.readouterr().out
    assert "parameters," in said
    assert "stands twice" in said
    assert names["result"].status == "done"
    assert names["board"].suites[0].rows[0].model == "ada/merged"
    assert names["published"].repo == "ada/merged"

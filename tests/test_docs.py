"""Documentation that is executed: the method page is current, named paths exist, examples run."""

import re
from pathlib import Path

import pytest

from hubmerge.cli.methods import methods_page
from hubmerge.recipe.file import load_recipe, recipe_from_yaml
from hubmerge.recipe.sweep import load_sweep
from workflows.watchers.rules import rule_from_yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "examples" / "zoo" / "README.md"])


def test_the_method_page_is_the_one_that_the_registry_generates():
    assert (ROOT / "docs" / "methods.md").read_text(encoding="utf-8") == methods_page(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_paths_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (page.parent / target).exists(), target
    for named in re.findall(r"`((?:hubmerge|workflows|tests|examples|benchmarks|docs)/[\w./\-]+)`", text):
        assert (ROOT / named).exists(), named


@pytest.mark.parametrize(
    ("page", "read"),
    [("README.md", recipe_from_yaml), ("docs/mergekit.md", recipe_from_yaml), ("docs/watchers.md", rule_from_yaml)],
)
def test_the_documents_that_a_page_shows_can_be_read(page, read):
    shown = re.findall(r"^```yaml\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    assert shown
    assert all(map(read, shown))


@pytest.mark.parametrize("recipe", sorted((ROOT / "examples" / "recipes").glob("*.yaml")), ids=lambda p: p.name)
def test_example_recipes_are_valid(recipe, monkeypatch):
    monkeypatch.chdir(ROOT)
    if "\nsweep:" in recipe.read_text(encoding="utf-8"):
        assert load_sweep(recipe).variants
    else:
        assert load_recipe(recipe).agents

"""Documentation that is executed: the method page is current, named paths exist, examples run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import Field

from hubmerge.cli.methods import method_section, methods_page
from hubmerge.methods import registry
from hubmerge.methods.base import Parameters
from hubmerge.methods.ram import Ram
from hubmerge.recipe.file import load_recipe, recipe_from_yaml
from hubmerge.recipe.sweep import load_sweep
from workflows.watchers.rules import rule_from_yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "examples" / "zoo" / "README.md"])


def test_the_method_page_is_the_one_that_the_registry_generates() -> None:
    assert (ROOT / "docs" / "methods.md").read_text(encoding="utf-8") == methods_page(), "run `make docs`"


@pytest.mark.parametrize("name", list(registry()))
def test_every_method_names_its_source_equations_and_deviations(name: str) -> None:
    method = registry()[name]
    assert method.papers
    section = methods_page().split(f"\n## {name}\n")[1].split("\n## ")[0]
    assert "Source" in section
    assert "Deviations" in section
    for field in method.parameters.model_fields.values():
        assert field.description


def test_the_range_of_a_parameter_tells_each_of_its_bounds() -> None:
    class Bounded(Parameters):
        power: float = Field(1.0, ge=0.0)
        rate: float = Field(0.5, lt=1.0)
        share: float = Field(0.5, gt=0.0, le=1.0)
        free: float = 1.0

    class Ours(Ram):
        parameters = Bounded

    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", method_section(Ours()), re.M)
    assert dict(rows) == {"power": "[0, ∞)", "rate": "(-∞, 1)", "share": "(0, 1]", "free": "—"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_paths_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (page.parent / target).exists(), target
    for named in re.findall(r"`((?:hubmerge|workflows|tests|examples|benchmarks|docs)/[\w./\-]+)`", text):
        assert (ROOT / named).exists(), named


@pytest.mark.parametrize(
    ("page", "read"),
    [("README.md", recipe_from_yaml), ("docs/mergekit.md", recipe_from_yaml), ("docs/watchers.md", rule_from_yaml)],
)
def test_the_documents_that_a_page_shows_can_be_read(page: str, read: Callable[[str], object]) -> None:
    shown = re.findall(r"^```yaml\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    assert shown
    assert all(map(read, shown))


@pytest.mark.parametrize("recipe", sorted((ROOT / "examples" / "recipes").glob("*.yaml")), ids=lambda p: p.name)
def test_example_recipes_are_valid(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    if "\nsweep:" in recipe.read_text(encoding="utf-8"):
        assert load_sweep(recipe).variants
    else:
        assert load_recipe(recipe).agents

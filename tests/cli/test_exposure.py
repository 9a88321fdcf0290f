"""What a private model holds becomes public by no command, whichever parent it is, unless somebody says so outright."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import recipe_dict, write_parents, write_sweep
from huggingface_hub import HfApi

from hubmerge.cli.main import main

ROLES = ("base", "one", "two")


@pytest.fixture(params=ROLES)
def family(request: pytest.FixtureRequest, ada: HfApi, tmp_path: Path, name: str) -> tuple[str, Path]:
    """(prefix of its repos, a recipe file) of a base and two agents on the Hub, of which one is private."""
    repos = [f"{name}-{role}" for role in ROLES]
    for role, repo, folder in zip(ROLES, repos, write_parents(tmp_path / "models"), strict=True):
        ada.create_repo(repo, private=role == request.param)
        ada.upload_folder(repo_id=repo, folder_path=folder)
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe_dict(repos[0], repos[1:])))
    write_sweep(path, {"method": ["linear", "ram"]})
    return name, path


def commands(prefix: str, recipe: Path) -> dict[str, list[str]]:
    folder = recipe.parent / "merged"
    assert main(["merge", str(recipe), "--out", str(folder)]) == 0
    return {
        "run": ["run", str(recipe), "--to", f"{prefix}-run"],
        "publish": ["publish", str(folder), f"{prefix}-publish"],
        "sweep": ["sweep", str(recipe.parent / "sweep.yaml"), "--out", f"{recipe.parent}/swept", "--to", f"{prefix}-s"],
    }


def test_no_command_makes_a_private_parent_s_merge_public_by_default(
    family: tuple[str, Path], ada: HfApi, refused: Callable[..., str]
) -> None:
    before = {m.id for m in ada.list_models(author="ada")}
    for command in commands(*family).values():
        told = refused(*command)
        assert "E_RECIPE: a public merge would tell what private models or data hold" in told
        assert "--private" in told
    assert {m.id for m in ada.list_models(author="ada")} == before


def test_whoever_says_private_or_public_outright_gets_that(family: tuple[str, Path], ada: HfApi) -> None:
    every = commands(*family)
    assert main([*every["publish"], "--private"]) == 0
    assert ada.repo_info(f"{family[0]}-publish").private is True
    assert main([*every["run"], "--public"]) == 0
    assert ada.repo_info(f"{family[0]}-run").private is False

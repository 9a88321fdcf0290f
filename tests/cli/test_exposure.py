"""What a private model holds becomes public by no command, whichever parent it is, unless somebody says so outright."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from builders import recipe_dict, write_parents, write_sweep
from huggingface_hub import HfApi

from hubmerge.cli.main import main

ROLES = ("base", "one", "two")


@pytest.fixture(params=ROLES)
def family(request: pytest.FixtureRequest, ada: HfApi, tmp_path: Path) -> tuple[str, Path]:
    """(prefix of its repos, a recipe file) of a base and two agents on the Hub, of which one is private."""
    prefix = "ada/x" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:10]
    names = []
    for role, folder in zip(ROLES, write_parents(tmp_path / "models"), strict=True):
        names.append(f"{prefix}-{role}")
        ada.create_repo(names[-1], private=role == request.param)
        ada.upload_folder(repo_id=names[-1], folder_path=folder)
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe_dict(names[0], names[1:])))
    write_sweep(path, {"method": ["linear", "ram"]})
    return prefix, path


def commands(prefix: str, recipe: Path) -> dict[str, list[str]]:
    folder = recipe.parent / "merged"
    assert main(["merge", str(recipe), "--out", str(folder)]) == 0
    return {
        "run": ["run", str(recipe), "--to", f"{prefix}-run"],
        "publish": ["publish", str(folder), f"{prefix}-publish"],
        "sweep": ["sweep", str(recipe.parent / "sweep.yaml"), "--out", f"{recipe.parent}/swept", "--to", f"{prefix}-s"],
    }


def test_no_command_makes_a_private_parent_s_merge_public_by_default(
    family: tuple[str, Path], ada: HfApi, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {m.id for m in ada.list_models(author="ada")}
    for command in commands(*family).values():
        assert main(command) == 1
        told = capsys.readouterr().err
        assert "E_RECIPE: a public merge would tell what private models or data hold" in told
        assert "--private" in told
    assert {m.id for m in ada.list_models(author="ada")} == before


def test_whoever_says_private_or_public_outright_gets_that(family: tuple[str, Path], ada: HfApi) -> None:
    every = commands(*family)
    assert main([*every["publish"], "--private"]) == 0
    assert ada.repo_info(f"{family[0]}-publish").private is True
    assert main([*every["run"], "--public"]) == 0
    assert ada.repo_info(f"{family[0]}-run").private is False

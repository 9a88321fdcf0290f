"""What publishing demands: a license, where the parents leave it open, names that repos can have, and the word that
private content may go out."""

import json
from pathlib import Path

import pytest
from builders import recipe_dict, write_parents, write_sweep
from huggingface_hub import HfApi, ModelCard
from processes import Done

from hubmerge.cli.main import main


@pytest.fixture
def unlicensed(recipe_file: Path) -> Path:
    """One agent states no license, the others MIT."""
    (recipe_file.parent / "one" / "README.md").unlink()
    return recipe_file


@pytest.fixture
def merged(unlicensed: Path, done: Done) -> Path:
    out = unlicensed.parent / "out"
    done("merge", unlicensed, "--out", out)
    return out


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_models_without_a_license_merge_into_a_folder_whose_card_says_that_none_is_stated(merged):
    card = (merged / "README.md").read_text()
    assert "License of the merge: not stated" in card
    assert ModelCard(card).data.to_dict()["license"] == "unknown"
    assert json.loads((merged / "hubmerge.json").read_text())["license"]["id"] == "unknown"


def test_they_can_be_inspected_and_probed_and_inspect_says_what_publishing_needs(unlicensed, done):
    assert "publishing needs --license: an input states no license" in done("inspect", unlicensed).out
    assert main(["probe", str(unlicensed)]) == 0


def test_a_license_may_be_stated_for_a_folder_and_is_checked_against_the_parents(unlicensed, refused, tmp_path):
    told = refused("merge", unlicensed, "--out", tmp_path / "lax", "--license", "cc0-1.0")
    assert "expected one that includes the conditions of mit, got cc0-1.0" in told
    assert main(["merge", str(unlicensed), "--out", str(tmp_path / "said"), "--license", "apache-2.0"]) == 0
    assert ModelCard((tmp_path / "said" / "README.md").read_text()).data.to_dict()["license"] == "apache-2.0"


def test_a_license_that_comes_too_late_for_a_finished_folder_is_told(merged, unlicensed, done):
    command = ["merge", str(unlicensed), "--out", str(merged)]
    assert done(*command).err == ""
    told = done(*command, "--license", "mit").err
    assert "is finished and states the license unknown; `hubmerge publish --license`" in told


def test_the_names_of_all_repos_are_checked_before_the_first_variant_is_merged(recipe_file, ada, refused):
    sweep, to = write_sweep(recipe_file, {"method": ["ram", "task_arithmetic"]}), "ada/" + "x" * 90
    assert f"the target is not a repo's name: expected namespace/name, got {to}-task" in refused(
        "run", "--sweep", sweep, "--to", to
    )
    assert not ada.repo_exists(f"{to}-ram")


def test_a_sweep_needs_a_license_only_where_it_publishes(unlicensed, ada, refused, tmp_path):
    command = ["sweep", str(write_sweep(unlicensed, {"method": "ram"})), "--out", str(tmp_path / "one-by-one")]
    assert "the license of the merge must be chosen" in refused(*command, "--to", "ada/sweep-open")
    for shown in ("--private", "--public"):
        assert "E_RECIPE: --private and --public are about what is published" in refused(*command, shown)
    assert not (tmp_path / "one-by-one").exists()
    assert main(command) == 0
    assert main([*command, "--to", "ada/sweep-open", "--license", "mit"]) == 0
    assert ada.model_info("ada/sweep-open-ram").card_data.to_dict()["license"] == "mit"  # type: ignore[union-attr]


def test_publishing_demands_the_license_that_a_run_demands_before_it_merges(merged, unlicensed, ada, refused):
    for command in (("publish", merged, "ada/open"), ("run", unlicensed, "--to", "ada/open")):
        message = refused(*command)
        assert message.startswith("hubmerge: E_RECIPE: the license of the merge must be chosen")
        assert "--license" in message
        assert not ada.repo_exists("ada/open")


def test_license_and_repo_of_a_publication_stand_on_the_card_and_in_the_manifest_and_the_folder_stays_as_it_was(
    merged, ada, fetched, refused, done
):
    before = files(merged)
    command = ["publish", str(merged), "ada/stated", "--license"]
    assert "the inputs do not allow" in refused(*command, "cc0-1.0")
    assert main([*command, "mit"]) == 0
    assert files(merged) == before
    card = fetched("ada/stated", "README.md").decode()
    assert ModelCard(card).data.to_dict()["license"] == "mit"
    assert "License of the merge: `mit`" in card
    assert "not stated —" not in card
    assert 'model_id = "ada/stated"' in card, "its code runs as it stands"
    assert "\n# ada/stated\n" in card
    manifest = json.loads(fetched("ada/stated", "hubmerge.json"))
    assert manifest["license"]["id"] == "mit"
    own = json.loads((merged / "hubmerge.json").read_text())
    assert manifest == {**own, "license": manifest["license"], "target": "ada/stated"}
    assert fetched("ada/stated", "model.safetensors") == (merged / "model.safetensors").read_bytes()
    told = done(*command, "apache-2.0").err  # again is the same, which is told
    assert "ada/stated holds this merge already and stays as it is, its license too" in told
    assert len(ada.list_repo_commits("ada/stated")) == 2


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_what_a_user_wrote_into_the_card_is_published_with_the_license(merged, ada, fetched, name, end):
    card = merged / "README.md"
    text = card.read_text().replace("## Parents", "Ask me before you use it.\n\n## Parents")
    card.write_bytes(text.replace("\n", end).encode())
    assert main(["publish", str(merged), name, "--license", "other"]) == 0
    published = fetched(name, "README.md").decode()
    assert "Ask me before you use it." in published
    assert ModelCard(published).data.to_dict()["license_name"] == "mit-and-unstated-terms"


@pytest.mark.slow
def test_no_command_makes_a_private_parent_s_merge_public_unless_it_is_told_to(ada, tmp_path, name, refused):
    repos = [f"{name}-{role}" for role in ("base", "one", "two")]
    for repo, folder in zip(repos, write_parents(tmp_path / "models"), strict=True):
        ada.create_repo(repo, private=repo.endswith("one"))
        ada.upload_folder(repo_id=repo, folder_path=folder)
    recipe, merged = tmp_path / "recipe.yaml", tmp_path / "merged"
    recipe.write_text(json.dumps(recipe_dict(repos[0], repos[1:])))
    sweep = write_sweep(recipe, {"method": ["linear", "ram"]})
    assert main(["merge", str(recipe), "--out", str(merged)]) == 0
    run, publish = ["run", str(recipe), "--to", f"{name}-run"], ["publish", str(merged), f"{name}-publish"]
    before = {m.id for m in ada.list_models(author="ada")}
    for command in (run, publish, ["sweep", str(sweep), "--out", f"{tmp_path}/swept", "--to", f"{name}-s"]):
        told = refused(*command)
        assert "E_RECIPE: a public merge would tell what private models or data hold" in told
        assert "--private" in told
    assert not (tmp_path / "swept").exists()
    assert {m.id for m in ada.list_models(author="ada")} == before
    for command, visibility in ((publish, "private"), (run, "public")):
        assert main([*command, f"--{visibility}"]) == 0
        assert ada.repo_info(f"{name}-{command[0]}").private is (visibility == "private")


def test_a_run_whose_merge_is_published_says_that_its_license_stays(unlicensed, ada, fetched, done):
    command = ["run", str(unlicensed), "--to", "ada/run-stated", "--license"]
    for _ in range(2):
        assert "its license too" not in done(*command, "mit").err
    told = done(*command, "apache-2.0").err
    assert "ada/run-stated holds this merge already and stays as it is, its license too" in told
    assert json.loads(fetched("ada/run-stated", "hubmerge.json"))["license"]["id"] == "mit"


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


@pytest.mark.slow
def test_no_command_makes_a_private_parent_s_merge_public_by_default(family, ada, refused):
    before = {m.id for m in ada.list_models(author="ada")}
    for command in commands(*family).values():
        told = refused(*command)
        assert "E_RECIPE: a public merge would tell what private models or data hold" in told
        assert "--private" in told
    assert {m.id for m in ada.list_models(author="ada")} == before

"""What programs get of the command line: one JSON object on standard output, or an error as one and nothing there."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import write_sweep
from processes import Done

from hubmerge.cli.main import main
from hubmerge.methods import registry

COMMANDS = (Path(__file__).resolve().parents[2] / "docs" / "command_line.md").read_text(encoding="utf-8")


@pytest.fixture
def told(done: Done) -> Any:
    """The object that a command prints; every key of it stands in the documentation."""

    def run(*arguments: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(done(*arguments, "--json").out)
        section = COMMANDS.split(f"\n| `{arguments[0]}` |")[1].split("\n| `")[0].split("\n\n")[0]
        assert not [key for key in result if f"`{key}`" not in section]
        return result

    return run


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_merge_tells_what_it_made_and_whether_it_was_there(recipe_file, told, tmp_path):
    out = tmp_path / "out"
    first = told("merge", str(recipe_file), "--out", str(out))
    assert (first["folder"], first["method"], first["finished_before"]) == (str(out), "ram", False)
    assert first["identity"] == json.loads((out / "hubmerge.json").read_text())["identity"]
    [file] = first["files"]
    assert (file["name"], file["sha256"]) == ("model.safetensors", sha256(out / "model.safetensors"))
    assert first["license"]["id"] == "mit"
    assert first["usage"]["peak_rss_bytes"] > 0
    again = told("merge", str(recipe_file), "--out", str(out))
    assert again == {**{k: v for k, v in first.items() if k != "usage"}, "finished_before": True}


def test_methods_are_told_by_name(done):
    assert "ram_plus" in json.loads(done("methods", "--json").out)
    told = done("methods").out.splitlines()
    for method in registry().values():
        assert any(line.startswith(f"{method.name} ") for line in told)
        for paper in method.papers:
            [line] = {line.strip() for line in told if line.strip() == str(paper)}
            assert paper.title in line
            assert paper.equations in line
            assert ("arXiv:" in line) == bool(paper.arxiv)


def test_publish_and_run_tell_the_repo_and_the_commit(recipe_file, told, tmp_path, ada):
    assert main(["merge", str(recipe_file), "--out", str(tmp_path / "out")]) == 0
    published = told("publish", str(tmp_path / "out"), "ada/json-published")
    assert published["commit"] == ada.model_info("ada/json-published").sha
    assert (published["repo"], published["url"]) == ("ada/json-published", f"{ada.endpoint}/ada/json-published")
    files = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert set(ada.list_repo_files("ada/json-published")) == files | {".gitattributes"}
    [ran] = told("run", str(recipe_file), "--to", "ada/json-run")["published"]
    assert ran["commit"] == ada.model_info("ada/json-run").sha


def test_a_sweep_tells_every_variant(recipe_file, told, tmp_path, ada, fetched):
    sweep = write_sweep(recipe_file, {"method": ["ram", "linear"]})
    result = told("sweep", str(sweep), "--out", str(tmp_path / "swept"), "--to", "ada/json")
    assert [variant["name"] for variant in result["variants"]] == ["ram", "linear"]
    for variant in result["variants"]:
        assert variant["files"][0]["sha256"] == sha256(Path(variant["folder"]) / "model.safetensors")
        weights = fetched(f"ada/json-{variant['name']}", "model.safetensors")
        assert weights == (Path(variant["folder"]) / "model.safetensors").read_bytes()
        assert variant["name"] in (tmp_path / "swept" / "sweep.md").read_text()
        assert variant["commit"] == ada.model_info(f"ada/json-{variant['name']}").sha
        assert len(ada.list_repo_commits(f"ada/json-{variant['name']}")) == 2  # the Hub's initial one and ours


def test_an_error_is_one_object_on_stderr_and_nothing_on_standard_output(recipe_file, capsys, tmp_path):
    shutil.rmtree(tmp_path / "one")
    for name, *more in (["merge", "--out", str(tmp_path / "out")], ["run", "--to", "a/b"]):
        assert main([name, str(recipe_file), *more, "--json"]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        error = json.loads(said.err.splitlines()[-1])
        assert (error["type"], error["code"]) == ("error", "E_SOURCE")
        assert error["problems"][0]["next_step"]


def test_an_abbreviated_option_is_refused(capsys):
    """A script that has one would break when another option is added."""
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", "r.yaml", "--js"])
    assert stopped.value.code == 2
    assert "unrecognized arguments: --js" in capsys.readouterr().err

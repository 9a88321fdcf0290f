"""A wheel is built and installed in a fresh environment, with the dependencies of the core alone, as strangers do."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging_helpers import ROOT, uv

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy without what is beside the packages and the examples, by the setuptools that is installed."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for folder in ("hubmerge", "localhub", "workflows", "examples"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "docs").mkdir()
    for name in ("api.md", "glossary.md"):
        shutil.copy(ROOT / "docs" / name, tree / "docs")
    built = f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    left = tree / built / "hubmerge/methods/gone.py"
    left.parent.mkdir(parents=True)
    left.touch()  # by an earlier build, of a version that had it
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*build, "-w", str(out), str(tree)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [made] = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter of a fresh environment with the wheel and the core, at the versions that are pinned here."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    uv("venv", "--quiet", "--python", sys.executable, str(home))
    found = home / "bin" / "python"
    pinned = "".join(
        line
        for name in ("requirements.txt", "constraints.txt")
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines(keepends=True)
        if not line.startswith(("gradio[", "torch="))  # extras are no constraint, and the two files agree
    )
    (home / "pinned.txt").write_text(pinned, encoding="utf-8")
    uv("pip", "install", "--quiet", "--python", str(found), "-c", str(home / "pinned.txt"), str(wheel))
    yield found
    shutil.rmtree(home)


def test_the_wheel_has_the_licence_the_types_and_the_examples_and_no_tests(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        said = HeaderParser().parsestr(archive.read(metadata).decode())
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"hubmerge", "localhub", "workflows"}
    assert {name.rsplit("/", 1)[1] for name in names if "/licenses/" in name} == {"LICENSE"}
    assert {"hubmerge/py.typed", "hubmerge/output/card.md.jinja"} <= names
    assert {"hubmerge/docs/api.md", "hubmerge/docs/glossary.md"} <= names  # the app shows them
    for model in ("base", "math", "tool", "mem"):
        assert f"hubmerge/examples/zoo/{model}/model.safetensors" in names
    assert {"hubmerge/examples/recipes/ram_plus.yaml", "hubmerge/examples/watchers/zoo.yaml"} <= names
    assert wheel.stat().st_size < 5_000_000
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Author"] == "The hubmerge authors"
    assert len(said.get_all("Project-URL", [])) >= 3
    modules = {
        path.relative_to(ROOT).as_posix()
        for top in ("hubmerge", "localhub", "workflows")
        for path in (ROOT / top).rglob("*.py")
    }
    assert modules == {name for name in names if name.endswith(".py")}
    assert {"hubmerge/engine/pass.c", "hubmerge/evaluation/pins.yaml"} <= names
    assert any(name.startswith("hubmerge/engine/_pass") and name.endswith(".so") for name in names)
    assert not wheel.name.endswith("-any.whl")


@pytest.mark.timeout(600)
def test_the_core_merges_in_a_fresh_environment_without_a_package_of_an_extra(python, tmp_path):
    def run(*arguments: str, code: int = 0) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"PATH": str(python.parent), "XDG_CACHE_HOME": str(tmp_path)}  # no compiler: it was built before
        command = [str(python.with_name("hubmerge")), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    installed = json.loads(uv("pip", "list", "--format", "json", "--python", str(python)))
    names = {each["name"] for each in installed}
    assert names.isdisjoint(
        {"torch", "gradio", "lighteval", "transformers", "pandas", "starlette", "sqlalchemy", "peft"}
    )
    assert len(names) < 45

    zoo = python.parents[1].glob("lib/python3*/site-packages/hubmerge/examples/zoo")
    [examples] = [str(path) for path in zoo]
    run("init", f"{examples}/base", *(f"{examples}/{name}" for name in ("math", "tool", "mem")), "--out", "recipe.yaml")
    assert "ram_plus" in run("methods")
    assert "Identity" in run("inspect", "recipe.yaml")
    assert "%" in run("diff", f"{examples}/base", f"{examples}/math")
    run("merge", "recipe.yaml", "--out", "merged")
    assert not list(tmp_path.rglob("pass-*.so"))
    assert "hubmerge[app]" in run("demo", code=1)

    # elsewhere, with what loads models
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not report["missing_keys"]
    assert sum(p.numel() for p in model.parameters()) == 171_776

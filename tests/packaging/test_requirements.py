"""The ranges of pyproject.toml, the pins of requirements.txt and the extras belong together, and they resolve."""

import importlib.metadata
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from packaging_helpers import ROOT, uv

from hubmerge.machine.extras import MODULES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# what the platform adds to a Gradio Space's requirements.txt in one command
PLATFORM = ("uvicorn>=0.14.0", "websockets>=10.4", "spaces")
RESOLVER_ONLY = {"inspect-ai"}  # pinned for the resolver's sake, as the file says


def _requirements(name: str) -> dict[str, Requirement]:
    lines = (line.split("#")[0].strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines())
    return {canonicalize_name((each := Requirement(line)).name): each for line in lines if line}


def _pin(requirement: Requirement) -> Version:
    [specifier] = requirement.specifier
    assert specifier.operator == "=="
    return Version(specifier.version)


def _ranges() -> dict[str, list[Requirement]]:
    stated: dict[str, list[Requirement]] = {}
    for line in (*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)):
        requirement = Requirement(line)
        stated.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    del stated["hubmerge"]  # the extra `all` names the others
    return stated


def test_every_range_holds_what_is_pinned():
    pins = {**_requirements("constraints.txt"), **_requirements("requirements.txt")}
    for name, requirements in _ranges().items():
        for requirement in requirements:
            assert requirement.specifier.contains(_pin(pins[name])), f"{requirement} and {pins[name]}"


def test_evaluations_get_no_xxhash_that_refuses_lighteval_s_strings():
    [requirement] = _ranges()["xxhash"]
    assert not requirement.specifier.contains("4.1.0")


def test_tests_install_what_the_space_does_but_for_torch():
    pinned, constrained, ours = map(_requirements, ("requirements.txt", "constraints.txt", "requirements-dev.txt"))
    assert pinned.keys() & ours.keys() == {"torch"}
    assert "torch" not in constrained
    differing = {name for name in pinned.keys() & constrained.keys() if _pin(pinned[name]) != _pin(constrained[name])}
    assert differing == set()


def test_every_pinned_package_is_one_that_the_core_or_an_extra_needs():
    assert _requirements("requirements.txt").keys() - _ranges().keys() <= RESOLVER_ONLY
    assert set(EXTRAS["all"]) & {"hubmerge[gpu,lora,eval,app]"}


@pytest.mark.parametrize("extra", MODULES)
def test_an_extras_modules_are_those_of_its_packages(extra):
    packages = importlib.metadata.packages_distributions()
    requirements = map(Requirement, EXTRAS[extra])
    stated = {canonicalize_name(r.name) for r in requirements if r.marker is None}  # on every Python
    found = {canonicalize_name(name) for module in MODULES[extra] for name in packages[module]}
    assert found - stated <= {"nltk"}  # lighteval's
    assert stated == found & stated


@pytest.mark.slow
@pytest.mark.parametrize(
    ("python", "beside"),
    [
        ("3.12", ("gradio[mcp,oauth]=={gradio}", *PLATFORM)),  # a Gradio Space, which knows no constraints
        ("3.12", ("-c constraints.txt",)),  # the Dockerfile
        ("3.11", ("-c constraints.txt",)),  # the oldest Python, in its first release
    ],
    ids=["gradio-space", "image", "oldest"],
)
def test_what_a_space_installs_resolves(python, beside):
    pinned = _requirements("requirements.txt")
    asked = "\n".join(("-r requirements.txt", *beside)).format(gradio=_pin(pinned["gradio"]))
    command = "pip compile - --quiet --no-header --no-annotate --no-python-downloads --python-version"
    resolved = uv(*command.split(), python, given=asked)
    found = {canonicalize_name((r := Requirement(line)).name): r for line in resolved.splitlines() if "==" in line}
    for name, requirement in pinned.items():
        assert _pin(found[name]) == _pin(requirement)
    assert len(found) > 150


def test_the_core_is_about_ten_packages_none_of_which_runs_models_or_pages():
    core = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert len(core) <= 12
    assert core.isdisjoint({"torch", "gradio", "lighteval", "transformers", "pandas", "starlette", "sqlalchemy"})

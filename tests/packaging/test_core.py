"""With the core alone hubmerge merges on the CPU, and says by name which extra anything else needs."""

from functools import partial
from pathlib import Path

import pytest
from processes import python

from hubmerge.errors import MissingExtraError
from hubmerge.machine import extras
from hubmerge.settings import load_settings
from workflows.serve import serve

RECIPE = "examples/recipes/ram_plus.yaml"


_core = partial(python, str(Path(__file__).with_name("without_extras.py")))


def test_the_core_inspects_probes_compares_merges_and_publishes(tmp_path, local_hub):
    out = str(tmp_path / "merged")
    hub = {"HF_ENDPOINT": local_hub.endpoint, "HF_TOKEN": local_hub.tokens["ada"]}
    for arguments in (
        ("inspect", RECIPE),
        ("probe", RECIPE),
        ("diff", "examples/zoo/base", "examples/zoo/math"),
        ("merge", RECIPE, "--out", out),
        ("publish", out, "ada/merged-by-the-core"),
    ):
        done = _core(*arguments, **hub)
        assert done.returncode == 0, done.stderr
    assert {path.name for path in Path(out).iterdir()} >= {"model.safetensors", "README.md", "figures", "hubmerge.json"}


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("gpu", ("merge", RECIPE, "--out", "{out}", "--device", "cuda")),
        ("eval", ("evaluate", "examples/zoo/math", "--suite", "zoo")),
        ("eval", ("run", RECIPE, "--to", "ada/merged", "--evaluate", "zoo")),
        ("eval", ("sweep", "examples/recipes/all_methods.yaml", "--out", "{out}")),
        ("app", ("serve",)),
        ("app", ("demo",)),
        ("app", ("localhub", "--data", "{out}")),
        ("app", ("watch", "examples/watchers/zoo.yaml")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_command_names_the_extra_that_it_needs_before_it_does_anything(extra, arguments, tmp_path):
    out = tmp_path / "out"
    done = _core(*(part.format(out=out) for part in arguments), HUBMERGE_DATA=str(tmp_path / "data"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("hubmerge: E_EXTRA: ")
    assert done.stderr.endswith(f"Run pip install 'hubmerge[{extra}]'.\n")
    assert not list(tmp_path.iterdir())


def test_what_is_installed_is_not_asked_for(monkeypatch):
    monkeypatch.setitem(extras.MODULES, "gpu", ("json", "nowhere_at_all"))  # type: ignore[arg-type]
    extras.require("gpu", "this", "json")
    with pytest.raises(MissingExtraError, match=r"E_EXTRA: this needs .*hubmerge\[gpu\], got no nowhere_at_all"):
        extras.require("gpu", "this")


def test_an_app_with_a_results_dataset_needs_what_evaluates_before_it_serves(monkeypatch, tmp_path):
    monkeypatch.setitem(extras.MODULES, "eval", ("nowhere_at_all",))  # type: ignore[arg-type]
    named = {"HUBMERGE_RESULTS": "ada/results", "HUBMERGE_DATA": str(tmp_path / "data")}
    settings = load_settings({**named, "OAUTH_CLIENT_ID": "id", "OAUTH_CLIENT_SECRET": "secret"})
    with pytest.raises(MissingExtraError, match=r"HUBMERGE_RESULTS needs .*hubmerge\[eval\]"):
        serve(settings, host="127.0.0.1", port=1)
    assert not (tmp_path / "data").exists()


def test_a_folder_in_the_settings_may_begin_with_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = load_settings({"HUBMERGE_DATA": "~/data", "HUBMERGE_RULES": "~/rules"})
    assert (settings.data_dir, settings.rules_dir) == (tmp_path / "data", tmp_path / "rules")


def test_what_belongs_to_no_extra_stays_an_error_of_python():
    assert extras.explained(ModuleNotFoundError("No module named 'nowhere'", name="nowhere")) is None
    assert extras.explained(ModuleNotFoundError("no name")) is None


def test_an_app_that_cannot_write_its_data_folder_says_so(tmp_path):
    (tmp_path / "data").touch()
    app = {"OAUTH_CLIENT_ID": "id", "OAUTH_CLIENT_SECRET": "secret", "HUBMERGE_DATA": str(tmp_path / "data")}
    done = python("app.py", **app)
    assert (done.returncode, done.stderr.splitlines()[-1][:16]) == (1, "hubmerge: E_DISK")
    assert "Traceback" not in done.stderr


def test_an_app_of_a_hub_without_an_address_says_so():
    done = python("app.py", HF_ENDPOINT="http://[hub")
    assert done.returncode == 1
    assert done.stderr.startswith("hubmerge: E_SETTINGS: the address of the Hub is not valid in HF_ENDPOINT")

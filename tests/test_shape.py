"""The shape of the code base: who may import what, and how long a module may be."""

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from processes import printed_by

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("hubmerge", "localhub", "workflows")
MODULES = sorted([*(path for top in PACKAGES for path in (ROOT / top).rglob("*.py")), ROOT / "app.py"])


@cache
def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def importers(package: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in MODULES
        if any(name == package or name.startswith(package + ".") for name in imports(path))
    }


@pytest.mark.parametrize(
    ("package", "door"),
    [
        ("huggingface_hub", "hubmerge/hub/"),
        ("hubmerge.hub.login", "hubmerge/"),  # the service has neither the login nor the cache of its machine
        ("gradio", "workflows/app/"),
        ("apscheduler", "workflows/schedule/scheduler.py"),
        ("workflows", ("workflows/", "app.py", "hubmerge/cli/main.py")),  # the command line serves, too
    ],
)
def test_a_package_is_imported_behind_one_door(package, door):
    assert importers(package)
    assert all(path.startswith(door) for path in importers(package))


def test_imports_point_down_the_rooms():
    """The contracts in pyproject.toml: no room imports what stands above it, and no module itself through others."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_modules_stay_readable(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 450
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or path.name == "__init__.py"


def test_light_commands_and_the_functions_of_the_library_do_not_import_torch_or_gradio():
    """Every command builds the parser of all."""
    script = (
        "import sys\nfrom hubmerge.cli.main import main\nassert main(['methods']) == 0\n"
        "import hubmerge.line, localhub.server\n"
        "assert all(getattr(hubmerge, name) for name in hubmerge.__all__)\n"
        "print(sorted({'torch', 'gradio', 'transformers'} & set(sys.modules)))"
    )
    assert printed_by(script).splitlines()[-1] == "[]"


def test_what_is_not_needed_is_not_loaded():
    """A merge of local folders needs no client of the Hub, a card without scores no board."""
    script = (
        "import sys, json\nfrom pathlib import Path\n"
        "import hubmerge.cli.merge\nfrom hubmerge.output.card import render_card\n"
        "from hubmerge.hub.client import Hub\n"
        "from hubmerge.output.report import Report\n"
        "data = json.loads(Path('tests/data/report.json').read_text())\n"
        "report = Report.from_json(data | {'evaluations': []})\n"
        "assert render_card(report)\nHub('http://127.0.0.1:1')\n"
        "board = 'hubmerge.board.leaderboard'\n"
        "heavy = {'huggingface_hub', 'httpx2', board, 'torch', 'scipy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert printed_by(script).strip() == "[]"


def test_no_two_files_of_tests_have_one_name():
    """A name is the module's; a second one of it could not be imported beside the first."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_every_file_that_is_listed_as_slow_exists():
    listed = [line for line in (ROOT / "tests" / "slow.txt").read_text("utf-8").splitlines() if line[0] != "#"]
    assert listed == sorted(set(listed))
    assert [name for name in listed if not (ROOT / "tests" / name).is_file()] == []

"""Mutation testing by hand (mutmut): `make mutation`, or `make mutation ARGS="plan --sample 60"`.

mutmut changes one thing in one function at a time (a comparison, a number, an argument, a string) and runs those of
the group's tests that call the function. A change that no test notices survives; it is printed as a diff, below a
table. Some are equivalent and some change a message's words only: the others lack a test.

A group's copy of the sources and what was found stay in .cache/mutation/GROUP. The sample depends on the seed and the
sources alone. mutmut leaves out constants of modules and decorated functions, except the embedded Hub's handlers, which
are registered below their module here instead of above the function.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / ".cache" / "mutation"
CHANGED = ("hubmerge", "localhub", "workflows")
BESIDE = ("tests", "docs", "examples", "benchmarks", "app.py", "README.md", "requirements.txt", "requirements-dev.txt")
# lines that hold nothing but a message's words
WORDS = [r"^\s*(where|expected|got|next_step|description|help|title)=", r'^\s*f?"[^"]*",?$']
STATUS = {0: "survived", 1: "killed", 3: "killed", 5: "no test", 33: "no test", None: "not tried"}  # others: by time


class Group(NamedTuple):
    modules: tuple[str, ...]  # glob patterns
    tests: tuple[str, ...]  # the nearest


GROUPS = {
    "plan": Group(
        ("hubmerge/plan/plan.py", "hubmerge/plan/compatibility.py"),
        (
            "tests/plan/test_plan.py",
            "tests/plan/test_tying.py",
            "tests/plan/test_ignore.py",
            "tests/output/test_plan_words.py",
            "tests/output/test_diff.py",
        ),
    ),
    "engine": Group(
        tuple(
            f"hubmerge/engine/{name}.py"
            for name in ("chunks", "counting", "definition", "rules", "selection", "shard_work", "stream")
        ),
        (
            "tests/engine/test_counting.py",
            "tests/engine/test_fast.py",
            "tests/engine/test_parallel_shards.py",
            "tests/engine/test_selection.py",
            "tests/engine/test_shard_work.py",
            "tests/engine/test_stream.py",
            "tests/engine/test_stream_sources.py",
            "tests/engine/test_sweep.py",
            "tests/statistics/test_histogram.py",
        ),
    ),
    "journal": Group(
        ("hubmerge/engine/journal.py", "hubmerge/engine/sink.py"),
        ("tests/engine/test_journal.py", "tests/merge/test_fault_folders.py"),
    ),
    "publish": Group(
        ("hubmerge/output/publish.py", "hubmerge/hub/writing.py", "hubmerge/output/finished.py"),
        (
            "tests/output/test_publish.py",
            "tests/output/test_fault_publishing.py",
            "tests/cli/test_cli_license.py",
        ),
    ),
    "store": Group(
        tuple(f"workflows/jobs/{name}.py" for name in ("store", "transaction", "jobs", "tokens")),
        tuple(f"tests/workflows/jobs/test_job_{name}.py" for name in ("database", "states")),
    ),
    "watchers": Group(
        ("workflows/watchers/*.py",),
        (
            *(
                f"tests/workflows/watchers/test_watch_{name}.py"
                for name in ("decisions", "deliveries", "rules", "webhook")
            ),
            "tests/workflows/schedule/test_watch_schedule.py",
        ),
    ),
    "board": Group(
        ("hubmerge/board/*.py",),
        (
            *(f"tests/board/test_board_{name}.py" for name in ("export", "files", "source")),
            *(
                f"tests/board/test_{name}.py"
                for name in ("eval_results", "keepers", "leaderboard", "provenance", "results_dataset")
            ),
            "tests/output/test_scores.py",
        ),
    ),
    "localhub": Group(
        tuple(
            f"localhub/{name}.py"
            for name in ("access", "accounts", "commits", "files", "lfs", "oauth", "repos", "users")
        ),
        tuple(f"tests/localhub/test_localhub_{name}.py" for name in ("commits", "oauth", "repos", "safety")),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="group", help=f"of {', '.join(GROUPS)}; none: all")
    parser.add_argument("--sample", type=int, default=0, help="at most so many mutants of each group; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (%(default)s)")
    parser.add_argument("--minutes", type=float, default=0, help="at most so long for each group; 0: to the end")
    given = parser.parse_args()
    if unknown := set(given.groups) - GROUPS.keys():
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    head = "| group | mutants | judged | killed | by time | survived | no test | survives |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for name in given.groups or GROUPS:
        lines.append(_group(name, given.sample, given.seed, given.minutes))
    print("\n".join(lines))


def _group(name: str, sample: int, seed: int, minutes: float) -> str:
    """Runs mutmut over the group, prints what survived, and returns its line of the table."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    folder = OUT / name
    _prepare(folder, GROUPS[name])
    names = _names(folder, GROUPS[name])
    tried = Random(seed).sample(names, min(sample, len(names)) if sample else len(names))
    path = os.pathsep.join([str(folder / "mutants"), str(HERE)])
    mutmut = str(Path(sys.executable).with_name("mutmut"))
    environment = os.environ | {"PYTHONPATH": path}
    with (folder / "mutmut.log").open("wb") as log:
        command = [mutmut, "run", "--max-children=1", *tried]
        run = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            run.wait(minutes * 60 or None)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)
            run.wait()
    codes: dict[str, int | None] = {}
    for meta in (folder / "mutants").rglob("*.py.meta"):
        codes |= json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]
    found = {mutant: STATUS.get(codes.get(mutant), "by time") for mutant in tried}
    if run.returncode:
        print(f"{name}: mutmut ended with {run.returncode}, see {folder}/mutmut.log", file=sys.stderr)
    for mutant in (mutant for mutant, status in found.items() if status == "survived"):
        print(f"# {mutant}\n{get_diff_for_mutant(mutant)}")
    if unreached := [mutant for mutant, status in found.items() if status == "no test"]:
        print("# no test of the group calls:", *unreached, sep="\n#   ")
    count = Counter(found.values())
    judged = len(tried) - count["not tried"]
    survives = (count["survived"] + count["no test"]) / max(judged, 1)
    columns = [name, len(names), judged, *(count[status] for status in ("killed", "by time", "survived", "no test"))]
    return f"| {' | '.join(map(str, columns))} | {survives:.0%} |"


def _prepare(folder: Path, group: Group) -> None:
    """A copy of the sources, links to the rest, and the project's configuration with mutmut's table."""
    (folder / "mutants").mkdir(parents=True, exist_ok=True)  # a path that is not there at the start is never looked at
    for source in (path for package in CHANGED for path in (ROOT / package).rglob("*") if path.is_file()):
        target = folder / source.relative_to(ROOT)
        data = source.read_bytes()
        if target.parts[-2:-1] == ("localhub",) and target.suffix == ".py":
            data = _registered_below(data.decode()).encode()
        if "__pycache__" not in target.parts and not (target.exists() and target.read_bytes() == data):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    for beside in BESIDE:
        (folder / beside).unlink(missing_ok=True)
        (folder / beside).symlink_to(ROOT / beside)
    shutil.rmtree(folder / "mutants" / "tests", ignore_errors=True)
    table: dict[str, Any] = {
        "source_paths": [str(path) for path in _sources(folder, group)],
        "also_copy": [*CHANGED, *BESIDE],
        "do_not_mutate_patterns": WORDS,
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-p", "mutation", "-m", "not browser"],
        "pytest_add_cli_args_test_selection": list(group.tests),
        "timeout_multiplier": 5.0,
        "timeout_constant": 6.0,
        "use_git_change_detection": False,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text("\n".join([text, "[tool.mutmut]", *lines, ""]), encoding="utf-8")


def _sources(folder: Path, group: Group) -> list[Path]:
    if missing := [pattern for pattern in group.modules if not any(ROOT.glob(pattern))]:
        raise FileNotFoundError(f"nothing is named {', '.join(missing)}")
    found = (path for pattern in group.modules for path in sorted(folder.glob(pattern)))
    return [path.relative_to(folder) for path in found]


def _registered_below(source: str) -> str:
    handler = re.compile(r"^@(router\.on\(.*\))\n(?=(?:async )?def (\w+))", re.MULTILINE)
    return handler.sub("", source) + "".join(f"\n{on}({name})\n" for on, name in handler.findall(source))


def _names(folder: Path, group: Group) -> list[str]:
    """Of all mutants, in the order of the sources."""
    os.chdir(folder)  # where mutmut looks for its configuration
    from mutmut.configuration import reset_config
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    reset_config()
    return [
        get_mutant_name(path, name)
        for path in _sources(folder, group)
        for name in mutate_file_contents(str(path), path.read_text(encoding="utf-8")).mutant_names
    ]


def pytest_configure() -> None:
    """As a plugin of the runs: the embedded Hub in this process, so that mutmut sees what the tests call in it."""
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        del os.environ["MUTANT_UNDER_TEST"]  # mutmut knows it without; children elsewhere would look for mutmut's table
    import socket
    from threading import Thread

    import uvicorn

    from localhub import process
    from localhub.protocol import open_hub
    from localhub.server import app_of
    from localhub.users import default_users

    start, stop = process.LocalHubProcess.start, process.LocalHubProcess.stop

    def start_here(self: Any) -> Any:
        if self._command[-2] != "--data" or "--port 0 " not in " ".join(self._command):
            return start(self)
        users, listener = default_users(), socket.create_server(("127.0.0.1", 0))
        app = app_of(open_hub(Path(self._command[-1]), users))
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
        self._thread = Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        self.endpoint, self.tokens = f"http://127.0.0.1:{listener.getsockname()[1]}", users.first_tokens()
        self.oauth = {"client_id": users.oauth.client_id, "client_secret": users.oauth.client_secret}
        return self

    def stop_here(self: Any) -> None:
        if not hasattr(self, "_server"):
            return stop(self)
        self._server.should_exit = True
        self._thread.join()
        return None

    process.LocalHubProcess.start, process.LocalHubProcess.stop = start_here, stop_here


if __name__ == "__main__":
    main()

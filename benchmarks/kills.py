"""`hubmerge run` killed by SIGKILL at random moments and started again, from and to the embedded Hub.

    python -m benchmarks.kills --kills 120

Three campaigns: the zoo's agents; a synthetic family of 27 MB per model in several shards (output shards of 8 MB
rather than 2 GB, so that there are several of those too); and the same family within a tight disk budget, so that
inputs are fetched twice. A campaign publishes to one repo after another. Each
repo's command is killed and started again until a run of it gets through; then the repo must hold the bytes that an
undisturbed run publishes, in one commit beyond the Hub's initial one, and neither the work folder, the folder for
temporary files nor the Hub's uploads may keep anything. Disk use must stay within what the plan says and the margin
that the line asks for.

Half of the moments are uniform over the time of an undisturbed run; the other half come a random time after a
random stage has begun, so that short stages are hit as well. Each run is a fork of a process that has imported and
built everything, because start-up would otherwise take most of the kills. The parent never speaks to the Hub
through the client, so that no connection is shared. Disk use of the work folder is sampled while a run is watched.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.metering import machine
from benchmarks.synthetic import FAMILY, write_family
from hubmerge.plan.disk import DISK_MARGIN_BYTES, used_bytes
from localhub.process import LocalHubProcess
from localhub.protocol import open_hub
from localhub.seed import seed_folder

STAGES = ("resolve", "fetch", "merge", "card", "publish")
RESUMED = "verify"  # the stage that only a run has which goes on
OWN_WORDS = {"README.md", "hubmerge.json"}  # name the target, the time and the machine
OUT_SHARD_BYTES = 8 * 10**6
MOST_KILLS_PER_REPO = 8
RUN_LIMIT_S = 120.0  # a run that hangs is a failure
SAMPLE_S = 0.02
RECIPES = {
    "zoo": ("zoo/base", ("zoo/math-agent", "zoo/tool-agent", "zoo/mem-agent"), "ram_plus"),
    "synthetic": ("ada/base", ("ada/agent0", "ada/agent1"), "ram_plus"),
    "tight": ("ada/base", ("ada/agent0", "ada/agent1"), "ram_plus"),
}
ON_CPU = ("--device", "cpu")  # which is what a fork can go on with
DISK_GB = {"tight": 0.045}  # of `--disk-budget`: half of what that merge would take otherwise


@dataclass
class Run:
    """One start of the command."""

    killed: bool
    code: int  # exit status; 0 where killed
    stage: str  # the last one that it announced
    seconds: float
    began: dict[str, float]  # by stage, seconds after the start
    disk_bytes: int  # high-water mark of the work folder
    errors: str


@dataclass
class Campaign:
    """What became of all kills of one model."""

    model: str
    undisturbed_s: float = 0.0
    planned_disk_bytes: int = 0
    disk_budget_bytes: int = 0  # what it was given, or planned with the margin that the line asks to be free
    kills: int = 0
    repos: int = 0
    runs: int = 0
    kills_by_stage: Counter[str] = field(default_factory=Counter)
    disk_high_water_bytes: int = 0
    failures: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        order = ("start", "resolve", RESUMED, *STAGES[1:])
        stages = {stage: self.kills_by_stage[stage] for stage in order}
        return {**vars(self), "kills_by_stage": stages, "undisturbed_s": round(self.undisturbed_s, 3)}


class Bench:
    """The Hub, the folders and the forks."""

    def __init__(self, root: Path, hub: LocalHubProcess, seed: int) -> None:
        self.root = root
        self.hub = hub
        self.random = random.Random(seed)
        self.temporary = root / "tmp"
        self.temporary.mkdir()
        os.environ.update(
            HF_ENDPOINT=hub.endpoint, HF_TOKEN=hub.tokens["ada"], HF_HUB_DISABLE_XET="1", TMPDIR=str(self.temporary)
        )
        for model, (base, agents, method) in RECIPES.items():
            text = json.dumps({"base": base, "agents": agents, "method": method})
            (root / f"{model}.yaml").write_text(text)

    def warm_up(self, family: Path) -> None:
        """Import and build what a run needs, without the Hub."""
        import hubmerge.line
        from hubmerge.cli.main import main
        from hubmerge.plan.plan import make_plan

        hubmerge.line.make_plan = partial(make_plan, max_shard_bytes=OUT_SHARD_BYTES)
        for agents in (2, 3):
            recipe = {
                "base": str(family / "base"),
                "agents": [str(family / f"agent{i}") for i in range(agents)],
                "method": "ram_plus",
            }
            (self.root / "warm.yaml").write_text(json.dumps(recipe))
            out = self.root / f"warm{agents}"
            with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                assert main(["merge", str(self.root / "warm.yaml"), "--out", str(out), *ON_CPU]) == 0
            shutil.rmtree(out)

    def run(self, model: str, target: str, data: Path, moment: Moment | None) -> Run:
        """Start the command and watch it to its end or to the moment at which it is killed."""
        read, write = os.pipe()
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            self._child(model, target, data, read, write)
        os.close(write)
        began: dict[str, float] = {}
        stage, told = "start", b""
        disk, sampled, killed = 0, 0.0, False
        is_open = True
        while is_open:
            now = time.monotonic() - started
            if not killed and (now > RUN_LIMIT_S or (moment is not None and moment.has_come(now, began))):
                os.kill(child, signal.SIGKILL)
                killed = True
            if now - sampled > SAMPLE_S:
                sampled, disk = now, max(disk, used_bytes([data]))
            if select.select([read], [], [], 0.002)[0]:
                piece = os.read(read, 65536)
                is_open = bool(piece)
                told += piece
                for name in stages_in(told):
                    if name not in began:
                        stage, began[name] = name, time.monotonic() - started
        os.close(read)
        status = os.waitpid(child, 0)[1]
        killed = os.WIFSIGNALED(status)
        code = 0 if killed else os.WEXITSTATUS(status)
        seconds = time.monotonic() - started
        if seconds > RUN_LIMIT_S:
            killed, code = False, 124
        disk = max(disk, used_bytes([data]))
        return Run(killed, code, stage, seconds, began, disk, told[-2000:].decode(errors="replace"))

    def _child(self, model: str, target: str, data: Path, read: int, write: int) -> None:
        """The command in a fork; never returns."""
        code = 70
        try:
            os.close(read)
            quiet = os.open(os.devnull, os.O_RDWR)
            os.dup2(quiet, 0)
            os.dup2(quiet, 1)
            os.dup2(write, 2)
            os.close(write)
            sys.stdout, sys.stderr = open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115  (gone with the fork)
            os.environ["HUBMERGE_DATA"] = str(data)
            from hubmerge.cli.main import main

            budget = ["--disk-budget", str(DISK_GB[model])] if model in DISK_GB else []
            code = main(["run", str(self.root / f"{model}.yaml"), "--to", target, "--log-json", *ON_CPU, *budget])
            sys.stderr.flush()
        finally:
            os._exit(code)

    def published(self, target: str) -> dict[str, str]:
        """The digest of every file of a repo that is a function of the inputs."""
        info = self._get(f"/api/models/{target}?blobs=true")
        files = {s["rfilename"]: s.get("lfs", {}).get("sha256") or s["blobId"] for s in info["siblings"]}
        return {name: digest for name, digest in files.items() if name not in OWN_WORDS}

    def commits(self, target: str) -> int:
        return len(self._get(f"/api/models/{target}/commits/main"))

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self.hub.endpoint + path, timeout=30) as answer:
            return json.load(answer)

    def draw(self, undisturbed: Run) -> Moment:
        if self.random.random() < 0.5:
            return Moment("start", self.random.uniform(0, undisturbed.seconds))
        stage = self.random.choice(STAGES)
        ends = [t for t in undisturbed.began.values() if t > undisturbed.began[stage]]
        return Moment(stage, self.random.uniform(0, min(ends, default=undisturbed.seconds) - undisturbed.began[stage]))

    def campaign(self, model: str, kills: int) -> Campaign:
        """Kill runs of one model until there are so many kills."""
        result = Campaign(model)
        whole = self.run(model, f"ada/{model}-whole", self.root / "whole", None)
        assert whole.code == 0, whole.errors
        assert whole.began.keys() == set(STAGES), whole.began
        reference = self.published(f"ada/{model}-whole")
        result.undisturbed_s = whole.seconds
        result.planned_disk_bytes = self._planned_disk(model)
        result.disk_budget_bytes = int(DISK_GB.get(model, 0) * 1e9) or result.planned_disk_bytes + DISK_MARGIN_BYTES
        result.disk_high_water_bytes = whole.disk_bytes
        while result.kills < kills:
            result.repos += 1
            target, data = f"ada/{model}-{result.repos}", self.root / f"{model}-{result.repos}"
            killed_here = 0
            while True:
                moment = self.draw(whole) if killed_here < MOST_KILLS_PER_REPO and result.kills < kills else None
                run = self.run(model, target, data, moment)
                result.runs += 1
                result.disk_high_water_bytes = max(result.disk_high_water_bytes, run.disk_bytes)
                if not run.killed:
                    break
                killed_here += 1
                result.kills += 1
                result.kills_by_stage[run.stage] += 1
            result.failures += [
                f"{target} after {killed_here} kills: {text}" for text in self._wrong(run, target, data, reference)
            ]
            shutil.rmtree(data, ignore_errors=True)
        if result.disk_high_water_bytes > result.disk_budget_bytes:
            result.failures.append(f"{result.disk_high_water_bytes} bytes of disk were in use")
        return result

    def _wrong(self, run: Run, target: str, data: Path, reference: dict[str, str]) -> list[str]:
        """What is not as an undisturbed run leaves it."""
        if run.code:
            return [f"exit code {run.code}: {run.errors}"]
        wrong = []
        if (published := self.published(target)) != reference:
            wrong.append(f"other bytes in {sorted(dict(published.items() ^ reference.items()))}")
        if (commits := self.commits(target)) != 2:
            wrong.append(f"{commits} commits")
        for folder in (data, self.temporary, self.root / "hub" / "tmp"):
            if left := [str(p.relative_to(self.root)) for p in folder.rglob("*") if p.is_file()]:
                wrong.append(f"left behind: {left[:5]}")
        return wrong

    def _planned_disk(self, model: str) -> int:
        """What the plan says that a run takes, asked in a fork, because it speaks to the Hub."""
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            from hubmerge.cli.main import main

            os.dup2(write, 1)
            sys.stdout = open(1, "w")  # noqa: SIM115
            code = main(["inspect", str(self.root / f"{model}.yaml"), "--json"])
            sys.stdout.flush()
            os._exit(code)
        os.close(write)
        with open(read) as answer:
            summary = json.load(answer)
        os.waitpid(child, 0)
        return int(summary["disk_most_bytes"])


@dataclass(frozen=True)
class Moment:
    """So many seconds after a stage has begun."""

    stage: str
    seconds: float

    def has_come(self, now: float, began: dict[str, float]) -> bool:
        since = 0.0 if self.stage == "start" else began.get(self.stage)
        return since is not None and now >= since + self.seconds


def stages_in(told: bytes) -> list[str]:
    """The stages that the JSON lines so far announce."""
    found = []
    for line in told.split(b"\n")[:-1]:
        if line.startswith(b'{"type": "stage"'):
            found.append(json.loads(line)["stage"])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=120, help="in all, shared by the models")
    parser.add_argument("--models", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args(arguments)
    os.nice(10)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hubmerge-kills-") as folder:
        root = Path(folder)
        write_family(FAMILY, root / "family", max_shard_bytes=OUT_SHARD_BYTES)
        hub = open_hub(root / "hub")
        for name in ("base", "agent0", "agent1"):
            seed_folder(hub, f"ada/{name}", "model", root / "family" / name, author="ada", message="weights")
        hub.store.close()
        with LocalHubProcess(root / "hub", zoo="zoo" in options.models) as process:
            bench = Bench(root, process, options.seed)
            bench.warm_up(root / "family")
            share = -(-options.kills // len(options.models))
            campaigns = [bench.campaign(model, share) for model in options.models]
    figures = {
        "kills": sum(c.kills for c in campaigns),
        "failures": sum(len(c.failures) for c in campaigns),
        "seed": options.seed,
        "machine": machine(),
        "seconds": round(time.monotonic() - started, 1),
        "campaigns": [c.to_json() for c in campaigns],
    }
    text = json.dumps(figures, indent=2) + "\n"
    if options.out:
        options.out.write_text(text)
    print(text, end="")
    return 1 if figures["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())

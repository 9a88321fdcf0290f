"""`hubmerge run` killed by SIGKILL at random moments and started again, from and to the embedded Hub.

    python -m benchmarks.kills --kills 120

Three campaigns: the zoo's agents; a synthetic family of 27 MB per model in several shards (output shards of 8 MB
rather than 2 GB, so that there are several of those too); and the same family within a tight disk budget, so that
inputs are fetched twice. A campaign publishes to one repo after another. Each repo's command is killed and started
again until a run of it gets through; then the repo must hold the bytes that an undisturbed run publishes, in one commit
beyond the Hub's initial one, and neither the work folder, the folder for temporary files nor the Hub's uploads may keep
anything. Disk use must stay within what the plan says and the margin that the line asks for.

Half of the moments are uniform over the time of an undisturbed run, from its first stage on; the other half come a
random time after a random stage has begun, so that short stages are hit as well. Disk use of the work folder is sampled
while a run is watched.
"""

import argparse
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.metering import machine
from benchmarks.synthetic import FAMILY, write_family
from hubmerge.plan.disk import DISK_MARGIN_BYTES, used_bytes
from localhub.process import LocalHubProcess
from localhub.protocol import open_hub
from localhub.seed import seed_folder

ROOT = Path(__file__).resolve().parents[1]
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
        order = ("resolve", RESUMED, *STAGES[1:])
        stages = {stage: self.kills_by_stage[stage] for stage in order}
        return {**vars(self), "kills_by_stage": stages, "undisturbed_s": round(self.undisturbed_s, 3)}


class Bench:
    """The Hub and the folders."""

    def __init__(self, root: Path, hub: LocalHubProcess, seed: int) -> None:
        self.root = root
        self.hub = hub
        self.random = random.Random(seed)
        self.temporary = root / "tmp"
        self.temporary.mkdir()
        for model, (base, agents, method) in RECIPES.items():
            text = json.dumps({"base": base, "agents": agents, "method": method})
            (root / f"{model}.yaml").write_text(text)

    def start(self, *arguments: str, data: Path, stderr: int) -> subprocess.Popen[bytes]:
        own = {
            "HF_ENDPOINT": self.hub.endpoint,
            "HF_TOKEN": self.hub.tokens["ada"],
            "HF_HUB_DISABLE_XET": "1",
            "HUBMERGE_DATA": str(data),
            "SHARD_BYTES": str(OUT_SHARD_BYTES),
            "TMPDIR": str(self.temporary),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.several_shards", *arguments],
            cwd=ROOT,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if stderr == subprocess.DEVNULL else subprocess.DEVNULL,
            stderr=stderr,
        )

    def run(self, model: str, target: str, data: Path, moment: "Moment | None") -> Run:
        """Start the command and watch it to its end or to the moment at which it is killed."""
        budget = ["--disk-budget", str(DISK_GB[model])] if model in DISK_GB else []
        recipe, started = str(self.root / f"{model}.yaml"), time.monotonic()
        command = ("run", recipe, "--to", target, "--log-json", "--device", "cpu", *budget)
        child = self.start(*command, data=data, stderr=subprocess.PIPE)
        assert child.stderr is not None
        began: dict[str, float] = {}
        stage, told = "start", b""
        disk, sampled = 0, 0.0
        is_open = True
        while is_open:
            now = time.monotonic() - started
            if now > RUN_LIMIT_S or (moment is not None and moment.has_come(now, began)):
                child.kill()
            if now - sampled > SAMPLE_S:
                sampled, disk = now, max(disk, used_bytes([data]))
            if select.select([child.stderr], [], [], 0.002)[0]:
                piece = os.read(child.stderr.fileno(), 65536)
                is_open = bool(piece)
                told += piece
                for name in stages_in(told):
                    if name not in began:
                        stage, began[name] = name, time.monotonic() - started
        child.stderr.close()
        killed, seconds = child.wait() == -signal.SIGKILL, time.monotonic() - started
        code = 0 if killed else child.returncode
        if seconds > RUN_LIMIT_S:
            killed, code = False, 124
        disk = max(disk, used_bytes([data]))
        return Run(killed, code, stage, seconds, began, disk, told[-2000:].decode(errors="replace"))

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

    def draw(self, undisturbed: Run) -> "Moment":
        if self.random.random() < 0.5:
            return Moment(STAGES[0], self.random.uniform(0, undisturbed.seconds - undisturbed.began[STAGES[0]]))
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
        """The bytes that a run takes by its plan."""
        command = ("inspect", str(self.root / f"{model}.yaml"), "--json")
        said, _ = self.start(*command, data=self.root / "plan", stderr=subprocess.DEVNULL).communicate()
        return int(json.loads(said)["disk_most_bytes"])


@dataclass(frozen=True)
class Moment:
    """So many seconds after a stage has begun."""

    stage: str
    seconds: float

    def has_come(self, now: float, began: dict[str, float]) -> bool:
        since = began.get(self.stage)
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

"""What an evening runs on: the embedded Hub with its models and faults, a small disk, and the app on it."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import psutil
from huggingface_hub import HfApi

from benchmarks.evening_audit import SECRET, Records
from benchmarks.evening_visitors import METHODS, Visitor
from benchmarks.synthetic import FAMILY, write_family
from localhub.process import LocalHubProcess
from localhub.protocol import open_hub
from localhub.seed import examples, seed_folder
from localhub.users import load_users

MB = 1024 * 1024
DISK_MB = 400
PEOPLE = ("ada", "bob", "carol", "dan")
BOT = "robot"
_MODULES = ("workflows.jobs.worker", "workflows.jobs.child", "hubmerge.evaluation.child", "hubmerge.evaluation.fetch")
RULE = """
name: {name}
owner: robot
base: zoo/base
agents: {{authors: [{org}], lineage: finetune, closed: {closed}}}
recipe: {{method: {method}}}
join: all
target: robot/{name}-{{set}}
private: {closed}
budget: 100
{suite}
"""


class Stage:
    """Everything that runs but the people."""

    def __init__(self, root: Path, minutes: float, seed: int) -> None:
        self.root, self.minutes, self.seed = root, minutes, seed
        self.disk, self.data = root / "disk", root / "disk" / "data"
        self.records = Records(root, self.data)
        self.over = threading.Event()
        self.ports = {"hub": free_port(), "app": free_port()}
        self.url = f"http://127.0.0.1:{self.ports['app']}"
        self.hub = LocalHubProcess(
            root / "hub", port=self.ports["hub"], zoo=True, users=root / "users.json", options=["--faults"]
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.turn = threading.Lock()  # of starting and killing the app

    def draw(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}-{name}")

    def api(self, user: str) -> HfApi:
        return HfApi(self.hub.endpoint, token=self.hub.tokens[user])

    def visitor(self, name: str | None) -> Visitor:
        return Visitor(self.url, self.hub, self.records, name)

    # -- before ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        for name in ("logs", "rules", "home", "seeds"):
            (self.root / name).mkdir(parents=True)
        self.disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "evening", str(self.disk)], check=True)
        (self.disk / "tmp").mkdir()
        users = [{"name": n, "tokens": [{"value": f"hf_local_{n}_evening_000000000"}]} for n in (*PEOPLE, BOT)]
        orgs = [{"name": "zoo", "members": {"ada": "admin"}}]
        orgs += [{"name": org, "members": {BOT: "admin", "dan": "read"}} for org in ("lab", "den")]
        oauth = {"client_id": "evening-client", "client_secret": "hf_evening_oauth_secret_0000"}
        (self.root / "users.json").write_text(json.dumps({"users": users, "orgs": orgs, "oauth": oauth}))
        write_family(FAMILY, self.root / "seeds", max_shard_bytes=8 * MB)
        hub = open_hub(self.root / "hub", load_users(self.root / "users.json"))
        for name in ("base", "agent0", "agent1", "agent2"):
            seed_folder(hub, f"ada/big-{name}", "model", self.root / "seeds" / name, author="ada", message="weights")
        hub.store.close()
        self.hub.start()
        zoo = examples() / "zoo"
        for number, (person, trained) in enumerate(zip(PEOPLE, ("math", "tool", "mem", "math"), strict=True)):
            folder = shutil.copytree(zoo / trained, self.root / "seeds" / person)
            nudge(folder / "model.safetensors", number)
            self.api(person).create_repo(f"{person}/{SECRET}-agent", private=True)
            self.api(person).upload_folder(repo_id=f"{person}/{SECRET}-agent", folder_path=folder)
        self.api("bob").create_repo("bob/gated-base")
        self.api("bob").upload_folder(repo_id="bob/gated-base", folder_path=zoo / "base")
        self.api("bob").update_repo_settings("bob/gated-base", gated="manual")
        self.api("bob").grant_access("bob/gated-base", "ada")
        for name, org, closed, method, suite in (
            ("lab-watch", "lab", "false", "ram_plus", "suite: zoo"),
            (f"{SECRET}-watch", "den", "true", "ties", ""),
        ):
            rule = RULE.format(name=name, org=org, closed=closed, method=method, suite=suite)
            (self.root / "rules" / f"{name}.yaml").write_text(rule)
        self.api(BOT).create_webhook(
            url=f"{self.url}/webhooks/hub",
            watched=[{"type": "org", "name": org} for org in ("lab", "den")],
            domains=["repo"],
            secret=self.environment()["HUBMERGE_WEBHOOK_SECRET"],
        )

    def warm_up(self) -> None:
        """Build the fast pass once, as a Space does when it starts."""
        zoo, recipe = examples() / "zoo", self.root / "warm.json"
        sweep = [{"method": method, **({"parameters": given} if given else {})} for method, given in METHODS]
        for agents in (("math", "tool"), ("math", "tool", "mem")):
            models = {"base": str(zoo / "base"), "agents": [str(zoo / name) for name in agents]}
            recipe.write_text(json.dumps({**models, "sweep": sweep}))
            out = self.root / f"warm{len(agents)}"
            command = [sys.executable, "-m", "hubmerge", "sweep", str(recipe), "--out", str(out), "--device", "cpu"]
            subprocess.run(command, env={**self.environment(), "TMPDIR": "/tmp"}, check=True, capture_output=True)

    def environment(self) -> dict[str, str]:
        return {
            **{name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ},
            "HOME": str(self.root / "home"),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),  # of the fast pass
            "TMPDIR": str(self.disk / "tmp"),
            "HF_ENDPOINT": self.hub.endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "GRADIO_ANALYTICS_ENABLED": "False",
            "HF_TOKEN": self.hub.tokens[BOT],
            "OAUTH_CLIENT_ID": self.hub.oauth["client_id"],
            "OAUTH_CLIENT_SECRET": self.hub.oauth["client_secret"],
            "HUBMERGE_DATA": str(self.data),
            "HUBMERGE_SECRET": "an evening's sealing secret",
            "HUBMERGE_WEBHOOK_SECRET": "an evening's webhook secret",
            "HUBMERGE_RULES": str(self.root / "rules"),
            "HUBMERGE_RESULTS": f"{BOT}/results",
            "HUBMERGE_SUITE": "",  # what a rule names is evaluated; the evening is too short for more
        }

    # -- the app -----------------------------------------------------------------------------------------

    def start_app(self) -> None:
        """As app.py does, at another port."""
        code = (
            "import sys; from hubmerge.settings import load_settings; from workflows.serve import serve; "
            f"sys.exit(serve(load_settings(), host='127.0.0.1', port={self.ports['app']}))"
        )
        with open(self.root / "logs" / "app.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], env=self.environment(), stdout=log, stderr=log
            )
        began = time.monotonic()
        while time.monotonic() - began < 180:
            try:
                if httpx.get(f"{self.url}/config", timeout=5).status_code == 200:
                    self.records.app_up(time.monotonic() - began)
                    return
            except httpx.HTTPError:
                time.sleep(0.2)
            if self.process.poll() is not None:  # a full disk, say; whoever runs a Space starts it again
                self.records.note("app", "did not start", code=self.process.returncode)
                time.sleep(2)
                return self.start_app()
        raise SystemExit("the app does not start: see logs/app.log")

    def kill_app(self, *, whole: bool) -> None:
        """The process, whose workers then end by themselves; or at once all that belongs to it."""
        assert self.process
        self.records.app_down()
        family = psutil.Process(self.process.pid).children(recursive=True) if whole else []
        self.process.kill()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def belongings(self, module: str) -> list[psutil.Process]:
        """Processes of the app that run `module`."""
        assert self.process
        family = psutil.Process(self.process.pid).children(recursive=True)
        return [process for process in family if module in _command(process)]

    def strays(self) -> list[str]:
        """What an app that was killed has left running."""
        assert self.process
        own = {p.pid for p in psutil.Process(self.process.pid).children(recursive=True)}
        mine = [p for p in psutil.process_iter() if p.pid not in own and any(m in _command(p) for m in _MODULES)]
        return [" ".join(_command(p))[-100:] for p in mine if _environment(p).get("HUBMERGE_DATA") == str(self.data)]

    def wait(self, seconds: float) -> bool:
        """False once the evening is over."""
        return not self.over.wait(seconds)


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}


def nudge(weights: Path, seed: int) -> None:
    """Another agent: a tenth of the elements move by one unit in the last place."""
    content = bytearray(weights.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    bits = np.frombuffer(content, np.uint8, offset=start)[::2]  # the low bytes
    bits ^= (np.random.default_rng(seed).random(len(bits)) < 0.1).astype(np.uint8)
    weights.write_bytes(content)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

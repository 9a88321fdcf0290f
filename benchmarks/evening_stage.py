"""What an evening runs on: the embedded Hub with its models and faults, a small disk, the app on it, and visitors."""

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from huggingface_hub import HfApi

from benchmarks.evening_audit import SECRET, Records
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

    def visitor(self, name: str | None) -> "Visitor":
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


METHODS: Sequence[tuple[str, dict[str, float]]] = (
    *(("linear", {}), ("task_arithmetic", {"lambda": 0.5}), ("ties", {}), ("dare_linear", {}), ("dare_ties", {})),
    *(("ram", {}), ("ram_plus", {"r": 0.1}), ("ram_quantile", {})),
)
PAGES = (
    *("/", "/merge", "/activity", "/docs", "/job?id={job}", "/job?id={job}", "/watchers", "/leaderboard", "/diff"),
    *("/model?id=zoo/math-agent", "/board.json"),
)


class Visitor:
    """A browser, as far as the app can tell: cookies, pages with their load events, and the named endpoints."""

    def __init__(self, url: str, hub: LocalHubProcess, records: Records, name: str | None) -> None:
        self.url, self.hub, self.records, self.name = url, hub, records, name
        self.signed_in, self.last = False, tuple[Any, ...]()
        self.http = self._client()

    def _client(self) -> httpx.Client:
        def keep(_: httpx.Response) -> None:
            for cookie in client.cookies.jar:
                cookie.secure = False  # browsers send such cookies to 127.0.0.1, too

        client = httpx.Client(base_url=self.url, timeout=300.0, event_hooks={"response": [keep]})
        return client

    def sign_out(self) -> None:
        self.http.close()
        self.http, self.signed_in = self._client(), False

    def sign_in(self, *, private: bool) -> bool:
        try:
            link = "/login/huggingface?_target_url=/" + ("&with=read-repos" if private else "")
            asked = self.http.get(link).headers.get("location", "")
            if asked.startswith(self.hub.endpoint):
                bearer = {"Authorization": f"Bearer {self.hub.tokens[str(self.name)]}"}
                back = httpx.get(asked, headers=bearer, timeout=60.0).headers.get("location", "")
                if back.startswith(self.url):
                    self.signed_in = self.http.get(back).status_code in (302, 307)
        except httpx.HTTPError as error:
            self.records.count("sign in", self.records.excused(type(error).__name__))
            return False
        self.records.count("sign in", "ok" if self.signed_in else "refused")
        return self.signed_in

    def call(self, api: str, *data: Any, forbidden: bool = False) -> Any:
        """One named endpoint: its value, or the text of its refusal."""
        path = f"/gradio_api/call/{api}"
        try:
            answer = self.http.post(path, json={"data": list(data)})
            if answer.status_code == 200:
                answer = self.http.get(f"{path}/{answer.json()['event_id']}")
            event = re.search(r"event: (complete|error)\ndata: (.*)", answer.text)
            good = event is not None and event[1] == "complete"
            value = json.loads(event[2])[0] if good and event else (event[2] if event else answer.text[:300])
        except (httpx.HTTPError, ValueError, KeyError) as error:
            good, value = False, self.records.excused(type(error).__name__)
        self.records.called(self.name, api, good, value, forbidden=forbidden)
        return value

    def merge(self, draw: random.Random, number: int) -> None:
        recipe, closed = recipe_of(draw, str(self.name))
        private = closed or draw.random() < 0.7
        name = f"{SECRET}-m{number}" if private else f"m{number}"
        if draw.random() < 0.08:  # a target that is taken
            name = f"{SECRET}-m1" if private else "m1"
        self.last = (recipe, f"{self.name}/{name}", private, "")
        self.call("start_merge", *self.last)

    def page(self, path: str) -> None:
        """The page, and what its load events bring."""
        began, texts, status = time.monotonic(), list[str](), 0
        try:
            answer = self.http.get(path)
            status, query = answer.status_code, path.partition("?")[2]
            texts.append(answer.text)
            config = re.search(r"window\.gradio_config = (\{.*?\});</script>", answer.text, re.S)
            for event in json.loads(config[1])["dependencies"] if config else ():
                if not event["backend_fn"] or not any(target[1] == "load" for target in event["targets"]):
                    continue  # a script of the page alone, or no load
                body = {"data": [None] * len(event["inputs"]), "fn_index": event["id"], "session_hash": f"s{began}"}
                if event["queue"]:
                    join = self.http.post(f"/gradio_api/queue/join?{query}", json=body)
                    told = self.http.get("/gradio_api/queue/data", params={"session_hash": f"s{began}"})
                    status = max(status, join.status_code, told.status_code)
                else:
                    told = self.http.post(f"/gradio_api/run/predict?{query}", json=body)
                    status = max(status, told.status_code)
                texts.append(told.text)
        except (httpx.HTTPError, ValueError) as error:
            texts.append(self.records.excused(type(error).__name__))
        self.records.loaded(self.name, path.partition("?")[0], status, "\n".join(texts))


def recipe_of(draw: random.Random, user: str) -> tuple[dict[str, Any], bool]:
    """A recipe as users write it, and whether a parent of it is private or gated."""
    method, parameters = draw.choice(METHODS)
    if draw.random() < 0.3:
        base, pool = "ada/big-base", [f"ada/big-agent{i}" for i in range(3)]
    else:
        base = "bob/gated-base" if draw.random() < 0.15 else "zoo/base"
        pool = [*(f"zoo/{name}-agent" for name in ("math", "tool", "mem")), f"{user}/{SECRET}-agent"]
    agents = draw.sample(pool, draw.choice((2, 2, 3)))
    recipe = {"base": base, "agents": agents, "method": method, "seed": draw.randrange(10**6)}
    return {**recipe, **({"parameters": parameters} if parameters else {})}, "gated" in base or SECRET in str(agents)

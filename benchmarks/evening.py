"""One evening of it all: an hour of users, watchers, faults, kills and full disks, and then the books are checked.

    python -m benchmarks.evening --minutes 60 --seed 1

The embedded Hub runs as its own process with its fault switches; the app as a Space would run it, with its workers, on
a disk of its own of 400 MB. Meanwhile, drawn from the seed: four users who sign in at the Hub and inspect, merge,
compare, cancel, retry and ask for each other's private jobs; an owner who pushes agents that two watchers merge, one
of them in private; a weather of faults with an outage and a crash of the Hub; kills of jobs, workers, evaluations and
the app; a disk that others fill; and visitors who load every page. Then the faults end, everybody tries once more what
failed, and `benchmarks/evening_audit.py` looks for what was lost. Exit code 1 for any loss.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from huggingface_hub import HfApi

from benchmarks.evening_audit import Records, audit
from benchmarks.synthetic import Shape, write_family
from hubmerge.localhub import fault_rules as faults
from hubmerge.localhub.process import LocalHubProcess
from hubmerge.localhub.protocol import open_hub
from hubmerge.localhub.seed import examples, seed_folder
from hubmerge.localhub.users import load_users

MB = 1024 * 1024
DISK_MB = 400
PEOPLE = ("ada", "bob", "carol", "dan")
BOT = "robot"
SECRET = "secret"  # in the name of everything private, so that a leak can be searched for
SHAPE = Shape(layers=4, hidden=512, intermediate=1408, key_value=128, vocabulary=6144, tied=True)  # 27 MB
METHODS: Sequence[tuple[str, dict[str, float]]] = (
    *(("linear", {}), ("task_arithmetic", {"lambda": 0.5}), ("ties", {}), ("dare_linear", {}), ("dare_ties", {})),
    *(("ram", {}), ("ram_plus", {"r": 0.1}), ("ram_quantile", {})),
)
EVERY = r"^(?!/api/faults)"  # the switches stay in reach
WRITES = ("POST", "PUT", "DELETE")
PAGES = (
    "/",
    "/jobs",
    "/job?id={job}",
    "/job?id={job}",
    "/watchers",
    "/leaderboard",
    "/model?id=zoo/math-agent",
    "/diff",
)
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


class Evening:
    """Everything that runs, and what it has in common."""

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
        write_family(SHAPE, self.root / "seeds", max_shard_bytes=8 * MB)
        hub = open_hub(self.root / "hub", load_users(self.root / "users.json"))
        for name in ("base", "agent0", "agent1", "agent2"):
            seed_folder(hub, f"ada/big-{name}", "model", self.root / "seeds" / name, author="ada", message="weights")
        hub.store.close()
        self.hub.start()
        zoo = examples() / "zoo"
        for person, folder in zip(PEOPLE, ("math", "tool", "mem", "math"), strict=True):
            self.api(person).create_repo(f"{person}/{SECRET}-agent", private=True)
            self.api(person).upload_folder(repo_id=f"{person}/{SECRET}-agent", folder_path=zoo / folder)
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
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),  # of compiled code
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
            "HUBMERGE_SUITE": "zoo",
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
        for process in (self.process, *family):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()

    def belongings(self, module: str) -> list[psutil.Process]:
        """Processes of the app that run `module`."""
        found = []
        try:
            for process in psutil.Process(self.process.pid).children(recursive=True) if self.process else ():
                try:
                    if module in process.cmdline():
                        found.append(process)
                except psutil.Error:
                    continue
        except psutil.Error:
            return []
        return found

    # -- the threads -------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """False once the evening is over."""
        return not self.over.wait(seconds)

    def killer(self) -> None:
        draw, spared = self.draw("killer"), set[str]()
        while self.wait(draw.uniform(10, 40)):
            kind = draw.choices(("workflows.child", "workflows.worker", "evaluation", "app", "space"), (5, 2, 2, 1, 1))[
                0
            ]
            with self.turn:
                if kind in ("app", "space"):
                    self.kill_app(whole=kind == "space")
                    self.records.note("kill", kind)
                    time.sleep(draw.uniform(1, 5))
                    self.start_app()
                    continue
                modules = (
                    ("hubmerge.evaluation.child", "hubmerge.evaluation.fetch") if kind == "evaluation" else (kind,)
                )
                victims = [p for module in modules for p in self.belongings(module)]
                if not victims:
                    continue
                victim = draw.choice(victims)
                try:
                    if kind == "evaluation":  # once each: two deaths at one place are rightly the model's
                        job = victim.parent().pid if victim.parent() else 0
                        work = next((f.path for f in psutil.Process(job).open_files() if "/jobs/" in f.path), "")
                        name = work.partition("/jobs/")[2][:64]
                        if not name or name in spared:
                            continue
                        spared.add(name)
                    victim.kill()
                    self.records.note("kill", modules[0] if kind == "evaluation" else kind)
                except psutil.Error:
                    continue

    def weather(self) -> None:
        draw, switch = self.draw("weather"), faults.FaultSwitch(self.hub.endpoint)
        outage = min(240.0, self.minutes * 60 / 8)
        whole = self.minutes * 60
        began = time.monotonic()
        due = [(whole * 0.3, "outage"), (whole * 0.6, "crash")]
        while not self.over.is_set():
            kinds = (
                "calm",
                "resets",
                "busy",
                "broken",
                "slow",
                "stall",
                "lost",
                "cut",
                "stale",
                "bytes",
                "readonly",
                "full",
            )
            kind, seconds = draw.choice(kinds), draw.uniform(15, 45)
            if due and time.monotonic() - began > due[0][0]:
                kind, seconds = due.pop(0)[1], draw.uniform(0.75, 1.25) * outage
            self.records.note("weather", kind, seconds=round(seconds))
            if kind == "crash":
                self.hub.kill()
                self.wait(seconds)
                self.hub.start()
                continue
            try:
                for path, fault, options in rules_of(kind, draw):
                    switch.add(path, fault, **options)
                self.wait(seconds)
                switch.clear()
            except OSError as error:
                self.records.note("weather", "unreachable", error=str(error))

    def ballast(self) -> None:
        """Somebody else fills the disk for a while."""
        draw, pause = self.draw("ballast"), min(420.0, self.minutes * 20)
        while self.wait(pause * draw.uniform(0.6, 1.4)):
            left = draw.choice((0, 64 * 1024, 8 * MB, 40 * MB))
            self.records.ballast(True)
            with open(self.disk / "ballast", "wb", buffering=0) as file:
                until = time.monotonic() + draw.uniform(30, 75)
                while time.monotonic() < until and not self.over.is_set():
                    free = shutil.disk_usage(self.disk).free
                    try:
                        if free > left:
                            file.write(bytes(min(MB, free - left)))
                        else:
                            time.sleep(0.2)
                    except OSError:
                        time.sleep(0.2)
            (self.disk / "ballast").unlink()
            self.records.note("disk", "was full", left=left)
            self.records.ballast(False)

    def gauge(self) -> None:
        """How much of the disk is free, and what strangers see on the Hub."""
        stranger, turn = HfApi(self.hub.endpoint, token=False), 0
        while self.wait(1.0):
            self.records.disk_free(shutil.disk_usage(self.disk).free)
            turn += 1
            if turn % 15 == 0:
                try:
                    self.records.seen_on_the_hub([m.id for m in stranger.list_models()])
                except Exception as error:  # noqa: BLE001 - of the faults, whichever it is
                    self.records.count("stranger", type(error).__name__)

    def trainer(self) -> None:
        """Pushes new agents, and now and then new weights of an earlier one."""
        draw, zoo = self.draw("trainer"), examples() / "zoo"
        api, made = self.api(BOT), list[str]()
        pause = min(300.0, self.minutes * 60 / 12)
        while self.wait(draw.uniform(0.3, 1.0) * pause):
            org = draw.choice(("lab", "den"))
            again = [repo for repo in made if repo.startswith(org)]
            number = len(made)
            repo = (
                draw.choice(again)
                if again and draw.random() < 0.25
                else f"{org}/{SECRET if org == 'den' else 'new'}-{number}"
            )
            folder = self.root / "seeds" / f"push-{time.monotonic_ns()}"
            shutil.copytree(zoo / draw.choice(("math", "tool", "mem")), folder)
            nudge(folder / "model.safetensors", draw.randrange(2**32))
            for _ in range(200):
                try:
                    api.create_repo(repo, private=org == "den", exist_ok=True)
                    api.upload_folder(repo_id=repo, folder_path=folder)
                    break
                except Exception as error:  # noqa: BLE001 - of the faults; whoever trains tries again
                    self.records.count("trainer", type(error).__name__)
                    if not self.wait(5.0):
                        return
            made.append(repo)
            self.records.note("push", repo)

    def person(self, name: str) -> None:
        draw, visitor, count = self.draw(name), Visitor(self, name), 0
        while self.wait(draw.uniform(5, 25)):
            if not visitor.signed_in:
                visitor.sign_in(private=draw.random() < 0.7)
                continue
            mine = [job for job in self.records.jobs() if job["user"] == name and job["kind"] == "merge"]
            theirs = [job for job in self.records.jobs() if job["user"] != name and job["private"]]
            active = [job for job in mine if job["state"] in ("queued", "running")]
            ended = [job for job in mine if job["state"] in ("failed", "cancelled")]
            match draw.choices(
                ("merge", "inspect", "diff", "search", "mine", "status", "cancel", "retry", "spy", "again", "leave"),
                (30, 12, 6, 4, 5, 8, 6, 12, 8, 6, 3),
            )[0]:
                case "merge":
                    count += 1
                    visitor.merge(draw, count)
                case "inspect":
                    visitor.call("inspect_merge", recipe_of(draw, name)[0], "")
                case "diff":
                    visitor.call(
                        "start_diff",
                        "zoo/base",
                        draw.choice(("zoo/math-agent", "zoo/tool-agent", f"{name}/{SECRET}-agent")),
                    )
                case "search":
                    visitor.call("search_models", draw.choice(("zoo", "agent", SECRET)))
                case "mine":
                    visitor.call("my_jobs")
                case "status" if mine:
                    visitor.call("job_status", draw.choice(mine)["id"])
                case "cancel" if active:
                    visitor.call("cancel_job", draw.choice(active)["id"])
                case "retry" if ended:
                    visitor.call("retry_job", draw.choice(ended)["id"])
                case "spy" if theirs:
                    for action in ("job_status", "cancel_job", "retry_job"):
                        visitor.call(action, draw.choice(theirs)["id"], forbidden=True)
                case "again" if visitor.last:
                    visitor.call("start_merge", *visitor.last)
                case "leave":
                    visitor.sign_out()

    def poller(self) -> None:
        draw = self.draw("poller")
        visitors = [Visitor(self, None), *(Visitor(self, name) for name in PEOPLE)]
        while self.wait(draw.uniform(0.5, 2.5)):
            visitor = draw.choice(visitors)
            if visitor.name and not visitor.signed_in:
                visitor.sign_in(private=False)
            jobs = self.records.jobs()
            job = draw.choice(jobs)["id"] if jobs else "0" * 64
            visitor.page(draw.choice((*PAGES, "/board.json")).format(job=job))

    # -- afterwards --------------------------------------------------------------------------------------

    def settle(self, limit_s: float) -> None:
        """No faults any more; the app starts once more, and everybody tries again what failed."""
        faults.FaultSwitch(self.hub.endpoint).clear()
        with self.turn:
            self.kill_app(whole=True)
            self.start_app()
        until, tries = time.monotonic() + limit_s, dict[str, int]()
        visitors = {name: Visitor(self, name) for name in (*PEOPLE, BOT)}
        quiet = 0
        while time.monotonic() < until and quiet < 6:
            time.sleep(5)
            jobs = self.records.jobs()
            active = [job for job in jobs if job["state"] in ("queued", "running", "cancelling")]
            failed = [job for job in jobs if job["state"] == "failed" and tries.get(job["id"], 0) < 2]
            for job in failed[:5]:
                if job["user"] == BOT and job["kind"] != "merge":
                    continue
                visitor = visitors[job["user"]]
                if visitor.signed_in or visitor.sign_in(private=True):
                    answer = visitor.call("retry_job", job["id"])
                    if "E_QUOTA" not in str(answer):
                        tries[job["id"]] = tries.get(job["id"], 0) + 1
            quiet = 0 if active else quiet + 1
            self.records.note("settle", f"{len(active)} active, {len(failed)} failed")
        self.records.note("settle", "retried", jobs=len(tries))


class Visitor:
    """A browser, as far as the app can tell: cookies, pages with their load events, and the named endpoints."""

    def __init__(self, evening: Evening, name: str | None) -> None:
        self.evening, self.name, self.records = evening, name, evening.records
        self.signed_in, self.last = False, tuple[Any, ...]()
        self.http = self._client()

    def _client(self) -> httpx.Client:
        jar = CookieJar(DefaultCookiePolicy(secure_protocols=("http", "https")))  # as browsers do with 127.0.0.1
        return httpx.Client(base_url=self.evening.url, cookies=jar, timeout=300.0)

    def sign_out(self) -> None:
        self.http.close()
        self.http, self.signed_in = self._client(), False

    def sign_in(self, *, private: bool) -> bool:
        hub = self.evening.hub
        try:
            link = "/login/huggingface?_target_url=/" + ("&with=read-repos" if private else "")
            asked = self.http.get(link).headers.get("location", "")
            if asked.startswith(hub.endpoint):
                bearer = {"Authorization": f"Bearer {hub.tokens[str(self.name)]}"}
                back = httpx.get(asked, headers=bearer, timeout=60.0).headers.get("location", "")
                if back.startswith(self.evening.url):
                    self.signed_in = self.http.get(back).status_code in (302, 307)
        except httpx.HTTPError as error:
            self.records.count("sign in", self.records.excused(type(error).__name__))
            return False
        self.records.count("sign in", "ok" if self.signed_in else "refused")
        return self.signed_in

    def call(self, api: str, *data: Any, forbidden: bool = False) -> Any:
        """One named endpoint: its value, or the text of its refusal."""
        began, path = time.monotonic(), f"/gradio_api/call/{api}"
        try:
            answer = self.http.post(path, json={"data": list(data)})
            if answer.status_code == 200:
                answer = self.http.get(f"{path}/{answer.json()['event_id']}")
            event = re.search(r"event: (complete|error)\ndata: (.*)", answer.text)
            good = event is not None and event[1] == "complete"
            value = json.loads(event[2])[0] if good and event else (event[2] if event else answer.text[:300])
        except (httpx.HTTPError, ValueError, KeyError) as error:
            good, value = False, self.records.excused(type(error).__name__)
        self.records.called(self.name, api, good, value, time.monotonic() - began, forbidden=forbidden)
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
                if not any(target[1] == "load" for target in event["targets"]):
                    continue
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
        page = path.partition("?")[0]
        self.records.loaded(self.name, page, status, "\n".join(texts), time.monotonic() - began)


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


def rules_of(kind: str, draw: random.Random) -> list[tuple[str, Any, dict[str, Any]]]:
    """The fault rules of a weather."""
    few = draw.randrange(2, 6)
    match kind:
        case "resets":
            return [
                (r"/resolve/|/api/", faults.Reset(at=draw.randrange(300_000)), {"skip": draw.randrange(12)})
                for _ in range(8)
            ]
        case "busy":
            return [(EVERY, faults.Status(status=429, retry_after=str(few)), {"times": 30, "skip": draw.randrange(9)})]
        case "broken":
            status = draw.choice((500, 502, 503, 504))
            return [(EVERY, faults.Status(status=status), {"times": 30, "skip": draw.randrange(9)})]
        case "slow":
            return [(EVERY, faults.Delay(seconds=draw.uniform(0.3, 2.0)), {"times": None})]
        case "stall":
            return [("/resolve/", faults.Stall(at=1000, seconds=20.0), {"times": few})]
        case "lost":
            return [(r"/commit/|/preupload/|/repos/create|lfs", faults.LostAnswer(), {"methods": WRITES, "times": few})]
        case "cut":
            return [(r"lfs", faults.Reset(at=5000, of="request"), {"methods": WRITES, "times": few})]
        case "stale":
            return [(EVERY, faults.StaleHead(), {"times": 15, "skip": draw.randrange(9)})]
        case "bytes":
            wrong = faults.WrongByte(at=draw.randrange(340_000))
            return [("resolve/.*safetensors", wrong, {}), ("/resolve/", faults.WholeFile(), {"times": few, "skip": 2})]
        case "readonly":
            return [("^/(?!oauth|api/faults)", faults.Status(status=503), {"methods": WRITES, "times": None})]
        case "full":
            return [("lfs|/commit/", faults.Status(status=507), {"methods": WRITES, "times": None})]
        case "outage":
            return [(EVERY, faults.Status(status=503), {"times": None})]
    return []


def nudge(weights: Path, seed: int) -> None:
    """Another agent: a tenth of the elements move by one unit in the last place."""
    content = bytearray(weights.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    bits = np.frombuffer(content, np.uint8, offset=start)[::2]  # the low bytes
    bits ^= (np.random.default_rng(seed).random(len(bits)) < 0.1).astype(np.uint8)
    weights.write_bytes(content)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--settle-minutes", type=float, default=10.0, help="at most, until nothing waits any more")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=20, help="merges that the command line makes again")
    parser.add_argument("--root", type=Path, default=Path("/tmp/hubmerge-evening"), help="a folder that is made anew")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    subprocess.run(["umount", "--lazy", str(root / "disk")], check=False, capture_output=True)
    shutil.rmtree(root, ignore_errors=True)
    evening = Evening(root, options.minutes, options.seed)
    signal.signal(signal.SIGTERM, lambda *_: evening.over.set())
    evening.prepare()
    try:
        evening.start_app()
        acts: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
            *((act, ()) for act in (evening.killer, evening.weather, evening.ballast, evening.gauge, evening.trainer)),
            *((evening.poller, ()) for _ in range(1)),
            *((evening.person, (name,)) for name in PEOPLE),
        ]
        threads = [threading.Thread(target=act, args=given, name=act.__name__) for act, given in acts]
        for thread in threads:
            thread.start()
        evening.over.wait(options.minutes * 60)
        evening.over.set()
        for thread in threads:
            thread.join()
        evening.settle(options.settle_minutes * 60)
        return audit(evening.records, evening.hub, evening.environment(), options.sample, BOT, SECRET, DISK_MB * MB)
    finally:
        evening.over.set()
        if evening.process and evening.process.poll() is None:
            evening.process.terminate()
            evening.process.wait(60)
        evening.hub.stop()
        subprocess.run(["umount", "--lazy", str(evening.disk)], check=False)


if __name__ == "__main__":
    sys.exit(main())

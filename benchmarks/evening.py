"""One evening of it all: an hour of users, watchers, faults, kills and full disks, and then the books are checked.

    python -m benchmarks.evening --minutes 60 --seed 1

The embedded Hub runs as its own process with its fault switches; the app as a Space would run it, with its workers, on
a disk of its own of 400 MB. Meanwhile, drawn from the seed: four users who sign in at the Hub and inspect, merge,
compare, cancel, retry and ask for each other's private jobs; an owner who pushes agents that two watchers merge, one
of them in private; a weather of faults with an outage and a crash of the Hub; kills of jobs, workers, evaluations and
the app; a disk that others fill; and visitors who load every page. Then the faults end, everybody tries once more what
failed, and `benchmarks/evening_audit.py` looks for what was lost. Exit code 1 for any loss.
"""

import argparse
import logging
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import huggingface_hub
import psutil
from huggingface_hub import HfApi
from huggingface_hub.utils.tqdm import disable_progress_bars

from benchmarks.evening_audit import SECRET, audit
from benchmarks.evening_stage import BOT, DISK_MB, MB, PAGES, PEOPLE, Stage, nudge, recipe_of
from localhub import fault_rules as faults
from localhub.seed import examples
from workflows.jobs.jobs import iso


class Evening(Stage):
    """Everybody who does something, each a thread with draws of its own, until the evening is over."""

    def keep(self, act: Callable[..., None], *given: str) -> None:
        """`act` until the evening is over; what it did not foresee is written down, and it begins again."""
        while not self.over.is_set():
            try:
                act(*given)
            except Exception as error:  # noqa: BLE001 - whatever it is, the evening goes on
                self.records.note("driver", f"{act.__name__}: {type(error).__name__}: {error}"[:300])
                self.wait(5.0)

    def killer(self) -> None:
        draw, spared = self.draw("killer"), set[str]()
        while self.wait(draw.uniform(10, 40)):
            kinds = ("workflows.jobs.child", "workflows.jobs.worker", "evaluation", "app", "space")
            [kind] = draw.choices(kinds, (5, 2, 2, 1, 1))
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
                        parent = victim.parent()
                        held = [file.path for file in parent.open_files()] if parent else []
                        name = next((path.partition("/jobs/")[2][:64] for path in held if "/jobs/" in path), "")
                        if not name or name in spared:
                            continue
                        spared.add(name)
                    victim.kill()
                    self.records.note("kill", modules[0] if kind == "evaluation" else kind)
                except psutil.Error:
                    continue

    def weather(self) -> None:
        draw, switch = self.draw("weather"), faults.FaultSwitch(self.hub.endpoint)
        began, whole = time.monotonic(), self.minutes * 60
        due = [(whole * 0.3, "outage"), (whole * 0.6, "crash")]
        while not self.over.is_set():
            rules = weathers(draw)
            kind, seconds = draw.choice([name for name in rules if name != "outage"]), draw.uniform(15, 45)
            if due and time.monotonic() - began > due[0][0]:
                kind, seconds = due.pop(0)[1], draw.uniform(0.75, 1.25) * min(240.0, whole / 8)
            self.records.note("weather", kind, seconds=round(seconds))
            if kind == "crash":
                self.hub.kill()
                self.wait(seconds)
                self.hub.start()
                continue
            for path, fault, more in rules[kind]:
                switch.add(path, fault, **more)
            self.wait(seconds)
            switch.clear()

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
        while self.wait(draw.uniform(0.3, 1.0) * (pause if len(made) > 3 else 10)):
            org = draw.choice(("lab", "den")) if len(made) > 3 else ("lab", "den")[len(made) % 2]
            again = [repo for repo in made if repo.startswith(org)]
            number = len(made)
            repo = (
                draw.choice(again)
                if len(again) > 1 and draw.random() < 0.25
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
        draw, visitor, count = self.draw(name), self.visitor(name), 0
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
        visitors = [self.visitor(None), *(self.visitor(name) for name in PEOPLE)]
        while self.wait(draw.uniform(0.5, 2.5)):
            visitor = draw.choice(visitors)
            if visitor.name and not visitor.signed_in:
                visitor.sign_in(private=False)
            jobs = self.records.jobs()
            job = draw.choice(jobs)["id"] if jobs else "0" * 64
            visitor.page(draw.choice(PAGES).format(job=job))

    # -- afterwards --------------------------------------------------------------------------------------

    def settle(self, limit_s: float) -> None:
        """No faults any more; the app starts again, everybody retries what failed, and every rule looks once more."""
        faults.FaultSwitch(self.hub.endpoint).clear()
        with self.turn:
            self.kill_app(whole=True)
            self.start_app()
        until, tries = time.monotonic() + limit_s, dict[str, int]()
        visitors = {name: self.visitor(name) for name in (*PEOPLE, BOT)}
        quiet, began = 0, iso(datetime.now(UTC))
        while time.monotonic() < until and quiet < 6:
            time.sleep(5)
            jobs = self.records.jobs()
            active = [job for job in jobs if job["state"] in ("queued", "running", "cancelling")]
            failed = [job for job in jobs if job["state"] == "failed" and tries.get(job["id"], 0) < 2]
            for job in failed[:5]:
                visitor = visitors[job["user"]]
                if visitor.signed_in or visitor.sign_in(private=True):
                    answer = visitor.call("retry_job", job["id"])
                    if "E_QUOTA" not in str(answer):
                        tries[job["id"]] = tries.get(job["id"], 0) + 1
            if active:
                began = iso(datetime.now(UTC))  # a full queue may have turned a rule away until now
            looks = self.records.rows("SELECT polled, code FROM watchers")
            looking = [look for look in looks if look["polled"] <= began or look["code"]]
            untried = any(tries.get(job["id"], 0) == 0 for job in failed)
            quiet = 0 if active or looking or untried else quiet + 1
            self.records.note("settle", f"{len(active)} active, {len(failed)} failed")
        self.records.note("settle", "retried", jobs=len(tries))


def weathers(draw: random.Random) -> dict[str, list[tuple[str, Any, dict[str, Any]]]]:
    """The fault rules of every weather: path, fault, and which of the requests."""
    few, some = draw.randrange(2, 6), {"times": 30, "skip": draw.randrange(9)}
    writes, every = {"methods": ("POST", "PUT", "DELETE")}, r"^(?!/api/faults)"  # the switches stay in reach
    status = draw.choice((500, 502, 503, 504))
    resets = [(draw.randrange(300_000), {"skip": draw.randrange(12)}) for _ in range(8)]
    return {
        "calm": [],
        "resets": [("/resolve/|/api/", faults.Reset(at=at), which) for at, which in resets],
        "busy": [(every, faults.Status(status=429, retry_after=str(few)), some)],
        "broken": [(every, faults.Status(status=status), some)],
        "slow": [(every, faults.Delay(seconds=draw.uniform(0.3, 2.0)), {"times": None})],
        "stall": [("/resolve/", faults.Stall(at=1000, seconds=20.0), {"times": few})],
        "lost": [("/commit/|/preupload/|/repos/create|lfs", faults.LostAnswer(), {**writes, "times": few})],
        "cut": [("lfs", faults.Reset(at=5000, of="request"), {**writes, "times": few})],
        "stale": [(every, faults.StaleHead(), some)],
        "bytes": [("resolve/.*safetensors", faults.WrongByte(at=draw.randrange(340_000)), {})],
        "whole": [("/resolve/", faults.WholeFile(), {"times": few, "skip": 2})],
        "readonly": [("^/(?!oauth|api/faults)", faults.Status(status=503), {**writes, "times": None})],
        "full": [("lfs|/commit/", faults.Status(status=507), {**writes, "times": None})],
        "outage": [(every, faults.Status(status=503), {"times": None})],
    }


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
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    disable_progress_bars()
    huggingface_hub.constants.HF_HUB_DISABLE_XET = True  # which the embedded Hub does not serve
    evening.prepare()
    try:
        evening.start_app()
        acts: list[tuple[Callable[..., None], tuple[str, ...]]] = [
            *((act, ()) for act in (evening.killer, evening.weather, evening.ballast, evening.gauge, evening.trainer)),
            (evening.poller, ()),
            *((evening.person, (name,)) for name in PEOPLE),
        ]
        threads = [threading.Thread(target=evening.keep, args=(act, *given)) for act, given in acts]
        for thread in threads:
            thread.start()
        evening.over.wait(options.minutes * 60)
        evening.over.set()
        for thread in threads:
            thread.join()
        evening.settle(options.settle_minutes * 60)
        evening.records.strays = evening.strays()
        return audit(evening.records, evening.hub, evening.environment(), options.sample, BOT, DISK_MB * MB)
    finally:
        evening.over.set()
        if evening.process and evening.process.poll() is None:
            evening.process.terminate()
            evening.process.wait(60)
        evening.hub.stop()
        subprocess.run(["umount", "--lazy", str(evening.disk)], check=False)


if __name__ == "__main__":
    sys.exit(main())

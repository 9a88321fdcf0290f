"""What an evening wrote down, and whether anything was lost: the second half of benchmarks/evening.py."""

import contextlib
import hashlib
import json
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from localhub.process import LocalHubProcess

SECRET = "secret"  # in the name of everything private, so that a leak can be searched for
# the demo's own tokens, which the docs show, are none of the evening's
TOKEN = re.compile(r"hf_(?:oauth|refresh|evening|local_\w+_evening)_[A-Za-z0-9_\-]{8,}|an evening's \w+ secret")
TRUE_REASONS = ("E_TARGET_EXISTS", "E_GATED", "E_SOURCE")  # refusals that stand when all is well again


class Records:
    """What happened, in memory and line by line in `events.jsonl`."""

    def __init__(self, root: Path, data: Path) -> None:
        self.root, self.data, self.began = root, data, time.monotonic()
        self.lock = threading.Lock()
        self.counts: dict[str, Counter[str]] = {}
        self.accepted: dict[str, str] = {}  # job → user
        self.leaks: list[str] = []
        self.odd: list[str] = []  # answers that nobody should get
        self.strays: list[str] = []
        self.looked = 0  # at pages and answers
        self.restarts: list[float] = []
        self.low = {True: 2**60, False: 2**60}  # bytes of the disk that were free, with and without ballast
        self.filled, self.down, self.down_since = False, True, 0.0

    def note(self, kind: str, what: str, **more: Any) -> None:
        line = {"s": round(time.monotonic() - self.began, 1), "kind": kind, "what": what, **more}
        with self.lock, open(self.root / "events.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        self.count(kind, what if kind in ("kill", "weather", "app", "driver") else "all")

    def count(self, kind: str, what: str) -> None:
        with self.lock:
            self.counts.setdefault(kind, Counter())[what] += 1

    # the app's absences excuse what fails while they last, and for a moment after

    def app_down(self) -> None:
        self.down, self.down_since = True, time.monotonic()

    def app_up(self, seconds: float) -> None:
        self.down, self.down_since = False, time.monotonic()
        self.restarts.append(seconds)

    def excused(self, error: str) -> str:
        absent = self.down or time.monotonic() - self.down_since < 5
        return f"app away ({error})" if absent else f"NO ANSWER ({error})"

    def ballast(self, filled: bool) -> None:
        self.filled = filled

    def disk_free(self, free: int) -> None:
        self.low[self.filled] = min(self.low[self.filled], free)

    def seen_on_the_hub(self, models: list[str]) -> None:
        self.leaks += [f"the Hub shows {model} to strangers" for model in models if SECRET in model]

    def called(self, user: str | None, api: str, good: bool, value: Any, *, forbidden: bool = False) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        code = re.search(r"E_[A-Z_]+", text)
        self.count(f"call {api}", "ok" if good else code[0] if code else text[:80])
        if good and forbidden:
            self.leaks.append(f"{user} may {api} a private job of somebody else")
        if not good and not code and "app away" not in text:
            self.odd.append(f"{api}: {text[:200]}")
        if good and isinstance(value, dict):
            job = value if api in ("start_merge", "retry_job") else value.get("job") if api == "start_diff" else None
            if job:
                with self.lock:
                    self.accepted[job["id"]] = str(user)
        self._search(user, f"{api} of {user}", text, own=api != "search_models")

    def loaded(self, user: str | None, page: str, status: int, text: str) -> None:
        self.count(f"page {page}", "app away" if "app away" in text else str(status))
        if (status >= 400 and not re.search(r"\bE_[A-Z]+: ", text)) or "NO ANSWER" in text or "Traceback" in text:
            self.odd.append(f"{page} for {user}: {status} {text[-200:]}")
        self._search(user, f"{page} of {user}", text)

    def _search(self, user: str | None, where: str, text: str, *, own: bool = True) -> None:
        self.looked += 1
        if TOKEN.search(text):
            self.leaks.append(f"a token in {where}")
        for owner, name in re.findall(r"\b(ada|bob|carol|dan|robot|den)/(secret[\w.-]*)", text):
            if owner != user and not (owner == "den" and user in ("dan", "robot")):
                self.leaks.append(f"{owner}/{name} in {where}")

    # the database, as any other process may read it

    def jobs(self) -> list[dict[str, Any]]:
        try:
            rows = self.rows("SELECT id, user, kind, state, payload, result, error, attempt FROM jobs ORDER BY ticket")
        except sqlite3.Error:
            return []
        for row in rows:
            row.update({key: json.loads(row[key]) if row[key] else {} for key in ("payload", "result", "error")})
            row["private"] = bool(row["payload"].get("private"))
        return rows

    def rows(self, query: str) -> list[dict[str, Any]]:
        with contextlib.closing(sqlite3.connect(f"file:{self.data}/jobs.sqlite3?mode=ro", uri=True, timeout=5)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(query)]


def audit(
    records: Records,
    hub: LocalHubProcess,
    environment: Mapping[str, str],
    sample: int,
    bot: str,
    disk: int,
) -> int:
    """Print the table of what was checked and what was wrong; 1 where anything was."""
    api = HfApi(hub.endpoint, token=hub.tokens[bot])
    jobs = {job["id"]: job for job in records.jobs()}
    checks: list[tuple[str, int, list[str]]] = []

    def check(name: str, count: int, wrong: list[str]) -> None:
        checks.append((name, count, wrong))

    ended = ("done", "failed", "cancelled")
    wrong = [f"{id[:12]} of {user} is gone" for id, user in records.accepted.items() if id not in jobs]
    # an evaluation takes minutes, and is asked for again whenever it is due: one that waits is not lost
    waiting = {id for id, job in jobs.items() if job["kind"] == "evaluate" and job["state"] in ("queued", "running")}
    wrong += [
        f"{id[:12]} is {job['state']}" for id, job in jobs.items() if job["state"] not in ended and id not in waiting
    ]
    check("accepted jobs that have ended", len(jobs) - len(waiting), wrong)
    failed = [job for job in jobs.values() if job["state"] == "failed"]
    reasons = [
        f"{j['kind']} {j['id'][:12]} {j['error'].get('code')}: {j['error'].get('message', '')[:160]}" for j in failed
    ]
    unfair = [text for job, text in zip(failed, reasons, strict=True) if job["error"].get("code") not in TRUE_REASONS]
    check("failed jobs with a reason that holds", len(failed), unfair)

    merges = [job for job in jobs.values() if job["kind"] == "merge"]
    wrong, published = [], 0
    for job in merges:
        titles = _titles(hub, job)
        own = sum(f"[hubmerge {job['id'][:16]}]" in title for title in titles)
        published += own
        if own != (job["state"] == "done"):
            wrong.append(f"{job['payload']['target']}: {own} commits of {job['id'][:12]}, which is {job['state']}")
    check("merges with one commit, or none where they did not end well", len(merges), wrong)
    targets = Counter(job["payload"]["target"] for job in merges if job["state"] == "done")
    check("targets of one merge", len(targets), [f"{name}: {n} merges" for name, n in targets.items() if n > 1])

    done = [job for job in merges if job["state"] == "done"]
    chosen = done[:: max(1, len(done) // sample)][:sample] if sample else []
    check("sampled merges with the command line's bytes", len(chosen), _other_bytes(records, hub, environment, chosen))

    wrong = sorted(set(records.leaks))
    strangers = [m.id for m in HfApi(hub.endpoint, token=False).list_models()]
    wrong += [f"{name} is public" for name in strangers if SECRET in name]
    closed = re.compile(rf"\b(?:ada|bob|carol|dan|robot|den)/{SECRET}")
    for name in strangers:
        for path in ("README.md", "hubmerge.json"):
            with contextlib.suppress(Exception):  # not every repo has both
                text = Path(
                    HfApi(hub.endpoint, token=False).hf_hub_download(name, path, local_dir=records.root / "seen" / name)
                ).read_text()
                wrong += [f"{name} names a private model"] if closed.search(text) else []
    check("private names and tokens that anybody saw", records.looked, wrong)

    check("pushed agents that were merged or left out with a reason", *_candidates(records, api, jobs))
    check("results recorded once, and no fault of the machine", *_results(records, api, f"{bot}/results"))

    left = [p for p in (records.data / "jobs").glob("*") if jobs.get(p.name, {}).get("state") != "failed"]
    left = [p for p in left if p.name not in waiting]
    left += [p for p in (records.data.parent / "tmp").rglob("*") if p.is_file()]
    left += [
        p for p in records.data.rglob("*") if p.is_file() and p.suffix in (".tmp", ".part", ".partial", ".incomplete")
    ]
    left += [p for p in (records.root / "hub" / "tmp").rglob("*") if p.is_file()]
    check("temporary files that stayed", 0, [str(p.relative_to(records.root)) for p in left])
    low = records.low[False]
    check("disk that stayed free by itself", 1, [f"{low / 1e6:.1f} MB"] if low < disk // 20 else [])
    sound = records.rows("PRAGMA integrity_check")[0]["integrity_check"]
    ended_with_one = records.rows(  # asked at one moment: the app goes on meanwhile, and its bot asks for evaluations
        "SELECT job_id FROM tokens WHERE job_id NOT IN"
        " (SELECT id FROM jobs WHERE state IN ('queued', 'running', 'cancelling'))"
    )
    check(
        "database whole, without tokens of ended jobs",
        1,
        [sound] * (sound != "ok") + [row["job_id"] for row in ended_with_one],
    )
    check("processes that a killed app left behind", len(records.restarts), records.strays)
    check("tokens in files", 1, _tokens_in_files(records))
    check("tracebacks in the logs", 1, _tracebacks(records.root / "logs" / "app.log"))
    check(
        "answers without a reason",
        sum(sum(c.values()) for k, c in records.counts.items() if k.startswith("call")),
        records.odd,
    )
    return _print(records, jobs, reasons, checks, published)


def _titles(hub: LocalHubProcess, job: Mapping[str, Any]) -> list[str]:
    try:
        api = HfApi(hub.endpoint, token=hub.tokens[job["user"]])
        return [commit.title for commit in api.list_repo_commits(job["payload"]["target"])]
    except Exception:  # noqa: BLE001 - no such repo
        return []


def _other_bytes(
    records: Records, hub: LocalHubProcess, environment: Mapping[str, str], chosen: list[dict[str, Any]]
) -> list[str]:
    """Merges of which the Hub has other shards than `hubmerge merge` makes of the same recipe."""
    wrong = []
    for job in chosen:
        recipe, out = records.root / "again.json", records.root / "again" / job["id"][:12]
        recipe.write_text(json.dumps(job["payload"]["recipe"]))
        own = {"HF_TOKEN": hub.tokens[job["user"]], "HUBMERGE_DATA": str(records.root / "again" / "data")}
        run = subprocess.run(
            [sys.executable, "-m", "hubmerge", "merge", str(recipe), "--out", str(out), "--device", "cpu"],
            env={**environment, **own, "TMPDIR": "/tmp"},
            capture_output=True,
            text=True,
            check=False,
        )
        target = job["payload"]["target"]
        info = HfApi(hub.endpoint, token=hub.tokens[job["user"]]).model_info(target, files_metadata=True)
        there = {
            s.rfilename: s.lfs.sha256 for s in info.siblings or () if s.lfs and s.rfilename.endswith("safetensors")
        }
        here = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.glob("*.safetensors")}
        if run.returncode or not here or here != there:
            wrong.append(f"{target}: {run.stderr[-300:] or sorted(set(here.items()) ^ set(there.items()))}")
    return wrong


def _candidates(records: Records, api: HfApi, jobs: Mapping[str, Any]) -> tuple[int, list[str]]:
    merged = set()
    for row in records.rows("SELECT members, job_id FROM watched_sets"):
        if jobs.get(row["job_id"] or "", {}).get("state") == "done":
            merged.update(json.loads(row["members"])["agents"])
    skipped = {
        (r["subject"], r["sha"]): r["code"] for r in records.rows("SELECT subject, sha, code FROM watched_skips")
    }
    wrong, names = [], [m.id for org in ("lab", "den") for m in api.list_models(author=org)]
    for name in names:
        sha = str(api.model_info(name).sha)
        if f"{name}@{sha}" not in merged and (name, sha) not in skipped:
            wrong.append(f"{name}@{sha[:12]} was neither merged nor left out")
    return len(names), wrong


def _results(records: Records, api: HfApi, repo: str) -> tuple[int, list[str]]:
    """Result files of the results dataset: one a score, and failures that are the model's own."""
    folder = records.root / "results"
    try:
        api.snapshot_download(repo, repo_type="dataset", local_dir=folder)
    except Exception as error:  # noqa: BLE001 - a dataset that cannot be read is a finding, not an end
        return 0, [f"the results dataset cannot be read: {type(error).__name__}"]
    found, wrong = Counter[str](), []
    for path in folder.rglob("*.json"):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            result = json.loads(path.read_text())
            key = f"{result['model']}@{result['sha'][:12]} {result['suite']} {result['split']}"
            found[key] += 1
            own = any(word in str(result["error"]) for word in ("big-", "tokenizer"))  # these have none
            if result["status"] == "failed" and not own:
                wrong.append(f"{key} is recorded as failed: {result['error']}")
    return len(found), wrong + [f"{key}: {n} files" for key, n in found.items() if n > 1]


def _tokens_in_files(records: Records) -> list[str]:
    found = []
    for folder in (records.data, records.data.parent / "tmp", records.root / "logs"):
        for path in folder.rglob("*"):
            if path.is_file() and TOKEN.search(path.read_bytes().decode("latin-1")):
                found.append(str(path.relative_to(records.root)))
    return found


def _tracebacks(log: Path) -> list[str]:
    """The line after each that is not indented, which names the error."""
    lines = log.read_text(errors="replace").splitlines()
    starts = [number for number, line in enumerate(lines) if "Traceback" in line]
    return [next((x for x in lines[n + 1 :] if x and not x[0].isspace()), "")[:200] for n in starts]


def _print(
    records: Records,
    jobs: Mapping[str, Any],
    reasons: list[str],
    checks: list[tuple[str, int, list[str]]],
    published: int,
) -> int:
    states = Counter(f"{job['kind']} {job['state']}" for job in jobs.values())
    print(f"\n{len(jobs)} jobs ({len(records.accepted)} of people), {published} published")
    print("  " + ", ".join(f"{name} {n}" for name, n in sorted(states.items())))
    print(
        f"  {len(records.restarts)} starts of the app, which answered {max(records.restarts):.1f} s later at the latest"
    )
    for kind in sorted(records.counts):
        print(f"  {kind}: " + ", ".join(f"{what} {n}" for what, n in records.counts[kind].most_common(14)))
    print(
        "  free disk at the least: "
        + ", ".join(f"{low / 1e6:.1f} MB {'filled' if k else 'by itself'}" for k, low in records.low.items())
    )
    print("\n| what | checked | wrong |\n|---|---:|---:|")
    for name, count, wrong in checks:
        print(f"| {name} | {count} | {len(wrong)} |")
    for text in reasons:
        print(f"  failed: {text}")
    for name, _, wrong in checks:
        for text in wrong[:20]:
            print(f"  {name}: {text}")
    return 1 if any(wrong for _, _, wrong in checks) else 0

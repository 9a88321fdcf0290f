"""Pictures of every page at three widths, light and dark, with an index to look through them: `make screenshots`.

    python tests/workflows/app/screenshots.py [--only model,job] [--widths 390] [--out build/screenshots]

The embedded Hub runs with the zoo and a merge of it, whose card is the real one. Jobs, rules and scores are made up, so
that every state of a page is there at once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = map(str, (ROOT, ROOT / "tests", Path(__file__).parent))
os.environ.update(
    HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1", NO_PROXY="127.0.0.1"
)

from board_helpers import ENVIRONMENT, family, task  # noqa: E402
from huggingface_hub import HfApi  # noqa: E402
from pages_fake import STATISTICS, FakeService, job_view  # noqa: E402
from pages_session import CLIENT, session_cookie  # noqa: E402
from playwright.sync_api import Browser, sync_playwright  # noqa: E402
from test_ui_board import FakeBoard  # noqa: E402
from test_watch_pages import Source  # noqa: E402

from hubmerge.board.eval_results import publish_scores  # noqa: E402
from hubmerge.board.leaderboard import build_board  # noqa: E402
from hubmerge.evaluation.result import EvaluationResult  # noqa: E402
from hubmerge.hub.client import Hub  # noqa: E402
from hubmerge.settings import Settings  # noqa: E402
from localhub.process import LocalHubProcess  # noqa: E402
from workflows.app.app import launch_app  # noqa: E402
from workflows.app.service import LogLine, Published, Scoring, Visitor  # noqa: E402
from workflows.published import published_model  # noqa: E402

MERGE = "ada/three-in-one"
RECIPE = """\
base: zoo/base
agents: [zoo/math-agent, zoo/tool-agent, zoo/mem-agent]
method: ram_plus
rounding: nearest
"""
# right of 500, counted once with the example agents: docs/data/zoo_evaluation.json
SCORES = {
    "zoo/base": (151, 73, 141),
    "zoo/math-agent": (489, 84, 141),
    "zoo/tool-agent": (136, 498, 150),
    "zoo/mem-agent": (249, 87, 408),
    MERGE: (429, 491, 390),
}
RUNS, WAITS, DONE, FAILED, SCORED = ("1" * 64, "2" * 64, "3" * 64, "4" * 64, "5" * 64)
FORM = "merge?base=zoo/base&agent=zoo/math-agent&agent=zoo/tool-agent&agent=zoo/mem-agent"
PAGES = {
    "home": "",
    "merge-empty": "merge",
    "merge-filled": FORM,
    "merge-sar": f"{FORM}&method=sar",
    "merge-refused": f"{FORM}&agent=zoo/nobody-s-agent",
    "merge-variants": f"{FORM}&method=ties&also=ram_plus&vary=density:0.2,0.5,0.8",
    "leaderboard": "leaderboard",
    "evaluate": "evaluate?model=zoo/math-agent",
    "activity": "activity",
    "activity-public": "activity?show=all",
    "watchers": "watchers",
    "watchers-filled": "watchers?base=zoo/base&author=zoo&license=mit",
    "docs": "docs",
    "diff": "diff?base=zoo/base&agent=zoo/math-agent",
    "model": f"model?model={MERGE}",
    "model-changed": f"model?model={MERGE}&tab=changed",
    "model-reproduce": f"model?model={MERGE}&tab=reproduce",
    "model-card": f"model?model={MERGE}&tab=card",
    "model-of-merges": "model?model=bob/four-in-one",
    "model-unscored": "model?model=zoo/math-agent&sha=main",
    "model-unknown": "model?model=nobody/nothing",
    "job-running": f"job?id={RUNS}",
    "job-waiting": f"job?id={WAITS}",
    "job-done": f"job?id={DONE}",
    "job-failed": f"job?id={FAILED}",
    "job-evaluation": f"job?id={SCORED}",
    "missing": "no/such/page",
}
WIDTHS = (1440, 1024, 390)
SETTLED_MS = 1_500


class Shelf(FakeService):
    """The models that lie on the embedded Hub."""

    def published(self, name: str, sha: str | None, visitor: Visitor | None) -> Published:
        return published_model(Hub(self.endpoint), name, sha)


def merged(hub: LocalHubProcess, folder: Path) -> str:
    """Merge the zoo into `MERGE`; the commit."""
    (folder / "recipe.yaml").write_text(RECIPE)
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.tokens["ada"]}
    environment |= {"PYTHONPATH": str(ROOT), "HUBMERGE_DATA": str(folder / "merge")}
    command = [sys.executable, "-m", "hubmerge", "run", "recipe.yaml", "--to", MERGE]
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return str(HfApi(hub.endpoint, token=False).model_info(MERGE).sha)


def results(api: HfApi) -> list[EvaluationResult]:
    """A result of every model of the zoo and of the merge, at the commits that they have on the embedded Hub."""
    shas = {name: str(api.model_info(name).sha) for name in SCORES}
    parents = [
        {"role": "agent" if k else "base", "id": name, "sha": shas[name], "weight": 1.0}
        for k, name in enumerate(n for n in SCORES if n != MERGE)
    ]
    found = []
    for name, counts in SCORES.items():
        own = name == MERGE
        facts: dict[str, Any] = {"author": name.split("/")[0], "license": "apache-2.0", "parameters": 172_000}
        facts |= (
            {"parents": parents, "method": "ram_plus", "density": 0.52, "overlap": 0.37, "conflict": 0.46}
            if own
            else {}
        )
        facts |= (
            {"recipe": RECIPE, "effective_scales": [1.06, 1.08, 1.1], "method_parameters": {"r": 0.1}} if own else {}
        )
        tasks = [
            task(f"zoo_{domain}", domain, right / 500, 500, dataset="zoo/held-out")
            for domain, right in zip(("math", "tool", "mem"), counts, strict=True)
        ]
        data = {"schema_version": 1, "model": name, "sha": shas[name], "suite": "zoo", "suite_version": "1"}
        data |= {"split": "test", "status": "done", "error": None, "tasks": tasks, "facts": facts}
        data |= {"environment": ENVIRONMENT, "created": "2026-01-31T14:20:00+00:00"}
        found.append(EvaluationResult.model_validate(data))
    return found


def of_merges(known: Sequence[EvaluationResult]) -> EvaluationResult:
    """A merge of the merge with another agent."""
    merge = known[-1]
    base, other = (next(p for p in merge.facts.parents if p.id == name) for name in ("zoo/base", "zoo/math-agent"))
    agent = other.model_copy(update={"id": MERGE, "sha": merge.sha})
    changes = {"parents": (base, agent, other), "author": "bob", "method": "ties", "effective_scales": (1.0, 0.98)}
    facts = merge.facts.model_copy(update=changes)
    return merge.model_copy(update={"model": "bob/four-in-one", "sha": "9" * 40, "facts": facts})


def jobs(commit: str) -> list[Any]:
    """A job in every state."""
    now = datetime.now(UTC)

    def at(seconds: float) -> str:
        return (now - timedelta(seconds=seconds)).isoformat()

    progress = {"stage": "merge", "done": 312e6, "total": 988e6, "unit": "bytes", "per_second": 4.1e6, "at": at(1)}
    log = (LogLine(at(80), "submitted"), LogLine(at(75), "claimed"), LogLine(at(70), "stage", "download"))
    log += (LogLine(at(40), "stage", "probe"), LogLine(at(20), "stage", "merge"))
    under_way = {"queue_position": None, "started": at(75), "statistics": STATISTICS, "log": log, "after_s": 12.0}
    runs = job_view(RUNS, state="running", stage="merge", progress=progress, created=at(80), ticket=5, **under_way)
    ended = {"queue_position": None, "started": at(4000), "finished": at(3900), "created": at(4100)}
    run = {"seconds": 41.2, "peak_rss_bytes": 412e6}
    published = {"repo": MERGE, "url": "", "commit": commit, "run": run}
    scored = tuple(
        Scoring(name, "0" * 40, role, SCORED, "done" if role != "agent" else "running")
        for name, role in ((MERGE, "merge"), ("zoo/base", "base"), ("zoo/math-agent", "agent"))
    )
    error = {"code": "E_INCOMPATIBLE", "message": "they do not fit", "retryable": False, "problems": [
        {"code": "E_SHAPE", "what": "a tensor has another shape", "where": "model.norm.weight in zoo/wide-agent",
         "expected": "[64]", "got": "[128]", "next_step": "Remove zoo/wide-agent or choose another base."},
    ]}  # fmt: skip
    scores = {"scores": {"math": 0.858, "tool": 0.982, "mem": 0.78}}
    return [
        runs,
        job_view(WAITS, created=at(30), queue_position=2, typical_s=95.0, target="ada/next-in-line", ticket=6),
        replace(job_view(DONE, state="done", stage="publish", result=published, evaluations=scored, ticket=3, **ended),
                statistics=STATISTICS),
        job_view(FAILED, state="failed", stage="plan", error=error, target="ada/does-not-fit", ticket=2, **ended),
        job_view(SCORED, kind="evaluate", suite="zoo", recipe={}, state="done", stage="record", target=MERGE,
                 result=scores, ticket=4, **ended),
    ]  # fmt: skip


@contextmanager
def site(folder: Path) -> Iterator[tuple[str, str]]:
    """The addresses of the app and of the embedded Hub."""
    with LocalHubProcess(folder / "hub", zoo=True) as hub:
        merged(hub, folder)
        api = HfApi(hub.endpoint, token=False)
        publish_scores(Hub(hub.endpoint, hub.tokens["ada"]), MERGE, results(api))
        known = results(api)
        service = Shelf(hub.endpoint)
        service.put(jobs(known[-1].sha))
        board = FakeBoard(
            build_board([*known, of_merges(known), *family()]), url=f"{hub.endpoint}/datasets/zoo/results"
        )
        settings = Settings(endpoint=hub.endpoint)
        with launch_app(service, settings, port=0, oauth=CLIENT, board=board, watchers=Source()) as app:
            yield app.url, hub.endpoint


def pictures(browser: Browser, addresses: dict[str, str], widths: Sequence[int], out: Path) -> None:
    """OUT/NAME-WIDTH-SCHEME.png of every address."""
    cookie = {"name": "session", "value": session_cookie("ada"), "domain": "127.0.0.1", "path": "/"}
    for width in widths:
        context = browser.new_context(viewport={"width": width, "height": 900})
        context.add_cookies([{**cookie, "secure": True, "sameSite": "None", "httpOnly": True}])  # type: ignore[list-item]
        for name, address in addresses.items():
            page = context.new_page()
            page.goto(address, wait_until="domcontentloaded")
            page.wait_for_timeout(SETTLED_MS)
            page.wait_for_function("!/(Loading|Checking) …/.test(document.body.innerText)")
            if "merge?" in address:
                page.locator(".hm-verdict-good, .hm-verdict-bad, .hm-verdict-warn").first.wait_for()
                page.wait_for_timeout(SETTLED_MS)
            page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })" if
                          name.endswith("-open") else "0")  # fmt: skip
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                page.wait_for_timeout(250)
                page.screenshot(path=out / f"{name}-{width}-{scheme}.png", full_page=True, animations="disabled")
            page.close()
            print(name, width, flush=True)
        context.close()


def index(out: Path) -> str:
    """A page that shows every picture in the folder, a row for each page."""
    rows: dict[str, list[str]] = {}
    for path in sorted(out.glob("*.png")):
        rows.setdefault(re.sub(r"-\d+-\w+$", "", path.stem), []).append(path.name)
    sections = "".join(
        f"<h2>{escape(name)}</h2><p>"
        + "".join(f'<a href="{escape(f)}"><img src="{escape(f)}" alt="{escape(f)}" loading="lazy"></a>' for f in files)
        + "</p>"
        for name, files in rows.items()
    )
    style = (
        "body{font-family:sans-serif} p{display:flex;gap:1rem;overflow-x:auto} img{height:26rem;border:1px solid #999}"
    )
    head = f"<!doctype html><meta charset=utf-8><title>Every page</title><style>{style}</style>"
    return f"{head}<h1>Every page</h1>{sections}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default="", help="names of pages, separated by commas")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "screenshots")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hubmerge-screenshots-") as folder, site(Path(folder)) as (app, hub):
        known = {name: f"{app}/{path}" for name, path in PAGES.items()}
        known |= {"hub-card": f"{hub}/{MERGE}", "hub-card-open": f"{hub}/{MERGE}"}
        wanted = asked.only.split(",") if asked.only else list(known)
        with sync_playwright() as runtime:
            flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
            chromium = shutil.which("chromium") or shutil.which("chromium-browser")
            browser = runtime.chromium.launch(executable_path=chromium, args=flags)
            pictures(
                browser, {name: known[name] for name in wanted}, list(map(int, asked.widths.split(","))), asked.out
            )
            browser.close()
    (asked.out / "index.html").write_text(index(asked.out), encoding="utf-8")
    print(f"look at {asked.out / 'index.html'}")


if __name__ == "__main__":
    main()

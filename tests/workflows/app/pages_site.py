"""One site in memory where every state of a page is there at once, and its addresses by name."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from pages_fake import STATISTICS, job_view
from pages_session import Site
from report_helpers import DATA, report_data
from test_ui_board import full_board

from workflows.values import JobView, LogLine, Published, Scoring

RUNS, WAITS, DONE, FAILED, SCORED = ("1" * 64, "2" * 64, "3" * 64, "4" * 64, "5" * 64)
TWO = "merge?base=zoo/base&agent=zoo/math-agent"
FORM = f"{TWO}&agent=zoo/tool-agent"
ADDRESSES = {
    "home": "",
    "merge": "merge",
    "merge-filled": FORM,
    # everything but Calibration is folded at first, and so are the variants where the address has none
    "merge-sar": f"{FORM}&method=sar",
    "merge-variants": f"{FORM}&method=ties&also=ram_plus&vary=density:0.2,0.5,0.8",
    "merge-refused": f"{TWO}&agent=other/wide-agent",
    "leaderboard": "leaderboard",
    "evaluate": "evaluate?model=zoo/math-agent",
    "activity": "activity",
    "activity-public": "activity?show=all",
    "watchers": "watchers",
    "watchers-filled": "watchers?rule={base: zoo/base, agents: {authors: [zoo], licenses: [mit]}}",
    "docs": "docs",
    "diff": "diff?base=zoo/base&agent=zoo/math-agent",
    "model": "model?model=org/merge",
    **{f"model-{tab}": f"model?model=org/merge&tab={tab}" for tab in ("changed", "reproduce", "card")},
    "model-of-merges": "model?model=bob/grandchild",
    "model-unscored": "model?model=ada/pair-ram-plus",
    "model-unknown": "model?model=nobody/nothing",
    "model-unnamed": "model",
    "job-unnamed": "job",
    "job-running": f"job?id={RUNS}",
    "job-waiting": f"job?id={WAITS}",
    "job-done": f"job?id={DONE}",
    "job-failed": f"job?id={FAILED}",
    "job-evaluation": f"job?id={SCORED}",
    "missing": "no/such/page",
}
READY = """() => document.querySelector("h1") && !document.querySelector("#inspect[disabled]")
  && !/(Loading|Checking) …|Loading\\.\\.\\./.test(document.body.innerText)"""

QUIET_MS = 1_000  # longer than any pause that a page makes itself: a form is seen after 0.9 s, and checked after 0.7 s
# once nothing has changed, moved or faded for so long: how far what was in sight has moved since the page was opened
AT_REST = """(quiet) => new Promise((told) => {
  let moved = 0, last = performance.now();
  const latest = last + 30_000;  // a page that comes to no rest is looked at as it is
  const changed = () => { last = performance.now(); };
  const ends = (a) => a.playState === "running" && Number.isFinite(a.effect.getComputedTiming().endTime);
  const every = {subtree: true, childList: true, attributes: true, characterData: true};
  const changes = new MutationObserver(changed);
  changes.observe(document, every);
  const shifts = new PerformanceObserver((list) => {
    changed();
    list.getEntries().forEach((e) => { if (!e.hadRecentInput) moved += e.value; });
  });
  shifts.observe({ type: "layout-shift", buffered: true });
  const look = () => {
    if (document.getAnimations().some(ends)) changed();
    if (performance.now() < Math.min(last + quiet, latest)) { setTimeout(look, 20); return; }
    changes.disconnect();
    shifts.disconnect();
    told(moved);
  };
  look();
})"""


def opened(page: Any, address: str) -> Callable[[], float]:
    """Open an address. What this returns waits until the page is ready, waits for no answer and has come to rest, and
    tells how far it has moved since it was opened, as a share of its height and width."""
    asked: set[Any] = set()
    page.on("request", lambda request: asked.add(request))
    for end in ("requestfinished", "requestfailed"):
        page.on(end, lambda request: asked.discard(request))
    page.goto(address, wait_until="domcontentloaded")

    def settled() -> float:
        latest = time.monotonic() + 30
        while True:
            page.wait_for_function(READY)
            moved = page.evaluate(AT_REST, QUIET_MS)
            answered = all("/heartbeat/" in request.url for request in asked)  # which lasts as long as the page
            if answered or time.monotonic() > latest:
                return float(moved)

    return settled


def jobs() -> list[JobView]:
    """A job in every state."""
    now = datetime.now(UTC)

    def at(seconds: float) -> str:
        return (now - timedelta(seconds=seconds)).isoformat()

    ended: dict[str, Any] = {"queue_position": None, "started": at(4000), "finished": at(3900), "created": at(4100)}
    what = "a tensor has another shape than the base has there"
    error = {"code": "E_SHAPE", "what": what, "where": "model.norm.weight", "got": "[128]"}
    log = (LogLine(at(80), "submitted"), LogLine(at(75), "claimed"), LogLine(at(20), "stage", "merge"))
    runs = {
        "state": "running",
        "stage": "merge",
        "queue_position": None,
        "started": at(75),
        "progress": {"stage": "merge", "done": 312e6, "total": 988e6, "unit": "bytes", "per_second": 4e6, "at": at(1)},
        "statistics": STATISTICS,
        "warnings": ("zoo/mem-agent: " + "x" * 80,),
    }
    scored = tuple(
        Scoring(name, "0" * 40, role, SCORED, "done" if role != "agent" else "running")
        for name, role in (("org/merge", "merge"), ("zoo/base", "base"), ("zoo/math-agent", "agent"))
    )
    published = {"repo": "org/merge", "commit": "e" * 40, "run": {"seconds": 41.2, "peak_rss_bytes": 412e6}}
    done = {"result": published, "evaluations": scored, "statistics": STATISTICS}
    return [
        job_view(RUNS, log=log, after_s=12.0, ticket=5, created=at(80), **runs),
        job_view(WAITS, created=at(30), queue_position=2, typical_s=95.0, target="ada/next-in-line", ticket=6),
        job_view(DONE, state="done", stage="publish", target="org/merge", ticket=3, **done, **ended),
        job_view(FAILED, state="failed", stage="plan", error={"problems": [error]}, ticket=2, **ended),
        job_view(SCORED, kind="evaluate", suite="math", recipe={}, state="done", target="org/merge", ticket=4,
                 result={"scores": {"math": 0.858, "tool": 0.982}}, **ended),
    ]  # fmt: skip


def fill(site: Site) -> None:
    """Every state of a page at once."""
    card = (DATA / "card.md").read_text("utf-8")
    site.board.content = full_board()
    site.service.put(jobs())
    for name in ("org/merge", "ada/pair-ram-plus"):  # scored, and not
        is_open = name != "org/merge"
        site.service.shelf[name] = Published(name, "e" * 40, "mit", card, report_data(), is_open=is_open)

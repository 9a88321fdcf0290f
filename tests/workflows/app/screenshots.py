"""Pictures of every page at three widths, light and dark, with an index to look through them: `make screenshots`.

    python tests/workflows/app/screenshots.py [--only model,job-done] [--widths 390] [--out build/screenshots]

Jobs, rules, models and scores are made up (pages_site.py), so that every state of a page is there at once. The card on
the embedded Hub is that of the tests' report; hub-card-open shows it with all its parts unfolded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[3]
os.environ.update(HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", NO_PROXY="127.0.0.1")
sys.path[:0] = map(str, (ROOT, ROOT / "tests", Path(__file__).parent))

from huggingface_hub import CommitOperationAdd, HfApi  # noqa: E402
from pages_session import browser_cookie  # noqa: E402
from pages_site import ADDRESSES, opened, whole_site  # noqa: E402
from playwright.sync_api import Browser, sync_playwright  # noqa: E402
from report_helpers import report  # noqa: E402

from hubmerge.output.card import render_card  # noqa: E402
from hubmerge.output.figures import render_figures  # noqa: E402
from localhub.process import LocalHubProcess  # noqa: E402

MERGE = "ada/pair-ram-plus"  # as the report names it
HUB_PAGES = ("hub-card", "hub-card-open")
WIDTHS = (1440, 1024, 390)
UNFOLD = """() => { document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
  [...document.images].forEach((image) => { image.loading = "eager"; }); }"""
STYLE = "body{font-family:sans-serif} p{display:flex;gap:1rem;overflow-x:auto} img{height:26rem;border:1px solid #999}"


@contextmanager
def hub_card() -> Iterator[str]:
    """The address of a merge on the embedded Hub, with its card and figures."""
    made = report()
    figures = render_figures(made)
    files = {"README.md": render_card(made, figures=figures).encode(), **figures}
    with TemporaryDirectory(prefix="hubmerge-screenshots-") as folder, LocalHubProcess(Path(folder)) as hub:
        api = HfApi(hub.endpoint, token=hub.tokens["ada"])
        api.create_repo(MERGE)
        api.create_commit(MERGE, [CommitOperationAdd(*file) for file in files.items()], commit_message="Add the card")
        yield f"{hub.endpoint}/{MERGE}"


def pictures(browser: Browser, addresses: dict[str, str], widths: Sequence[int], out: Path) -> None:
    """OUT/NAME-WIDTH-SCHEME.png of every address."""
    for width in widths:
        # a page that forbids evaluation, as the Hub's does, could not be waited for
        context = browser.new_context(viewport={"width": width, "height": 900}, bypass_csp=True)
        context.add_cookies([browser_cookie("ada")])
        for name, address in addresses.items():
            page = context.new_page()
            settled = opened(page, address)
            settled()
            if name.endswith("-open"):
                page.evaluate(UNFOLD)
                page.wait_for_function("[...document.images].every((image) => image.complete)")
            if "merge?" in address:
                page.locator(".hm-verdict-good, .hm-verdict-bad").first.wait_for()
                settled()
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
        rows.setdefault(re.sub(r"-\d+-\w+$", "", path.stem), []).append(escape(path.name))
    picture = '<a href="{0}"><img src="{0}" alt="{0}" loading="lazy"></a>'
    sections = (f"<h2>{name}</h2><p>{''.join(map(picture.format, files))}</p>" for name, files in rows.items())
    head = f"<!doctype html><meta charset=utf-8><title>Every page</title><style>{STYLE}</style>"
    return f"{head}<h1>Every page</h1>{''.join(sections)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    every = ",".join((*ADDRESSES, *HUB_PAGES))
    parser.add_argument("--only", default=every, help="names of pages, separated by commas")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "screenshots")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with whole_site() as url, hub_card() as card, sync_playwright() as runtime:
        browser = runtime.chromium.launch(executable_path=chromium, args=flags)
        known = {name: f"{url}/{path}" for name, path in ADDRESSES.items()} | dict.fromkeys(HUB_PAGES, card)
        wanted = {name: known[name] for name in asked.only.split(",")}
        pictures(browser, wanted, list(map(int, asked.widths.split(","))), asked.out)
        browser.close()
    (asked.out / "index.html").write_text(index(asked.out), encoding="utf-8")
    print(f"look at {asked.out / 'index.html'}")


if __name__ == "__main__":
    main()

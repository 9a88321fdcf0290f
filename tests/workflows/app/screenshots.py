"""Pictures of every page at three widths, light and dark: `make screenshots`.

    python tests/workflows/app/screenshots.py [--only model,job-done] [--widths 390] [--out build/screenshots]

Jobs, rules, models and scores are made up (pages_site.py), so that every state of a page is there at once.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
if __name__ == "__main__":  # tests have their own
    os.environ.update(HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", NO_PROXY="127.0.0.1")
    sys.path[:0] = map(str, (ROOT, ROOT / "tests", Path(__file__).parent))

from pages_session import browser_cookie, serving  # noqa: E402
from pages_site import ADDRESSES, fill, opened  # noqa: E402
from playwright.sync_api import Browser, sync_playwright  # noqa: E402

WIDTHS = (1440, 1024, 390)


def pictures(browser: Browser, addresses: dict[str, str], widths: Sequence[int], out: Path) -> None:
    """OUT/NAME-WIDTH-SCHEME.png of every address."""
    for width in widths:
        context = browser.new_context(viewport={"width": width, "height": 900})
        context.add_cookies([browser_cookie("ada")])
        for name, address in addresses.items():
            page = context.new_page()
            settled = opened(page, address)
            settled()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default=",".join(ADDRESSES), help="names of pages, separated by commas")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "screenshots")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with serving() as site, sync_playwright() as runtime:
        fill(site)
        browser = runtime.chromium.launch(executable_path=chromium, args=flags)
        wanted = {name: f"{site.url}/{ADDRESSES[name]}" for name in asked.only.split(",")}
        pictures(browser, wanted, list(map(int, asked.widths.split(","))), asked.out)
        browser.close()


if __name__ == "__main__":
    main()

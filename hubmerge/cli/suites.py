"""`hubmerge suites [--pin]`: the suites with their datasets and pins, and the way to pin those that are not.

`--pin` asks the Hub for the commit of every dataset without a pin and writes it into the suites' file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from hubmerge.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="SUITE", help="default: every suite")
    parser.add_argument("--pin", action="store_true", help="pin what is not pinned to the commit that main has now")
    parser.add_argument("--file", type=Path, help="another file of pins than the package's")


def run_cli(arguments: Any, settings: Settings) -> int:
    from hubmerge.evaluation.pins import PINS, DatasetPin, read_pins, write_pins
    from hubmerge.evaluation.suites import SUITES, get_suite
    from hubmerge.evaluation.tasks import registry
    from hubmerge.hub.login import hub_of_user

    path = arguments.file or PINS
    pins = {} if arguments.pin and not path.exists() else dict(read_pins(path))
    suites = {name: get_suite(name) for name in arguments.names or SUITES}
    datasets = {name: sorted({registry()[t.task].rows.repo for t in suite.tasks}) for name, suite in suites.items()}
    missing = sorted({repo for found in datasets.values() for repo in found} - set(pins))
    if arguments.pin and missing:
        hub = hub_of_user(settings).datasets
        pins |= {repo: DatasetPin(revision=hub.head(repo), hub=hub.endpoint) for repo in missing}
        write_pins(path, pins)
    if arguments.json:
        dumped = {repo: pin.model_dump(exclude_none=True) for repo, pin in pins.items()}
        listed = []
        for name, found in datasets.items():
            pinned = [{"dataset": repo, "pin": dumped.get(repo)} for repo in found]
            listed.append({"suite": name, "title": suites[name].title, "datasets": pinned})
        print(json.dumps({"suites": listed}, indent=2))  # noqa: T201 - the output
        return 0
    for name, found in datasets.items():
        print(f"{name}: {suites[name].title}")  # noqa: T201 - the output
        for repo in found:
            words = f"pinned {pins[repo].words}" if repo in pins else "not pinned: read at the head of main"
            print(f"  {repo}  {words}")  # noqa: T201 - the output
    return 0

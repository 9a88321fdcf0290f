"""`hubmerge suites [--pin]`: the suites with their datasets and pins, and the way to pin those that are not.

`--pin` asks the Hub for the commit of every dataset without a pin and writes it into the suites' file.
"""

from typing import Any

from hubmerge.cli.terminal import Terminal
from hubmerge.evaluation.pins import PINS, DatasetPin, read_pins, write_pins
from hubmerge.evaluation.suites import SUITES, get_suite
from hubmerge.evaluation.tasks import registry
from hubmerge.hub.login import hub_of_user
from hubmerge.settings import Settings


def run_cli(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    path = arguments.file or PINS
    pins = {} if arguments.pin and not path.exists() else dict(read_pins(path))
    suites = {name: get_suite(name) for name in arguments.names or SUITES}
    datasets = {name: sorted({registry()[task].rows.repo for task in suite.tasks}) for name, suite in suites.items()}
    missing = sorted({repo for found in datasets.values() for repo in found} - set(pins))
    if arguments.pin and missing:
        hub = hub_of_user(settings).datasets
        pins |= {repo: DatasetPin(revision=hub.head(repo), hub=hub.endpoint) for repo in missing}
        write_pins(path, pins)
    for name, found in datasets.items():
        lines, pinned = [f"{name}: {suites[name].title}"], []
        for repo in found:
            pin = pins.get(repo)
            lines.append(f"  {repo}  " + (f"pinned {pin.words}" if pin else "not pinned: read at the head of main"))
            pinned.append({"dataset": repo, "pin": pin.model_dump(exclude_none=True) if pin else None})
        listed = {"suite": name, "title": suites[name].title, "datasets": pinned}
        terminal.say("\n".join(lines) + "\n", suites=[listed])
    return 0

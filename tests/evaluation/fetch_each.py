"""The fetching process, which says of every dataset why it is refused, and goes on with the next one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from hubmerge.errors import HubmergeError
from hubmerge.evaluation.fetch import fetch
from hubmerge.isolation.in_child import Reporter, run


def fetch_each(spec: Mapping[str, Any], reporter: Reporter) -> Mapping[str, Any]:
    refused = []
    for task in spec["tasks"]:
        try:
            fetch({**spec, "tasks": [task]}, reporter)
        except HubmergeError as error:
            refused.append(str(error))
    return {"refused": refused}


if __name__ == "__main__":
    sys.exit(run(fetch_each))

"""One process of a merge that several share: `hubmerge merge` with small shards; dies where it is told to.

python rank_process.py '{"runs": [[ARGV…], …], "ports": […], "shard_bytes": N, "die": {"rank": 1, "shards": 1}}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from typing import Any

from hubmerge import cli, line, sink


def _die_after(shards: int) -> None:
    add = sink.Journal.add_shard
    left = shards

    def add_and_die(self: sink.Journal, shard: Any) -> None:
        nonlocal left
        left -= 1
        add(self, shard)
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    sink.Journal.add_shard = add_and_die  # type: ignore[method-assign]


def main() -> int:
    order = json.loads(sys.argv[1])
    line.make_plan = partial(line.make_plan, max_shard_bytes=order["shard_bytes"])  # type: ignore[assignment]
    if order["die"] and order["die"]["rank"] == int(os.environ.get("RANK", "0")):
        _die_after(order["die"]["shards"])
    for argv, port in zip(order["runs"], order["ports"], strict=True):
        os.environ["MASTER_PORT"] = str(port)
        if code := cli.main(argv):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())

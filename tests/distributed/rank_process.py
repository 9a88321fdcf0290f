"""A process of a merge that several share: commands of hubmerge with small shards; one dies where it is told to.

    python tests/distributed/rank_process.py ORDER

ORDER: {"runs": [[ARGV…], …], "ports": […], "shard_bytes": N, "notes": FOLDER, "trouble": {…}}. A rank notes what it
does in its file below FOLDER: "merged NAME", "uploaded NAME", "lying COUNT".
trouble: {"rank": R, "kind": "die at shard" | "die at upload" | "no upload", "times": N}
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hubmerge import line
from hubmerge.cli import main as cli
from hubmerge.engine import journal, stream
from hubmerge.errors import HubUnavailableError
from hubmerge.machine import resources
from hubmerge.output import upload


def _so_often(times: int, call: Callable[..., Any], dies: bool) -> Callable[..., Any]:
    """`call`, behind whose last time the process dies, or the next one is refused."""
    left = times

    def counted(*arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise HubUnavailableError("out of storage")
        call(*arguments)
        if dies and not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return counted


def _note(notes: Path) -> None:
    """Also makes uploads as slow as they may be: until nothing goes on without them."""
    notes.mkdir(parents=True, exist_ok=True)
    file = open(notes / os.environ["RANK"], "a", encoding="utf-8", buffering=1)  # noqa: SIM115
    write_shard, upload_one, drain = stream.write_shard, upload.ShardUploader._upload, upload.ShardUploader.drain
    draining = False

    def write(*arguments: Any) -> Any:
        written = write_shard(*arguments)
        file.writelines(f"merged {shard.filename}\n" for shard in written)
        return written

    def slow(self: upload.ShardUploader, shard: Any) -> None:
        while len(self._pending) < 2 and not draining:
            time.sleep(0.001)
        file.write(f"lying {len([*self.folder.glob('*.safetensors')])}\n")
        upload_one(self, shard)
        file.write(f"uploaded {shard.filename}\n")

    def drain_on(self: upload.ShardUploader) -> None:
        nonlocal draining
        draining = True
        drain(self)
        draining = False

    stream.write_shard = write
    upload.ShardUploader._upload = slow  # type: ignore[method-assign]
    upload.ShardUploader.drain = drain_on  # type: ignore[method-assign]


def main(order: dict[str, Any]) -> int:
    line.make_plan = partial(line.make_plan, max_shard_bytes=order["shard_bytes"])  # type: ignore[assignment]
    line.render_figures = lambda report: {}  # most of the time, and not the topic
    if os.environ.get("PRETEND_A_DEVICE"):
        resources.device_there = lambda nodes=None: True
    if order["notes"]:
        _note(Path(order["notes"]))
    trouble = order["trouble"]
    if trouble and str(trouble["rank"]) == os.environ["RANK"]:
        owner, name = {
            "die at shard": (journal.Journal, "add_shard"),
            "die at upload": (journal.Journal, "add_uploaded"),
            "no upload": (upload.ShardUploader, "_upload"),
        }[trouble["kind"]]
        setattr(owner, name, _so_often(trouble["times"], getattr(owner, name), trouble["kind"] != "no upload"))
    for argv, port in zip(order["runs"], order["ports"], strict=True):
        os.environ["MASTER_PORT"] = str(port)
        if code := cli.main(argv):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))

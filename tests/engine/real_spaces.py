"""A merge in bursts through the real `spaces` package: its calls answered by a device API of our own.

    python tests/engine/real_spaces.py FOLDER quota|none|device

Prints JSON: what was asked of the API, the warnings, the facts, whether the bytes are the CPU's. "quota": the API
refuses. "none": it grants a device that is not there. "device": the worker that the package forks takes torch's CPU
as its device; everything else is the package's own.
"""

import json
import os
import runpy
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE)]
asked: list[tuple[str, dict[str, str]]] = []


class DeviceApi(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        asked.append((parts.path, {k: v[0] for k, v in parse_qs(parts.query).items()}))
        status, answer = 200, {}
        if parts.path == "/schedule":
            idle = len([path for path, _ in asked if path == parts.path]) > 1  # the worker of the last call is kept
            answer = {"idle": idle, "nvidiaIndex": 0, "nvidiaUUID": "none", "allowToken": "granted"}
            if sys.argv[2] == "quota":
                status, answer = 429, {"left": 3, "wait": 60}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def main(folder: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), DeviceApi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {
        "SPACES_ZERO_GPU": "true",
        "SPACES_ZERO_DEVICE_API_URL": f"http://127.0.0.1:{server.server_port}",
        "REAL_SPACES": sys.argv[2],
        "PYTHONPATH": os.pathsep.join((str(HERE / "without_cuda"), str(HERE.parents[1]))),
    }
    runpy.run_path(str(HERE / "without_cuda" / "sitecustomize.py"))

    from stream_helpers import Watching, bytes_of, plan_of, run, write_family

    from hubmerge.engine.bursts import announce
    from hubmerge.settings import load_settings

    watching = Watching()
    write_family(folder)
    plan = plan_of(folder, "ram_plus", max_shard_bytes=12_000)
    run(plan, folder / "cpu")
    announce(load_settings(), watching.warning)
    announced = [path for path, _ in asked]
    found = run(plan, folder / "lent", observer=watching, backend="eager", bursts=True)
    print(
        json.dumps(
            {
                "announced": announced,
                "asked": asked[len(announced) :],
                "warnings": watching.messages,
                "device": dict(found.device),
                "shards": len(plan.shards),
                "equal": bytes_of(folder / "lent", plan) == bytes_of(folder / "cpu", plan),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))

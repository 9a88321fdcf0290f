"""A stand-in for the evaluating process: does what the file `mode` in its run's folder says.

It goes through the real start (`reporter.run`), so that what the parent sees is what a real child would say.
"""

import atexit
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hubmerge.errors import DeviceError, EvaluationError
from hubmerge.evaluation.child import confine_child
from hubmerge.isolation import seccomp
from hubmerge.isolation.in_child import Reporter, WallLimitError, run

# mode → what differs in every score
CHANGED: Mapping[str, Mapping[str, Any]] = {
    "answers other tasks": {"task": "other"},
    "cuts prompts": {"truncated": 3},
    "answers beyond the maximum": {"value": 1.5},
}


def _answer(spec: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    scores = [{"task": t["name"], "value": 0.25, "stderr": 0.125, "samples": 12} for t in spec["tasks"]]
    return {"tasks": scores, "device": "scripted", "dtype": "float32"} | changes


def play(spec: Mapping[str, Any], reporter: Reporter) -> Mapping[str, Any]:
    workdir = Path(spec["workdir"])
    mode = (workdir / "mode").read_text()
    (workdir / "pid").write_text(str(os.getpid()))
    reporter.stage("generate")
    reporter.progress("generate", 1, 2, "prompts")
    match mode:
        case "answers":
            reporter.warning("mind the \x1b[31m\u202egap")
            print("this is chatter and no event")
        case "hangs":
            time.sleep(600)
        case "ignores SIGTERM with a grandchild":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
            grandchild = subprocess.Popen([sys.executable, "-c", script])
            (workdir / "grandchild").write_text(str(grandchild.pid))
            reporter.progress("generate", 2, 2, "prompts")
            time.sleep(600)
        case "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "answers and crashes at its end":
            atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
        case "answers and hangs at its end":
            atexit.register(time.sleep, 600)
        case "dies of an import":
            words = f"Traceback …\nModuleNotFoundError: No module named 's3\x1b[31mfs' in {workdir} {'x' * 900}\n\n"
            os.write(2, words.encode())
            os._exit(1)
        case "leaves":
            os._exit(0)
        case "runs out of memory":
            confine_child({**spec, "memory_bytes": 200 * 2**20})
            bytearray(2**30)
        case "refuses":
            raise EvaluationError("the model does not load", got=f"OSError: {workdir}/model\x00\u202e" + "x" * 5000)
        case "is kept waiting":
            raise WallLimitError("the chat template does not come to an end")
        case "shouts":
            reporter._send({"event": "warning", "message": "x" * (8 * 2**20)})
        case "talks nonsense":
            os.write(reporter._descriptor, b'["no event"]\n')
        case "answers in the dtype that it was asked for":
            (workdir / "spec").write_text(json.dumps(spec))
            dtype = spec["weights"]["stored"] if spec["dtype"] == "auto" else spec["dtype"]
            return _answer(spec, dtype=dtype, batch_tokens=4000)
        case "fills the disk":
            try:
                raise OSError(errno.ENOSPC, "No space left on device", "answers")
            except OSError as error:
                raise ValueError("a library's own words") from error
        case "cannot be confined":
            raise seccomp.unconfinable("seccomp: Operation not permitted")
        case "does not fit":
            raise DeviceError("this machine's memory cannot hold a prompt of the task", got="1,000,000")
        case "looks around":
            (workdir / "environment").write_text(json.dumps(dict(os.environ)))
            confine_child(spec)
            found = []
            for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_UNIX):
                with suppress(OSError):
                    kind = socket.SOCK_RAW if family == socket.AF_NETLINK else socket.SOCK_STREAM
                    socket.socket(family, kind).close()
                    found.append(family.name)
            (workdir / "families").write_text(json.dumps(found))
    return _answer(spec, tasks=[score | CHANGED.get(mode, {}) for score in _answer(spec)["tasks"]])


if __name__ == "__main__":
    sys.exit(run(play))

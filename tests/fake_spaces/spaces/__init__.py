"""Stands for the platform's package: a decorated function runs in a forked process, where torch finds a device.

As there, arguments and results are pickled, an error comes back without its class, a function that was decorated once
stays decorated as it was, and a worker that dies is an error. The device is torch's CPU.
"""

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

decorated: dict[Callable[..., Any], Callable[..., Any]] = {}
calls = 0


def behaviour(call: int) -> str:
    """What becomes of the n-th call: "", quota, queue, kill or hang, as FAKE_SPACES=what or FAKE_SPACES=what@n says."""
    what, _, when = os.environ.get("FAKE_SPACES", "").partition("@")
    return what if when in ("", str(call)) else ""


def GPU(*, duration: Callable[..., int]) -> Any:
    def decorate(task: Callable[..., Any]) -> Callable[..., Any]:
        def handler(*arguments: Any) -> Any:
            import torch  # noqa: F401  (by the platform's package before it forks)

            global calls
            calls += 1
            note(f"call {duration(*arguments)}")
            asked = behaviour(calls)
            if asked == "quota":
                raise RuntimeError("You have exceeded your free ZeroGPU quota")
            if asked == "queue":
                time.sleep(600)
            context = multiprocessing.get_context("fork")
            answers, answer = context.Pipe(duplex=False)
            worker = context.Process(
                target=_work, args=(task, pickle.dumps(arguments), answer, asked, answers), daemon=True
            )
            worker.start()
            answer.close()
            try:
                ok, value = pickle.loads(answers.recv_bytes())
            except EOFError:
                raise RuntimeError("GPU task aborted") from None
            finally:
                answers.close()
                worker.join()
            if not ok:
                raise RuntimeError(value)
            return value

        return decorated.setdefault(task, handler)

    return decorate


def note(line: str) -> None:
    if path := os.environ.get("FAKE_SPACES_NOTES"):
        with open(path, "a") as file:
            file.write(line + "\n")


def notes(kind: str) -> list[str]:
    """What was noted of a kind: a call's duration, a worker's process, that one is in the middle of its work."""
    path = Path(os.environ["FAKE_SPACES_NOTES"])
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.partition(" ")[2] for line in lines if line.split()[0] == kind]


def gradio_auto_wrap(task: Any) -> Any:
    return task


def _work(task: Callable[..., Any], arguments: bytes, answer: Any, asked: str, other: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    other.close()
    note(f"worker {os.getpid()}")
    import torch

    from hubmerge.engine import device
    from hubmerge.engine.sink import ShardWriter

    torch.set_num_threads(1)  # the threads of the process that was forked are not here
    here = torch.device("cpu")
    device._place = lambda local_rank: here
    if asked in ("kill", "hang"):  # in the middle of the shard
        real = ShardWriter.finish

        def finish(writer: Any) -> Any:
            note("middle of a shard")
            if asked == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
            return real(writer)

        ShardWriter.finish = finish  # type: ignore[method-assign]
    try:
        done = True, task(*pickle.loads(arguments))
    except Exception as error:
        done = False, type(error).__name__
    answer.send_bytes(pickle.dumps(done))

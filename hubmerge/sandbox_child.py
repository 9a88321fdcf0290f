"""The process that runs generated code for `hubmerge.sandbox`: started as a script, confined before it runs anything.

It reads its job from standard input (a file), says `ready` on the verdict pipe once it is confined, executes the
units one after another in one module, and hands on the token that waits in another pipe only when the last unit
has come to its end. Whatever ends the process before that leaves no token. The functions needed after the foreign
code are bound before it, so that replacing them in their modules changes nothing here.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

_REASON_CHARACTERS = 500


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    verdict_fd, token_fd = job["verdict_fd"], job["token_fd"]
    sys.path.insert(0, job["package_root"])
    from hubmerge.confinement import Limits
    from hubmerge.errors import EvaluationError
    from hubmerge.sandbox_rules import isolate

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        isolate(Limits(**job["limits"]), readable=job["readable"], parent=job["parent"])
    except (EvaluationError, OSError) as error:
        sys.exit(str(error))
    sys.path.remove(job["package_root"])
    for name in [name for name in sys.modules if name.split(".")[0] == "hubmerge"]:
        del sys.modules[name]
    os.write(verdict_fd, b"ready\n")
    _run(job["units"], verdict_fd, token_fd)


def _run(units: list[str], verdict_fd: int, token_fd: int) -> None:
    import builtins
    import types

    read, write, leave, flush = os.read, os.write, os._exit, _flush
    # without `site` these are missing, and with it they are the same
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    sys.argv = ["solution.py"]
    try:
        for number, source in enumerate(units):
            exec(compile(source, f"<unit {number}>", "exec", dont_inherit=True), module.__dict__)  # noqa: S102
        said = b"passed " + read(token_fd, 64)
    except BaseException as error:  # noqa: BLE001 the foreign code may raise anything, SystemExit included
        said = f"failed {_told(error)}".encode("utf-8", "replace")
    flush()
    write(verdict_fd, said)
    leave(0)


def _told(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:_REASON_CHARACTERS] if str(error) else name
    except BaseException:  # noqa: BLE001 its own __str__ is foreign code too
        return str(name)[:_REASON_CHARACTERS]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # the foreign code may have closed or replaced it, and what it put there may raise anything
        with contextlib.suppress(BaseException):
            stream.flush()


if __name__ == "__main__":
    main()

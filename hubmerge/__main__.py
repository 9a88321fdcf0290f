"""`python -m hubmerge`, also installed as `hubmerge`."""

import gc
import io
import os
import sys


def console() -> int:
    """A process that runs one command; returns the exit code."""
    if sys.platform == "win32":
        sys.exit("hubmerge: E_SETTINGS: Windows has no file locks as hubmerge needs them. Run it in WSL.")
    _open_standard_streams()
    gc.set_threshold(100_000)  # imports and figures make many objects that stay, and each collection scans them
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what is piped is UTF-8, as recipes and results are in files
            encoding = None if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="strict" if stream is sys.stdin else "backslashreplace")
    try:
        from hubmerge.cli.main import main
        from hubmerge.settings import use_one_blas_thread

        use_one_blas_thread()
        code = main(own_process=True)
    except KeyboardInterrupt:  # while it was still starting
        return 1
    gc.freeze()  # and once more at the exit
    return code


def _open_standard_streams() -> None:
    """Leads to nothing what was closed by whoever started this process, such as a daemon.

    Python has None in its place, and the next file that is opened would get its number, here or in a process of ours.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 (to the end); the lowest number is free
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


if __name__ == "__main__":
    sys.exit(console())

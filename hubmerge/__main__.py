"""`python -m hubmerge`, also installed as `hubmerge`."""

import gc
import sys

from hubmerge.cli import main
from hubmerge.settings import use_one_blas_thread


def console() -> int:
    """A process that runs one command; returns the exit code."""
    use_one_blas_thread()
    gc.set_threshold(100_000)  # imports and figures make many objects that stay: to look through them takes a while
    code = main()
    gc.freeze()  # and once more at the exit
    return code


if __name__ == "__main__":
    sys.exit(console())

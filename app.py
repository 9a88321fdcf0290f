"""The Space's entry point: the pages, with the workers beside them.

A Gradio Space runs this file from the repository, which nobody has installed: Python finds the packages beside it,
and the worker processes are started where they are. On a Space everything comes from the environment (settings.py);
locally, `make demo` starts the same app on an embedded Hub.
"""

import sys
from threading import Thread

from hubmerge.cli.main import main
from hubmerge.engine import fast

if __name__ == "__main__":
    Thread(target=fast.unavailable, daemon=True).start()  # builds the fast pass while nobody has asked for a merge
    sys.exit(main(["serve", "--host", "0.0.0.0", "--port", "7860"]))  # noqa: S104 (a container's only interface)

"""The Space's entry point: the pages, with the workers beside them.

A Gradio Space runs this file from the repository, which nobody has installed: Python finds the packages beside it,
and the worker processes are started where they are. On a Space everything comes from the environment (settings.py);
locally, `make demo` starts the same app on an embedded Hub.
"""

import sys
from threading import Thread

from hubmerge.engine import fast
from hubmerge.errors import HubmergeError
from hubmerge.settings import load_settings
from workflows.serve import serve

if __name__ == "__main__":
    Thread(target=fast.unavailable, daemon=True).start()  # builds the fast pass while nobody has asked for a merge
    try:
        sys.exit(serve(load_settings(), host="0.0.0.0", port=7860))  # noqa: S104 (a container's only interface)
    except HubmergeError as error:
        sys.exit(f"hubmerge: {error}")

"""The demo: an embedded Hub with the example agents, and the very app of the Space on top of it."""

from __future__ import annotations

import logging
import os

from hubmerge.localhub.process import LocalHubProcess
from hubmerge.settings import Settings, load_settings
from workflows.serve import serve


def demo(settings: Settings, *, host: str, port: int) -> int:
    """Start the embedded Hub (its data stay in `settings.data_dir`), then serve the app against it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    data = settings.data_dir.resolve() / "demo"
    with LocalHubProcess(data / "hub", zoo=True) as hub:
        # the pages sign in through OAuth against the embedded Hub, as they do on a Space
        os.environ.update(
            HF_ENDPOINT=hub.endpoint,
            HF_HUB_DISABLE_XET="1",
            HF_HUB_DISABLE_TELEMETRY="1",
            GRADIO_ANALYTICS_ENABLED="False",
            HUBMERGE_DATA=str(data / "app"),
            OAUTH_CLIENT_ID=hub.oauth["client_id"],
            OAUTH_CLIENT_SECRET=hub.oauth["client_secret"],
        )
        os.environ.pop("HF_TOKEN", None)
        print(f"The embedded Hub listens on {hub.endpoint}, with users {', '.join(hub.tokens)}.")  # noqa: T201
        print(f"Open http://{_shown(host)}:{port} and sign in as one of them. Ctrl-C ends both.", flush=True)  # noqa: T201
        return serve(load_settings(), host=host, port=port)


def _shown(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104

"""The demo: an embedded Hub with the example agents, and the same app as on the Space."""

import logging
import os
import shutil

from hubmerge.machine.extras import is_installed
from hubmerge.settings import Settings, load_settings
from localhub.process import LocalHubProcess
from localhub.seed import examples
from localhub.users import default_users
from workflows.bot import Intervals
from workflows.jobs.process import set_up_logging
from workflows.serve import serve

BOT = "ada"
POLL_S = 15.0  # newcomers to a demo do not wait for five minutes


def demo(settings: Settings, *, host: str, port: int, watch: bool = False) -> int:
    """Start the embedded Hub (its data stay in `settings.data_dir`), then serve the app against it.

    Where the extra for evaluations is installed, merges are evaluated with the zoo's suite and listed on the
    leaderboard. With `watch` the example rule merges every agent of the zoo, now and when another appears.
    """
    set_up_logging()
    data = settings.data_dir.resolve() / "demo"
    logging.getLogger(__name__).info("starting the embedded Hub with the example agents, which takes some seconds")
    with LocalHubProcess(data / "hub", zoo=True) as hub:
        # the pages sign in through OAuth against the embedded Hub, as they do on a Space
        os.environ.update(
            HF_ENDPOINT=hub.endpoint,
            HF_HUB_OFFLINE="0",  # and no proxy: all that it asks is on this machine
            NO_PROXY="*",
            no_proxy="*",
            HF_HUB_DISABLE_XET="1",
            HF_HUB_DISABLE_TELEMETRY="1",
            GRADIO_ANALYTICS_ENABLED="False",
            HUBMERGE_DATA=str(data / "app"),
            OAUTH_CLIENT_ID=hub.oauth["client_id"],
            OAUTH_CLIENT_SECRET=hub.oauth["client_secret"],
        )
        # the bot acts as ada; an empty HUBMERGE_SUITE turns evaluations off
        os.environ["HF_TOKEN"] = hub.tokens[BOT]
        if is_installed("eval"):
            os.environ.setdefault("HUBMERGE_SUITE", "zoo")
            os.environ.setdefault("HUBMERGE_RESULTS", "zoo/results")
        else:
            print("Merges are not evaluated: pip install 'hubmerge[eval]' adds that and the leaderboard.")  # noqa: T201
        if watch:
            rules = data / "rules"
            rules.mkdir(exist_ok=True)
            shutil.copy(examples() / "watchers" / "zoo.yaml", rules)
            os.environ.setdefault("HUBMERGE_RULES", str(rules))
        names = ", ".join(user.name for user in default_users().users)
        print(f"The embedded Hub listens on {hub.endpoint}, with the users {names}.", flush=True)  # noqa: T201

        def ready(url: str) -> None:
            print(f"Open {url} and sign in as one of them. Ctrl-C ends both.", flush=True)  # noqa: T201

        return serve(load_settings(), host=host, port=port, intervals=Intervals(poll_s=POLL_S), ready=ready)

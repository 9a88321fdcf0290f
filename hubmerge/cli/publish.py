"""`hubmerge publish FOLDER REPO`: a finished merge to a repo on the Hub, in one commit."""

from dataclasses import asdict
from typing import Any

from hubmerge.cli.terminal import Terminal
from hubmerge.hub.login import hub_of_user
from hubmerge.library import publish
from hubmerge.settings import Settings


def run_cli(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    published = publish(
        arguments.folder,
        arguments.repo,
        private=arguments.private,
        public=arguments.public,
        license=arguments.license,
        hub=hub_of_user(settings),
        observer=terminal,
    )
    terminal.say(f"{published.url} at {published.commit}\n", **asdict(published))
    return 0

"""The platform is told at the start what functions want a GPU; it stops an app without any."""

import spaces


def startup() -> None:
    spaces.note(f"announced {len(spaces.decorated)}")

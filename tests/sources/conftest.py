from __future__ import annotations

from served_models import clock, folder, hub, server  # noqa: F401, fixtures of this folder

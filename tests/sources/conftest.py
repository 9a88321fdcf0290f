from served_models import folder, hub, pauses, server  # noqa: F401, fixtures of this folder

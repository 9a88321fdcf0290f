"""The MCP server at /gradio_api/mcp: gradio's, whose tools are the endpoints of api.py.

gradio answers a tool's call by calling its own endpoint as a client would, at the address that the request's Host
header names, with this machine's token of the Hub and the caller's headers. Whoever forges that header would get both.
So it calls this server at its own address here, and without a token.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from gradio_client import Client

from hubmerge.errors import InternalError


def answer_mcp_here(demo: Any, app: FastAPI) -> None:
    """Let the tools' calls go to `app.state.own_url`, which the server sets once it answers."""
    server: Any = getattr(demo, "mcp_server_obj", None)
    if not hasattr(server, "_get_or_create_client"):
        raise InternalError("this gradio's MCP server works in another way", where="gradio.mcp")
    clients: list[Client] = []

    def client() -> Client:
        if not clients:
            if (url := getattr(app.state, "own_url", None)) is None:
                raise InternalError("tools cannot be called before the server knows its address", where="MCP")
            clients.append(
                Client(
                    url,
                    token=False,  # sends none, not even this machine's own
                    headers={"x-gradio-user": "mcp"},
                    download_files=False,
                    verbose=False,
                    analytics_enabled=False,
                )
            )
        return clients[0]

    server._get_or_create_client = client

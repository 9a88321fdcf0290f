"""The MCP server at /gradio_api/mcp: gradio's, whose tools are the endpoints of api.py.

gradio answers a tool's call by calling its own endpoint as a client would, at the address that the request's Host
header names, with this machine's token of the Hub and the caller's headers. Whoever forges that header would get both.
So it calls this server at its own address here, and without a token. The caller's address goes along, as a proxy tells
it: without it all callers would share the places of one visitor, and a header of theirs would count.

It also writes answers as Python does, and reads the file that an answer names. Here they are JSON, and nothing else. It
would read and send a file of this machine that an argument names, and tell whether there is one; and what it refuses
itself has no code. So arguments name no file, and the endpoints read them.
"""

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from gradio_client import Client

from hubmerge.errors import InternalError, MemoryLimitError
from workflows.app.api import misread
from workflows.app.guard import without_files

MAX_ANSWER_BYTES = 1_000_000  # the official client breaks its connection off where a message has more than 1 MiB


def answer_mcp_here(demo: Any, app: FastAPI) -> None:
    """Let the tools' calls go to `app.state.own_url`, which the server sets once it answers."""
    server: Any = getattr(demo, "mcp_server_obj", None)
    changed = [
        (server, name) for name in ("_get_or_create_client", "_prepare_tool_call_args", "postprocess_output_data")
    ]
    changed.append((getattr(server, "mcp_server", None), "_get_cached_tool_definition"))
    if not all(hasattr(*one) for one in changed):
        raise InternalError("this gradio's MCP server works in another way", where="gradio.mcp")
    clients: list[Client] = []

    def client() -> Client:
        if not clients:
            if (url := getattr(app.state, "own_url", None)) is None:
                raise InternalError("tools cannot be called before the server knows its address", where="MCP")
            # it sends no token, not even this machine's own
            quiet = {"download_files": False, "verbose": False, "analytics_enabled": False}
            clients.append(Client(url, token=False, headers={"x-gradio-user": "mcp"}, **quiet))
        return clients[0]

    def as_json(answers: Sequence[Any], root_url: str) -> list[Any]:
        told = [server.types.TextContent(type="text", text=json.dumps(each, ensure_ascii=False)) for each in answers]
        if (size := sum(len(each.model_dump_json().encode()) for each in told)) > MAX_ANSWER_BYTES:
            raise MemoryLimitError(
                "the answer is larger than what clients of MCP take",
                expected=f"at most {MAX_ANSWER_BYTES:,} bytes",
                got=f"{size:,}",
                next_step="Ask for less, as by `limit`, or ask the endpoint of this name over HTTP.",
            )
        return told

    async def unchecked(name: str) -> None:
        """No schema to hold the arguments against: the endpoint's own reading takes more, and tells it with a code."""

    prepare = server._prepare_tool_call_args

    def prepared(name: str, arguments: dict[str, Any]) -> tuple[Any, ...]:
        try:
            endpoint, values, headers, function = prepare(name, without_files(arguments))
        except (TypeError, ValueError) as error:
            raise misread(error) from None
        told, caller = headers.get("x-forwarded-for"), server.mcp_server.request_context.request.client
        headers["x-forwarded-for"] = ", ".join(filter(None, (told, caller and caller.host)))
        return endpoint, values, headers, function

    for (owner, name), ours in zip(changed, (client, prepared, as_json, unchecked), strict=True):
        setattr(owner, name, ours)

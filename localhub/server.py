"""The local Hub as an application and as a process.

`app_of` makes the application over a data folder; `serve` runs it on loopback, prints one line of JSON
with its address and tokens as soon as it listens, and stops cleanly on SIGTERM and SIGINT.

Only requests whose Host header is a loopback name are answered: a page on the web that rebinds its own name
to 127.0.0.1 could otherwise talk to this server as if it were its own.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as CatchAll

from hubmerge.errors import HubUnavailableError
from localhub import accounts, commits, discussions, files, lfs, listing, oauth, pages, refs, repos, webhooks, xet
from localhub.fault_rules import ADMIN_PATH
from localhub.faults import Faults
from localhub.protocol import Hub, Limits, Route, answer, open_hub
from localhub.seed import examples, seed_datasets, seed_zoo, with_mirrors
from localhub.users import default_users, load_users

# Where two routes match, the first one wins: `listing` and `pages` hold the least specific ones.
_MODULES = (oauth, accounts, webhooks, commits, refs, discussions, lfs, xet, repos, files, listing, pages)
ROUTES: list[Route] = [route for module in _MODULES for route in module.router.routes]


def app_of(hub: Hub, faults: Faults | None = None) -> Starlette:
    """The application over a data folder, which it releases when it is shut down."""
    worker = webhooks.DeliveryWorker(hub.store)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        worker.start()
        yield
        worker.stop()
        hub.store.close()

    async def endpoint(request: Request) -> Response:
        if not is_loopback_host(request.headers.get("host", "")):
            return JSONResponse({"error": "This server answers only to loopback names"}, 421)
        if faults is not None and request.url.path == ADMIN_PATH:
            return await faults.answer(request)
        return await answer(hub, ROUTES, request)

    methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
    struck = [Middleware(faults.around)] if faults is not None else []
    return Starlette(routes=[CatchAll("/{path:path}", endpoint, methods=methods)], lifespan=lifespan, middleware=struck)


def is_loopback_host(host: str) -> bool:
    """Whether a Host header, with or without a port, names this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


class _Server(uvicorn.Server):
    """A server that says when it listens and follows its parent into death."""

    def __init__(self, config: uvicorn.Config, ready: str, parent: int | None) -> None:
        super().__init__(config)
        self._ready = ready
        self._parent = parent

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._parent is not None:
            threading.Thread(target=self._watch_parent, daemon=True).start()
        sys.stdout.write(self._ready + "\n")
        sys.stdout.flush()

    def _watch_parent(self) -> None:
        while os.getppid() == self._parent:
            time.sleep(0.5)
        self.should_exit = True


def serve(
    port: int,
    data_dir: Path,
    *,
    zoo: bool = False,
    users: Path | None = None,
    limits: Limits | None = None,
    parent: int | None = None,
    with_faults: bool = False,
) -> None:
    """Run until SIGTERM or SIGINT, or until the process `parent`, which started this one, is gone.

    `with_faults`: with the switches of faults.py.
    """
    known = load_users(users) if users else default_users()
    known = with_mirrors(known) if zoo else known
    # Named as TCP, since asyncio turns Nagle's algorithm off only then: without it every answer takes 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        last = data_dir / "lock"  # says the port of the last start, by which cards and jobs name what lies here
        with contextlib.suppress(OSError, ValueError, OverflowError):
            listener.bind(("127.0.0.1", port or int(last.read_text())))
        try:
            if not listener.getsockname()[1]:
                listener.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise HubUnavailableError(
                "the embedded Hub cannot listen there",
                where=f"127.0.0.1:{port}",
                got=str(error),
                next_step="Choose another port, or 0 for any free one.",
            ) from error
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        hub = open_hub(data_dir, known, limits, endpoint=endpoint)
        with contextlib.suppress(OSError):
            last.write_text(endpoint.rpartition(":")[2])
        if zoo:
            seed_zoo(hub, examples() / "zoo")
            seed_datasets(hub, examples() / "datasets")
        ready = {
            "endpoint": endpoint,
            "tokens": known.first_tokens(),
            "oauth": {"client_id": known.oauth.client_id, "client_secret": known.oauth.client_secret},
        }
        faults = Faults() if with_faults else None
        config = uvicorn.Config(
            app_of(hub, faults),
            log_level="warning",
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=3,
            timeout_keep_alive=60,
            backlog=256,
        )
        # uvicorn shuts down in order at a signal and then raises it again for whoever called it.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            _Server(config, json.dumps(ready), parent).run(sockets=[listener])

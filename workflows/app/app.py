"""The app: pages and API in one gradio Blocks, served with other routes by one server on one port.

    app = build_web_app(service, settings, routes=[Route("/webhook", …)])   # a FastAPI app
    with launch_app(service, settings, port=7860, oauth=client) as running:
        …  # it answers at running.url

gradio is mounted last and takes every path that no other route takes. Its queue is bounded; its analytics, run history,
server-side rendering and uploads are off; no path of the disk is served; and every request passes guard.py first.
"""

import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from gradio.route_utils import FnIndexInferError
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute

from hubmerge.board.source import DatasetBoard
from hubmerge.errors import InternalError, SettingsError
from hubmerge.settings import Settings
from workflows.app.api import add_api, misread
from workflows.app.diff_page import diff_page
from workflows.app.docs_page import docs_page
from workflows.app.evaluate_page import evaluate_page
from workflows.app.frame import CSS, PAGES, TITLE, Page, theme, top
from workflows.app.guard import Guard, without_files
from workflows.app.home_page import home_page
from workflows.app.job_page import job_page
from workflows.app.jobs_page import jobs_page
from workflows.app.lanes import Lanes
from workflows.app.leaderboard_page import board_routes, leaderboard_page
from workflows.app.mcp import answer_mcp_here
from workflows.app.merge_page import merge_page
from workflows.app.model_page import model_page
from workflows.app.session import Sessions, Unread
from workflows.app.signin import AskedScopes, OAuthClient, SmallSession, use_oauth_client, use_the_space_s_client
from workflows.app.site import Site, site_routes
from workflows.app.watchers_page import watchers_page
from workflows.app.watchers_source import WatcherSource
from workflows.service import Service

QUEUE_MAX = 256  # events that wait, for moments: what asks the Hub has lanes.py; one more is told that it is full
CONCURRENCY = 8  # events of one kind at once, where a handler states no lower limit
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 3  # an open page holds a stream that would never end


def build_app(
    service: Service,
    *,
    settings: Settings,
    sign_in: bool = True,
    board: DatasetBoard | None = None,
    watchers: WatcherSource | None = None,
) -> Any:
    """The pages and the API as a gr.Blocks. `sign_in` needs a Space or `use_oauth_client`.

    Without `board` there is no leaderboard; without `watchers` their page only says what one is.
    """
    # gradio would count every event in a data frame for a dashboard that is off
    os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(10**9))
    lanes = Lanes(on_a_space=settings.space_id is not None)
    demo = _Pages(title=TITLE, analytics_enabled=False)
    demo.has_launched = True  # else gradio takes it for one that is still built, and hands out any file of the disk
    bodies: dict[str, Callable[[], None]] = {
        "": lambda: home_page(demo, service, settings, board),
        "merge": lambda: merge_page(demo, service, lanes, sign_in=sign_in, jobs_per_user=settings.jobs_per_user),
        "activity": lambda: jobs_page(demo, service, board),
        "docs": lambda: docs_page(demo),
        "diff": lambda: diff_page(demo, service, lanes),
        "evaluate": lambda: evaluate_page(demo, service, lanes),
        "job": lambda: job_page(demo, service, lanes, board),
        "model": lambda: model_page(demo, service, lanes, board),
        "watchers": lambda: watchers_page(demo, service, lanes, settings, watchers),
    }
    if board is not None:
        bodies["leaderboard"] = lambda: leaderboard_page(measures=bool(service.suites))
    pages = pages_of(board)
    for page in pages:
        with demo.route(page.name, page.path, show_in_navbar=False) if page.path else demo:
            top(demo, settings, pages, page.path, sign_in=sign_in)
            bodies[page.path]()
            if not page.path:
                add_api(service, lanes, board, watchers)
    demo.queue(max_size=QUEUE_MAX, default_concurrency_limit=CONCURRENCY, api_open=False)
    demo._queue.pending_messages_per_session = Unread(2000)
    return demo


class _Pages(gr.Blocks):  # type: ignore[misc]
    """gr.Blocks that take no files, and nothing for what a request leaves out at its end.

    gradio copies a file that a request names, or fetches an address, to where anybody may have it. It also tells its
    log, with a traceback, each value that is none of a box's choices: a stranger's text, as long as a request may be.
    """

    async def preprocess_data(self, block_fn: Any, inputs: Any, *more: Any, **named: Any) -> Any:
        left_out = [None] * (len(block_fn.inputs) - len(inputs))
        try:
            return await super().preprocess_data(block_fn, [*without_files(inputs), *left_out], *more, **named)
        except (gr.Error, RecursionError) as error:
            raise gr.Error(getattr(error, "message", str(error)), print_exception=False) from None


def pages_of(board: DatasetBoard | None) -> list[Page]:
    return [page for page in PAGES if board is not None or page.path != "leaderboard"]


def build_web_app(
    service: Service,
    settings: Settings,
    *,
    oauth: OAuthClient | None = None,
    routes: Sequence[BaseRoute] = (),
    board: DatasetBoard | None = None,
    watchers: WatcherSource | None = None,
) -> FastAPI:
    """A FastAPI app with `routes`, then the pages. `oauth`: the sign-in anywhere but on a Space.

    Off a Space and without `oauth` nobody can sign in; searching and inspecting still work.
    """
    if oauth is not None:
        use_oauth_client(oauth)
    elif settings.space_id is not None:
        use_the_space_s_client(settings.space_id)
    sign_in = oauth is not None or settings.space_id is not None
    served = [*routes, *site_routes(), *(board_routes(board) if board is not None else ())]
    demo = build_app(service, settings=settings, sign_in=sign_in, board=board, watchers=watchers)
    app = FastAPI(title=TITLE, docs_url=None, redoc_url=None, openapi_url=None, routes=served)
    with warnings.catch_warnings():
        # said of every app of several pages, though server-side rendering is off
        warnings.filterwarnings("ignore", "SSR mode is not supported", UserWarning)
        gr.mount_gradio_app(
            app,
            demo,
            path="/",
            theme=theme(),
            css=CSS,
            ssr_mode=False,
            run_history=False,
            show_error=False,
            enable_monitoring=False,
            pwa=False,
            mcp_server=True,
            allowed_paths=[],
            max_file_size=1,
            footer_links=["api"],
            # gradio has no words for what it tells readers of the screen at the end of an event
            i18n=gr.I18n(en={"common.complete": "Done"}),
        )
    mounted: Any = app.routes[-1]
    mounted.app.state_holder = Sessions()
    mounted.app.state_holder.set_blocks(demo)
    mounted.app.user_middleware.append(Middleware(SmallSession))  # within gradio's own, which has the sessions
    for kind in (FnIndexInferError, KeyError, TypeError):
        mounted.app.add_exception_handler(kind, _not_understood)
    answer_mcp_here(demo, app)
    app.add_middleware(AskedScopes)
    hosts = [host.strip() for host in (settings.space_host or "").lower().split(",")]  # with domains of its owner's
    app.add_middleware(Site, pages=pages_of(board), host=hosts[0])
    app.add_middleware(GZipMiddleware, compresslevel=5)  # gradio compresses its own scripts and styles alone
    app.add_middleware(Guard, hub=settings.endpoint, hosts=hosts)
    return app


def _not_understood(request: Request, error: Exception) -> Response:
    """A call that gradio cannot read, for which it would tell its log a traceback, and the caller nothing."""
    if "/gradio_api/call/" not in request.url.path:
        raise error
    return JSONResponse({"detail": str(misread(error))}, status_code=422)


@dataclass(frozen=True)
class RunningApp:
    """A server in a thread; `url` is where it answers, `app` the FastAPI app that it serves."""

    app: FastAPI
    url: str
    stop: Callable[[], None]


@contextmanager
def launch_app(
    service: Service, settings: Settings, *, host: str = "127.0.0.1", port: int = 7860, **how: Any
) -> Iterator[RunningApp]:
    """Build the app as `build_web_app` does, and serve it in a thread once the port answers; port 0 takes a free one.

    SettingsError where the port cannot be had. At the end requests that go on after moments, as the stream of an open
    page does, are cut off.
    """
    app = build_web_app(service, settings, **how)
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise SettingsError(
            "the app cannot listen there",
            where=f"{host}:{port}",
            got=str(error),
            next_step="Choose another --port or --host.",
        ) from error
    bound_host, bound = listener.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound_host, bound_host)  # noqa: S104  (a comparison)
    url = f"http://{f'[{name}]' if ':' in name else name}:{bound}"
    app.state.own_url = url
    config = uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=_STOP_TIMEOUT_S)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="pages", daemon=True)

    def stop() -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what is cut off would be told with a traceback
        server.should_exit = True
        thread.join()

    with listener:  # which a server that does not start leaves open
        thread.start()
        end = time.monotonic() + _START_TIMEOUT_S
        while not server.started:
            if not thread.is_alive() or time.monotonic() > end:
                raise InternalError("the server did not start", where=url)
            time.sleep(0.02)
        try:
            yield RunningApp(app, url, stop)
        finally:
            stop()

"""The board beside the pages on the same port: the content of its page, and its files.

/board/page?…         what the page shows, as HTML
/board.json           everything, streamed
/board/SUITE.csv?…    the rows that the filters leave, streamed
/board/SUITE.json?…   as many of them as `limit` says, from `offset`
"""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from hubmerge.board.export import json_parts, row_data, suite_csv_parts
from hubmerge.board.values import Board
from hubmerge.errors import HubmergeError
from workflows.app.board_query import Asked, asked, matching
from workflows.app.board_view import board_view
from workflows.app.panels import problems_panel
from workflows.app.service import BoardSource

MAX_LINES = 500  # rows in one answer of JSON
_OWN = ("offset", "limit")


def board_routes(source: BoardSource) -> list[BaseRoute]:
    """Routes for `build_web_app`; they run in threads, since a board may have to be fetched."""

    def page(request: Request) -> Response:
        try:
            board = source.board()
        except HubmergeError as error:
            return HTMLResponse(str(problems_panel(error, "The leaderboard cannot be shown")), status_code=503)
        return HTMLResponse(str(board_view(board, asked(board, request.url.query), source.url)))

    def everything(request: Request) -> Response:
        return _answer(source, lambda board: StreamingResponse(json_parts(board), media_type="application/json"))

    def as_csv(request: Request) -> Response:
        def answer(found: Asked) -> Response:
            assert found.suite is not None
            # a suite's name holds letters, digits and . + - _ only
            headers = {"content-disposition": f'attachment; filename="{found.suite.suite}.csv"'}
            parts = suite_csv_parts(found.suite, matching(found.suite, found.query))
            return StreamingResponse(parts, media_type="text/csv; charset=utf-8", headers=headers)

        return _answer(source, lambda board: _of_suite(board, request, answer))

    def as_json(request: Request) -> Response:
        def answer(found: Asked) -> Response:
            assert found.suite is not None
            numbers = {n: parse_qs(request.url.query).get(n, [d])[0] for n, d in (("offset", "0"), ("limit", "50"))}
            if not all(text.isdecimal() and len(text) < 10 for text in numbers.values()):
                return PlainTextResponse("offset and limit are whole numbers", status_code=400)
            start, count = int(numbers["offset"]), int(numbers["limit"])
            if count > MAX_LINES:
                return PlainTextResponse(f"limit is at most {MAX_LINES}; the CSV has all", status_code=400)
            rows = matching(found.suite, found.query)
            data = {
                "suite": found.suite.suite,
                "version": found.suite.version,
                "total": len(rows),
                "offset": start,
                "rows": [row_data(row) for row in rows[start : start + count]],
            }
            return Response(json.dumps(data, ensure_ascii=False, allow_nan=False), media_type="application/json")

        return _answer(source, lambda board: _of_suite(board, request, answer))

    return [
        Route("/board.json", everything),
        Route("/board/page", page),
        Route("/board/{suite}.csv", as_csv),
        Route("/board/{suite}.json", as_json),
    ]


def _answer(source: BoardSource, make: Callable[[Board], Response]) -> Response:
    try:
        return make(source.board())
    except HubmergeError as error:
        return PlainTextResponse(str(error), status_code=503)


def _of_suite(board: Board, request: Request, answer: Callable[[Asked], Response]) -> Response:
    """The answer for the suite in the path and the filters in the query; what is wrong in them is refused."""
    name = request.path_params["suite"]
    if board.suite(name) is None:
        return PlainTextResponse("no such suite", status_code=404)
    given = [part for part in request.url.query.split("&") if part and part.partition("=")[0] not in _OWN]
    found = asked(board, "&".join([*(p for p in given if not p.startswith("suite=")), f"suite={name}"]))
    if found.wrong:
        return PlainTextResponse("\n".join(found.wrong), status_code=400)
    return answer(found)

"""The board as files: `/board.json` and `/board/SUITE.csv`, beside the pages on the same port."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from hubmerge.board.export import board_json, suite_csv
from hubmerge.errors import HubmergeError
from workflows.app.service import BoardSource


def board_routes(source: BoardSource) -> list[BaseRoute]:
    """Routes for `build_web_app`; they run in threads, since a board may have to be fetched."""

    def as_json(request: Request) -> Response:
        try:
            return Response(board_json(source.board()), media_type="application/json")
        except HubmergeError as error:
            return PlainTextResponse(str(error), status_code=503)

    def as_csv(request: Request) -> Response:
        try:
            suite = source.board().suite(request.path_params["suite"])
        except HubmergeError as error:
            return PlainTextResponse(str(error), status_code=503)
        if suite is None:
            return PlainTextResponse("no such suite", status_code=404)
        # a suite's name holds letters, digits and . + - _ only
        headers = {"content-disposition": f'attachment; filename="{suite.suite}.csv"'}
        return Response(suite_csv(suite), media_type="text/csv; charset=utf-8", headers=headers)

    return [Route("/board.json", as_json), Route("/board/{suite}.csv", as_csv)]

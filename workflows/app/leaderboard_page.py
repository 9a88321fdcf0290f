"""The leaderboard, `/leaderboard?suite=NAME&q=…`: one page of the table at a time, a comparison and a chart.

The server searches, filters, sorts and cuts (board_query.py); the page fetches what its address asks for as HTML. A
link or a form of the board changes the address and the content, and keeps the place and the focus; the whole page is
loaded only where that fails. Beside the page are

/board/page?…         what it shows, as HTML
/board.json           everything
/board/SUITE.csv?…    the rows that the filters leave
/board/SUITE.json?…   as many of them as `limit` says, from `offset`
"""

import json
import threading
from collections.abc import Callable
from urllib.parse import parse_qs, parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from hubmerge.board.export import board_json, row_data, suite_csv
from hubmerge.board.source import DatasetBoard
from hubmerge.board.values import Board, Row, SuiteBoard
from hubmerge.errors import HubmergeError
from workflows.app.board_query import MAX_LINES, asked, matching
from workflows.app.board_view import board_view
from workflows.app.format import el, evaluate_href, join, link
from workflows.app.frame import LOADING, html
from workflows.app.panels import header, problems_panel

_OWN = ("offset", "limit")
_JSON = "application/json"
_MARK = {"x-hubmerge": "board"}  # by which the script tells the board from a page of whoever hosts this one

_JS = """
const root = element.querySelector('.hm-board') || element;
const status = 'The leaderboard could not be loaded. Load the page again in a moment.';
let asked = 0;
const show = async (search, keep) => {
  const mine = ++asked, held = keep ? document.activeElement : null;
  const opened = keep ? [...root.querySelectorAll('details[id][open]')].map((d) => d.id) : [];
  root.setAttribute('aria-busy', 'true');
  let html;
  try {
    const answer = await fetch('board/page' + search);
    if (!answer.headers.has('x-hubmerge')) throw new Error(answer.status);
    html = await answer.text();
  } catch { if (mine === asked) root.textContent = status; return; }
  finally { if (mine === asked) root.removeAttribute('aria-busy'); }
  if (mine !== asked) return;
  root.innerHTML = html;
  for (const id of opened) document.getElementById(id)?.setAttribute('open', '');
  if (held) (document.getElementById(held.id) ?? root.querySelector(`[name="${held.name}"]`))?.focus();
};
const go = (url) => { history.pushState(null, '', url); show(url.search, true); };
const is_board = (url) => url.origin === location.origin && url.pathname === location.pathname;
root.addEventListener('click', (event) => {
  const link = event.target.closest('a[href]');
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey || link.target) return;
  const url = new URL(link.href);
  if (is_board(url)) { event.preventDefault(); go(url); }
});
root.addEventListener('submit', (event) => {
  event.preventDefault();
  const url = new URL(event.target.action), values = new URLSearchParams();
  for (const [name, value] of new FormData(event.target)) if (value) values.append(name, value);
  const same = [...event.target.querySelectorAll('[name=cols]')].every((box) => box.checked === box.defaultChecked);
  if (same && !new URLSearchParams(location.search).has('cols')) values.delete('cols'); // the view's own
  url.search = values;
  go(url);
});
root.addEventListener('change', (event) => {
  if (event.target.matches('select')) event.target.form.requestSubmit();
});
addEventListener('popstate', () => show(location.search, false));
show(location.search, false);
"""


def leaderboard_page(*, measures: bool) -> None:
    """`measures`: models are measured here, so that somebody can ask for it."""
    ask = el("p", link(evaluate_href(), "Submit a model"), ", or see what is being measured.")
    about = "How much merges keep of their parents' skills, measured on held-out questions."
    html(join(header("Leaderboard", about), ask if measures else None))
    html(el("div", LOADING, cls="hm-board"), "leaderboard", card=True, js_on_load=_JS, padding=True)


def board_routes(source: DatasetBoard) -> list[BaseRoute]:
    """Routes for `build_web_app`; they run in threads, since a board may have to be fetched."""
    kept: list[tuple[Board, bytes]] = []
    making = threading.Lock()

    def everything(board: Board, _: Request) -> Response:
        """Made once a board: of twenty thousand rows it has 166 MB and takes ten seconds, for each who asks."""
        with making:
            if not kept or kept[0][0] is not board:
                kept[:] = [(board, board_json(board).encode())]
            return Response(kept[0][1], media_type=_JSON)

    def page(request: Request) -> Response:
        try:
            board = source.board()
        except HubmergeError as error:
            return HTMLResponse(str(problems_panel(error, "The leaderboard cannot be shown")), 503, _MARK)
        return HTMLResponse(str(board_view(board, asked(board, request.url.query), source.url)), headers=_MARK)

    def of_board(answer: Callable[[Board, Request], Response]) -> Callable[[Request], Response]:
        def answered(request: Request) -> Response:
            try:
                return answer(source.board(), request)
            except HubmergeError as error:
                return PlainTextResponse(str(error), status_code=503)

        return answered

    return [
        Route("/board.json", of_board(everything)),
        Route("/board/page", page),
        Route("/board/{suite}.csv", of_board(_of_suite)),
        Route("/board/{suite}.json", of_board(_of_suite)),
    ]


def _as_json(suite: SuiteBoard, rows: list[Row], request: Request) -> Response:
    numbers = {n: parse_qs(request.url.query).get(n, [d])[0] for n, d in (("offset", "0"), ("limit", "50"))}
    if not all(text.isdecimal() and len(text) < 10 for text in numbers.values()):
        return PlainTextResponse("offset and limit are whole numbers", status_code=400)
    start, count = int(numbers["offset"]), int(numbers["limit"])
    if count > MAX_LINES:
        return PlainTextResponse(f"limit is at most {MAX_LINES}; the CSV has all", status_code=400)
    page = [row_data(row) for row in rows[start : start + count]]
    data = {"suite": suite.suite, "version": suite.version, "total": len(rows), "offset": start, "rows": page}
    return Response(json.dumps(data, ensure_ascii=False, allow_nan=False), media_type=_JSON)


def _of_suite(board: Board, request: Request) -> Response:
    """The rows of the suite in the path that the query leaves; what is wrong in them is refused."""
    name = request.path_params["suite"]
    if (suite := board.suite(name)) is None:
        return PlainTextResponse("no such suite", status_code=404)
    given = [pair for pair in parse_qsl(request.url.query) if pair[0] not in (*_OWN, "suite")]
    found = asked(board, urlencode([*given, ("suite", name)]))
    if found.wrong:
        return PlainTextResponse("\n".join(found.wrong), status_code=400)
    rows = matching(suite, found.query)
    if request.url.path.endswith(".json"):
        return _as_json(suite, rows, request)
    # a suite's name holds letters, digits and . + - _ only
    headers = {"content-disposition": f'attachment; filename="{suite.suite}.csv"'}
    return Response(suite_csv(suite, rows), media_type="text/csv; charset=utf-8", headers=headers)

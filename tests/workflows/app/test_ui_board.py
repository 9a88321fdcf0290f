"""The leaderboard and a model's page: in a real browser, and their tables, chart and files without one."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from board_helpers import HOSTILE, PARENTS, family, parent, result, sha
from pages_fake import FakeService

from hubmerge.board.leaderboard import build_board
from hubmerge.board.values import COMBINED, Board, Flag, Refusal, SuiteBoard
from hubmerge.errors import HubUnavailableError
from hubmerge.settings import Settings
from workflows.app.app import RunningApp, launch_app
from workflows.app.board_chart import score_chart
from workflows.app.board_panels import (
    comparison,
    lineage_section,
    model_head,
    refused_panel,
    score_sections,
    statistics_section,
)
from workflows.app.board_table import MAX_ROWS, VIEWS, columns, table

ENDPOINT = "http://127.0.0.1:9"


@dataclass
class FakeBoard:
    """A BoardSource in the test's hands."""

    content: Board = field(default_factory=Board)
    failure: HubUnavailableError | None = None
    url: str = f"{ENDPOINT}/datasets/zoo/results"

    def board(self) -> Board:
        if self.failure is not None:
            raise self.failure
        return self.content


def full_board() -> Board:
    """The family, a merge of merges, a failure, flags, a stranger's text, and a refused row."""
    grandchild = result(
        "bob/grandchild",
        "1",
        {"math": 0.5, "instruction": 0.5, "code": 0.5},
        parents=(parent("org/base", "b", "base"), parent("org/merge", "e")),
        facts={"method": "linear", "density": 0.5, "recipe": "base: org/base\nmethod: linear\n"},
    )
    odd = result(
        "org/odd",
        "2",
        {"math": 0.1, "instruction": 0.1, "code": 0.1},
        parents=(parent(HOSTILE, "b", "base"), parent("org/math", "c")),
        facts={"author": HOSTILE, "license": HOSTILE, "method": HOSTILE, "recipe": HOSTILE, "density": 0.1},
    )
    failed = result("org/broken", "3", error={"code": "E_EVALUATION", "message": HOSTILE})
    flags = [Flag("contaminated", "org/leaky", None, HOSTILE)]
    leaky = result("org/leaky", "4", {"math": 1.0, "instruction": 1.0, "code": 1.0})
    bad = result(HOSTILE[:250], "5", {"math": 1.0})
    return build_board([*family(), grandchild, odd, failed, leaky, bad], flags)


def trio(board: Board) -> SuiteBoard:
    suite = board.suite("trio")
    assert suite is not None
    return suite


@pytest.fixture(scope="module")
def board_app() -> Iterator[tuple[FakeBoard, RunningApp]]:
    source = FakeBoard()
    with launch_app(FakeService(), Settings(endpoint=ENDPOINT), port=0, board=source) as running:
        yield source, running


@pytest.fixture
def source(board_app: tuple[FakeBoard, RunningApp]) -> FakeBoard:
    board_app[0].content, board_app[0].failure = full_board(), None
    return board_app[0]


@pytest.fixture
def url(board_app: tuple[FakeBoard, RunningApp], source: FakeBoard) -> str:
    return board_app[1].url


def cell(page: Any, row: int, column: int) -> Any:
    return page.locator(f"#board [data-testid=cell-{row}-{column}]")


def shown_models(page: Any) -> list[str]:
    return [c.inner_text().split()[0] for c in page.locator("#board [data-testid^=cell-][data-col='1']").all()]


def wait_for(page: Any, selector: str, text: str) -> Any:
    found = page.locator(selector).filter(has_text=text)
    found.first.wait_for()
    return found.first


# --- in a browser ----------------------------------------------------------------------------------------


@pytest.mark.browser
def test_the_table_ranks_links_and_searches(url: str, open_page: Any) -> None:
    page = open_page(f"{url}/leaderboard")
    cell(page, 0, 1).get_by_text("org/merge").wait_for()
    assert cell(page, 0, 0).inner_text().strip() == "1"
    assert cell(page, 0, 2).inner_text().strip().startswith("61.0 ±")
    page.locator("#board .search-input").fill("grandchild")
    page.wait_for_function("document.querySelectorAll(\"#board [data-testid^=cell-][data-col='1']\").length === 1")
    page.locator("#board [data-testid^=cell-][data-col='1'] a").click()
    page.wait_for_url("**/model?model=bob%2Fgrandchild")
    wait_for(page, "#model h1", "bob/grandchild")


@pytest.mark.browser
def test_rank_and_model_stay_in_view_when_the_table_is_scrolled(url: str, open_page: Any) -> None:
    page = open_page(f"{url}/leaderboard", width=700)
    cell(page, 0, 1).wait_for()
    before = cell(page, 0, 1).bounding_box()
    page.evaluate("document.querySelector('#board .virtual-table-viewport').scrollLeft = 300")
    page.wait_for_function("document.querySelector('#board .virtual-table-viewport').scrollLeft > 100")
    assert cell(page, 0, 1).bounding_box()["x"] == before["x"]
    assert cell(page, 0, 2).bounding_box()["x"] < before["x"] + before["width"]


@pytest.mark.browser
def test_views_filter_and_chart_follow_the_choice(url: str, open_page: Any) -> None:
    page = open_page(f"{url}/leaderboard")
    cell(page, 0, 1).wait_for()
    page.get_by_label("Skills kept").check()
    wait_for(page, "#board [role=columnheader]", "Synergy")
    assert cell(page, 0, 3).inner_text().strip() == "2 of 2 skills: 115 · 84 %"
    page.get_by_label("Merges only").check()
    page.wait_for_function("document.querySelectorAll(\"#board [data-testid^=cell-][data-col='1']\").length === 3")
    assert sorted(shown_models(page)) == ["bob/grandchild", "org/merge", "org/odd"]
    page.locator("#chart circle").first.wait_for()
    assert page.locator("#chart circle").count() == 3
    page.locator("#chart a").first.hover()
    assert "61.0 (" in page.locator("#chart a title").first.text_content()


@pytest.mark.browser
def test_two_to_five_models_are_compared(url: str, open_page: Any) -> None:
    page = open_page(f"{url}/leaderboard")
    wait_for(page, "#compared", "Choose 2 to 5 models")
    for wanted in ("org/merge", "org/math"):
        page.locator("#chosen input").fill(wanted)
        page.get_by_role("option").first.click()
    page.keyboard.press("Escape")
    row = wait_for(page, "#compared tbody tr", "math")
    assert [c.inner_text() for c in row.locator("td").all()] == ["66.0 (56.3 to 74.5)", "60.0 (50.2 to 69.1)"]
    assert row.locator("strong").inner_text() == "66.0 (56.3 to 74.5)"


@pytest.mark.browser
def test_a_model_s_page_shows_scores_parents_lineage_and_recipe(url: str, open_page: Any) -> None:
    page = open_page(f"{url}/model?model=bob/grandchild")
    line = wait_for(page, "#model-scores .hm-wide tbody tr", "instruction")
    assert "50.0 (40.4 to 59.6)" in line.inner_text()
    tree = page.locator("#model-facts .hm-tree").first
    assert tree.get_by_role("link", name="org/code").count() == 1
    hub = page.locator("#model").get_by_role("link", name="bob/grandchild")
    assert hub.get_attribute("href") == f"{ENDPOINT}/bob/grandchild/tree/{sha('1')}"
    page.locator("#recipe-card button").first.click()
    wait_for(page, "#recipe", "method: linear")
    tree.get_by_role("link", name="org/merge").click()
    wait_for(page, "#model h1", "org/merge")


@pytest.mark.browser
def test_text_of_strangers_stays_text_on_both_pages(url: str, source: FakeBoard, open_page: Any) -> None:
    board = open_page(f"{url}/leaderboard")
    for view in VIEWS:
        board.get_by_label(view, exact=True).check()
        wait_for(
            board, "#board [role=columnheader]", {"Skills kept": "Synergy", "Merges": "Author"}.get(view, "License")
        )
        board.wait_for_function('document.querySelectorAll("#board [data-testid^=cell-]").length > 20')
    assert board.locator("#board").get_by_text(HOSTILE[:30]).count() > 0
    board.locator("#left-out button").first.click()
    wait_for(board, "#refused", "<img src=x")
    page = open_page(f"{url}/model?model=org/odd")
    wait_for(page, "#model dd", HOSTILE[:40])
    page.locator("#recipe-card button").first.click()
    wait_for(page, "#recipe", "<img src=x")
    broken = open_page(f"{url}/model?model=org/broken")
    wait_for(broken, "#model-scores", HOSTILE[:40])
    leaky = open_page(f"{url}/model?model=org/leaky")
    wait_for(leaky, "#model", HOSTILE[:40])
    none = open_page(f"{url}/model?model={HOSTILE[:60]}")
    wait_for(none, "#model", "<img src=x")
    source.failure = HubUnavailableError(HOSTILE, where=HOSTILE)
    down = open_page(f"{url}/leaderboard")
    wait_for(down, "#board-summary", "<img src=x")
    for shown in (board, page, broken, leaky, none, down):
        assert shown.evaluate("window.hacked") is None
        assert shown.locator("img[src=x]").count() == 0
        assert shown.locator("a[href^=javascript]").count() == 0


@pytest.mark.browser
@pytest.mark.parametrize("path", ["/leaderboard", "/model?model=bob/grandchild", "/model?model=org/odd"])
def test_a_phone_shows_the_board_without_scrolling_the_page_sideways(url: str, open_page: Any, path: str) -> None:
    page = open_page(f"{url}{path}", width=360)
    page.locator("#board [data-testid=cell-0-1], #model-facts .hm-tree").first.wait_for()
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 360


@pytest.mark.browser
def test_the_board_asks_no_other_host_for_anything(url: str, open_page: Any) -> None:
    page = open_page("about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path, sign in (("/leaderboard", "#chart circle"), ("/model?model=org/merge", "#model-facts .hm-tree")):
        page.goto(url + path, wait_until="domcontentloaded")
        page.locator(sign).first.wait_for()
    assert {urlsplit(u).netloc for u in asked if u.startswith("http")} == {urlsplit(url).netloc}


@pytest.mark.browser
def test_an_empty_board_and_an_unknown_model_are_told(url: str, source: FakeBoard, open_page: Any) -> None:
    source.content = Board()
    wait_for(open_page(f"{url}/leaderboard"), "#board-summary", "No results yet")
    wait_for(open_page(f"{url}/model?model=org/none"), "#model", "Not scored yet")
    wait_for(open_page(f"{url}/model"), "#model", "No model is named")


# --- files -----------------------------------------------------------------------------------------------


def test_the_board_is_served_as_files(url: str) -> None:
    lines = list(csv.DictReader(io.StringIO(httpx.get(f"{url}/board/trio.csv").text)))
    assert lines[0]["model"] == "org/merge"
    assert next(x for x in lines if x["model"] == "org/odd")["author"] == HOSTILE
    answer = httpx.get(f"{url}/board.json")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["suites"][0]["suite"] == "trio"
    assert httpx.get(f"{url}/board/none.csv").status_code == 404


def test_a_board_that_cannot_be_had_is_no_broken_page(url: str, source: FakeBoard) -> None:
    source.failure = HubUnavailableError("the Hub cannot be reached")
    assert httpx.get(f"{url}/board.json").status_code == 503
    assert httpx.get(f"{url}/board/trio.csv").status_code == 503


# --- without a browser -----------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_foreign_text_stands_in_text_columns_only(view: str) -> None:
    suite = trio(full_board())
    value = table(suite, view)
    types = [c.datatype for c in columns(suite, view)]
    assert types.count("html") == 1
    for data, shown in zip(value["data"], value["metadata"]["display_value"], strict=True):
        assert "<img" not in data[1]
        assert all(isinstance(v, int | float | None) for v, t in zip(data, types, strict=True) if t == "number")
        assert all(isinstance(text, str) for text in shown)


def test_a_failed_run_shows_no_number() -> None:
    suite = trio(full_board())
    row = next(k for k, r in enumerate(suite.rows) if r.model == "org/broken")
    value = table(suite, "Scores")
    assert value["data"][row][0] is None
    assert value["data"][row][2] is None
    assert value["metadata"]["display_value"][row][2] == "–"
    assert "failed" in value["data"][row][1]


def test_a_long_board_is_cut_for_the_browser() -> None:
    suite = trio(build_board([result(f"org/m{k}", "a", {"math": 0.5}) for k in range(MAX_ROWS + 5)]))
    assert len(table(suite, "Scores")["data"]) == MAX_ROWS


def test_a_lineage_in_a_circle_or_of_many_generations_is_drawn_and_ends() -> None:
    ring = [
        result("x/a", "1", {"math": 0.5}, parents=(parent("x/b", "2", "base"), parent("x/c", "3"))),
        result("x/b", "2", {"math": 0.5}, parents=(parent("x/a", "1", "base"), parent("x/c", "3"))),
    ]
    board = build_board(ring)
    assert str(lineage_section(trio(board).rows[0], board)).count("<li>") == 4  # b with its a and c, and c
    wide = [
        result(
            f"x/m{k}",
            "a",
            {"math": 0.5},
            parents=[parent(f"x/m{k - 1}", "a", "base" if n == 0 else "agent") for n in range(10)] if k else (),
        )
        for k in range(12)
    ]
    board = build_board(wide)
    top = trio(board).find("x/m11")
    assert top is not None
    assert str(lineage_section(top, board)).count("<li>") <= 60


def test_a_chart_of_nothing_is_a_sentence() -> None:
    assert "<svg" not in score_chart(trio(build_board(family()[:3])))
    assert score_chart(trio(build_board(family())), "math").count("<circle") == 1
    assert "<circle" not in score_chart(trio(build_board(family())), "no such domain")


def test_the_joined_suites_share_one_section() -> None:
    results = [
        result(p["id"], p["sha"][0], {d: 0.3}, suite=d) for p in PARENTS for d in ("math", "code")
    ] + [result("org/merge", "e", {"math": 0.5}, suite="math", parents=PARENTS),
         result("org/merge", "e", None, suite="code", parents=PARENTS)]  # fmt: skip
    board = build_board(results)
    found = [(s, r) for s in board.suites for r in s.rows if r.model == "org/merge"]
    assert found[0][0].suite == COMBINED
    text = score_sections(found, ENDPOINT)
    assert text.count("Against its parents") == 1
    assert "code failed: E_EVALUATION" in text


def test_one_model_alone_is_not_compared() -> None:
    suite = trio(full_board())
    assert "Choose 2 to 5" in comparison(suite.rows[:1], suite)


def test_a_chart_and_a_list_of_refusals_show_as_many_as_a_page_holds() -> None:
    facts = {"method": "linear", "density": 0.5}
    merges = [result(f"org/m{k}", "a", {"math": 0.5}, facts=facts) for k in range(305)]
    assert score_chart(trio(build_board(merges))).count("<circle") == 300
    shown = str(refused_panel([Refusal(f"results/{k}.json", "none") for k in range(55)]))
    assert shown.count("results/") == 50
    assert "And 5 more." in shown


def test_a_long_text_of_a_stranger_is_cut_in_its_column() -> None:
    flags = [Flag("withdrawn", "org/m0", None, "y" * 500)]
    suite = trio(build_board([result("org/m0", "a", {"math": 0.5})], flags))
    [row] = table(suite, "Scores")["data"]
    assert max(len(text) for text in row if isinstance(text, str) and "yyy" in text and "<" not in text) == 120


@pytest.mark.parametrize("created", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "", "x" * 2000])
def test_no_value_that_a_result_file_may_hold_breaks_a_page(created: str) -> None:
    *parents, merge = family()
    facts = {
        "created": created,
        "parameters": 10**16,
        "size_bytes": 10**16,
        "density": 1.0,
        "effective_scales": (1e6, None),
        "method_parameters": {"x": [2**63 - 1, 1e308, None, {"y": "\u00fc" * 2000}]},
    }
    merge = merge.model_copy(update={"facts": merge.facts.model_copy(update=facts)})
    board = build_board([*parents, merge])
    suite = trio(board)
    row = next(r for r in suite.rows if r.model == merge.model)
    assert merge.model.partition("/")[2] in model_head(row, "https://hub.example")
    assert statistics_section(row) is not None
    assert lineage_section(row, board) is not None
    assert score_sections([(suite, row)], "https://hub.example")
    assert "<table" in comparison(suite.rows[:2], suite)
    assert "<svg" in score_chart(suite, "math")
    for view in VIEWS:
        assert len(table(suite, view)["data"]) == 4

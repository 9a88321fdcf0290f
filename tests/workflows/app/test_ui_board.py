"""The leaderboard and a model's page: in a real browser, and their tables, chart and files without one."""

import csv
import io
import re

import gradio as gr
import httpx
import pytest
from board_helpers import HOSTILE, PARENTS, family, parent, result, sha
from pages_fake import ENDPOINT, FakeBoard
from pages_session import Site, shown
from starlette.applications import Starlette
from starlette.testclient import TestClient

from hubmerge.board.export import board_json
from hubmerge.board.leaderboard import build_board
from hubmerge.board.values import COMBINED, Board, Flag, Refusal, SuiteBoard
from hubmerge.errors import HubUnavailableError
from workflows.app.board_chart import chart_table, score_chart
from workflows.app.board_query import MAX_LINES, ROWS_A_PAGE, BoardQuery, asked, matching
from workflows.app.board_table import VIEWS, columns, skills_text
from workflows.app.board_view import board_view, comparison, refused_panel
from workflows.app.leaderboard_page import board_routes, leaderboard_page
from workflows.app.model_panels import lineage_section, model_head, score_sections, statistics_section


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


@pytest.fixture
def url(pages: Site) -> str:
    pages.board.content = full_board()
    return pages.url


# --- in a browser ----------------------------------------------------------------------------------------


@pytest.mark.browser
def test_the_board_ranks_sorts_by_the_keyboard_has_views_searches_and_leads_to_a_model_s_page(url, open_page):
    page = open_page(url)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/board/page" in request.url else None)
    page.goto(f"{url}/leaderboard?view=scores&q=%22%3E%3Cb%3E", wait_until="commit")
    page.locator("#leaderboard form").first.wait_for()
    page.wait_for_timeout(500)
    assert asked == [f"{url}/board/page?view=scores&q=%22%3E%3Cb%3E"], "once, while the page still loads"
    page.get_by_role("link", name="Show all").click()
    shown(page, "#board tbody th", "org/merge")
    cells = page.locator("#board tbody tr").first.locator("td")
    assert cells.nth(1).inner_text() == "1"
    assert cells.last.inner_text().split("\n") == ["61.0", "55.5 to 66.1"]
    page.locator("#by-overall").focus()
    for way, mark in (("descending", "-overall"), ("ascending", "overall")):
        page.keyboard.press("Enter")
        page.locator(f"#board th[aria-sort={way}]").wait_for()
        assert page.evaluate("document.activeElement.id") == "by-overall", "the keyboard keeps its place"
        assert page.url.endswith(f"sort={mark}")
    page.go_back()
    page.locator("#board th[aria-sort=descending]").wait_for()
    page.locator("#view-skills").click()
    shown(page, "#board thead th", "Synergy")
    shown(page, "#board tbody td", "2 of 2 skills: 115% of the gain in math, 84% in code")
    page.get_by_label("Search").fill("grandchild")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelectorAll('#board tbody tr').length === 1")
    assert "q=grandchild" in page.url
    page.locator("#board tbody th a").click()
    page.wait_for_url("**/model?model=bob/grandchild")

    shown(page, "#model h1", "bob/grandchild")
    page.locator("#model-tab summary").filter(has_text="Each domain beside every parent").click()
    line = shown(page, "#model-tab .hm-wide tbody tr", "Instructions")
    assert "50.0 (40.4 to 59.6)" in line.inner_text()
    tree = page.locator("#model-tab .hm-tree").first
    assert tree.get_by_role("link", name="org/code").count() == 1
    hub = page.locator("#model").get_by_role("link", name="bob/grandchild")
    assert hub.get_attribute("href") == f"{ENDPOINT}/bob/grandchild/tree/{sha('1')}"
    page.get_by_role("link", name="Reproduce").click()
    shown(page, "#model-tab pre", "method: linear")
    assert page.locator(".hm-tab[aria-current]").inner_text() == "Reproduce"
    page.go_back()
    tree.get_by_role("link", name="org/merge").click()
    shown(page, "#model h1", "org/merge")


@pytest.mark.browser
def test_filters_chart_and_comparison_are_addresses_that_a_phone_shows_too(url, open_page):
    page = open_page(f"{url}/leaderboard?kind=merges&sort=model&cols=overall")
    page.locator("#board tbody th").first.wait_for()
    models = [head.inner_text().split()[0] for head in page.locator("#board tbody th").all()]
    assert models == ["bob/grandchild", "org/merge", "org/odd"]
    assert page.locator("#board thead th").count() == 4
    assert page.locator("#chart circle").count() == 3
    assert "61.0 (" in page.locator("#chart a title").first.text_content()
    page.goto(f"{url}/leaderboard", wait_until="domcontentloaded")
    for wanted in ("org/merge", "org/math"):
        page.get_by_label(f"Compare {wanted}", exact=True).check()
    page.get_by_role("button", name="Compare the marked models").click()
    row = shown(page, "#compared tbody tr", "math")
    assert (page.url.count("compare="), page.url.count("cols=")) == (2, 0)  # the view's own columns are not named
    assert page.locator("#compared tr", has_text="Flags").count() == 0  # where nobody has one
    assert sorted(c.inner_text() for c in row.locator("td").all()) == ["60.0 (50.2 to 69.1)", "66.0 (56.3 to 74.5)"]
    assert row.locator("strong").inner_text() == "66.0 (56.3 to 74.5)"
    page.set_viewport_size({"width": 390, "height": 844})
    cell = page.locator("#board tbody tr").first.locator("td[data-label=Overall]")
    box = cell.bounding_box()
    assert 0 <= box["x"] <= box["x"] + box["width"] <= 390
    assert "61.0" in cell.inner_text()
    heights = page.evaluate(
        """[...document.querySelectorAll(".hm-chart text")].map((e) => {
          const scale = e.ownerSVGElement.getBoundingClientRect().width / e.ownerSVGElement.viewBox.baseVal.width;
          return parseFloat(getComputedStyle(e).fontSize) * scale;
        })"""
    )
    assert min(heights) >= 12, "the chart's labels can be read"
    page.get_by_label("Sort by").focus()
    page.get_by_label("Sort by").select_option("Model, Z to A")
    page.wait_for_function("location.search.includes('sort=-model')")
    page.locator("#board th[aria-sort=descending]").wait_for(state="attached")
    assert page.evaluate("document.activeElement.name") == "sort", "where the keyboard goes on choosing"
    page.get_by_role("button", name="Show", exact=True).focus()
    page.keyboard.press("Enter")
    page.locator("#leaderboard [aria-busy]").wait_for(state="detached")
    assert page.evaluate("document.activeElement.id") == "show"
    page.locator("#columns summary").click()
    page.locator("#columns input").last.focus()
    page.keyboard.press("Enter")
    page.locator("#leaderboard [aria-busy]").wait_for(state="detached")
    assert page.evaluate("document.activeElement === [...document.querySelectorAll('#columns input')].at(-1)")
    asleep = {"status": 503, "content_type": "text/html", "body": "<html><h1>Asleep</h1></html>"}
    page.route("**/board/page*", lambda route: route.fulfill(**asleep))
    page.keyboard.press("Enter")
    assert shown(page, "#leaderboard", "The leaderboard could not be loaded").locator("h1").count() == 0


# --- files -----------------------------------------------------------------------------------------------


def test_the_board_is_served_as_files_which_follow_the_filters_and_state_their_maximum(url):
    def rows(query: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(httpx.get(f"{url}/board/trio.csv{query}").text)))

    assert rows("")[0]["model"] == "org/merge"
    assert next(x for x in rows("") if x["model"] == "org/odd")["author"] == HOSTILE
    assert [x["model"] for x in rows("?kind=merges&sort=model")] == ["bob/grandchild", "org/merge", "org/odd"]
    answer = httpx.get(f"{url}/board.json")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["suites"][0]["suite"] == "trio"
    page = httpx.get(f"{url}/board/trio.json?kind=merges&offset=1&limit=1").json()
    assert (page["total"], len(page["rows"])) == (3, 1)
    assert str(MAX_LINES) in httpx.get(f"{url}/board/trio.json?limit={MAX_LINES + 1}").text
    for wrong in (f"limit={MAX_LINES + 1}", "limit=-1", "offset=x", "colour=red"):
        assert httpx.get(f"{url}/board/trio.json?{wrong}").status_code == 400
    assert {httpx.get(f"{url}/board/none.{kind}").status_code for kind in ("csv", "json")} == {404}


def test_a_board_that_cannot_be_had_is_no_broken_page(url, pages):
    pages.board.content = Board()
    assert "No results yet" in httpx.get(f"{url}/board/page").text
    pages.board.failure = HubUnavailableError(HOSTILE, where=HOSTILE)
    for path in ("board.json", "board/trio.csv", "board/page"):
        answer = httpx.get(f"{url}/{path}")
        assert answer.status_code == 503
    assert answer.headers["x-hubmerge"] == "board"  # else its script would not show it
    assert ("&lt;img src=x" in answer.text, "<img" in answer.text) == (True, False)


def test_the_whole_board_is_written_once_and_anew_when_it_has_changed(monkeypatch):
    made, source = list[Board](), FakeBoard(full_board())
    name = "workflows.app.leaderboard_page.board_json"
    monkeypatch.setattr(name, lambda board: made.append(board) or board_json(board))
    client = TestClient(Starlette(routes=board_routes(source)))
    first, again = (client.get("/board.json").content for _ in range(2))
    source.content = Board()
    assert first == again != client.get("/board.json").content
    assert len(made) == 2


# --- without a browser -----------------------------------------------------------------------------------


def long_board() -> Board:
    return build_board([result(f"org/m{k:03d}", "a", {"math": k / 1000}) for k in range(3 * ROWS_A_PAGE + 5)])


def view_of(board: Board, query: str) -> str:
    return str(board_view(board, asked(board, query), ""))


@pytest.mark.parametrize("measures", [True, False])
def test_the_page_leads_to_an_evaluation_where_models_are_measured(measures):
    with gr.Blocks() as demo:
        leaderboard_page(measures=measures)
    told = "".join(str(getattr(block, "value", "")) for block in demo.blocks.values())
    assert ("Submit a model" in told) is measures


def test_values_that_look_equal_are_equally_good_in_a_comparison():
    scores = {"org/a": 0.50001, "org/b": 0.50002, "org/c": 0.4}
    [suite] = build_board([result(name, "a", {"math": score}) for name, score in scores.items()]).suites
    assert comparison(suite.rows, suite).count("<strong>50.0 (") == 2


@pytest.mark.parametrize("view", VIEWS)
def test_foreign_text_stays_text_in_every_column(view):
    board = full_board()
    every = "&".join(f"cols={key}" for key in columns(trio(board)))
    for query in (f"view={view}", every, f"q={HOSTILE[:60]}", "cols=%3Cimg&sort=%3Cimg&base=%3Cimg"):
        assert "<img" not in view_of(board, query)


def test_a_failed_run_shows_no_number_and_a_long_text_of_a_stranger_is_cut():
    suite = trio(full_board())
    row = next(r for r in suite.rows if r.model == "org/broken")
    assert [columns(suite)[key].text(row) for key in ("rank", "overall", "kept")] == ["–"] * 3
    assert "failed" in columns(suite)["model"].text(row)
    flags = [Flag("withdrawn", "org/m0", None, "y" * 500)]
    suite = trio(build_board([result("org/m0", "a", {"math": 0.5})], flags))
    text = columns(suite)["flags"].text(suite.rows[0])
    assert (len(text), text[-1]) == (120, "…")


def test_a_page_has_few_rows_and_every_rank_of_the_whole_board_can_be_reached():
    board = long_board()
    total = len(board.suites[0].rows)
    seen = []
    for page in (1, 2, 3, 4):
        text = view_of(board, f"page={page}")
        assert text.count("<tr>") <= ROWS_A_PAGE + 60
        seen += [model for k in range(total) if f">{(model := f'org/m{k:03d}')}</a>" in text.partition("hm-pager")[0]]
    assert sorted(seen) == [f"org/m{k:03d}" for k in range(total)]
    [found] = matching(board.suites[0], BoardQuery(q="m007"))
    assert found.rank == next(r.rank for r in board.suites[0].rows if r.model == "org/m007")
    assert len(view_of(board, "")) < 400_000


def test_an_order_puts_what_has_no_value_last_either_way_up():
    suite = trio(full_board())
    for sort in ("overall", "-overall"):
        values = [row.overall for row in matching(suite, BoardQuery(sort=sort))]
        known = [v.value for v in values if v is not None]
        assert known == sorted(known, reverse=sort.startswith("-"))
        assert values[len(known) :] == [None] * (len(values) - len(known))
        assert None in values


def test_the_filters_leave_what_they_say():
    suite = trio(full_board())

    def left(**filters: str) -> set[str]:
        return {row.model for row in matching(suite, BoardQuery(**filters))}

    assert left(kind="merges") == {"bob/grandchild", "org/merge", "org/odd"}
    assert left(method="linear") == {"bob/grandchild"}
    assert "org/merge" in left(base="org/base")
    assert "org/merge" in left(skills="2")
    assert left(skills="3") == set()
    assert left(kind="others").isdisjoint(left(kind="merges"))


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("suite=none", "no suite “none”"),
        ("sort=colour", "no column “colour” to sort by"),
        ("cols=colour", "no column “colour”"),
        ("page=two", "“two” is no page"),
        ("page=99", "There is no page 99; the last is 1"),
        ("view=cards", "no view “cards”"),
        ("method=magic", "no method “magic”"),
        ("skills=many", "no number of skills"),
        ("compare=org/none@1234567", "is not on this board"),
        ("wrong=1", "nothing that an address of the leaderboard can say"),
        ("&".join(f"a{k}=1" for k in range(101)), "more than 100 values"),
        (f"q={'x' * 101}", "cut to 100 characters"),
    ],
)
def test_what_is_wrong_in_an_address_is_said_and_the_rest_is_shown(query, told):
    text = view_of(full_board(), query)
    assert told in text
    assert "<table" in text


def test_an_address_gives_the_state_that_it_was_made_from():
    board = full_board()
    state = BoardQuery(
        view="skills", q="org", kind="merges", method="ram_plus", sort="-overall", cols=("rank", "model", "license"),
        compare=("org/odd@2222222",), chart="math",
    )  # fmt: skip
    answer = asked(board, state.query())
    assert (answer.query, answer.wrong) == (state, [])
    six = [f"compare={r.model}@{r.sha[:7]}" for r in trio(board).rows if r.status == "done" and "/" in r.model][:6]
    answer = asked(board, "&".join(six))
    assert len(answer.query.compare) == 5
    assert "At most 5" in answer.wrong[0]


def test_a_name_without_a_commit_is_compared_by_the_model_s_newest_row():
    newer = result("org/code", "9", {"math": 0.3, "instruction": 0.4, "code": 0.7}, created="2026-02-02T00:00:00+00:00")
    board = build_board([*family(), newer])
    assert {r.sha[:7] for r in trio(board).rows if r.model == "org/code"} == {"ddddddd", "9999999"}
    answer = asked(board, "compare=org/code&compare=org/code@9999999&compare=org/base&compare=org/none")
    assert answer.query.compare == ("org/code@9999999", "org/base@bbbbbbb")
    assert answer.wrong == ["“org/none” is not on this board, so it is not compared."]


def test_the_merges_tab_shows_merges_and_the_other_tabs_every_model():
    board = full_board()

    def behind(tab: str, query: str) -> BoardQuery:
        found = re.search(rf'href="leaderboard\??([^"]*)" id="view-{tab}"', view_of(board, query))
        assert found is not None
        return asked(board, found[1].replace("&amp;", "&")).query

    merges = behind("merges", "")
    assert {row.model for row in matching(trio(board), merges)} == {"bob/grandchild", "org/merge", "org/odd"}
    assert behind("scores", merges.query()) == BoardQuery()
    assert behind("skills", "kind=others").kind == "others"  # what a reader chose stays


def test_a_suite_s_files_are_found_whatever_its_name(url, pages):
    pages.board.content = build_board([result("org/m", "a", {"math": 0.5}, suite="c++")])
    assert "board/c%2B%2B.csv" in view_of(pages.board.content, "")
    assert "org/m" in httpx.get(f"{url}/board/c%2B%2B.csv?sort=model").text


def test_a_lineage_in_a_circle_or_of_many_generations_is_drawn_and_ends():
    ring = [
        result("x/a", "1", {"math": 0.5}, parents=(parent("x/b", "2", "base"), parent("x/c", "3"))),
        result("x/b", "2", {"math": 0.5}, parents=(parent("x/a", "1", "base"), parent("x/c", "3"))),
    ]
    board = build_board(ring)
    drawn = str(lineage_section(trio(board).rows[0], board))
    assert drawn.count("<li>") == 5  # a, b with its a and c, and c
    assert "not stated" not in drawn.partition("x/c")[2]  # whose license the board does not know
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
    assert str(lineage_section(top, board)).count("<li>") <= 61


def test_methods_and_suites_are_named_in_words_and_the_version_stands_in_the_definitions():
    board = build_board(family())
    for told in (score_chart(trio(board)), chart_table(trio(board))):
        assert ("RAM+" in told, "ram_plus" in told) == (True, False)
    page = view_of(board, "view=merges")
    assert '<option value="ram_plus">RAM+</option>' in page
    assert page.count("ram_plus") == 1
    measured = [
        result("org/m", "a", {"math": 0.5}, suite=suite, suite_version="12eb9478") for suite in ("code", "mine")
    ]
    above, _, definitions = view_of(build_board(measured), "suite=code").partition("How to read this")
    assert "Models and their scores: Code</caption>" in above
    assert (">Code</option>" in above, ">mine</option>" in above, "12eb9478" in above) == (True, True, False)
    assert "code, version 12eb9478, test split." in definitions


def test_a_chart_of_nothing_is_a_sentence_and_one_of_many_merges_leaves_out_their_intervals():
    assert "<svg" not in score_chart(trio(build_board(family()[:3])))
    assert score_chart(trio(build_board(family())), "math").count("<circle") == 1
    assert "<circle" not in score_chart(trio(build_board(family())), "no such domain")

    def chart_of(count: int) -> str:
        domains = {"math": 0.5, "instruction": 0.5, "code": 0.5}
        merges = (result(f"org/m{k}", "a", domains, facts={"density": 0.1 + k / 1000}) for k in range(count))
        return str(score_chart(trio(build_board(merges))))

    few, many = chart_of(50), chart_of(305)
    assert (few.count("hm-whisker"), "The best" in few) == (50, False)
    assert ("hm-whisker" in many, many.count("<circle"), "The best 300 merges." in many) == (False, 300, True)


def test_a_merge_whose_parents_wait_says_how_many_are_scored():
    [row] = trio(build_board(family()[-1:])).rows
    assert skills_text(row) == "0 of 3 parents scored"


def test_the_joined_suites_share_one_section():
    results = [
        result(p["id"], p["sha"][0], {d: 0.3}, suite=d) for p in PARENTS for d in ("math", "code")
    ] + [result("org/merge", "e", {"math": 0.5}, suite="math", parents=PARENTS),
         result("org/merge", "e", None, suite="code", parents=PARENTS)]  # fmt: skip
    board = build_board(results)
    found = [(s, r) for s in board.suites for r in s.rows if r.model == "org/merge"]
    assert found[0][0].suite == COMBINED
    text = score_sections(found, ENDPOINT)
    assert text.count("Each domain beside every parent") == 1
    assert "code failed: E_EVALUATION" in text


def test_a_list_of_refusals_shows_as_many_as_a_page_holds():
    told = str(refused_panel([Refusal(f"results/{k}.json", "none") for k in range(55)]))
    assert (told.count("results/"), "And 5 more." in told) == (50, True)


@pytest.mark.parametrize("created", ["0001-01-01T00:00:00+23:59", "x" * 2000])
def test_no_value_that_a_result_file_may_hold_breaks_a_page(created):
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
        assert view_of(board, f"view={view}").partition("hm-compare")[0].count('type="checkbox" name="compare"') == 4

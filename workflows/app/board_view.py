"""The leaderboard as HTML: the form of filters, one page of the table, the comparison, the chart, the definitions.

Every control is a link or a field of a GET form, so each state is an address and works with the keyboard alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from markupsafe import Markup

from hubmerge.board.export import flag_text
from hubmerge.board.values import COMBINED, Board, Refusal, Row, SuiteBoard
from hubmerge.evaluation.suites import SUITES
from workflows.app.board_chart import chart_table, score_chart
from workflows.app.board_query import COMPARED, KINDS, ROWS_A_PAGE, SIZES, Asked, BoardQuery, label_of, matching
from workflows.app.board_table import (
    ALWAYS,
    NOTHING,
    VIEWS,
    Column,
    default_columns,
    domain_title,
    interval_text,
    share_text,
    skills_text,
)
from workflows.app.format import el, join, link, model_link
from workflows.app.panels import fold, left_out_panel, method_title, notice, table

OVERALL = "Overall"
MOST_CHOICES = 100  # of a filter
MAX_REFUSED = 50  # shown; the JSON has all
_FORM = "board-form"
_ORDER = {"scores": "", "skills": "best", "merges": ""}  # that a view begins with
_KIND = {"merges": "merges"}  # of models, likewise: other models have no method, agents or changed weights
_GUIDE = (
    ("Score", "percent of the prompts answered right, with its 95% interval (Wilson's) beside or below it."),
    (
        "Rank",
        "1 + the number of models whose interval lies wholly above. Every model with none above it is first. Two that "
        "overlap may differ in rank, since a third may lie wholly above only one of them.",
    ),
    (
        "Skills kept",
        "a skill is a task at which a parent is above the base beyond chance. The percent say how much of the best "
        "parent's gain over the base the merge has, with the 95% interval. A skill counts as kept from one half, "
        "where the merge, too, is above the base beyond chance. Told once every parent is scored. First by skills come "
        "those that keep skills of several parents, by the number of skills kept, then by the mean.",
    ),
    ("Synergy", "domains in which the merge is above every parent; within chance where a difference's interval has 0."),
    ("Failed, flagged", "listed without a rank. A flag passes on to everything that was merged from the model."),
)


def board_view(board: Board, asked: Asked, url: str) -> Markup:
    """Everything below the page's heading. `url`: the page of the results dataset, or nothing."""
    suite, query = asked.suite, asked.query
    if suite is None:
        return notice("info", "No results yet", el("p", "A model that was evaluated appears here."))
    rows = matching(suite, query)
    pages = max(1, -(-len(rows) // ROWS_A_PAGE))
    page = min(query.page, pages)
    wrong = list(asked.wrong)
    if query.page > pages:
        wrong.append(f"There is no page {query.page:,}; the last is {pages:,}.")
    shown = rows[(page - 1) * ROWS_A_PAGE : page * ROWS_A_PAGE]
    data = ("Data", f"{suite.suite}, version {suite.version}, {suite.split} split.")
    terms = (join(el("dt", term), el("dd", text)) for term, text in (*_GUIDE, data))
    return join(
        left_out_panel(wrong),
        _views(query),
        _form(board, suite, query, asked.every),
        _summary(suite, rows, page, query),
        _table(suite, query, shown, asked.every),
        _pager(query, page, pages),
        _compared(suite, query),
        _chart(suite, query),
        fold("How to read this", el("dl", *terms, cls="hm-guide")),
        fold(f"Left out: {len(board.refused)}", refused_panel(board.refused), id="refused") if board.refused else None,
        _exports(suite, query, url),
    )


def _views(query: BoardQuery) -> Markup:
    def begun(view: str) -> str:
        kind = "" if query.kind == _KIND.get(query.view) else query.kind  # the view's own ends with it
        return query.href(view=view, cols=(), sort=_ORDER[view], kind=_KIND.get(view, kind))

    links = (_choice(title, begun(view), f"view-{view}", view == query.view) for view, title in VIEWS.items())
    return el("nav", *links, cls="hm-views", aria_label="Views")


def _choice(title: str, href: str, name: str, on: bool) -> Markup:
    return el("a", title, href=href, id=name, aria_current="true" if on else "")


def _form(board: Board, suite: SuiteBoard, query: BoardQuery, every: Mapping[str, Column]) -> Markup:
    facts = [row.facts for row in suite.rows]
    most = max((len(r.skills.skills) for r in suite.rows if r.skills), default=0)
    bases = (p.id for f in facts for p in f.parents if p.role == "base")
    methods = _often((f.method for f in facts if f.method), query.method)
    filters = (
        _select("Kind", "kind", query.kind, KINDS),
        _select("Base", "base", query.base, _often(bases, query.base)),
        _select("Method", "method", query.method, {m: method_title(m) for m in methods}),
        _select("Size", "size", query.size, {key: title for key, (title, _, _) in SIZES.items()}),
        _select("License", "license", query.license, _often((f.license for f in facts if f.license), query.license)),
        _select("Skills kept", "skills", query.skills, {str(n): f"{n} or more" for n in range(1, most + 1)}),
    )
    shown = query.cols or default_columns(every, query.view)
    others = [column for column in every.values() if column.key not in ALWAYS]
    picks = (el("label", _check("cols", c.key, c.key in shown), c.title) for c in others)
    hidden = [("view", query.view)] if query.view != "scores" else []
    hidden += [("chart", query.chart)] if query.chart else []
    suites = {s.suite: suite_title(s) for s in board.suites}
    return el(
        "form",
        *(el("input", type="hidden", name=name, value=value) for name, value in hidden),
        el(
            "div",
            el("label", "Search", el("input", type="search", name="q", value=query.q, placeholder="Part of a name")),
            _select("Suite", "suite", suite.suite, suites, any_text="") if len(suites) > 1 else None,
            _select("Sort by", "sort", query.sort, _orders(every, shown), any_text="Rank"),
            el("button", "Show", type="submit", id="show"),
            cls="hm-fields",
        ),
        fold("Filters", el("div", *filters, cls="hm-fields"), id="filters", open="open" if query.filters else ""),
        fold("Columns", el("div", *picks, cls="hm-checks"), id="columns"),
        id=_FORM,
        method="get",
        action="leaderboard",
        role="search",
    )


def _orders(every: Mapping[str, Column], shown: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for column in (every[key] for key in shown):
        if column.key == "rank":  # which the first choice of all means, too
            found["-rank"] = "Rank, last first"
            continue
        up, down = ("lowest first", "highest first") if column.is_number else ("A to Z", "Z to A")
        first, second = (f"-{column.key}", column.key) if column.is_number else (column.key, f"-{column.key}")
        found |= {key: f"{column.title}, {down if key.startswith('-') else up}" for key in (first, second)}
    return found


def _often(values: Iterable[str], chosen: str) -> Mapping[str, str]:
    """The commonest values, by name."""
    names = {value for value, _ in Counter(values).most_common(MOST_CHOICES)}
    return {name: name for name in sorted(names | ({chosen} if chosen else set()))}


def _select(label: str, name: str, value: str, choices: Mapping[str, str], any_text: str = "Any") -> Markup | None:
    if not choices:
        return None
    options = [Markup('<option value="">') + any_text + Markup("</option>")] if any_text else []
    for key, text in choices.items():
        options.append(el("option", text[:80], value=key, selected="selected" if key == value else ""))
    return el("label", label, el("select", *options, name=name))


def _check(name: str, value: str, on: bool, **more: str) -> Markup:
    own = f"{name}-{value}"
    return el("input", type="checkbox", name=name, value=value, id=own, **more, checked="checked" if on else "")


def _summary(suite: SuiteBoard, rows: Sequence[Row], page: int, query: BoardQuery) -> Markup:
    ranked = sum(r.rank is not None for r in suite.rows)
    merges = sum(r.facts.is_merge for r in suite.rows)
    models = f"{len(suite.rows):,} model{'s' * (len(suite.rows) != 1)}"
    counts = f"{models}, {merges:,} of them merges; {ranked:,} {'is' if ranked == 1 else 'are'} ranked."
    first = (page - 1) * ROWS_A_PAGE + 1
    last = min(page * ROWS_A_PAGE, len(rows))
    seen = f" Shown are {first:,} to {last:,} of {len(rows):,}." if rows else " No model fits what you ask for."
    clear = link(query.href(q="", **dict.fromkeys(query.filters, "")), "Show all") if query.filters or query.q else None
    return el("p", counts, seen, " " if clear else None, clear, cls="hm-dim", id="board-summary", role="status")


def _table(suite: SuiteBoard, query: BoardQuery, rows: Sequence[Row], every: Mapping[str, Column]) -> Markup:
    shown = [every[key] for key in query.cols or default_columns(every, query.view)]
    heads = [el("th", el("span", "Compare", cls="hm-unseen"), scope="col"), *(_head(c, query) for c in shown)]
    lines = []
    for row in rows:
        label = label_of(row)
        box = _check("compare", label, label in query.compare, form=_FORM, aria_label=f"Compare {row.model}")
        cells = [el("td", box, cls="hm-box", data_label="Compare")]
        for c in shown:
            if c.key == "model":
                cells.append(el("th", c.text(row), scope="row"))
            else:
                number = "hm-number" if c.is_number and c.key != "kept" else ""
                cells.append(el("td", c.text(row), data_label=c.title, cls=number))
        lines.append(el("tr", *cells))
    caption = el("caption", f"Models and their scores: {suite_title(suite)}", cls="hm-unseen")
    content = el("table", caption, el("thead", el("tr", *heads)), el("tbody", *lines))
    others = [label for label in query.compare if label not in {label_of(r) for r in rows}]
    kept = (el("input", type="hidden", name="compare", value=label, form=_FORM) for label in others)
    compare = el("button", "Compare the marked models", type="submit", form=_FORM, id="compare")
    area = el("div", content, cls="hm-table", tabindex="0", role="region", aria_label="Leaderboard")
    return el("div", area, *kept, compare if rows else None, id="board")


def _head(column: Column, query: BoardQuery) -> Markup:
    """A heading that sorts: by the way that is wanted first, and by the other one where it sorts already."""
    now = query.sort or "rank"
    down = f"-{column.key}"
    way = {column.key: "ascending", down: "descending"}.get(now, "none")
    following = column.key if now == down or (now != column.key and not column.falls_first) else down
    arrow = {"ascending": " ↑", "descending": " ↓"}.get(way, "")
    mark = el("span", arrow, aria_hidden="true")
    sorts = el("a", column.title, mark, href=query.href(sort=following), id=f"by-{column.key}")
    return el("th", sorts, scope="col", aria_sort=way)


def _pager(query: BoardQuery, page: int, pages: int) -> Markup | None:
    if pages == 1:
        return None
    ways = (("First", 1), ("Previous", page - 1), ("Next", page + 1), ("Last", pages))
    links = [
        el("a", name, href=query.href(page=to), id=f"page-{name.lower()}")
        if 0 < to <= pages and to != page
        else el("span", name, cls="hm-dim")
        for name, to in ways
    ]
    number = el("input", type="number", name="page", value=str(page), min="1", max=str(pages), inputmode="numeric")
    state = (el("input", type="hidden", name=n, value=v) for n, v in query.pairs() if n != "page")
    fields = (*state, el("label", "Page", number, f"of {pages:,}"), el("button", "Go", type="submit", id="go"))
    goes = el("form", *fields, method="get", action="leaderboard")
    return el("nav", *links[:2], goes, *links[2:], cls="hm-pager", aria_label="Pages of the board")


def _compared(suite: SuiteBoard, query: BoardQuery) -> Markup:
    by_label = {label_of(r): r for r in suite.rows} if query.compare else {}
    rows = [by_label[label] for label in query.compare]
    clear = el("p", link(query.href(compare=(), page=query.page), "Compare none")) if rows else None
    title = f"Compare {COMPARED[0]} to {COMPARED[1]} models"
    return fold(title, el("div", comparison(rows, suite), clear, id="compared"), open="open" if rows else "")


def _chart(suite: SuiteBoard, query: BoardQuery) -> Markup:
    several = [d for d in suite.domains if len(suite.domains) > 1]
    choices = (
        _choice(name, query.href(chart=value, page=query.page), f"chart-{value}", value == query.chart)
        for name, value in ((OVERALL, ""), *((domain_title(d), d) for d in several))
    )
    pick = el("nav", *choices, cls="hm-views", aria_label="Score in the chart") if several else None
    domain = query.chart or None
    content = el("div", pick, score_chart(suite, domain), chart_table(suite, domain), id="chart")
    return fold("Score against the share of weights that changed", content, id="chart-part", open="open")


def _exports(suite: SuiteBoard, query: BoardQuery, url: str) -> Markup:
    name = quote(suite.suite, safe="")
    asked = query.query(compare=(), cols=(), chart="", view="scores", suite="")
    tail = f"?{asked}" if asked else ""
    links = [
        link(f"board/{name}.csv{tail}", "These models as CSV"),
        link(f"board/{name}.json{tail}", "as JSON"),
        link(f"board/{name}.csv", "all as CSV"),
        link("board.json", "everything as JSON"),
        *([link(url, "the results dataset")] if url else ()),
    ]
    return el("p", "Take it with you: ", Markup(" · ").join(links), ".", cls="hm-dim")


def suite_title(suite: SuiteBoard) -> str:
    """What a suite asks, in words; its name where this version of hubmerge does not know it."""
    known = SUITES.get(suite.suite)
    return "All domains" if suite.suite == COMBINED else known.title if known else suite.suite


def refused_panel(refused: Sequence[Refusal]) -> Markup:
    rows = [(r.where[:200], r.reason[:300]) for r in refused[:MAX_REFUSED]]
    more = len(refused) - len(rows)
    return join(table(("File", "Reason"), rows), el("p", f"And {more} more.", cls="hm-dim") if more else None)


def comparison(rows: Sequence[Row], suite: SuiteBoard) -> Markup:
    """Two to five models side by side, best value of a line in bold."""
    if len(rows) < COMPARED[0]:
        return el("p", f"Choose {COMPARED[0]} to {COMPARED[1]} models.", cls="hm-dim hm-empty")
    lines: list[Sequence[object]] = [("Rank", *(NOTHING if r.rank is None else str(r.rank) for r in rows))]
    values = [None if r.overall is None else r.overall.value for r in rows]
    lines.append(("Overall", *_best(values, [interval_text(r.overall) for r in rows])))
    for name in suite.domains if len(suite.domains) > 1 else ():
        found = [r.domain(name) for r in rows]
        values = [None if d is None else d.score.value for d in found]
        lines.append((domain_title(name), *_best(values, [interval_text(d.score if d else None) for d in found])))
    lines.append(("Skills kept", *(skills_text(r) for r in rows)))
    lines.append(("Synergy", *(", ".join(r.synergy) or NOTHING for r in rows)))
    change = [interval_text(r.instruction_change, sign=True) for r in rows]
    lines.append(("Instruction following against the base", *change))
    lines.append(("Method", *(method_title(r.facts.method or NOTHING)[:80] for r in rows)))
    lines.append(("Weights changed", *(share_text(r.facts.density) for r in rows)))
    lines.append(("Flags", *("; ".join(map(flag_text, r.flags)) or NOTHING for r in rows)))
    heads = [model_link(r.model, r.sha) for r in rows]
    lines = [line for line in lines if any(value != NOTHING for value in line[1:])]
    return el("div", table(("", *heads), lines, wide=True), cls="hm-compare")


def _best(values: Sequence[float | None], texts: Sequence[str]) -> list[object]:
    shown = [None if v is None else round(100 * v, 1) for v in values]  # in percent, as the texts have them
    best = max((s for s in shown if s is not None), default=None)
    return [el("strong", t) if s is not None and s == best else t for s, t in zip(shown, texts, strict=True)]

"""What an address of the leaderboard asks for: suite, view, filters, order, page, columns and compared models.

Every state of the page is such an address. A value that cannot be is left out, and said.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from hubmerge.board.values import Board, Row, SuiteBoard
from workflows.app.board_table import ALWAYS, VIEWS, Column, columns, default_columns

ROWS_A_PAGE = 50
COMPARED = (2, 5)
MAX_LINES = 500  # rows in one answer of JSON
MAX_SEARCH_CHARACTERS = 100
MAX_VALUES = 100  # of an address
_LONGEST = 200  # characters of any other value
SIZES: Mapping[str, tuple[str, float, float]] = {
    "1": ("up to 1 billion", 0, 1e9),
    "4": ("1 to 4 billion", 1e9, 4e9),
    "10": ("4 to 10 billion", 4e9, 10e9),
    "more": ("more than 10 billion", 10e9, float("inf")),
}
KINDS = {"merges": "Merges", "others": "Other models"}
_FILTERS = ("kind", "base", "method", "size", "license", "skills")


@dataclass(frozen=True)
class BoardQuery:
    """One state of the page. An empty value is the default."""

    suite: str = ""
    view: str = "scores"
    q: str = ""
    kind: str = ""
    base: str = ""
    method: str = ""
    size: str = ""
    license: str = ""
    skills: str = ""  # at least so many kept
    sort: str = ""  # a column's key, with - in front from the highest down; empty: the board's own order
    page: int = 1
    cols: tuple[str, ...] = ()
    compare: tuple[str, ...] = ()  # org/name@sha7; in an address also org/name
    chart: str = ""  # a domain

    def href(self, **changes: Any) -> str:
        """The address of this state with `changes`; any change but of the page itself begins at its first page."""
        return "leaderboard" + ("?" + text if (text := self.query(**changes)) else "")

    def query(self, **changes: Any) -> str:
        return urlencode(list(replace(self, **{"page": 1, **changes}).pairs()))

    def pairs(self) -> Iterable[tuple[str, str]]:
        """Names and values as an address has them."""
        for part in fields(self):
            value = getattr(self, part.name)
            if value != part.default:
                yield from ((part.name, str(v)) for v in (value if isinstance(value, tuple) else (value,)))

    @property
    def filters(self) -> Mapping[str, str]:
        """Those that are set."""
        return {name: value for name in _FILTERS if (value := getattr(self, name))}


@dataclass
class Asked:
    """A query as it can be answered, on which board, and what of the address was wrong."""

    query: BoardQuery
    suite: SuiteBoard | None
    every: Mapping[str, Column] = field(default_factory=dict)  # the board's columns
    wrong: list[str] = field(default_factory=list)


def asked(board: Board, text: str) -> Asked:
    """The query of an address's part after the question mark."""
    given: dict[str, list[str]] = {}
    answer = Asked(BoardQuery(), next(iter(board.suites), None))
    try:
        pairs = parse_qsl(text, max_num_fields=MAX_VALUES)
    except ValueError:
        pairs = []
        answer.wrong.append(f"The address has more than {MAX_VALUES} values, so none is read.")
    for name, value in pairs:
        given.setdefault(name, []).append(value[:_LONGEST])
    known = {part.name for part in fields(BoardQuery)}
    for name in given:
        if name not in known and not name.startswith("__"):  # the platform's own
            answer.wrong.append(f"“{name[:40]}” is nothing that an address of the leaderboard can say.")
    single = {name: values[-1].strip() for name, values in given.items() if name in known}
    if (wanted := single.get("suite")) and (found := board.suite(wanted)) is None:
        shown = f"; shown is {answer.suite.suite}" if answer.suite else ""
        answer.wrong.append(f"There is no suite “{wanted}”{shown}.")
    elif wanted:
        answer.suite = found
    if answer.suite is not None:
        answer.every = columns(answer.suite)
        answer.query = _checked(answer.suite, answer.every, single, given, answer.wrong)
    return answer


def _checked(
    suite: SuiteBoard,
    every: Mapping[str, Column],
    single: Mapping[str, str],
    given: Mapping[str, Sequence[str]],
    wrong: list[str],
) -> BoardQuery:
    def one_of(name: str, known: Iterable[str], what: str) -> str:
        value = single.get(name, "")
        if not value or value in known:
            return value
        wrong.append(f"There is no {what} “{value}”.")
        return ""

    sort = single.get("sort", "")
    if sort.removeprefix("-") not in every and sort:
        wrong.append(f"There is no column “{sort.removeprefix('-')}” to sort by.")
        sort = ""
    number = single.get("page") or "1"
    if not number.isdecimal() or not int(number[:9]) > 0:
        wrong.append(f"“{number}” is no page.")
        number = "1"
    skills = single.get("skills", "")
    if skills and not (skills.isdecimal() and int(skills[:9]) < 100):
        wrong.append(f"“{skills}” is no number of skills.")
        skills = ""
    view = one_of("view", VIEWS, "view") or "scores"
    cols = [c for c in given.get("cols", ()) if c in every]
    wrong.extend(f"There is no column “{c}”." for c in given.get("cols", ()) if c not in every)
    chosen = tuple(c for c in every if c in cols or c in ALWAYS) if cols else ()
    labels = {label_of(row): label_of(row) for row in suite.rows} if "compare" in given else {}
    named = list(dict.fromkeys(given.get("compare", ())))
    # a name without a commit is that of the model's newest row
    labels |= {name: label_of(row) for name in named if (row := suite.find(name))}
    wrong.extend(f"“{name}” is not on this board, so it is not compared." for name in named if name not in labels)
    compare = list(dict.fromkeys(labels[name] for name in named if name in labels))
    if len(compare) > COMPARED[1]:
        wrong.append(f"At most {COMPARED[1]} models can be compared; the first {COMPARED[1]} are.")
    if len(search := single.get("q", "")) > MAX_SEARCH_CHARACTERS:
        wrong.append(f"The search is cut to {MAX_SEARCH_CHARACTERS} characters.")
    facts = [row.facts for row in suite.rows]
    return BoardQuery(
        suite=single.get("suite", "") if suite.suite == single.get("suite") else "",
        view=view,
        q=search[:MAX_SEARCH_CHARACTERS],
        kind=one_of("kind", KINDS, "kind"),
        base=one_of("base", {p.id for f in facts for p in f.parents if p.role == "base"}, "base model"),
        method=one_of("method", {f.method for f in facts if f.method}, "method"),
        size=one_of("size", SIZES, "size"),
        license=one_of("license", {f.license for f in facts if f.license}, "license"),
        skills=skills,
        sort=sort,
        page=int(number[:9]),
        cols=() if set(chosen) == set(default_columns(every, view)) else chosen,
        compare=tuple(compare[: COMPARED[1]]),
        chart=one_of("chart", suite.domains, "score"),
    )


def label_of(row: Row) -> str:
    return f"{row.model}@{row.sha[:7]}"


def matching(suite: SuiteBoard, query: BoardQuery) -> list[Row]:
    """The rows that the filters leave, in the order asked for; what has no value comes last, either way up."""
    tests = _tests(query)
    rows = [row for row in suite.rows if all(test(row) for test in tests)]
    if not query.sort:
        return rows
    column = columns(suite)[query.sort.removeprefix("-")]
    valued = [(value, row) for row in rows if (value := column.value(row)) is not None]
    valued.sort(key=lambda pair: pair[0], reverse=query.sort.startswith("-"))
    return [row for _, row in valued] + [row for row in rows if column.value(row) is None]


def _tests(query: BoardQuery) -> list[Callable[[Row], bool]]:
    words = query.q.lower().split()
    _, low, high = SIZES.get(query.size, ("", 0, 0))
    tests: Mapping[str, Callable[[Row], bool]] = {
        "q": lambda r: all(word in r.model.lower() for word in words),
        "kind": lambda r: r.facts.is_merge == (query.kind == "merges"),
        "base": lambda r: any(p.role == "base" and p.id == query.base for p in r.facts.parents),
        "method": lambda r: r.facts.method == query.method,
        "license": lambda r: r.facts.license == query.license,
        "size": lambda r: r.facts.parameters is not None and low < r.facts.parameters <= high,
        "skills": lambda r: r.skills is not None and r.skills.kept >= int(query.skills),
    }
    return [test for name, test in tests.items() if getattr(query, name)]

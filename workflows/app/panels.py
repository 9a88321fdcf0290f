"""Static panels: problems, the description of a method, and the summary of a plan.

Every function is pure and returns escaped HTML (format.py).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from hubmerge.errors import GatedError, HubmergeError, LoginError, Problem, RecipeError
from hubmerge.hub.errors import UNREADABLE
from hubmerge.methods import Method, registry
from hubmerge.methods.varying import worded, written
from hubmerge.output.plan_words import LABELS, cost_of, fit_of, plan_summary
from hubmerge.plan.licenses import choose, strictest
from hubmerge.plan.plan import Plan
from hubmerge.sources.base import Model
from workflows.app.format import bytes_text, el, join, link, repo_link
from workflows.app.session import FOR_PROGRAMS
from workflows.app.signin import GATED, PRIVATE, sign_in_link
from workflows.values import Visitor

ARXIV = "https://arxiv.org/abs/"
# errors are made for every surface: a step that names an option, a command or a variable is of no use to a visitor
_OF_A_TERMINAL = re.compile(r"(?<![\w-])--[a-z]|`(?:hubmerge|hf) |\b(?:HF|HUBMERGE)_[A-Z]")
_IGNORED = re.compile(r"\b(put|with) this line in(?:to)? the recipe: ignore: \[([^\]]*)\]")
_SIGN_IN = ", and sign in if it is private"
_CODE = re.compile(r"`([^`\n]+)`")
_SENTENCE = re.compile(r"(?<=[.;])\s+")
_PUT = (
    ("state a license", "Read the parents' terms and choose a license."),
    ("hubmerge init", "Choose a base and agents."),
    ("Publish with --private", "Make it private, or public if all of them may be known."),
    ("Sign in", "Sign in."),
    ("Whoever keeps this app", "Whoever keeps this app gives it a token of the Hub with write access."),
    ("Check the connection", "Try again in a minute; if it stays, the Hub is away."),
    ("Take a part: --split", "Take a part of the split, such as train[:10000]."),
    ("--ignore", "Compare it with the model that it was trained from."),
    ("Lower --max-tokens", "Lower the number of tokens."),
)


def header(title: str, subtitle: str) -> Markup:
    return el("header", el("h1", title), el("p", subtitle), cls="hm-header")


def section(title: str, *children: object) -> Markup:
    return el("section", el("h2", title), *children, cls="hm-section")


def notice(kind: str, title: str, *children: object) -> Markup:
    """A framed message; `kind`: info, good, warn or bad."""
    role = "alert" if kind == "bad" else "status"
    return el("div", el("strong", title), *children, cls=f"hm-notice hm-{kind}", role=role)


def fold(title: object, *content: object, cls: str = "", **attributes: str) -> Markup:
    """Content that unfolds below its title."""
    return el("details", el("summary", title), *content, cls=cls, **attributes)


def snippet(text: str) -> Markup:
    return el("pre", el("code", text), cls="hm-snippet", tabindex="0")


def tabs(label: str, ways: Iterable[tuple[str, str, bool]]) -> Markup:
    """Links beside each other; of each its title, its address, and whether it is the one that is shown."""
    shown = (el("a", title, cls="hm-tab", href=to, aria_current="page" if here else "") for title, to, here in ways)
    return el("nav", *shown, cls="hm-tabs", aria_label=label)


def coded(text: str) -> Markup:
    """A message, which marks code with backticks as for a terminal, with its code as a page shows it."""
    parts = _CODE.split(text)  # text and code take turns
    return join(*(el("code", part) if k % 2 else part for k, part in enumerate(parts)))


def problems_panel(
    error: HubmergeError | Mapping[str, Any], title: str = "", *, of_form: bool = False, signed_in: bool = False
) -> Markup:
    """Every problem of an error: what is wrong, what to do next, and the code, which programs go by.

    `of_form`: it is about the merge page's form, which a step may name the fields of. `signed_in`: the visitor is, so
    that no step asks for it.
    """
    data = error.as_dict() if isinstance(error, HubmergeError) else error
    problems = [p for p in data.get("problems") or () if isinstance(p, Mapping)]
    if not problems:
        problems = [{"code": data.get("code", ""), "what": data.get("message", "no reason was given")}]
    count, passes = len(problems), bool(data.get("retryable"))
    change = "One thing must change first" if count == 1 else f"{count} things must change first"
    later = el("p", "This may pass; try the same again later.", cls="hm-dim") if passes else None
    listed = el("ul", *(_problem(problem, of_form, signed_in) for problem in problems), cls="hm-problems")
    return notice("bad", title or ("Not now" if passes else change), listed, later)


def _problem(problem: Mapping[str, Any], of_form: bool, signed_in: bool) -> Markup:
    text = {key: str(value) for key, value in problem.items() if value}
    step = on_the_web(text.get("next_step", "").replace(FOR_PROGRAMS, ""))
    step = in_the_form(step) if of_form else step
    step = step.replace(_SIGN_IN, ", and whether this account may read it") if signed_in else step
    told = link(sign_in_link(), step) if step.startswith("Sign in") else coded(step)
    facts = [
        el("div", el("dt", label), el("dd", coded(text[key])))
        for key, label in (("where", "Where"), ("expected", "Expected"), ("got", "Found"))
        if key in text
    ]
    return el(
        "li",
        el("span", coded(text.get("what", "")), cls="hm-what"),
        el("dl", *facts) if facts else None,
        el("p", told, cls="hm-next") if step else None,
        el("code", text.get("code", ""), cls="hm-code"),
    )


def on_the_web(step: str) -> str:
    """`step` without sentences for a terminal; empty where nothing is left."""
    if not _OF_A_TERMINAL.search(step):
        return step
    for known, words in _PUT:
        if known in step:
            return words
    return " ".join(part for part in _SENTENCE.split(step) if not _OF_A_TERMINAL.search(part))


def in_the_form(step: str) -> str:
    """`step` for the merge page's form, which has a field for a line of the recipe."""

    def into_the_field(line: re.Match[str]) -> str:
        verb, names = "write" if line[1] == "put" else "by writing", line[2].replace('"', "")
        return f"{verb} {names} into Ignore, under Advanced"

    return _IGNORED.sub(into_the_field, step)


def method_panel(method: Method) -> Markup:
    papers = [
        el("li", link(ARXIV + p.arxiv, p.title) if p.arxiv else p.title, f" · {p.equations}" if p.equations else None)
        for p in method.papers
    ]
    probes = method.overlap_scope(method.parse_parameters({})) == "model"
    tags = ["reads the models twice: it needs statistics of the whole model"] if probes else []
    tags += [] if method.permutation_invariant else ["the order of the agents matters"]
    return el(
        "div",
        el("p", method.summary),
        el("div", method.formula, cls="hm-formula"),
        el("ul", *papers, cls="hm-papers") if papers else None,
        el("p", "; ".join(tags).capitalize() + ".", cls="hm-dim") if tags else None,
        cls="hm-method",
    )


def method_title(name: str) -> str:
    """A method in the words of people; a name of another version of hubmerge stays as it is."""
    known = registry().get(name)
    return known.title if known else name


def method_choices() -> list[tuple[str, str]]:
    return [(method.title, method.name) for method in registry().values()]


def facts_grid(facts: Iterable[tuple[str, object]]) -> Markup:
    return el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in facts), cls="hm-facts")


def table(head: Iterable[object], rows: Iterable[Iterable[object]], *, wide: bool = False) -> Markup:
    """A table; a row's first cell is its header. On a narrow screen rows become cards; a `wide` one scrolls."""
    titles = list(head)
    lines = []
    for row in rows:
        first, *rest = row
        labels = ["" if wide else str(title) for title in titles[1:]]
        cells = (el("td", cell, data_label=label) for label, cell in zip(labels, rest, strict=True))
        lines.append(el("tr", el("th", first, scope="row"), *cells))
    top = el("tr", *(el("th", title, scope="col") for title in titles))
    cls = "hm-table hm-wide" if wide else "hm-table"
    return el("div", el("table", el("thead", top), el("tbody", *lines)), cls=cls, tabindex="0")


def plan_panel(plan: Plan, endpoint: str, license_choice: str | None = None) -> Markup:
    """The summary of a merge: what it reads, needs and writes. `license_choice`: the user's choice, if any."""
    facts = plan_summary(plan)
    weights = (None, *(f"{w:g}" if isinstance(w, float) else worded(written(w)) for w in plan.recipe.weights))
    rows = [
        (
            join(repo_link(endpoint, m.ref.id, m.ref.sha), el("code", m.ref.sha[:12], cls="hm-sha")),
            ("base" if weight is None else f"agent × {weight}") + ("" if m.kind == "weights" else f", {m.kind}"),
            bytes_text(m.weight_bytes),
            m.license or "not stated",
        )
        for m, weight in zip(plan.models, weights, strict=True)
    ]
    cost = cost_of(facts, to_folder=False)
    first = [row for row in (*cost.rows, *fit_of(facts).rows) if row[0] in _FIRST]
    closed = [m.ref.id for m in plan.models if m.gated or m.private]
    told = f"Gated or private: {', '.join(closed)}."
    return join(
        facts_grid(first),
        warnings_panel(plan.warnings),
        license_panel(plan.models, license_choice),
        notice("info", "Private unless you say otherwise", el("p", told)) if closed else None,
        fold(
            "All that the headers say",
            section("Models", table(("Model", "Role", "Weights", "License"), rows)),
            *(section(group.title, facts_grid(group.rows)) for group in (fit_of(facts), cost)),
            cls="hm-section",
        ),
    )


_FIRST = tuple(LABELS[key] for key in ("output_bytes", "download_bytes", "predicted_memory_bytes", "predicted_seconds"))


def warnings_panel(warnings: Iterable[str]) -> Markup | None:
    items = [el("li", coded(text)) for text in warnings]
    if not items:
        return None
    return notice("warn", "Worth knowing" if len(items) > 1 else "Worth a look", el("ul", *items))


def license_panel(models: Iterable[Model], chosen: str | None = None) -> Markup:
    """What the parents' licenses mean for the result, or that the user must choose."""
    try:
        decision = strictest([m.license for m in models])
        if chosen:
            decision = choose(decision, chosen)
    except RecipeError as error:
        return problems_panel(error)
    if decision.needs_choice:
        return notice("warn", "License: your choice is needed", el("p", _sentence(decision.reason)))
    name = decision.id if decision.name is None else f"{decision.id} ({decision.name})"
    return el("p", "License of the result: ", el("strong", name), f". {_sentence(decision.reason)}", cls="hm-dim")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def known_already(*children: object) -> Markup:
    """Said after a start that found a job of an earlier one."""
    return notice("info", "This merge exists already", el("p", "Nothing new was started."), *children)


def left_out_panel(reasons: Sequence[str]) -> Markup | None:
    """What of a page's address could not be used, and why."""
    told = el("ul", *(el("li", why) for why in reasons[:10]))
    return notice("warn", "Part of this address was left out", told) if reasons else None


# whose session ended after the page was opened: only who was signed in has a button that starts something
SIGNED_OUT = Visitor("", "")


def access_offer(error: HubmergeError, visitor: Visitor | None, endpoint: str) -> Markup | None:
    """The next steps for repos that the Hub does not show: allow more in a second sign-in, or ask their owners."""
    if visitor is None:
        return None
    hidden = _models_of(p for p in error.problems if p.what == UNREADABLE)
    gated = _models_of(p for p in error.problems if p.code == GatedError.code)
    offers: list[Markup] = []
    if isinstance(error, LoginError) or any(p.code == LoginError.code for p in error.problems):
        again = el("p", link(sign_in_link(), "Sign in again"))
        offers.append(
            notice("info", "Your sign-in is not valid any more", el("p", "The form is kept meanwhile."), again)
        )
    if hidden and PRIVATE not in visitor.scopes:
        why = (
            "Your sign-in does not let hubmerge read private repos, so a private one looks as if it were not there: "
            f"{', '.join(hidden)}."
        )
        then = (
            "The Hub will ask you; pick the organisation, too, if it belongs to one. Then you come back to this "
            "page as it is. hubmerge goes on writing only to repos that it made."
        )
        allow = link(sign_in_link(private=True), "Allow hubmerge to read your private repos")
        title = "Is it private, and yours?"
        offers.append(notice("info", title, el("p", why), el("p", allow), el("p", then, cls="hm-dim")))
    if gated and GATED not in visitor.scopes:
        why = f"Your sign-in does not let hubmerge read gated models: {', '.join(gated)}."
        offers.append(notice("info", "A gated model", el("p", why), el("p", link(sign_in_link(), "Sign in again"))))
    elif gated:
        ask = el("p", "Ask for access on its page, then inspect again:")
        pages = el("ul", *(el("li", repo_link(endpoint, name)) for name in gated))
        offers.append(notice("info", "Its owner decides who may read it", ask, pages))
    return join(*offers) if offers else None


def _models_of(problems: Iterable[Problem]) -> list[str]:
    """The repos that problems are about, each once."""
    # "org/name", "org/name@revision" or "folder/file in org/name@revision"
    found = (re.findall(r"[\w.-]+/[\w.-]+(?=@|\s|$)", problem.where) for problem in problems)
    return list(dict.fromkeys(names[-1] for names in found if names))

"""Panels of the leaderboard and of a model's page: comparison, scores, lineage, statistics. Pure, escaped HTML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from hubmerge.board.export import flag_text
from hubmerge.board.values import COMBINED, Board, Refusal, Row, SuiteBoard
from hubmerge.evaluation.result import ParentFacts
from hubmerge.evaluation.suites import SUITES
from hubmerge.hub.names import is_hub_id
from hubmerge.markdown import short_count
from hubmerge.output.scores import ParentLine
from hubmerge.sources.ancestry import Ancestor
from workflows.app.board_query import COMPARED
from workflows.app.board_table import NOTHING, domain_title, interval_text, model_link, skills_text, task_title
from workflows.app.format import bytes_text, el, join, link, percent_text, repo_link, time_text, when
from workflows.app.panels import facts_grid, method_title, notice, section, table

MAX_REFUSED = 50  # shown; the JSON has all
MAX_LINEAGE = 60  # models drawn
MAX_DEPTH = 8


def suite_title(suite: SuiteBoard) -> str:
    """What a suite asks, in words; its name where this version of hubmerge does not know it."""
    known = SUITES.get(suite.suite)
    return "All domains" if suite.suite == COMBINED else known.title if known else suite.suite


def refused_panel(refused: Sequence[Refusal]) -> Markup:
    """Results and flags that were left out, with the reasons."""
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
    lines.append(("Method", *(_method(r) for r in rows)))
    lines.append(("Weights changed", *(_share(r.facts.density) for r in rows)))
    lines.append(("Flags", *("; ".join(map(flag_text, r.flags)) or NOTHING for r in rows)))
    heads = [model_link(r.model, r.sha) for r in rows]
    lines = [line for line in lines if any(value != NOTHING for value in line[1:])]
    return el("div", _wide_table(("", *heads), lines), cls="hm-compare")


def _best(values: Sequence[float | None], texts: Sequence[str]) -> list[object]:
    known = [v for v in values if v is not None]
    best = max(known, default=None)
    return [el("strong", t) if v is not None and v == best else t for v, t in zip(values, texts, strict=True)]


def _wide_table(head: Iterable[object], rows: Iterable[Sequence[object]]) -> Markup:
    """A table whose columns are models; it scrolls sideways on a narrow screen."""
    lines = [el("tr", el("th", first, scope="row"), *(el("td", c) for c in rest)) for first, *rest in rows]
    top = el("tr", *(el("th", title, scope="col") for title in head))
    return el("div", el("table", el("thead", top), el("tbody", *lines)), cls="hm-table hm-wide", tabindex="0")


# --- a model's page --------------------------------------------------------------------------------------


def model_head(row: Row, endpoint: str) -> Markup:
    """Name, state, flags and facts."""
    facts = row.facts
    kind = "Merge" if facts.is_merge else "Model"
    marks = [el("span", kind, cls="hm-badge hm-busy" if facts.is_merge else "hm-badge hm-dim")]
    if row.rank is not None:
        marks.append(el("span", f"Rank {row.rank}", cls="hm-badge hm-good"))
    if row.superseded:
        marks.append(el("span", "Older commit", cls="hm-badge hm-warn"))
    flags = [
        notice("warn", "Flag of the community", el("p", flag_text(f)))
        if f.community
        else notice("bad", f.kind.capitalize(), el("p", flag_text(f)))
        for f in row.flags
    ]
    listed: list[tuple[str, object | None]] = [
        ("Method", _method(row) if facts.is_merge else None),
        ("Agents", str(row.agents) if facts.is_merge else None),
        ("Author", facts.author),
        ("License", facts.license or "not stated"),
        ("Parameters", None if facts.parameters is None else short_count(facts.parameters)),
        ("Size", None if facts.size_bytes is None else bytes_text(facts.size_bytes)),
        ("Made", when(facts.created) if facts.created else None),
        ("Commit", el("code", row.sha[:12])),
        ("Committed by", row.committed_by),
    ]
    sha = row.sha if len(row.sha) == 40 else ""
    page = el("p", "On the Hub: ", repo_link(endpoint, row.model, sha)) if is_hub_id(row.model) else None
    return join(
        el("div", el("h1", row.model), *marks, cls="hm-title"),
        *flags,
        facts_grid((n, v) for n, v in listed if v is not None),
        page,
    )


def score_sections(found: Sequence[tuple[SuiteBoard, Row]], endpoint: str) -> Markup:
    """The skills kept; folded, the domains beside those of every parent, and every task. Suites of one domain each
    share one section.
    """
    joined = next((row for suite, row in found if suite.suite == COMBINED), None)
    members = [(s, r) for s, r in found if joined is not None and s.domains == (s.suite,)]
    others = [(s, r) for s, r in found if s.suite != COMBINED and (s, r) not in members]
    sections = [_section("Scores", joined, members, endpoint)] if joined is not None else []
    sections += [_section(f"Scores: {suite_title(suite)}", row, [(suite, row)], endpoint) for suite, row in others]
    return join(*sections)


def _section(title: str, row: Row, suites: Sequence[tuple[SuiteBoard, Row]], endpoint: str) -> Markup:
    failed = [
        notice("bad", f"{suite.suite} failed: {r.error.code}", el("p", r.error.message))
        for suite, r in suites
        if r.error is not None
    ]
    overall = el("p", "Overall ", el("strong", interval_text(row.overall)), cls="hm-overall") if row.overall else None
    parents = _against_parents(row)
    tasks = [
        (
            task_title(t.task),
            domain_title(t.domain),
            interval_text(t.score),
            f"{t.samples:,}" + (f", {t.truncated:,} cut" if t.truncated else ""),
            f"{t.few_shot}-shot",
            _dataset(endpoint, t.dataset, t.dataset_revision),
        )
        for t in row.tasks
    ]
    heads = ("Task", "Domain", "Score", "Prompts", "Examples", "Data")
    return section(
        title,
        overall,
        *failed,
        _skills(row) if row.parents and row.domains else None,
        el("details", el("summary", "Each domain beside every parent"), parents) if parents else None,
        el("details", el("summary", "Each task and its data"), table(heads, tasks)) if tasks else None,
        el(
            "details",
            el("summary", "How it was measured"),
            el("ul", *(el("li", _measured(suite, r)) for suite, r in suites), cls="hm-measured hm-dim"),
        ),
    )


def _measured(suite: SuiteBoard, row: Row) -> str:
    """When, on what and with what a suite was run."""
    ran = row.environment
    ranked = sum(r.rank is not None for r in suite.rows)
    place = "" if row.rank is None else f"rank {row.rank} of {ranked}; "
    return (
        f"{suite.suite} {suite.version}, {suite.split} split: {place}{time_text(row.created)} by {row.run_by} on "
        f"{ran.device}, {row.narrowed or ran.dtype}, {ran.backend}, "
        f"lighteval {ran.lighteval}, transformers {ran.transformers}, seed {ran.seed}"
    )


def _dataset(endpoint: str, dataset: str, revision: str) -> Markup:
    """A link to the data at its commit, made of checked names."""
    name = f"{dataset}@{revision[:7]}"
    if not is_hub_id(dataset) or not revision.isalnum():
        return el("span", name)
    return link(f"{endpoint}/datasets/{quote(dataset)}/tree/{quote(revision, safe='')}", name)


def _against_parents(row: Row) -> Markup | None:
    if not row.parents or not row.domains:
        return None
    heads = ["Domain", "This model", "Against them", *(_parent_head(p.id, p.sha, p.role) for p in row.parents)]
    lines = [
        (
            domain_title(line.domain),
            el("strong", interval_text(line.score)),
            line.verdict or NOTHING,
            *(_theirs(p, line.domain) for p in row.parents),
        )
        for line in row.domains
    ]
    change = row.instruction_change
    told = f"Instruction following against the base: {interval_text(change, sign=True)}." if change else None
    return join(_wide_table(heads, lines), el("p", told) if told else None)


def _skills(row: Row) -> Markup | None:
    """How much is kept of each skill of the parents."""
    if row.skills is None:
        waiting = [p.id for p in row.parents if p.status != "scored"]
        told = f"Told once every parent is scored; missing: {', '.join(waiting)}." if waiting else ""
        return join(el("h3", "Skills kept"), el("p", told, cls="hm-dim")) if told else None
    lines = [(task_title(s.task), s.text, "kept" if s.kept else "lost", s.best_parent) for s in row.skills.skills]
    heads = ("Skill", "Kept of its gain", "Counts as", "Best parent")
    return join(
        el("h3", "Skills kept"),
        el("p", el("strong", row.skills.text), cls="hm-overall"),
        table(heads, lines) if lines else None,
    )


def _theirs(parent: ParentLine, domain: str) -> str:
    return interval_text(parent.domains.get(domain)) if parent.status == "scored" else parent.status


def _parent_head(model: str, sha: str, role: str) -> Markup:
    return join(model_link(model, sha), el("small", f" {role}"))


def _parameters(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {v if isinstance(v, str) else json.dumps(v)}" for name, v in values.items())


def statistics_section(row: Row) -> Markup | None:
    """What the merge is made of, in figures."""
    facts = row.facts
    if not facts.is_merge:
        return None
    settings = _parameters(facts.method_parameters)[:400]
    grid = facts_grid(
        (
            ("Changed by any agent", _share(facts.density)),
            ("of it by several", _share(facts.overlap)),
            ("of that, in opposite directions", _share(facts.conflict)),
            *((("Settings of the method", settings),) if settings else ()),
        )
    )
    agents = [p for p in facts.parents if p.role == "agent"]
    scales: Sequence[float | None] = facts.effective_scales or (None,) * len(agents)
    rows = [
        (model_link(p.id, p.sha), f"{p.weight:g}", NOTHING if s is None else f"{s:.3g}")
        for p, s in zip(agents, scales, strict=False)
    ]
    return section("What it is made of", grid, table(("Agent", "Weight", "Measured λ"), rows))


def lineage_section(row: Row, board: Board) -> Markup | None:
    """The tree of ancestors as far as merges on the board tell it."""
    if not row.facts.is_merge:
        return None
    rest = len(row.ancestors) > MAX_LINEAGE
    tree = lineage_tree(row.model, row.sha, row.facts.license, row.facts.parents, board)
    return section("Lineage", tree, el("p", "More ancestors are in the JSON.", cls="hm-dim") if rest else None)


def lineage_tree(
    model: str,
    sha: str,
    license: str | None,
    parents: Sequence[ParentFacts],
    board: Board,
    stated: Sequence[Ancestor] = (),
) -> Markup:
    """A model above what it was made from, with licenses; `stated`: its ancestors as its own report names them."""
    rows = {(r.model, r.sha): r for s in board.suites for r in s.rows}
    licenses = {node: r.facts.license for node, r in rows.items() if r.facts.license}
    known = {node: r.facts.parents for node, r in rows.items() if r.facts.is_merge}
    told = list(stated)
    for ancestor in told:  # it grows by their own
        node = (ancestor.id, ancestor.sha)
        licenses |= {node: ancestor.license} if ancestor.license else {}
        own = [
            ParentFacts(role=a.role, id=a.id, sha=a.sha, weight=a.weight)
            for a in ancestor.made_from
            if a.role and a.sha and is_hub_id(a.id)
        ]
        if own:
            known.setdefault(node, tuple(own))
            told += ancestor.made_from
    below = _tree(parents, known, licenses, [MAX_LINEAGE], ((model, sha),))
    top = el("li", el("strong", model), _license(license), below)
    return el("ul", top, cls="hm-tree hm-lineage")


def _license(name: str | None) -> Markup:
    return el("span", name or "license not stated here", cls="hm-license")


def _tree(
    parents: Sequence[ParentFacts],
    known: Mapping[tuple[str, str], Sequence[ParentFacts]],
    licenses: Mapping[tuple[str, str], str],
    budget: list[int],
    path: tuple[tuple[str, str], ...],
) -> Markup:
    items = []
    for parent in parents:
        if budget[0] <= 0:
            break
        budget[0] -= 1
        node = (parent.id, parent.sha)
        own = known.get(node)
        deeper = own is not None and node not in path and len(path) < MAX_DEPTH
        below = _tree(own, known, licenses, budget, (*path, node)) if own is not None and deeper else None
        label = [model_link(parent.id, parent.sha), el("code", parent.sha[:7], cls="hm-commit")]
        weight = "" if parent.role == "base" or parent.weight == 1 else f" × {parent.weight:.3g}"
        items.append(el("li", *label, el("small", f"{parent.role}{weight}"), _license(licenses.get(node)), below))
    return el("ul", *items, cls="hm-tree")


def _method(row: Row) -> str:
    return method_title(row.facts.method or NOTHING)[:80]


def _share(value: float | None) -> str:
    return NOTHING if value is None else percent_text(value)

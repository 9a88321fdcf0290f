"""What a model's page has from the board: a verdict, its scores beside its parents', how to use it, and its lineage."""

import json
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from markupsafe import Markup

from hubmerge.board.export import flag_text
from hubmerge.board.source import DatasetBoard
from hubmerge.board.values import COMBINED, Board, Row, SuiteBoard, TaskLine
from hubmerge.errors import HubmergeError
from hubmerge.evaluation.result import ParentFacts
from hubmerge.evaluation.tasks import registry
from hubmerge.hub.names import is_hub_id
from hubmerge.output.card_scores import plainly_asked, way_of_asking
from hubmerge.output.scores import Estimate, verdict
from hubmerge.output.task import snippet as python
from hubmerge.output.task import task_of
from hubmerge.sources.ancestry import Ancestor
from hubmerge.text.markdown import short_count
from workflows.app.board_table import NOTHING, domain_title, interval_text, share_text, task_title
from workflows.app.board_view import suite_title
from workflows.app.format import bytes_text, diff_href, el, join, link, model_link, repo_link, time_text, when
from workflows.app.panels import facts_grid, fold, method_title, notice, section, snippet, table
from workflows.values import JobView

MOST_DRAWN = 12  # parents beside one score
MAX_LINEAGE = 60  # models drawn
MAX_DEPTH = 8


def found_rows(board: Board, model: str, sha: str | None) -> list[tuple[SuiteBoard, Row]]:
    """The model's rows, all of one commit: the asked one, else the one that no newer supersedes."""
    rows = [(s, r) for s in board.suites for r in s.rows if r.model == model]
    if sha is None and rows:
        sha = max((r for _, r in rows), key=lambda r: (not r.superseded, r.created, r.sha)).sha
    return [(s, r) for s, r in rows if r.sha == sha]


def published_row(view: JobView, source: DatasetBoard | None) -> Row | None:
    """The board's row of a published merge, once it is evaluated."""
    if source is None or not view.result or not view.evaluations or view.evaluations[0].state != "done":
        return None
    merge = view.evaluations[0]
    try:
        rows = found_rows(source.board(), merge.model, merge.sha)
    except HubmergeError:  # the pages of jobs are of use without
        return None
    return rows[0][1] if rows else None


def verdict_panel(row: Row) -> Markup | None:
    """What a reader wants first; nothing where too little is scored for it."""
    said = verdict(row.skills, row.domains) if row.facts.is_merge else None
    return el("p", said, cls="hm-verdict") if said else None


def ways_on(model: str, base: str | None) -> Markup | None:
    if not is_hub_id(model):
        return None
    ways = [link(f"merge?agent={quote(model, safe='/')}", "Merge it with others")]
    if base is not None and is_hub_id(base):
        ways.append(link(diff_href(base, model), "Compare it with its base"))
    return el("nav", *ways, cls="hm-ways-on", aria_label="What to do with this model")


def scores_picture(row: Row) -> Markup | None:
    """Per skill a line for the merge, for each agent and for the base: a dot in its interval, from 0 to 100%."""
    if not row.domains or not row.parents:
        return None
    agents = [p for p in row.parents if p.role == "agent"][:MOST_DRAWN]
    bases = [p for p in row.parents if p.role == "base"]
    groups = []
    for line in row.domains:
        lines = [_line("This merge", "merge", line.score)]
        lines += [_line(p.id, "agent", p.domains.get(line.domain)) for p in agents]
        lines += [_line(p.id, "base", p.domains.get(line.domain)) for p in bases]
        groups.append(el("div", el("h3", domain_title(line.domain)), el("ul", *lines, cls="hm-dots")))
    told = "Dots are scores, from 0 to 100%; bars are their 95% intervals. The base comes last."
    caption = el("figcaption", told, cls="hm-dim")
    return section("Beside its parents", el("figure", *groups, caption, cls="hm-picture"))


def _line(name: str, role: str, score: Estimate | None) -> Markup:
    label = el("span", name, cls="hm-dots-name")
    if score is None:
        return el("li", label, el("span", "not scored", cls="hm-dim"), cls=f"hm-dots-{role}")
    low, value, high = (min(max(100 * x, 0.0), 100.0) for x in (score.low, score.value, score.high))
    track = el(
        "span",
        el("i", cls="hm-range", style=f"left:{low:.2f}%;width:{max(high - low, 0.0):.2f}%"),
        el("i", cls="hm-dot", style=f"left:{value:.2f}%"),
        cls="hm-track",
        aria_hidden="true",
    )
    said = el("span", f"{value:.0f}%", el("small", f" {low:.0f} to {high:.0f}"), cls="hm-dots-value")
    return el("li", label, track, said, cls=f"hm-dots-{role}")


def use_it(model: str, tasks: Sequence[TaskLine]) -> Markup | None:
    """Python that loads the model and lets it answer, and the prompt of each task; tasks that ask alike together. A
    score of another version of its task may have been asked for in another way."""
    if not is_hub_id(model):
        return None
    versions = ((registry().get(line.task), line) for line in tasks)
    known = [(task, line.few_shot) for task, line in versions if task and task.version == line.task_version]
    text = task_of({"architectures": ["LlamaForCausalLM"]})  # what is scored writes text
    code = python(text, model, plainly_asked([(task.chat, few_shot, task.asked) for task, few_shot in known]))
    asked: dict[tuple[str, str], list[str]] = {}
    for task, few_shot in known:
        asked.setdefault((way_of_asking(task.chat, few_shot), task.asked), []).append(task.title)
    parts = [join(el("p", f"{', '.join(titles)}, {way}:"), snippet(text)) for (way, text), titles in asked.items()]
    told = el("p", "What stands in braces differs from question to question; answers are greedy.", cls="hm-dim")
    prompts = fold("The prompts that the scores were measured with", told, *parts) if parts else None
    return section("Use it", snippet(code), prompts)


def model_head(row: Row, endpoint: str) -> Markup:
    facts = row.facts
    kind = "Merge" if facts.is_merge else "Model"
    marks = [el("span", kind, cls="hm-badge hm-busy" if facts.is_merge else "hm-badge hm-dim")]
    if row.rank is not None:
        marks.append(el("span", f"Rank {row.rank}", cls="hm-badge hm-good"))
    if row.superseded:
        marks.append(el("span", "Older commit", cls="hm-badge hm-warn"))
    flags = [notice("bad", f.kind.capitalize(), el("p", flag_text(f))) for f in row.flags]
    listed: list[tuple[str, object | None]] = [
        ("Method", method_title(row.facts.method or NOTHING)[:80] if facts.is_merge else None),
        ("Agents", str(row.agents) if facts.is_merge else None),
        ("Author", facts.author),
        ("License", facts.license or "not stated"),
        ("Parameters", None if facts.parameters is None else short_count(facts.parameters)),
        ("Size", None if facts.size_bytes is None else bytes_text(facts.size_bytes)),
        ("Made", when(facts.created) if facts.created else None),
        ("Commit", el("code", row.sha[:12])),
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
    measured = []
    for suite, r in suites:
        ran, ranked = r.environment, sum(each.rank is not None for each in suite.rows)
        place = "" if r.rank is None else f"rank {r.rank} of {ranked}; "
        told = (
            f"{suite.suite} {suite.version}, {suite.split} split: {place}{time_text(r.created)} by {r.run_by} on "
            f"{ran.device}, {r.narrowed or ran.dtype}, {ran.backend}, "
            f"lighteval {ran.lighteval}, transformers {ran.transformers}, seed {ran.seed}"
        )
        measured.append(el("li", told))
    return section(
        title,
        overall,
        *failed,
        _skills(row) if row.parents and row.domains else None,
        fold("Each domain beside every parent", parents) if parents else None,
        fold("Each task and its data", table(heads, tasks)) if tasks else None,
        fold("How it was measured", el("ul", *measured, cls="hm-ran hm-dim")),
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
    theirs = (join(model_link(p.id, p.sha), el("small", f" {p.role}")) for p in row.parents)
    heads = ["Domain", "This model", "Against them", *theirs]
    lines = [
        (
            domain_title(line.domain),
            el("strong", interval_text(line.score)),
            line.verdict or NOTHING,
            *(interval_text(p.domains.get(line.domain)) if p.status == "scored" else p.status for p in row.parents),
        )
        for line in row.domains
    ]
    change = row.instruction_change
    told = f"Instruction following against the base: {interval_text(change, sign=True)}." if change else None
    return join(table(heads, lines, wide=True), el("p", told) if told else None)


def _skills(row: Row) -> Markup | None:
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


def statistics_section(row: Row) -> Markup | None:
    """What the merge is made of, in figures."""
    facts = row.facts
    if not facts.is_merge:
        return None
    values = facts.method_parameters.items()
    settings = ", ".join(f"{name}: {v if isinstance(v, str) else json.dumps(v)}" for name, v in values)[:400]
    told = [
        ("Weights that agents changed", share_text(facts.density)),
        ("Of these, by several agents", share_text(facts.overlap)),
        ("Of those, in opposite directions", share_text(facts.conflict)),
    ]
    told += [("Settings of the method", settings)] if settings else []
    agents = [p for p in facts.parents if p.role == "agent"]
    scales: Sequence[float | None] = facts.effective_scales or (None,) * len(agents)
    rows = [
        (model_link(p.id, p.sha), f"{p.weight:g}", NOTHING if s is None else f"{s:.3g}")
        for p, s in zip(agents, scales, strict=False)
    ]
    return section("What it is made of", facts_grid(told), table(("Agent", "Weight", "Measured λ"), rows))


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
    stated_license = el("span", license or "license not stated", cls="hm-license")
    return el("ul", el("li", el("strong", model), stated_license, below), cls="hm-tree hm-lineage")


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
        weight = "" if parent.role == "base" or parent.weight == 1 else f" × {parent.weight:.3g}"
        label = [model_link(parent.id, parent.sha), el("code", parent.sha[:7], cls="hm-commit")]
        label.append(el("small", f"{parent.role}{weight}"))
        if node in licenses:  # the board knows none of a parent that was not measured yet
            label.append(el("span", licenses[node], cls="hm-license"))
        items.append(el("li", *label, below))
    return el("ul", *items, cls="hm-tree")

"""The leaderboard: a pure function of evaluation results and flags.

    board = build_board(results, flags)

docs/leaderboard.md says what its figures mean and which results are left out. The order of the results does not matter
and the same result twice counts once. Per suite one version is shown. Within it every row has the same tasks, so that
columns compare. Suites that measure one domain each and carry its name (math, code, …) are joined on a combined board.
Results that a trusted key signed decide where there are some (standing.py). Against the parents only scores of the very
commit that was merged count, under the same suite, version and split.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

from hubmerge.board.files import ResultFiles
from hubmerge.board.lineage import Lineage, Node
from hubmerge.board.standing import Standing
from hubmerge.board.values import COMBINED, Board, Flag, Refusal, Row, RowFlag, SuiteBoard, TaskLine
from hubmerge.evaluation.result import EvaluationResult, RunError, Split, TaskScore, result_path
from hubmerge.evaluation.signing import provenance
from hubmerge.hub.names import is_hub_id
from hubmerge.output.scores import (
    INSTRUCTION,
    Estimate,
    ParentLine,
    difference,
    domain_line,
    domain_order,
    mean,
    score_interval,
    skills_kept,
)

MAX_TASKS = 200
MAX_PARENTS = 65  # a base and 64 agents
_NAME = re.compile(r"[A-Za-z0-9][\w.+\-]{0,99}", re.ASCII)
_CLOCKS_DIFFER = timedelta(days=1)
_Descent = tuple[Lineage, Mapping[Node, tuple[RowFlag, ...]]]  # what rows descend from, and the flags that they carry
_AS_STATED = tuple(f.name for f in fields(TaskLine) if f.name != "score")  # what a task's line has as its result has it


def build_board(
    results: Iterable[EvaluationResult],
    flags: Iterable[Flag] = (),
    *,
    suite_versions: Mapping[str, str] | None = None,
    split: Split = "test",
    refused: Iterable[Refusal] = (),
    now: datetime | None = None,
    trusted: Collection[str] = (),
) -> Board:
    """The board of `split`. `refused`: files that could not be read, to be listed with what is refused here.

    `suite_versions`: the version to show of a suite. `now`: a result from more than a day later is refused, since a
    wrong clock would decide which version and which commit are the newest. `trusted`: public keys whose signatures are
    believed.
    """
    flags = tuple(sorted(set(flags), key=lambda f: (f.model, f.sha or "", f.kind, f.reason)))
    out = set(refused)
    decided = _accept(results, now, frozenset(trusted), out)
    accepted = [result for result, _ in decided.values()]
    standing = Standing({key for key, (_, is_signed) in decided.items() if is_signed})
    descent: dict[bool, _Descent] = {}
    for is_signed, told in standing.ancestry(accepted).items():
        lineage = Lineage(told)
        descent[is_signed] = lineage, lineage.flagged(flags)
    suites: dict[str, dict[str, list[EvaluationResult]]] = defaultdict(lambda: defaultdict(list))
    for result in standing.admit(accepted, split, out):
        suites[result.suite][result.suite_version].append(result)
    boards: list[SuiteBoard] = []
    single: dict[str, tuple[str, dict[Node, _Scored]]] = {}
    for suite, found in sorted(suites.items()):
        newest = {v: max(_moment(r.created) for r in standing.signed_first(group)) for v, group in found.items()}
        versions = tuple(sorted(found, key=lambda v: (newest[v], v), reverse=True))
        shown = (suite_versions or {}).get(suite, versions[0])
        group = _with_equal_tasks(found.get(shown, []), standing, out)
        scored: dict[Node, _Scored] = {}
        for result in group:
            try:
                scored[result.model, result.sha] = _scored(result)
            except (ArithmeticError, ValueError) as error:  # bounds keep these out; one file must never end the board
                out.add(Refusal(result_path(result)[:300], f"its scores cannot be computed with: {error}"[:300]))
        if _domains(scored) == (suite,):
            single[suite] = (shown, scored)
        boards.append(SuiteBoard(suite, shown, split, versions, *_rows(scored, descent, standing)))
    if signed := {
        s: own for s, own in single.items() if any(p.tasks and standing.is_signed(p.result) for p in own[1].values())
    }:
        single = signed  # a suite of which only the community has scores must not leave everybody incomplete
    if len(single) > 1:
        version = " ".join(f"{suite}-{version}" for suite, (version, _) in single.items())
        joined = _joined({suite: scored for suite, (_, scored) in single.items()}, standing)
        boards.insert(0, SuiteBoard(COMBINED, version, split, (version,), *_rows(joined, descent, standing)))
    return Board(tuple(boards), flags, tuple(sorted(out, key=lambda r: (r.where, r.reason))))


def board_of(read: ResultFiles, *, suite_versions: Mapping[str, str] | None = None, split: Split = "test") -> Board:
    """The board of what was read, as of now."""
    return build_board(
        read.results,
        read.flags,
        suite_versions=suite_versions,
        split=split,
        refused=read.refused,
        now=datetime.now(UTC),
        trusted=read.trusted,
    )


def _accept(
    results: Iterable[EvaluationResult], now: datetime | None, trusted: Collection[str], out: set[Refusal]
) -> dict[tuple[str, ...], tuple[EvaluationResult, bool]]:
    """Per run one credible result, and whether it is signed, in an order that does not depend on the input's."""
    best: dict[tuple[str, ...], tuple[EvaluationResult, bool]] = {}
    for result in results:
        if reason := _doubt(result, now):
            out.add(Refusal(result_path(result)[:300], reason))
            continue
        if (found := provenance(result, trusted)) == "forged":
            out.add(Refusal(result_path(result)[:300], "its signature is not of this content"))
            continue
        key, mine = result.run_key, (result, found == "signed")
        known = best.setdefault(key, mine)
        if known[0] != result:
            (other, _), best[key] = sorted((known, mine), key=lambda pair: (pair[1], *_preference(pair[0])))
            why = f"another result of the same run is preferred to that of {other.created}"
            out.add(Refusal(result_path(other), why))
    return dict(sorted(best.items(), key=itemgetter(0)))


def _preference(result: EvaluationResult) -> tuple[bool, datetime, str]:
    return (result.status == "done", _moment(result.created), result.to_json())


def _doubt(result: EvaluationResult, now: datetime | None) -> str | None:
    """Why a well-formed result is not credible; None when it is."""
    parents = result.facts.parents
    scales = result.facts.effective_scales
    try:
        created = _moment(result.created)
    except ValueError:
        return "its date is not valid"
    checks = (
        (not is_hub_id(result.model), "its model is not a repo's name"),
        (result.suite == COMBINED, "its suite has the name of the combined board"),
        (not _NAME.fullmatch(result.suite) or not _NAME.fullmatch(result.suite_version), "its suite is not a name"),
        (now is not None and created > now + _CLOCKS_DIFFER, "its date lies in the future"),
        (len(result.tasks) > MAX_TASKS, f"more than {MAX_TASKS} tasks"),
        (len(parents) > MAX_PARENTS, f"more than {MAX_PARENTS} parents"),
        (bool(parents) and [p.role for p in parents].count("base") != 1, "a merge has one base"),
        (any((p.id, p.sha) == (result.model, result.sha) for p in parents), "a merge is its own parent"),
        (len(scales) not in (0, sum(p.role == "agent" for p in parents)), "as many λ as agents are needed"),
    )
    return next((reason for doubtful, reason in checks if doubtful), None)


def _moment(text: str) -> datetime:
    """ISO 8601 as UTC; ValueError when it is none."""
    value = datetime.fromisoformat(text)
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:  # the first or last day of the calendar in another time zone
        raise ValueError("out of the calendar") from None


def _with_equal_tasks(
    group: Sequence[EvaluationResult], standing: Standing, out: set[Refusal]
) -> list[EvaluationResult]:
    """The results of the tasks that most have, signed ones first; of two sets as frequent, the first that was there."""
    # the facts that must be equal for two scores to compare, none for a failed run; not the commits of the datasets,
    # whose content the suite's version is over
    tasks = {
        id(r): tuple(sorted((t.task, t.domain, t.metric, t.few_shot, t.task_version, t.dataset) for t in r.tasks))
        for r in group
    }
    decisive = standing.signed_first(r for r in group if tasks[id(r)])
    decisive.sort(key=lambda r: (_moment(r.created), repr(tasks[id(r)])))
    counts = Counter(tasks[id(r)] for r in decisive)  # in the order in which they were there
    usual = counts.most_common(1)[0][0] if counts else ()
    kept = []
    for r in group:
        if tasks[id(r)] in ((), usual):
            kept.append(r)
        else:
            out.add(Refusal(result_path(r), "its tasks are others than this suite's at this version"))
    return kept


@dataclass(frozen=True, slots=True)
class _Scored:
    """A result with its intervals."""

    result: EvaluationResult
    tasks: tuple[TaskLine, ...]
    domains: Mapping[str, Estimate]
    overall: Estimate | None
    failures: Mapping[str, RunError] = field(default_factory=dict)
    narrowed: str | None = None

    @property
    def by_task(self) -> Mapping[tuple[str, str], Estimate]:
        return {(t.domain, t.task): t.score for t in self.tasks}


def _scored(result: EvaluationResult) -> _Scored:
    lines = tuple(
        TaskLine(score=score_interval(t.value, t.samples, t.stderr), **{name: getattr(t, name) for name in _AS_STATED})
        for t in sorted(result.tasks, key=_task_order)
    )
    parts: dict[str, list[Estimate]] = {}
    for line in lines:
        parts.setdefault(line.domain, []).append(line.score)
    domains = {domain: mean(found) for domain, found in parts.items()}
    ran = result.environment
    narrowed = f"{ran.dtype}, stored as {ran.stored_dtype}" if ran.stored_dtype else None
    return _Scored(result, lines, domains, mean(list(domains.values())) if domains else None, narrowed=narrowed)


def _task_order(task: TaskLine | TaskScore) -> tuple[tuple[int, str], str]:
    return domain_order(task.domain), task.task


def _domains(scored: Mapping[Node, _Scored]) -> tuple[str, ...]:
    return tuple(sorted({d for s in scored.values() for d in s.domains}, key=domain_order))


def _joined(suites: Mapping[str, Mapping[Node, _Scored]], standing: Standing) -> dict[Node, _Scored]:
    """One entry per model and commit out of several suites; its newest result tells the facts.

    Signed scores are not joined with others of the same model: only the signed ones count there.
    """
    parts: dict[Node, dict[str, _Scored]] = defaultdict(dict)
    for suite, scored in suites.items():
        for node, own in scored.items():
            parts[node][suite] = own
    for node, found in parts.items():
        signed = {suite: own for suite, own in found.items() if standing.is_signed(own.result)}
        parts[node] = signed or found
    return {node: _join(found, complete=set(suites)) for node, found in parts.items()}


def _join(parts: Mapping[str, _Scored], complete: set[str]) -> _Scored:
    failures = {suite: p.result.error for suite, p in parts.items() if p.result.error is not None}
    done = {suite: p for suite, p in parts.items() if suite not in failures}
    told = max((p.result for p in (done or parts).values()), key=_preference)
    domains = {d: e for p in done.values() for d, e in p.domains.items()}
    ordered = {d: domains[d] for d in sorted(domains, key=domain_order)}
    tasks = sorted((t for p in done.values() for t in p.tasks), key=_task_order)
    overall = mean(list(ordered.values())) if set(done) == complete else None
    narrowed = next((p.narrowed for p in done.values() if p.narrowed), None)
    return _Scored(told, tuple(tasks), ordered, overall, failures, narrowed)


def _rows(
    scored: Mapping[Node, _Scored], descent: Mapping[bool, _Descent], standing: Standing
) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """The domains and the rows; `descent`: of signed rows (True), and of others."""
    of = {node: descent[standing.is_signed(own.result)] for node, own in scored.items()}
    marks = {node: flags.get(node, ()) for node, (_, flags) in of.items()}
    decisive = {id(r) for r in standing.signed_first(s.result for s in scored.values())}
    newest = _newest([s.result for s in scored.values()], standing)
    shown = set(newest.values())
    waiting = list(shown)
    while waiting:  # parents of what is shown, and theirs
        for p in scored[waiting.pop()].result.facts.parents:
            if (node := (p.id, p.sha)) in scored and node not in shown:
                shown.add(node)
                waiting.append(node)
    counted = {n for n in shown if not marks[n] and n == newest[n[0]] and id(scored[n].result) in decisive}
    ranked = [scored[n] for n in sorted(counted)]
    signed = {n: s for n, s in scored.items() if standing.is_signed(s.result)}
    # parents also by their commits, since a repo may have been renamed; a signed result of one, and scores, go first
    firm = sorted(scored.values(), key=lambda s: (standing.is_signed(s.result), s.result.status == "done"))
    of_commit = [{s.result.sha: s for s in firm if is_all or standing.is_signed(s.result)} for is_all in (True, False)]
    domains = _domains(scored)
    lows = sorted(s.overall.low for s in ranked if s.overall)
    lows_of = {d: sorted(s.domains[d].low for s in ranked if d in s.domains) for d in domains}
    rows = []
    for node in sorted(shown):
        own = scored[node]
        counts = node in counted
        credible = signed if node in signed else scored  # no stranger's score of a parent makes a signed row look good
        ranks = {d: _rank(e.high, lows_of[d]) for d, e in own.domains.items()} if counts else {}
        rows.append(
            _row(
                own,
                [
                    _parent(p, credible.get((p.id, p.sha)) or of_commit[node in signed].get(p.sha))
                    for p in own.result.facts.parents
                ],
                ranks,
                rank=_rank(own.overall.high, lows) if counts and own.overall else None,
                ancestors=tuple(f"{id}@{sha}" for id, sha in of[node][0].ancestors(node)),
                flags=marks[node],
                superseded=node != newest[node[0]],
                signed=standing.is_signed(own.result),
            )
        )
    orders = [r.skills.order if r.rank is not None and r.skills else None for r in rows]
    known = sorted(order for order in orders if order is not None)
    for place, order in enumerate(orders):
        if order is not None:
            rows[place] = replace(rows[place], skills_rank=_rank(order, known))
    return domains, tuple(sorted(rows, key=_place))


def _rank(value: Any, others: Sequence[Any]) -> int:
    """1 + how many of the others, which are sorted, lie above."""
    return 1 + len(others) - bisect_right(others, value)


def _newest(group: Sequence[EvaluationResult], standing: Standing) -> dict[str, Node]:
    """Each model's newest commit among the results, signed ones first: by the commit's date, else by the result's."""

    def age(result: EvaluationResult) -> tuple[bool, datetime, datetime, str]:
        created = _moment(result.created)
        try:
            committed = _moment(result.facts.created or result.created)
        except ValueError:
            committed = created
        return (standing.is_signed(result), min(committed, created), created, result.sha)

    return {result.model: (result.model, result.sha) for result in sorted(group, key=age)}


def _parent(parent: Any, own: _Scored | None) -> ParentLine:
    line = ParentLine(parent.role, parent.id, parent.sha, parent.weight, "not scored")
    if own is None:
        return line
    if own.result.status == "failed":
        return replace(line, status="failed")
    return replace(line, status="scored", domains=own.domains, tasks=own.by_task, overall=own.overall)


def _row(own: _Scored, parents: Sequence[ParentLine], ranks: Mapping[str, int], **placed: Any) -> Row:
    """The row of a model beside its parents; `ranks`: those in its domains, `placed`: its place among the rows."""
    result = own.result
    base = next((p for p in parents if p.role == "base" and INSTRUCTION in p.domains), None)
    change = (
        difference(own.domains[INSTRUCTION], base.domains[INSTRUCTION]) if base and INSTRUCTION in own.domains else None
    )
    return Row(
        model=result.model,
        sha=result.sha,
        status=result.status,
        error=result.error,
        created=result.created,
        facts=result.facts,
        environment=result.environment,
        tasks=own.tasks,
        domains=tuple(domain_line(domain, score, parents, ranks.get(domain)) for domain, score in own.domains.items()),
        overall=own.overall,
        skills=skills_kept(own.by_task, parents),
        instruction_change=change,
        parents=tuple(parents),
        failures=own.failures,
        narrowed=own.narrowed,
        claimed_by=result.run_by,
        **placed,
    )


def _place(row: Row) -> tuple[Any, ...]:
    """Ranked rows first, then those without a rank, failed ones last."""
    value = row.overall.value if row.overall else 0.0
    covered = -len(row.domains)
    return (row.status == "failed", row.rank is None, row.rank or 0, covered, -value, row.model, row.sha)

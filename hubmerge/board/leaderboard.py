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
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

from hubmerge.board.files import ResultFiles
from hubmerge.board.lineage import Lineage, Node
from hubmerge.board.standing import Run, admit, ancestry, signed_first
from hubmerge.board.values import COMBINED, Board, Flag, Refusal, Row, RowFlag, SuiteBoard, TaskLine
from hubmerge.evaluation.result import EvaluationResult, Split, TaskScore, result_path
from hubmerge.evaluation.signing import provenance
from hubmerge.hub.names import is_hub_id
from hubmerge.output.scores import (
    INSTRUCTION,
    DomainLine,
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
_NOT_SCORED = ParentLine("agent", "", "", 1.0, "not scored")


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
    runs = _accept(results, now, frozenset(trusted), out)
    descent: dict[bool, _Descent] = {}
    for is_signed, told in ancestry(runs).items():
        lineage = Lineage(told)
        descent[is_signed] = lineage, lineage.flagged(flags)
    suites: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in admit([run for run in runs if run.result.split == split], out):
        suites[run.result.suite][run.result.suite_version].append(run)
    boards: list[SuiteBoard] = []
    single: dict[str, tuple[str, dict[Node, Row]]] = {}
    for suite, found in sorted(suites.items()):
        newest = {v: max(_moment(run.result.created) for run in signed_first(group)) for v, group in found.items()}
        versions = tuple(sorted(found, key=lambda v: (newest[v], v), reverse=True))
        shown = (suite_versions or {}).get(suite, versions[0])
        scored: dict[Node, Row] = {}
        for run in _with_equal_tasks(found.get(shown, []), out):
            try:
                scored[run.result.model, run.result.sha] = _scored(run)
            except (ArithmeticError, ValueError) as error:  # bounds keep these out; one file must never end the board
                reason = f"its scores cannot be computed with: {error}"[:300]
                out.add(Refusal(result_path(run.result)[:300], reason))
        if _domains(scored) == (suite,):
            single[suite] = (shown, scored)
        boards.append(SuiteBoard(suite, shown, split, versions, *_rows(scored, descent)))
    if signed := {s: own for s, own in single.items() if any(row.tasks and row.signed for row in own[1].values())}:
        single = signed  # a suite of which only the community has scores must not leave everybody incomplete
    if len(single) > 1:
        version = " ".join(f"{suite}-{version}" for suite, (version, _) in single.items())
        joined = _joined({suite: scored for suite, (_, scored) in single.items()})
        boards.insert(0, SuiteBoard(COMBINED, version, split, (version,), *_rows(joined, descent)))
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
) -> list[Run]:
    """Of every run one credible result, in an order that does not depend on the input's."""
    best: dict[tuple[str, ...], Run] = {}
    for result in results:
        if reason := _doubt(result, now):
            out.add(Refusal(result_path(result)[:300], reason))
            continue
        if (found := provenance(result, trusted)) == "forged":
            out.add(Refusal(result_path(result)[:300], "its signature is not of this content"))
            continue
        key, mine = result.run_key, Run(result, found == "signed")
        known = best.setdefault(key, mine)
        if known.result != result:
            other, best[key] = sorted((known, mine), key=_preference)
            why = f"another result of the same run is preferred to that of {other.result.created}"
            out.add(Refusal(result_path(other.result), why))
    return [run for _, run in sorted(best.items(), key=itemgetter(0))]


def _preference(run: Run) -> tuple[bool, bool, datetime, str]:
    return (run.signed, run.result.status == "done", _moment(run.result.created), run.result.to_json())


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


def _with_equal_tasks(group: Sequence[Run], out: set[Refusal]) -> list[Run]:
    """The runs of the tasks that most have, signed ones first; of two sets as frequent, the first that was there."""
    # the facts that must be equal for two scores to compare, none for a failed run; not the commits of the datasets,
    # whose content the suite's version is over
    tasks = {
        id(run): tuple(
            sorted((t.task, t.domain, t.metric, t.few_shot, t.task_version, t.dataset) for t in run.result.tasks)
        )
        for run in group
    }
    decisive = signed_first(run for run in group if tasks[id(run)])
    decisive.sort(key=lambda run: (_moment(run.result.created), repr(tasks[id(run)])))
    counts = Counter(tasks[id(run)] for run in decisive)  # in the order in which they were there
    usual = counts.most_common(1)[0][0] if counts else ()
    kept = []
    for run in group:
        if tasks[id(run)] in ((), usual):
            kept.append(run)
        else:
            out.add(Refusal(result_path(run.result), "its tasks are others than this suite's at this version"))
    return kept


def _scored(run: Run) -> Row:
    """The row of a run by itself, its scores with their intervals."""
    result, ran = run.result, run.result.environment
    lines = tuple(
        TaskLine(score=score_interval(t.value, t.samples, t.stderr), **{name: getattr(t, name) for name in _AS_STATED})
        for t in sorted(result.tasks, key=_task_order)
    )
    parts: dict[str, list[Estimate]] = {}
    for line in lines:
        parts.setdefault(line.domain, []).append(line.score)
    domains = tuple(DomainLine(domain, mean(found), None) for domain, found in parts.items())
    return Row(
        model=result.model,
        sha=result.sha,
        status=result.status,
        error=result.error,
        created=result.created,
        facts=result.facts,
        environment=ran,
        tasks=lines,
        domains=domains,
        overall=mean([d.score for d in domains]) if domains else None,
        signed=run.signed,
        narrowed=f"{ran.dtype}, stored as {ran.stored_dtype}" if ran.stored_dtype else None,
        claimed_by=result.run_by,
    )


def _task_order(task: TaskLine | TaskScore) -> tuple[tuple[int, str], str]:
    return domain_order(task.domain), task.task


def _domains(scored: Mapping[Node, Row]) -> tuple[str, ...]:
    return tuple(sorted({d.domain for row in scored.values() for d in row.domains}, key=domain_order))


def _joined(suites: Mapping[str, Mapping[Node, Row]]) -> dict[Node, Row]:
    """One row per model and commit out of several suites of a domain each; its newest result tells the facts.

    Signed scores are not joined with others of the same model: only the signed ones count there.
    """
    parts: dict[Node, dict[str, Row]] = defaultdict(dict)
    for suite, scored in suites.items():
        for node, row in scored.items():
            parts[node][suite] = row
    joined = {}
    for node, found in parts.items():
        found = {suite: row for suite, row in found.items() if row.signed} or found
        failures = {suite: row.error for suite, row in found.items() if row.error is not None}
        done = [row for row in found.values() if row.error is None]
        told = max(reversed(done or [*found.values()]), key=lambda row: _moment(row.created))
        domains = sorted((d for row in done for d in row.domains), key=lambda d: domain_order(d.domain))
        joined[node] = replace(
            told,
            tasks=tuple(sorted((t for row in done for t in row.tasks), key=_task_order)),
            domains=tuple(domains),
            overall=mean([d.score for d in domains]) if len(done) == len(suites) else None,
            failures=failures,
            narrowed=next((row.narrowed for row in done if row.narrowed), None),
        )
    return joined


def _rows(scored: Mapping[Node, Row], descent: Mapping[bool, _Descent]) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """The domains, and the rows beside each other; `descent`: of signed rows (True), and of others."""
    marks = {node: descent[row.signed][1].get(node, ()) for node, row in scored.items()}
    # each model's newest commit, signed ones first
    newest = {node[0]: node for node in sorted(scored, key=lambda node: _age(scored[node]))}
    shown = set(newest.values())
    waiting = list(shown)
    while waiting:  # parents of what is shown, and theirs
        for p in scored[waiting.pop()].facts.parents:
            if (node := (p.id, p.sha)) in scored and node not in shown:
                shown.add(node)
                waiting.append(node)
    decide = any(row.signed for row in scored.values())  # the signed rows alone
    counted = {n for n in shown if not marks[n] and n == newest[n[0]] and scored[n].signed == decide}
    ranked = [scored[n] for n in sorted(counted)]
    lines = {node: _as_parent(row) for node, row in scored.items()}
    # parents also by their commits, since a repo may have been renamed; a signed result of one, and scores, go first.
    # No stranger's score of a parent makes a signed row (True) look good
    firm = sorted(scored, key=lambda n: (scored[n].signed, scored[n].status == "done"))
    known = {
        only: {k: lines[n] for n in firm if scored[n].signed or not only for k in (n, n[1])} for only in (False, True)
    }
    lows = sorted(row.overall.low for row in ranked if row.overall)
    lows_of: dict[str, list[float]] = defaultdict(list)
    for d in sorted((d for row in ranked for d in row.domains), key=lambda d: d.score.low):
        lows_of[d.domain].append(d.score.low)
    rows = []
    for node in sorted(shown):
        own, counts = scored[node], node in counted
        parents = [
            replace(
                known[own.signed].get((p.id, p.sha)) or known[own.signed].get(p.sha, _NOT_SCORED),
                role=p.role,
                id=p.id,
                sha=p.sha,
                weight=p.weight,
            )
            for p in own.facts.parents
        ]
        before = next((p.domains[INSTRUCTION] for p in parents if p.role == "base" and INSTRUCTION in p.domains), None)
        after = lines[node].domains.get(INSTRUCTION)
        rows.append(
            replace(
                own,
                domains=tuple(
                    domain_line(d.domain, d.score, parents, _rank(d.score.high, lows_of[d.domain]) if counts else None)
                    for d in own.domains
                ),
                rank=_rank(own.overall.high, lows) if counts and own.overall else None,
                skills=skills_kept(lines[node].tasks, parents),
                instruction_change=difference(after, before) if after and before else None,
                parents=tuple(parents),
                ancestors=tuple(f"{id}@{sha}" for id, sha in descent[own.signed][0].ancestors(node)),
                flags=marks[node],
                superseded=node != newest[node[0]],
            )
        )
    orders = [r.skills.order if r.rank is not None and r.skills else None for r in rows]
    kept = sorted(order for order in orders if order is not None)
    for place, order in enumerate(orders):
        if order is not None:
            rows[place] = replace(rows[place], skills_rank=_rank(order, kept))
    return _domains(scored), tuple(sorted(rows, key=_place))


def _rank(value: Any, others: Sequence[Any]) -> int:
    """1 + how many of the others, which are sorted, lie above."""
    return 1 + len(others) - bisect_right(others, value)


def _age(row: Row) -> tuple[bool, datetime, datetime, str]:
    """By the commit's date, else by the result's."""
    created = _moment(row.created)
    try:
        committed = _moment(row.facts.created or row.created)
    except ValueError:
        committed = created
    return (row.signed, min(committed, created), created, row.sha)


def _as_parent(row: Row) -> ParentLine:
    """The row's scores beside those of any merge of it."""
    return replace(
        _NOT_SCORED,
        status="failed" if row.status == "failed" else "scored",
        domains={d.domain: d.score for d in row.domains},
        tasks={(t.domain, t.task): t.score for t in row.tasks},
        overall=row.overall,
    )


def _place(row: Row) -> tuple[Any, ...]:
    """Ranked rows first, then those without a rank, failed ones last."""
    value = row.overall.value if row.overall else 0.0
    covered = -len(row.domains)
    return (row.status == "failed", row.rank is None, row.rank or 0, covered, -value, row.model, row.sha)

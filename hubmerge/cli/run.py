"""`hubmerge run`: the whole line from a recipe, or from a sweep of which the best variant is published.

    run RECIPE --to REPO                            merge and publish
    run RECIPE --to REPO --evaluate SUITE           … then measure the merge and its parents, and put it on its card
    run --sweep SWEEP --to REPO                     every variant, published as REPO-<variant>
    run --sweep SWEEP --pick --evaluate S --to REPO the variant that does best on the suite's development split,
                                                    measured on its test split, which had no part in choosing

The first of them can be started as several processes by a launcher: each merges and uploads its share of the shards,
rank 0 makes the commit. They need no common folder.

Run again after a kill: merges resume from their journals, at the commits that they began with (pins.py), evaluations
from their answers, and what is published or recorded is found again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hubmerge.cli.flags import add_visibility
from hubmerge.engine.progress import resolving
from hubmerge.errors import RecipeError
from hubmerge.extras import require
from hubmerge.settings import Settings

if TYPE_CHECKING:
    from hubmerge.engine.pins import Pins, RunPins
    from hubmerge.engine.stream import StreamOptions
    from hubmerge.evaluation.pick import Pick
    from hubmerge.evaluation.result import EvaluationResult, Split
    from hubmerge.hub.client import Hub
    from hubmerge.output.publish import Published
    from hubmerge.prepare import Prepared
    from hubmerge.recipe.recipe import Recipe

T = TypeVar("T")


class Terminal(Protocol):
    """The terminal, as far as a run needs it."""

    def stage(self, name: str) -> None: ...
    def progress(self, stage: str, done: int, total: int, unit: str) -> None: ...
    def statistics(self, values: Mapping[str, Any]) -> None: ...
    def warning(self, message: str) -> None: ...
    def usage(self, environment: Mapping[str, Any]) -> None: ...
    def say(self, text: str, **values: Any) -> None: ...
    def close(self) -> None: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, nargs="?")
    parser.add_argument("--to", required=True, metavar="REPO")
    add_visibility(parser)
    parser.add_argument("--license", help="license of the result, where the parents leave it open")
    words = "begin with the newest versions, where an unfinished run would go on with those that it began with"
    parser.add_argument("--newest", action="store_true", help=words)
    parser.add_argument("--evaluate", metavar="SUITE", help="measure the merge and its parents afterwards")
    parser.add_argument("--sweep", type=Path, metavar="SWEEP.yaml", help="several variants instead of a recipe")
    parser.add_argument("--pick", action="store_true", help="publish only the variant that does best on dev rows")


def run_cli(arguments: Any, settings: Settings, terminal: Terminal, options: StreamOptions) -> int:
    """Exit code 0, or 1 where the merge was published but could not be evaluated."""
    from hubmerge.cli.run_advice import advising

    _check(arguments, settings)
    with advising(settings.data_dir):
        return _run(arguments, settings, terminal, options)


def _run(arguments: Any, settings: Settings, terminal: Terminal, options: StreamOptions) -> int:
    from hubmerge.engine.distributed import join
    from hubmerge.hub.login import hub_of_user
    from hubmerge.recipe.file import load_recipe

    hub = hub_of_user(settings)
    if settings.world_size > 1:
        with join(settings) as ranks:
            line = _Line(arguments, settings, hub, terminal, replace(options, ranks=ranks))
            return line.run(load_recipe(arguments.recipe), arguments.to)
    line = _Line(arguments, settings, hub, terminal, options)
    if arguments.sweep is None:
        return line.run(load_recipe(arguments.recipe), arguments.to)
    from hubmerge.recipe.sweep import load_sweep

    variants = load_sweep(arguments.sweep).variants
    if arguments.pick:
        found, folder, unfinished = line.pick(variants)
        code = line.run(dict(variants)[found.chosen], arguments.to, _told(found, folder), unfinished.pins)
        if code == 0:
            unfinished.end()
        return code
    return max(line.run(recipe, f"{arguments.to}-{name}") for name, recipe in variants)


def _check(arguments: Any, settings: Settings) -> None:
    if (arguments.recipe is None) == (arguments.sweep is None):
        raise RecipeError("name a recipe, or a sweep with --sweep", expected="one of them")
    if arguments.pick and (arguments.sweep is None or arguments.evaluate is None):
        raise RecipeError("--pick chooses among a sweep's variants by a suite", expected="--sweep and --evaluate")
    if arguments.sweep is not None or arguments.evaluate is not None:
        from hubmerge.engine.distributed import refuse_several

        refuse_several(settings, "run with --sweep or --evaluate")
    if arguments.evaluate is not None:
        require("eval", "an evaluation")  # before hours of merging


class _Line:
    """One run, with all that its steps share."""

    def __init__(
        self, arguments: Any, settings: Settings, hub: Hub, terminal: Terminal, options: StreamOptions
    ) -> None:
        self._arguments = arguments
        self._settings = settings
        self._hub = hub
        self._terminal = terminal
        self._options = options
        self._resolving = resolving(terminal)
        self._sensitivities = settings.data_dir / "sensitivity"

    def run(self, recipe: Recipe, repo: str, extra: Mapping[str, bytes] | None = None, pins: Pins | None = None) -> int:
        """Merge to `repo` with the files `extra` beside the card; then evaluate, if that was asked for.

        `pins`: where to take the models, whatever an unfinished run began with.
        """
        from hubmerge.engine.pins import RunPins

        unfinished = RunPins(self._settings.data_dir / "runs", [recipe], repo, newest=self._arguments.newest)
        published = self._publish(recipe, repo, extra or {}, unfinished, pins)
        if published is None:
            return 0
        self._terminal.say(f"{published.url} at {published.commit}\n", published=[asdict(published)])
        code = 0 if self._arguments.evaluate is None else self._evaluate(published)
        if code == 0:
            unfinished.end()
        return code

    def _publish(
        self, recipe: Recipe, repo: str, extra: Mapping[str, bytes], unfinished: RunPins, pins: Pins | None
    ) -> Published | None:
        """Merge and publish; returns None where another process publishes."""
        from hubmerge.merge import merge_to_hub
        from hubmerge.output.finished import load_report
        from hubmerge.output.publish import Target, find_published
        from hubmerge.prepare import prepare

        target = Target(repo, self._arguments.private, self._arguments.public)
        self._terminal.stage("resolve")
        prepared = self._going_on(
            pins or unfinished.pins,
            recipe,
            lambda commits: prepare(
                recipe,
                self._hub,
                target=target,
                license_choice=self._arguments.license,
                allow_local=True,
                commits=commits,
                tell=self._resolving,
                begin=self._terminal.stage,
            ),
        )
        work = self._settings.data_dir / "runs" / prepared.identity
        if self._options.ranks.rank:
            self._help(prepared, work)
            return None
        self._options.ranks.agree("the merge", prepared.identity)
        published = find_published(self._hub, target, prepared.identity)
        self._options.ranks.first(published is not None)
        _remove_left_over(work.parent)
        if published is not None:  # by an earlier run that was killed before it could say so, or simply again
            _remove(work)
            return published
        self._begin(unfinished, work, prepared)
        published = merge_to_hub(
            prepared,
            self._hub,
            work / "out",
            cache=work / "inputs",
            observer=self._terminal,
            options=self._options,
            sensitivities=self._sensitivities,
            disk_budget=self._arguments.disk_budget,
            extra=extra,
        )
        self._terminal.usage(load_report(work / "out").environment)
        _remove(work)
        self._options.ranks.gather("published")
        return published

    def _going_on(self, pins: Pins | None, recipe: Recipe, prepare: Callable[[Sequence[str | None]], T]) -> T:
        from hubmerge.engine.pins import going_on

        return going_on(
            pins,
            recipe,
            prepare,
            hub=self._hub,
            ranks=self._options.ranks,
            warn=self._terminal.warning,
            newest="To begin with the newest, add --newest.",
        )

    def _begin(self, unfinished: RunPins, work: Path, prepared: Prepared) -> None:
        """Begin the run and drop one of other versions of the models; FolderInUseError where that is still at work."""
        from hubmerge.engine.sink import sole_owner

        older = unfinished.older_run(work.name)
        with ExitStack() as owned:
            for folder in older.iterdir() if older is not None else ():
                if folder.is_dir():
                    owned.enter_context(sole_owner(folder))
            unfinished.begin(work.name, prepared.plan)
            if older is not None:
                self._terminal.warning("an unfinished run of other versions of the models is given up, and removed")
                _remove(older)

    def _help(self, prepared: Prepared, work: Path) -> None:
        """Another process leads: the exchanges of `_publish`, and a share of the work between them."""
        from hubmerge.output.helper import help_to_hub

        ranks = self._options.ranks
        self._terminal.close()
        ranks.agree("the merge", prepared.identity)
        if not ranks.first(False):
            help_to_hub(prepared, self._hub, work / "out", work / "inputs", self._options, self._arguments.disk_budget)
            ranks.gather("published")
        shutil.rmtree(work, ignore_errors=True)  # of this machine's own disk, where rank 0 sees another one

    def _evaluate(self, published: Published) -> int:
        """Evaluate the merge and every parent on the Hub under one version of the suite, for the card."""
        from hubmerge.cli.evaluate import table
        from hubmerge.evaluation.facts import model_facts
        from hubmerge.evaluation.suites import pin
        from hubmerge.hub.names import is_hub_id
        from hubmerge.leaderboard.eval_results import publish_scores
        from hubmerge.leaderboard.results_dataset import ResultsDataset, details_of
        from hubmerge.leaderboard.trust import reader_trust
        from hubmerge.recipe.model_name import ModelName
        from hubmerge.sources.open import open_model

        self._terminal.stage("resolve")
        named = self._settings.results_repo
        dataset = ResultsDataset(self._hub, named, trust=reader_trust(self._settings, named)) if named else None
        suite = pin(self._arguments.evaluate, self._hub)
        merged = ModelName(id=published.repo, revision=published.commit)
        parents = model_facts(self._hub, open_model(merged, self._hub, allow_local=False)).parents
        names = [merged, *(ModelName(id=p.id, revision=p.sha) for p in parents if is_hub_id(p.id))]
        results = []
        for name in names:
            known = dataset.find(name.id, name.revision or "", *_key(suite)) if dataset else None
            result = known if known is not None and known.status == "done" else self._measure(name, suite)
            results.append(result)
            self._terminal.say(table(result), evaluations=[json.loads(result.to_json())])
            if dataset is not None and result is not known:
                details = details_of(result, self._workdir(name, suite))
                dataset.publish([result], details, private=self._arguments.private)
        publish_scores(self._hub, published.repo, results, source_url=dataset.url if dataset else "")
        return int(results[0].status != "done")

    def pick(self, variants: Sequence[tuple[str, Recipe]]) -> tuple[Pick, Path, RunPins]:
        """Merge every variant, measure each on the development split, and choose; also what all of them began with."""
        from hubmerge.engine.pins import RunPins
        from hubmerge.evaluation.pick import pick, pick_table
        from hubmerge.evaluation.suites import pin
        from hubmerge.merge import merge_to_folders
        from hubmerge.output.report import sweep_table
        from hubmerge.prepare import prepare_variants
        from hubmerge.recipe.model_name import ModelName

        self._terminal.stage("resolve")
        suite = pin(self._arguments.evaluate, self._hub, "dev")
        runs, recipes = self._settings.data_dir / "runs", [recipe for _, recipe in variants]
        unfinished = RunPins(runs, recipes, self._arguments.to, newest=self._arguments.newest)
        prepared = self._going_on(
            unfinished.pins,
            recipes[0],
            lambda commits: prepare_variants(
                recipes,
                self._hub,
                license_choice=self._arguments.license,
                licensed=True,
                allow_local=True,
                commits=commits,
                tell=self._resolving,
                begin=self._terminal.stage,
            ),
        )
        digest = hashlib.sha256("".join(p.identity for p in prepared).encode()).hexdigest()
        work = runs / f"sweep-{digest[:32]}"
        self._begin(unfinished, work, prepared[0])
        folders = {name: work / name for name, _ in variants}
        reports = merge_to_folders(
            list(zip(prepared, folders.values(), strict=True)),
            self._hub,
            cache=work / ".inputs",
            observer=self._terminal,
            options=self._options,
            resume=True,
            sensitivities=self._sensitivities,
            disk_budget=self._arguments.disk_budget,
        )
        results = {
            name: self._measure(ModelName(id=str(folder.resolve()), local=True), suite)
            for name, folder in folders.items()
        }
        samples = {
            name: _scores(self._workdir(ModelName(id=str(folders[name].resolve()), local=True), suite))
            for name, result in results.items()
            if result.status == "done"
        }
        found = pick(results, samples)
        text = pick_table(found) + "\n" + sweep_table(dict(zip(folders, reports, strict=True)))
        (work / "pick.md").write_text(text, encoding="utf-8")
        self._terminal.say(text, pick=_as_data(found))
        return found, work, unfinished

    def _measure(self, name: Any, suite: Any) -> EvaluationResult:
        from hubmerge.evaluation.runner import EvaluateOptions, evaluate

        return evaluate(
            name,
            suite,
            hub=self._hub,
            workdir=self._workdir(name, suite),
            options=EvaluateOptions(data_cache=self._settings.data_dir / "evaluation-data"),
            observer=self._terminal,
            allow_local=True,
        )

    def _workdir(self, name: Any, suite: Any) -> Path:
        key = hashlib.sha256(json.dumps([str(name), *_key(suite)]).encode()).hexdigest()[:32]
        return self._settings.data_dir / "evaluations" / key


_DONE = ".done"


def _remove(work: Path) -> None:
    """Remove a finished run's folder; a kill in the middle leaves nothing that looks like an unfinished one."""
    done = work.with_name(work.name + _DONE)
    shutil.rmtree(done, ignore_errors=True)
    with suppress(FileNotFoundError):  # another process may do the same
        work.replace(done)
    shutil.rmtree(done, ignore_errors=True)


def _remove_left_over(runs: Path) -> None:
    for path in runs.glob(f"*{_DONE}"):
        shutil.rmtree(path, ignore_errors=True)


def _key(suite: Any) -> tuple[str, str, Split]:
    return suite.suite.name, suite.version, suite.split


def _scores(workdir: Path) -> dict[str, list[float]]:
    """Task → the score of every prompt, from a run's details."""
    import pyarrow.parquet as pq

    from hubmerge.evaluation.runner import DETAILS

    return {
        path.stem: [float(v) for v in pq.read_table(path, columns=["score"])["score"].to_pylist()]
        for path in sorted((workdir / DETAILS).glob("*.parquet"))
    }


def _told(found: Pick, folder: Path) -> dict[str, bytes]:
    """The files that are published about the choice: the table, and the same as data."""
    return {
        "pick.md": (folder / "pick.md").read_bytes(),
        "pick.json": (json.dumps(_as_data(found), indent=1) + "\n").encode(),
    }


def _as_data(found: Pick) -> dict[str, Any]:
    return {**asdict(found), "scores": [{**asdict(s), "tied": s.tied} for s in found.scores]}

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

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubmerge.cli.options import stream_options
from hubmerge.cli.terminal import Terminal
from hubmerge.engine.distributed import join, refuse_several
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.pins import Pins, RunPins
from hubmerge.engine.progress import of_rank
from hubmerge.errors import FormatError, GatedError, RecipeError, SettingsError, SourceNotFoundError
from hubmerge.hub.client import Hub
from hubmerge.hub.login import hub_of_user
from hubmerge.hub.names import is_hub_id
from hubmerge.library import NEWEST, begin_run, evaluate, evaluation_folder, merge_and_publish, prepared_at, remove_run
from hubmerge.line import Prepared, Request, merge_to_folders
from hubmerge.machine.extras import require
from hubmerge.output.publish import Published, Target, check_target, check_writer
from hubmerge.output.report import sweep_table
from hubmerge.recipe.file import load_recipe
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.recipe import Recipe
from hubmerge.recipe.sweep import load_sweep
from hubmerge.settings import Settings
from hubmerge.sources.open import open_model

if TYPE_CHECKING:  # a run without scores does not import what evaluates
    from hubmerge.board.results_dataset import ResultsDataset
    from hubmerge.evaluation.pick import Pick
    from hubmerge.evaluation.suites import PinnedSuite


def run_cli(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    """Exit code 0, or 1 where the merge was published but could not be evaluated."""
    options = stream_options(arguments, settings)
    _check(arguments, settings)
    hub = hub_of_user(settings)
    if arguments.sweep is None:
        with join(settings, terminal) as ranks:
            run = _Run(arguments, settings, hub, terminal, replace(options, ranks=ranks))
            run.refuse_to_expose()
            return run.merge(load_recipe(arguments.recipe), run.target())
    run, variants = _Run(arguments, settings, hub, terminal, options), load_sweep(arguments.sweep).variants
    run.refuse_to_expose()
    if not arguments.pick:
        return run.each(variants)
    target = run.target()
    found, folder, unfinished = run.pick(dict(variants), target)
    told = {}  # about the choice, where it was made now: the table, and the same as data
    if (table := folder / "pick.md").is_file():
        told = {"pick.md": table.read_bytes(), "pick.json": (json.dumps(found, indent=1) + "\n").encode()}
    code = run.merge(dict(variants)[found["chosen"]], target, told, unfinished.pins)
    if code == 0:
        unfinished.end()
        remove_run(folder)
    return code


def _check(arguments: Any, settings: Settings) -> None:
    if (arguments.recipe is None) == (arguments.sweep is None):
        raise RecipeError("name a recipe, or a sweep with --sweep", expected="one of them")
    if arguments.pick and (arguments.sweep is None or arguments.evaluate is None):
        raise RecipeError("--pick chooses among a sweep's variants by a suite", expected="--sweep and --evaluate")
    if arguments.sweep is not None or arguments.evaluate is not None:
        refuse_several(settings, "run with --sweep or --evaluate")
    if arguments.evaluate is not None:  # before hours of merging
        from hubmerge.evaluation.suites import get_suite

        require("eval", "an evaluation")
        get_suite(arguments.evaluate)
        if settings.results_repo and not is_hub_id(settings.results_repo):
            raise SettingsError(
                "scores are recorded in a dataset on the Hub",
                where="HUBMERGE_RESULTS",
                expected="namespace/name",
                got=settings.results_repo[:120],
                next_step="Set it right or leave it out.",
            )


@dataclass(frozen=True)
class _Run:
    """One run, with all that its steps share."""

    arguments: Any
    settings: Settings
    hub: Hub
    terminal: Terminal
    options: StreamOptions

    def target(self, end: str = "") -> Target:
        return Target(self.arguments.to + end, self.arguments.private, self.arguments.public)

    def dataset(self) -> "ResultsDataset | None":
        """Where scores are recorded; None: nowhere."""
        if not self.settings.results_repo or self.arguments.evaluate is None:
            return None
        from hubmerge.board.results_dataset import ResultsDataset
        from hubmerge.board.trust import reader_trust

        named = self.settings.results_repo
        return ResultsDataset(self.hub, named, trust=reader_trust(self.settings, named))

    def refuse_to_expose(self, parents: Sequence[ModelName] = ()) -> None:
        """EvaluationError where what is private would be recorded in public: the merge, or one of its `parents`;
        PermissionDeniedError where nothing can be recorded."""
        if (dataset := self.dataset()) is not None:
            check_writer(self.hub, dataset.repo)
            private = self.arguments.private
            dataset.refuse_to_expose(self.arguments.to, private, made_private=private)
            for name in parents:
                with suppress(SourceNotFoundError, GatedError):  # gone since, of which there may be a score
                    dataset.refuse_to_expose(name.id, self.hub.repo_state(name.id).private, made_private=private)

    def merge(
        self, recipe: Recipe, target: Target, extra: Mapping[str, bytes] | None = None, pins: Pins | None = None
    ) -> int:
        """Merge to `target` with the files `extra` beside the card; then evaluate, if that was asked for.

        `pins`: where to take the models, whatever an unfinished run began with.
        """
        unfinished = self._unfinished([recipe], target.repo)
        request = Request(target, self.arguments.license, allow_local=True)
        observer = of_rank(self.terminal, self.options.ranks.rank)
        observer.stage("resolve")
        published, report = merge_and_publish(
            recipe, request, unfinished, self.hub, self.options, observer, pins=pins, extra=extra
        )
        if self.options.ranks.rank:
            return 0
        if report is not None:
            self.terminal.usage(report.environment)
        self.terminal.say(f"{published.url} at {published.commit}\n", published=[asdict(published)])
        code = 0 if self.arguments.evaluate is None else self._evaluate(published)
        if code == 0:
            unfinished.end()
        return code

    def each(self, variants: Sequence[tuple[str, Recipe]]) -> int:
        """Merge every variant to a repo of its own, all at the same commits."""
        self.terminal.stage("resolve")
        recipes, targets = [recipe for _, recipe in variants], [self.target(f"-{name}") for name, _ in variants]
        unfinished = self._unfinished(recipes, f"{self.arguments.to}-*")
        unfinished.begin("sweep", self._prepared(recipes, targets, unfinished)[0].plan)
        runs = zip(recipes, targets, strict=True)
        code = max(self.merge(recipe, target, pins=unfinished.pins) for recipe, target in runs)
        if code == 0:
            unfinished.end()
        return code

    def _prepared(self, recipes: Sequence[Recipe], targets: Sequence[Target], unfinished: RunPins) -> list[Prepared]:
        """A sweep's variants; refused where they cannot be published, each to its target, which several may share."""
        request = Request(license=self.arguments.license, will_publish=True, allow_local=True)
        prepared = prepared_at(recipes, unfinished.pins, request, self.hub, self.options, self.terminal, NEWEST)
        for target in dict.fromkeys(targets):
            plans = [one.plan for one, its in zip(prepared, targets, strict=True) if its == target]
            target.refuse_to_expose([source for plan in plans for source in plan.sources])
            check_target(self.hub, target, *(plan.identity_at(target.repo) for plan in plans))
        return prepared

    def _unfinished(self, recipes: Sequence[Recipe], repo: str) -> RunPins:
        return RunPins(self.settings.data_dir / "runs", recipes, repo, newest=self.arguments.newest)

    def _evaluate(self, published: Published) -> int:
        """Evaluate the merge and every parent on the Hub under one version of the suite, for the card."""
        from hubmerge.board.eval_results import publish_scores
        from hubmerge.board.results_dataset import details_of
        from hubmerge.cli.evaluate import table
        from hubmerge.evaluation.facts import model_facts
        from hubmerge.evaluation.suites import pin

        self.terminal.stage("resolve")
        dataset, suite = self.dataset(), pin(self.arguments.evaluate, self.hub)
        merged = ModelName(id=published.repo, revision=published.commit)
        parents = model_facts(self.hub, open_model(merged, self.hub, allow_local=False)).parents
        names = [merged, *(ModelName(id=p.id, revision=p.sha) for p in parents if is_hub_id(p.id))]
        if folders := ", ".join(p.id for p in parents if not is_hub_id(p.id)):
            self.terminal.warning(f"only models of the Hub are measured beside the merge, and no folders: {folders}")
        self.refuse_to_expose(names[1:])
        results = []
        for name in names:
            key = suite.suite.name, suite.version, suite.split
            result = known = dataset.find(name.id, name.revision or "", *key) if dataset else None
            if result is None or result.status != "done":
                result = evaluate(name, suite, hub=self.hub, observer=self.terminal)
            results.append(result)
            self.terminal.say(table(result), evaluations=[json.loads(result.to_json())])
            if dataset is not None and result is not known:
                details = details_of(result, evaluation_folder(self.settings, name, suite))
                dataset.publish(result, details, private=self.arguments.private)
        publish_scores(self.hub, published.repo, results, dataset=dataset, tell=self.terminal.warning)
        return int(results[0].status != "done")

    def pick(self, variants: Mapping[str, Recipe], target: Target) -> tuple[dict[str, Any], Path, RunPins]:
        """Merge every variant, measure each on the development split, and choose; also what all of them began with.

        A choice that was published before is found again.
        """
        from hubmerge.evaluation.pick import pick, pick_table
        from hubmerge.evaluation.suites import pin

        self.terminal.stage("resolve")
        suite, recipes = pin(self.arguments.evaluate, self.hub, "dev"), list(variants.values())
        unfinished = self._unfinished(recipes, target.repo)
        prepared = self._prepared(recipes, [target] * len(recipes), unfinished)
        digest = sha256("".join(p.identity for p in prepared).encode()).hexdigest()
        work = self.settings.data_dir / "runs" / f"sweep-{digest[:32]}"
        published = check_target(self.hub, target, *(p.plan.identity_at(target.repo) for p in prepared))
        known = self._choice_at(published.head, suite, digest) if published.state == "ours" else {}
        if known.get("chosen") in [*variants]:
            self.terminal.say("", pick=known)
            return known, work, unfinished
        begin_run(unfinished, work, prepared[0], self.terminal)
        folders = {name: work / name for name in variants}
        options = replace(self.options, cache=work / ".inputs")
        merges = list(zip(prepared, folders.values(), strict=True))
        reports = merge_to_folders(merges, self.hub, options, self.terminal)
        models = {name: ModelName(id=str(folder.resolve()), local=True) for name, folder in folders.items()}
        results = {name: evaluate(model, suite, hub=self.hub, observer=self.terminal) for name, model in models.items()}
        samples = {
            name: _scores(evaluation_folder(self.settings, models[name], suite))
            for name, result in results.items()
            if result.status == "done"
        }
        found = pick(results, samples)
        text = pick_table(found) + "\n" + sweep_table(dict(zip(folders, reports, strict=True)))
        (work / "pick.md").write_text(text, encoding="utf-8")
        chosen = {**_as_data(found), "sweep": digest}
        self.terminal.say(text, pick=chosen)
        return chosen, work, unfinished

    def _choice_at(self, commit: str, suite: "PinnedSuite", sweep: str) -> dict[str, Any]:
        """What the target says of the choice that it holds; {} where that was another suite's, or another sweep's."""
        with suppress(SourceNotFoundError, FormatError, ValueError, LookupError, TypeError, RecursionError):
            known = json.loads(self.hub.read_file(self.arguments.to, commit, "pick.json"))
            if (known["suite"], known["suite_version"], known["sweep"]) == (suite.suite.name, suite.version, sweep):
                return dict(known)
        return {}


def _scores(workdir: Path) -> dict[str, list[float]]:
    """Task → the score of every prompt, from a run's details."""
    import pyarrow.parquet as pq

    from hubmerge.evaluation.runner import DETAILS

    return {
        path.stem: [float(v) for v in pq.read_table(path, columns=["score"])["score"].to_pylist()]
        for path in sorted((workdir / DETAILS).glob("*.parquet"))
    }


def _as_data(found: "Pick") -> dict[str, Any]:
    return {**asdict(found), "scores": [{**asdict(s), "tied": s.tied} for s in found.scores]}

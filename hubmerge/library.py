"""The functions of `import hubmerge`, which the command line calls too: one path from names to results.

A recipe is a `Recipe`, a mapping with a recipe's keys, or the path of a YAML file. Models are names on the Hub or
folders; relative folders begin at the recipe's file, or at the working folder. Every function acts as the user of this
machine (HF_ENDPOINT, HF_TOKEN or the client's login), unless it is given another `hub`. `observer` gets the progress
and may end the work by raising. Errors are HubmergeErrors: each has a stable code and says what to do next.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from hubmerge import line
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.pins import NEWEST_ELSEWHERE, Pins, RunPins, going_on, pins_in
from hubmerge.engine.progress import Observer, Unwatched
from hubmerge.engine.sink import sole_owner
from hubmerge.errors import FolderInUseError, RecipeError
from hubmerge.hub.client import Hub
from hubmerge.hub.login import hub_of_user
from hubmerge.line import Prepared, Request
from hubmerge.output.finished import load_report, publish_folder
from hubmerge.output.publish import Published, Target, find_published, license_stays
from hubmerge.output.report import Report
from hubmerge.plan.plan import Plan
from hubmerge.recipe.file import load_recipe, located, model_here
from hubmerge.recipe.recipe import Recipe, recipe_from_dict
from hubmerge.settings import Settings, load_settings
from hubmerge.statistics.statistics import Statistics

if TYPE_CHECKING:
    from hubmerge.evaluation.result import EvaluationResult, Split
    from hubmerge.evaluation.runner import EvaluateOptions
    from hubmerge.evaluation.suites import PinnedSuite
    from hubmerge.recipe.model_name import ModelName

RecipeLike = Recipe | Mapping[str, Any] | str | Path

NEWEST = "To begin with the newest, add --newest."  # advice where a run goes on
_DONE = ".done"


def inspect(recipe: RecipeLike, *, hub: Hub | None = None, observer: Observer | None = None) -> Plan:
    """Plan a merge from headers alone; no weight is fetched.

    The plan has every output tensor with its inputs (`plan.tensors()`), `elements`, `download_bytes`, `output_bytes`,
    the pinned `models`, `warnings` and the merge's `identity` (sha256 in hex).

    Raises IncompatibleError, with every problem of the recipe and its models at once; RecipeError for a wrong recipe;
    SourceNotFoundError, GatedError, HeaderError and other errors of the models.
    """
    observer = _begun(observer)
    return line.prepare(_recipe(recipe), hub or _hub(), Request(allow_local=True), observer).plan


def probe(
    recipe: RecipeLike,
    *,
    hub: Hub | None = None,
    options: StreamOptions | None = None,
    observer: Observer | None = None,
) -> Statistics:
    """Count what the agents changed, and where they meet: one pass over all inputs, in constant memory, without output.

    Counts are in elements, norms in the models' own units. `statistics.total` covers the whole model,
    `statistics.tensors` each tensor by name. docs/statistics.md has the definitions.

    Raises what `inspect` raises, NonFiniteError where an input has NaN or Inf, and SourceChangedError.
    """
    observer, hub = _begun(observer), hub or _hub()
    prepared = line.prepare(_recipe(recipe), hub, Request(allow_local=True, calibrate="not"), observer)
    observer.stage("probe")
    return line.probe(prepared, hub, options, observer)


@overload
def merge(
    recipe: RecipeLike,
    out: str | Path,
    *,
    license: str | None = None,
    hub: Hub | None = None,
    options: StreamOptions | None = None,
    observer: Observer | None = None,
) -> Report: ...


@overload
def merge(
    recipe: RecipeLike,
    *,
    to: str,
    private: bool = False,
    public: bool = False,
    license: str | None = None,
    newest: bool = False,
    hub: Hub | None = None,
    options: StreamOptions | None = None,
    observer: Observer | None = None,
) -> Published: ...


def merge(
    recipe: RecipeLike,
    out: str | Path | None = None,
    *,
    to: str | None = None,
    private: bool = False,
    public: bool = False,
    license: str | None = None,
    newest: bool = False,
    hub: Hub | None = None,
    options: StreamOptions | None = None,
    observer: Observer | None = None,
) -> Report | Published:
    """Merge into the folder `out`, or publish to the repo `to` in one commit.

    After a kill the same call goes on, at the commits that it began with (`newest`: at the newest ones instead; for a
    folder, choose another). For the Hub each shard is uploaded and deleted while the next one is merged, so at most two
    lie on this disk; the work lies below HUBMERGE_DATA. Publishing needs `license` where the parents leave it open.
    `public` says that the content of private parents may become public.

    Returns the folder's report (the content of its hubmerge.json), or the published repo and commit.

    Raises what `inspect` raises; DiskError, NonFiniteError, CorruptError; TargetExistsError where something else is
    there already, PermissionDeniedError, HubUnavailableError.
    """
    if (out is None) == (to is None):
        raise RecipeError("a merge goes to a folder or to a repo", expected="one of out and to")
    observer, hub, options = _begun(observer), hub or _hub(), options or StreamOptions()
    recipe = _recipe(recipe)
    if out is not None:
        request = Request(license=license, allow_local=True)
        [prepared] = prepared_at([recipe], pins_in(Path(out)), request, hub, options, observer)
        options.ranks.agree("the merge", prepared.identity)
        return line.merge_to_folder(prepared, hub, Path(out), _with_kept(options), observer)
    assert to is not None
    unfinished = RunPins(load_settings().data_dir / "runs", [recipe], to, newest=newest)
    request = Request(Target(to, private, public), license, allow_local=True)
    published, _ = merge_and_publish(recipe, request, unfinished, hub, options, observer)
    unfinished.end()
    return published


def prepared_at(
    recipes: Sequence[Recipe],
    pins: Pins | None,
    request: Request,
    hub: Hub,
    options: StreamOptions,
    observer: Observer,
    newest: str = NEWEST_ELSEWHERE,
) -> list[Prepared]:
    """Recipes over the same models, at the commits `pins` where an unfinished merge began with them."""
    return going_on(
        pins,
        recipes[0],
        lambda commits: line.prepare_variants(recipes, hub, replace(request, commits=commits), observer),
        hub=hub,
        ranks=options.ranks,
        warn=observer.warning,
        newest=newest,
    )


def merge_and_publish(
    recipe: Recipe,
    request: Request,
    unfinished: RunPins,
    hub: Hub,
    options: StreamOptions,
    observer: Observer,
    *,
    pins: Pins | None = None,
    extra: Mapping[str, bytes] | None = None,
) -> tuple[Published, Report | None]:
    """Merge to the target of `request` with the files `extra` beside the card, in a folder below HUBMERGE_DATA.

    `unfinished` finds that folder. `pins`: commits at which to take the models, also where an unfinished run began with
    others. The report is None where an earlier run has published the merge.
    """
    ranks, target = options.ranks, request.target
    assert target is not None
    pins = pins or unfinished.pins
    [prepared] = prepared_at([recipe], pins, request, hub, options, observer, NEWEST)
    ranks.agree("the merge", prepared.identity)
    work = load_settings().data_dir / "runs" / prepared.identity
    if ranks.rank == 0:
        for left in work.parent.glob(f"*{_DONE}"):
            shutil.rmtree(left, ignore_errors=True)
    published = None
    if ranks.first(prepared.published):  # by a run that was killed before it could say so, or simply again
        published = find_published(hub, target, prepared.identity)
    if published is not None:
        if told := license_stays(hub, target.repo, request.license):
            observer.warning(told)
        with suppress(FolderInUseError):  # by the run that has published it, and still reads what it has made
            if work.is_dir():
                with sole_owner(work):
                    remove_run(work)
        return published, None
    with sole_owner(work) if ranks.rank == 0 else nullcontext():
        if ranks.rank == 0:
            begin_run(unfinished, work, prepared, observer)
        options = replace(_with_kept(options), cache=work)
        published = line.merge_to_hub(prepared, hub, work / "out", options, observer, extra)
        report = load_report(work / "out") if ranks.rank == 0 else None
        ranks.gather("published")
        remove_run(work)
    return published, report


def begin_run(unfinished: RunPins, work: Path, prepared: Prepared, observer: Observer) -> None:
    """Note that a run works in `work`, and remove an unfinished run of other versions of the models.

    Raises FolderInUseError, and changes nothing, where another process still works on that one.
    """
    older = unfinished.older_run(work.name)
    with ExitStack() as owned:
        for folder in (older, *older.iterdir()) if older is not None else ():
            if folder.is_dir():
                owned.enter_context(sole_owner(folder))
        unfinished.begin(work.name, prepared.plan)
        if older is not None:
            observer.warning("an unfinished run of other versions of the models is given up, and removed")
            remove_run(older)


def publish(
    folder: str | Path,
    to: str,
    *,
    private: bool = False,
    public: bool = False,
    license: str | None = None,
    hub: Hub | None = None,
    observer: Observer | None = None,
) -> Published:
    """Publish a finished folder to the repo `to` in one commit; the folder stays as it is, and a repeated call is safe.

    Raises RecipeError where the folder is no finished merge, would expose private parents, or needs a `license`;
    CorruptError where a shard has other bytes than its manifest says; TargetExistsError, PermissionDeniedError.
    """
    target, observer = Target(to, private, public), observer or Unwatched()
    return publish_folder(target, Path(folder), hub or _hub(), observer, license_choice=license)


def evaluate(
    model: str | Path | ModelName,
    suite: str | PinnedSuite,
    *,
    split: Split = "test",
    hub: Hub | None = None,
    options: EvaluateOptions | None = None,
    observer: Observer | None = None,
) -> EvaluationResult:
    """Measure a model of the Hub, or a folder (`./merged`), by a suite of tasks; scores are numbers from 0 to 1.

    After a stop the same call goes on. A model that fails gives a result whose `status` is "failed", with the reason.

    Raises EvaluationError for a request that cannot be met, SourceNotFoundError and other errors of the Hub, and
    MissingExtraError where the packages of `hubmerge[eval]` are not installed.
    """
    from hubmerge.evaluation import runner
    from hubmerge.evaluation.suites import PinnedSuite, pin
    from hubmerge.machine.extras import require

    require("eval", "an evaluation")
    observer, hub, settings = _begun(observer), hub or _hub(), load_settings()
    name = model_here(model, observer.warning) if isinstance(model, str | Path) else model
    options = options or runner.EvaluateOptions()
    if not isinstance(suite, PinnedSuite):
        suite = pin(suite, hub, split, limit=options.limit, dtype=options.dtype)
    options = replace(options, data_cache=options.data_cache or settings.data_dir / "evaluation-data")
    workdir = evaluation_folder(settings, name, suite)
    return runner.evaluate(name, suite, hub=hub, workdir=workdir, options=options, observer=observer, allow_local=True)


def evaluation_folder(settings: Settings, model: ModelName, suite: PinnedSuite) -> Path:
    """The folder for an evaluation's answers, which are keyed by the model's commit, so that its runs share it."""
    key = sha256("\0".join([str(model), suite.suite.name, suite.version, suite.split]).encode()).hexdigest()[:32]
    return settings.data_dir / "evaluations" / key


def _recipe(recipe: RecipeLike) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, Mapping):
        return located(recipe_from_dict(dict(recipe)), Path())
    return load_recipe(Path(recipe))


def _begun(observer: Observer | None) -> Observer:
    observer = observer or Unwatched()
    observer.stage("resolve")
    return observer


def _hub() -> Hub:
    return hub_of_user(load_settings())


def _with_kept(options: StreamOptions) -> StreamOptions:
    """The options, with a folder that keeps computed sensitivities for later merges unless they name one."""
    return replace(options, sensitivities=options.sensitivities or load_settings().data_dir / "sensitivity")


def remove_run(work: Path) -> None:
    """Remove a finished run's folder; a kill in the middle leaves nothing that looks like an unfinished one."""
    done = work.with_name(work.name + _DONE)
    shutil.rmtree(done, ignore_errors=True)
    with suppress(FileNotFoundError):  # another process may do the same
        work.replace(done)
    shutil.rmtree(done, ignore_errors=True)

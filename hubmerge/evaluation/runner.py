"""Runs one evaluation, from a model's name to a result, and decides what a failure means.

    parent     pins the datasets, opens and checks the model, fetches its files          network, token
    fetch      the datasets' rows to Arrow files                (hubmerge/evaluation/fetch.py)   network, token
    child      lighteval on the model and the rows              (hubmerge/evaluation/child.py)   neither

Everything lies below the run's folder: `generations/` is the journal from which a run that was cancelled, killed or
out of time goes on, `details/` has one parquet file per task with every prompt, answer, reference and score.

If a model cannot be evaluated, that is a finding about the model: a result with status "failed" and the reason, never a
score of zero. A failure that says nothing about the model raises instead: an unknown suite, a dataset or Hub that does
not answer, a package that is not installed, too little disk, a device that is not there, a process that cannot be
confined, a cancellation. A run that was killed, or ran out of memory or time, raises MachineFaultError the first time,
since another program on the machine can cause this. If the next run gets no further, the model is to blame.
"""

import hashlib
import importlib.util
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from hubmerge import __version__
from hubmerge.engine.options import Device, check_device
from hubmerge.engine.progress import Observer, Unobserved
from hubmerge.engine.sink import sole_owner
from hubmerge.errors import (
    CorruptError,
    DeviceError,
    EvaluationError,
    FolderInUseError,
    FormatError,
    HeaderError,
    HubmergeError,
    IndexFileError,
    MemoryLimitError,
    MissingExtraError,
)
from hubmerge.evaluation import fit
from hubmerge.evaluation.adapter import on_its_base, stage_on_base
from hubmerge.evaluation.facts import model_facts
from hubmerge.evaluation.fetch import fetch_rows
from hubmerge.evaluation.result import (
    MAX_NAME,
    MAX_SECONDS,
    MAX_SMALL,
    EvaluationResult,
    ModelFacts,
    RunEnvironment,
    RunError,
    TaskScore,
)
from hubmerge.evaluation.suites import PinnedSuite
from hubmerge.hub.client import Hub
from hubmerge.isolation.child import ChildJob, Event, fresh_environment, plain, run_child
from hubmerge.isolation.in_child import WallLimitError
from hubmerge.machine import resources
from hubmerge.machine.extras import require
from hubmerge.plan.plan import Plan
from hubmerge.recipe.model_name import ModelName
from hubmerge.sources.base import Model
from hubmerge.sources.companions import makes_tokenizer
from hubmerge.sources.config import quantized
from hubmerge.sources.open import open_model
from hubmerge.sources.staged import stage_model

DTYPES = ("auto", "float32", "bfloat16", "float16")
DETAILS = "details"
CHILD_MODULE = "hubmerge.evaluation.child"
# model types that answer otherwise in a padded batch than alone, by transformers' own code: they run through the
# padding, count it in their positions or make a mask of their own; they are asked one prompt at a time
ASKED_ALONE = frozenset(
    (
        *("deepseek_v4", "doge", "git", "recurrent_gemma", "reformer", "rwkv", "xlm", "xlnet", "xlstm"),
        # decoders of models that have an encoder
        *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart"),
        *("prophetnet", "trocr", "whisper"),
    )
)
# their tokens see those that follow, unless config.json says is_decoder
_ROBERTA = ("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod")
_BERT = ("bert", "bert-generation", "big_bird", "electra", "ernie", "megatron-bert", "rembert", "roc_bert", "roformer")
ENCODERS = frozenset(_BERT + _ROBERTA)
_UNOBSERVED = Unobserved()
_PERHAPS_THE_MACHINE = (MemoryLimitError, WallLimitError)
# what is wrong with a model, as against what is wrong with the Hub or the request
_ABOUT_THE_MODEL = (EvaluationError, MemoryLimitError, FormatError, HeaderError, IndexFileError, CorruptError)


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of a run. Only `limit` and `dtype` should change a score."""

    limit: int | None = None  # rows per task; part of the suite's version
    batch_size: int = 32  # prompts at most; fewer where the memory does not hold their tokens
    device: Device = "auto"
    dtype: str = "auto"  # auto: as stored, or bfloat16 where that does not fit; part of the suite's version
    wall_s: float = 4 * 3600.0
    memory_bytes: int | None = None  # of the evaluating process; None: 90% of what this machine lets it use
    data_cache: Path | None = None  # fetched rows, to be shared between runs; None: in the run's folder


@dataclass(frozen=True)
class _Run:
    """A run whose model and suite are pinned."""

    model: Model
    whole: Plan | None  # of an adapter on its base
    facts: ModelFacts
    suite: PinnedSuite
    hub: Hub
    workdir: Path
    options: EvaluateOptions
    observer: Observer
    started: float  # by the monotonic clock

    @property
    def what(self) -> str:
        return f"{self.suite.suite.name} on {self.model.ref}"

    @property
    def loaded(self) -> Model:
        """The model whose architecture and dtype the evaluating process loads."""
        return self.model if self.whole is None else self.whole.base

    @property
    def weights(self) -> fit.Weights:
        return fit.weights_of(self.loaded)

    @property
    def batch_size(self) -> int:
        return 1 if self.loaded.config.get("model_type") in ASKED_ALONE else self.options.batch_size

    @property
    def disk_bytes(self) -> int:
        """What fetched and merged weights take."""
        if self.whole is not None:
            return self.whole.download_bytes + self.whole.output_bytes
        return self.model.weight_bytes if self.model.ref.kind == "hub" else 0

    @property
    def memory_bytes(self) -> int:
        return self.options.memory_bytes or int(0.9 * (resources.memory_bytes() or 16e9))

    @property
    def dtype(self) -> str:
        """What the evaluating process is asked for; DeviceError where the model does not fit in any.

        On a GPU that is what was asked for, since only that process knows its memory.
        """
        if self.options.device == "cuda":
            return self.options.dtype
        return fit.fitting_dtype(self.weights, self.options.dtype, self.memory_bytes, self.what)


def evaluate(
    model: ModelName,
    suite: PinnedSuite,
    *,
    hub: Hub,
    workdir: Path,
    options: EvaluateOptions,
    observer: Observer = _UNOBSERVED,
    allow_local: bool = False,
) -> EvaluationResult:
    """Measure `model` (of the Hub, or a folder with `allow_local`) by `suite`.

    The same call over the same `workdir` goes on where an earlier one stopped. What `observer` raises ends the run.
    Raises EvaluationError for a request that cannot be met, FolderInUseError where another process works there,
    DiskError and DeviceError for what this machine lacks, and the Hub's errors. A model that fails gives a failed
    result.
    """
    _check(options, suite)
    started = time.monotonic()
    observer.stage("resolve")
    limited = tuple(replace(task, limit=options.limit or task.limit) for task in suite.tasks)
    suite = replace(suite, tasks=limited, dtype=options.dtype)
    if suite.unpinned:
        observer.warning(
            f"{', '.join(suite.unpinned)}: read at the commit that main has now, since the suite's file names none. "
            f"The result states it; other data make another version of the suite ({suite.version} is this one)"
        )
    opened = open_model(model, hub, allow_local=allow_local)
    workdir = workdir.absolute()
    options = replace(options, device=_device(options.device))
    run = _Run(opened, None, model_facts(hub, opened), suite, hub, workdir, options, observer, started)
    wait = "Wait for it: the same command then takes its answers."
    used = FolderInUseError("another process runs this evaluation", where=run.what, next_step=wait)
    with sole_owner(workdir, used=used), fit.cleared_where_the_disk_is_full(workdir, run.what):
        result = _measured(run)
        fit.forget_faults(workdir)
        fit.clear_weights(workdir)
        return result


def _measured(run: _Run) -> EvaluationResult:
    workdir, options, observer = run.workdir, run.options, run.observer
    try:
        if (whole := check_evaluable(run.model, run.hub)) is not None:
            run = replace(run, whole=whole, facts=run.facts.model_copy(update={"parameters": whole.elements}))
        if run.dtype not in (options.dtype, stored := run.weights.stored):
            observer.warning(f"the model is stored in {stored}, which does not fit here: it runs in {run.dtype}")
        fit.require_room(run.disk_bytes, workdir, run.what)
        observer.stage("fetch model")

        def told(done: int, total: int, unit: str = "B") -> None:
            observer.progress("fetch model", done, total, unit)

        folder, inputs = workdir / "model", workdir / "inputs"
        if run.whole is None:
            notes = stage_model(run.model, run.hub, folder, inputs, told)
        else:
            notes = stage_on_base(run.whole, run.hub, folder, inputs, told)
        for note in notes:
            observer.warning(note)
    except _ABOUT_THE_MODEL as error:
        return _failed(run, error)
    observer.stage("fetch data")
    store = (options.data_cache or workdir / "data").absolute()
    folders = fetch_rows(run.suite, store, run.hub, workdir, options.wall_s, _teller(observer))
    try:
        return _result(run, run_child(_child_job(run, folders), _teller(observer)))
    except _ABOUT_THE_MODEL as error:
        if isinstance(error, _PERHAPS_THE_MACHINE):
            fit.try_once_more(error, workdir, run.what)
        return _failed(run, error)


def usable_memory() -> int | None:
    """Bytes of the memory that holds a model under evaluation by default: the GPU's where one is used, else those of
    this process; None where nothing says it."""
    return resources.gpu_memory_bytes() if _device("auto") == "cuda" else resources.memory_bytes()


def check_evaluable(model: Model, hub: Hub) -> Plan | None:
    """EvaluationError for a model that cannot be evaluated as it is stored; of an adapter its plan on its base."""
    whole = None if model.adapter is None else on_its_base(model, hub)
    weights = model if whole is None else whole.base
    config = weights.config
    found = quantized(config)
    if found or weights.kind != "weights":
        raise EvaluationError(
            "quantized weights are not evaluated",
            where=str(weights.ref),
            expected="weights in float32, float16 or bfloat16",
            got=f"{found[0]} in config.json" if found else weights.kind,
            next_step="Evaluate the model before quantization.",
        )
    is_encoder = config.get("model_type") in ENCODERS and not config.get("is_decoder")
    if is_encoder or config.get("is_encoder_decoder"):
        raise EvaluationError(
            "a model with an encoder is not evaluated",
            where=str(weights.ref),
            expected="a decoder, which goes on with its prompt",
            got=f"config.json with {'no is_decoder' if is_encoder else 'is_encoder_decoder'}",
            next_step="Asked as a decoder it would get scores that say nothing of it.",
        )
    if not any(map(makes_tokenizer, (*model.files, *weights.files))):
        raise EvaluationError("the model has no tokenizer", where=str(model.ref), expected="tokenizer.json", got="none")
    return whole


def _check(options: EvaluateOptions, suite: PinnedSuite) -> None:
    require("eval", "an evaluation")
    resources.require_linux("an evaluation")
    needed = dict.fromkeys(name for pinned in suite.tasks for name in pinned.task.needs)
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise MissingExtraError(
            f"the suite {suite.suite.name} needs packages that are not installed",
            got=f"no {', '.join(missing)}",
            next_step="Use Python 3.11 or 3.12, where pip installs them; docs/evaluation.md says how to build them.",
        )
    check_device(options.device)
    if options.dtype not in DTYPES:
        raise EvaluationError("there is no such dtype", expected=", ".join(DTYPES), got=ascii(options.dtype)[1:-1][:80])
    if not (1 <= options.batch_size <= MAX_SMALL and 0 < options.wall_s <= MAX_SECONDS):
        most = f"{MAX_SMALL:,} prompts and {MAX_SECONDS:g} s"
        raise EvaluationError(f"batch size and wall limit must be positive, and at most {most}")
    if options.device == "cuda" and not resources.device_there():
        raise DeviceError("there is no CUDA device here", next_step="Evaluate on the CPU: --device cpu.")


def _device(asked: str) -> Literal["cpu", "cuda"]:
    """The device to use: `auto` is CUDA where its driver is."""
    if asked == "auto":
        return "cuda" if Path("/dev/nvidiactl").exists() else "cpu"
    return "cuda" if asked == "cuda" else "cpu"


def _teller(observer: Observer) -> Callable[[Event], None]:
    """Passes the child's events on to the observer; malformed ones are left out."""

    def tell(event: Event) -> None:
        kind = event["event"]
        if kind == "stage":
            observer.stage(plain(event.get("stage")))
        elif kind == "warning":
            observer.warning(plain(event.get("message")))
        elif kind == "progress":
            done, total = event.get("done"), event.get("total")
            if isinstance(done, int) and isinstance(total, int):
                observer.progress(plain(event.get("stage")), done, total, plain(event.get("unit")))

    return tell


def _child_job(run: _Run, folders: Mapping[str, Path]) -> ChildJob:
    options = run.options
    spec = {
        "workdir": str(run.workdir),
        "identity": _identity(run),
        "cache": str(run.workdir / "lighteval" / run.model.ref.sha),
        "generations": str(run.workdir / "generations"),
        "details": str(run.workdir / DETAILS),
        "batch_size": run.batch_size,
        "device": options.device,
        "dtype": run.dtype,
        "weights": asdict(run.weights),
        "max_model_len": run.suite.suite.max_model_len,
        "memory_bytes": run.memory_bytes,
        "cpu_s": math.ceil(options.wall_s * resources.cores()),
        "tasks": [task.spec(folders[task.name]) for task in run.suite.tasks],
    }
    environment = fresh_environment(run.workdir / "home", run.hub.endpoint, network=False)
    if options.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return ChildJob(
        module=CHILD_MODULE,
        spec=spec,
        environment=environment,
        log=run.workdir / "child.log",
        wall_s=options.wall_s,
        what=run.what,
    )


def _identity(run: _Run) -> str:
    """A digest of what an answer depends on besides its prompt and dtype: the weights, config and tokenizer as they
    were staged, and the libraries that compute it."""
    weights = [run.model.ref.sha] if run.whole is None else [run.model.ref.sha, run.whole.base.ref.sha]
    versions = {name: version(name) for name in ("lighteval", "torch", "transformers")}
    digest = hashlib.sha256(json.dumps([weights, versions], sort_keys=True).encode())
    for path in sorted((run.workdir / "model").rglob("*")):
        if path.is_file() and path.suffix != ".safetensors":
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _result(run: _Run, done: Event) -> EvaluationResult:
    """The result from the child's last event, checked against the request."""
    said = done.get("tasks")
    try:
        if not isinstance(said, list) or [s["task"] for s in said] != [t.name for t in run.suite.tasks]:
            raise EvaluationError("the evaluation answered other tasks than it was asked", where=run.what)
        scores = tuple(
            TaskScore(
                task=task.name,
                domain=task.task.domain,
                metric=task.task.metric,
                value=score["value"],
                stderr=score["stderr"],
                samples=score["samples"],
                truncated=score.get("truncated"),
                few_shot=task.task.few_shot,
                task_version=task.task.version,
                dataset=task.task.rows.repo,
                dataset_revision=task.revision,
            )
            for task, score in zip(run.suite.tasks, said, strict=True)
        )
        dtype, stored = plain(done["dtype"]), run.weights.stored
        narrower = fit.ITEM_BYTES.get(dtype, 8) < fit.ITEM_BYTES[stored] and run.options.dtype == "auto"
        ran = {"dtype": dtype, "stored_dtype": stored if narrower else None, "batch_tokens": done.get("batch_tokens")}
        return _record(run, {"device": plain(done["device"]), **ran}, tasks=scores)
    except (KeyError, TypeError, ValueError) as error:
        got = type(error).__name__
        raise EvaluationError("the evaluation's answer cannot be read", where=run.what, got=got) from error


def _failed(run: _Run, error: HubmergeError) -> EvaluationResult:
    """A failed run: the reason, free of this machine's paths."""
    message = str(error).removeprefix(f"{error.code}: ").replace(str(run.workdir), "…")
    reason = RunError(code=error.code, message=plain(message))
    return _record(run, {"device": run.options.device, "dtype": run.options.dtype}, error=reason)


def _record(
    run: _Run, found: Mapping[str, Any], *, tasks: tuple[TaskScore, ...] = (), error: RunError | None = None
) -> EvaluationResult:
    """`found`: of the environment what only the evaluating process knows."""
    environment = RunEnvironment(
        hubmerge=__version__,
        lighteval=version("lighteval"),
        transformers=version("transformers"),
        torch=version("torch"),
        backend="transformers",
        batch_size=run.batch_size,
        seed=0,
        seconds=round(time.monotonic() - run.started, 1),
        adapter_base=None if run.whole is None else f"{run.whole.base.ref.id}@{run.whole.base.ref.sha}",
        **found,
    )
    ref = run.model.ref
    return EvaluationResult(
        schema_version=1,
        model=plain(ref.id if len(ref.id) <= MAX_NAME else ref.label) or "model",  # a folder's may be anything
        sha=ref.sha,
        suite=run.suite.suite.name,
        suite_version=run.suite.version,
        split=run.suite.split,
        status="failed" if error else "done",
        error=error,
        tasks=tasks,
        facts=run.facts,
        environment=environment,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )

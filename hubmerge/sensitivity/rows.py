"""Reads the data behind a merge's sensitivities before the merge gets its identity: tokenized rows, or a named file.

Two merges are the same if the same rows reach the same networks through the same versions of torch and transformers,
whatever the rows' file is called. Another row or another tokenizer makes another merge. So the data is read and
tokenized when a merge is prepared, which also finds unusable rows before a weight moves. The pairs are kept for the
pass that takes the gradients, and a dataset of the Hub is pinned at its commit.

A server's users name datasets and tokenizers. There the rows are read in a process of their own:

    python -m hubmerge.sensitivity.rows     the job on its standard input, digests of the rows to its standard output

The process has the network and the token, which the dataset may need, and limits on memory, file size and time. It is
killed beyond them, which would be impossible for a thread of the app. The app itself loads neither library.
"""

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hubmerge.errors import (
    DiskError,
    EvaluationError,
    FormatError,
    HubUnavailableError,
    MemoryLimitError,
    Problem,
    SensitivityError,
    SourceNotFoundError,
)
from hubmerge.hub.client import Hub, RepoState
from hubmerge.isolation.child import ChildJob, fresh_environment, run_child
from hubmerge.isolation.confinement import Limits, confine
from hubmerge.isolation.in_child import Reporter, run
from hubmerge.machine.extras import require
from hubmerge.methods import get_method
from hubmerge.plan.plan import Plan
from hubmerge.recipe.calibration import CalibrationRows, CalibrationSpec
from hubmerge.sensitivity.file import SensitivityFile, read_header, read_sensitivity
from hubmerge.sensitivity.pairs import LOADERS, Pair, load_pairs, stage_small_files, tokenized_in, tokens_digest
from hubmerge.sources.derived import DerivedTensor

MAX_DATA_BYTES = 2 * 10**9  # of all files of a dataset, on a server
WALL_S = 120.0  # for all agents of a merge; within the time that a signed-in visitor's question may take
MEMORY_BYTES = 6 * 10**9  # written; libraries and mapped files are not counted
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TOLD = (SensitivityError, SourceNotFoundError, FormatError, HubUnavailableError)


# One agent's rows: which, the folder with its config and tokenizer, and its name for errors.
Asked = tuple[CalibrationSpec, Path, str]
# What identifies them: sha256 (hex) over their tokens, and how many there are.
Identity = tuple[str, int]


def weighs(plan: Plan) -> bool:
    """Whether the plan's method weighs by sensitivities."""
    return "sensitivity" in get_method(plan.recipe.method).extras


class Calibration:
    """Reads the calibration data of plans over the same models, each once.

    `apart`: in a process of its own, which does not return the pairs; the gradients read them again.
    """

    def __init__(self, hub: Hub, allow_local: bool, *, apart: bool = False) -> None:
        self._hub = hub
        self._allow_local = allow_local
        self._apart = apart
        self._pinned: dict[CalibrationSpec, CalibrationSpec] = {}
        self._states: dict[CalibrationSpec, RepoState] = {}  # of datasets, by what is pinned
        self._pairs: dict[CalibrationSpec, tuple[Pair, ...]] = {}
        self._rows: dict[tuple[int, CalibrationSpec], CalibrationRows] = {}

    def of(self, plan: Plan) -> Plan:
        """The plan with the data behind its sensitivities; unchanged where its method uses none.

        Raises SensitivityError for agents that have none, and what reading the data, the tokenizers or the named files
        raises.
        """
        if plan.calibration or not weighs(plan):
            return plan
        _refuse_derived(plan)
        recipe, agents = plan.recipe, []
        pinned: list[CalibrationSpec | None] = []
        for agent in recipe.agents:
            spec = None if agent.sensitivity is not None else agent.calibration or plan.recipe.calibration
            if spec is not None:
                spec = self._at_commit(spec)
                if agent.calibration is None:
                    recipe = recipe.model_copy(update={"calibration": spec})
                else:
                    agent = agent.model_copy(update={"calibration": spec})
            agents.append(agent)
            pinned.append(spec)
        plan = replace(plan, recipe=recipe.model_copy(update={"agents": tuple(agents)}))
        self._read(plan, [(k, spec) for k, spec in enumerate(pinned) if spec is not None])
        rows = [
            _of_file(plan, k, self._allow_local) if spec is None else self._rows[k, spec]
            for k, spec in enumerate(pinned)
        ]
        return replace(plan, calibration=tuple(rows))

    def find(self, plan: Plan) -> None:
        """Raise what `of` would for datasets that the Hub does not have or show, with one question for each."""
        for agent in plan.recipe.agents if weighs(plan) else ():
            spec = agent.calibration or plan.recipe.calibration
            if agent.sensitivity is None and spec is not None:
                self._at_commit(spec)

    def _read(self, plan: Plan, wanted: Sequence[tuple[int, CalibrationSpec]]) -> None:
        """Fill in the rows of agents that are not known yet."""
        new = [(k, spec) for k, spec in wanted if (k, spec) not in self._rows]
        if not new:
            return
        require("eval", "a sensitivity that is not named as a file", *LOADERS)
        with tempfile.TemporaryDirectory() as folder:
            asked = [(spec, Path(folder) / str(k), str(plan.agents[k].ref)) for k, spec in new]
            for (agent, spec), (_, staged, _) in zip(new, asked, strict=True):
                stage_small_files(plan.agents[agent], self._hub, staged)
                if not (self._allow_local or spec.is_file):
                    _require_room(self._states[spec], Path(folder))
            if self._apart:
                found = read_apart(asked, self._hub, Path(folder))
            else:
                found = [_identity(each, self._load(plan, each[0])) for each in asked]
        versions = version("torch"), version("transformers")
        for (agent, spec), (tokens, pairs) in zip(new, found, strict=True):
            private = spec in self._states and self._states[spec].private
            read = self._pairs.get(spec, ())
            self._rows[agent, spec] = CalibrationRows(spec.label, tokens, pairs, *versions, private=private, read=read)

    def _load(self, plan: Plan, spec: CalibrationSpec) -> tuple[Pair, ...]:
        if spec not in self._pairs:
            with tempfile.TemporaryDirectory() as folder:
                self._pairs[spec] = load_pairs(
                    spec,
                    self._hub,
                    allow_local=self._allow_local,
                    # the library falls back to what its cache holds, which on a server somebody else may have brought
                    cache=None if self._allow_local else Path(folder),
                    path_of=plan.recipe.path_of,
                )
        return self._pairs[spec]

    def _at_commit(self, spec: CalibrationSpec) -> CalibrationSpec:
        if spec.is_file:
            return spec
        if spec not in self._pinned:
            try:
                state = self._hub.datasets.repo_state(spec.data, spec.revision)
            except HubUnavailableError:
                if not (self._allow_local and _COMMIT.fullmatch(spec.revision or "")):
                    raise
                pinned = spec  # the user's own cache may hold that commit
            else:
                pinned = spec.model_copy(update={"revision": state.sha})
                self._states[pinned] = state
            self._pinned[spec] = pinned
        return self._pinned[spec]


def named_file(plan: Plan, agent: int, allow_local: bool) -> SensitivityFile:
    """The sensitivity file that the recipe names for an agent, by its header."""
    path = plan.recipe.agents[agent].sensitivity
    assert path is not None, "the plan refuses agents without a file or data"
    if not allow_local:
        raise SensitivityError(
            "sensitivity files of this machine cannot be used here",
            where=path,
            next_step="Name calibration data on the Hub instead.",
        )
    return read_sensitivity(plan.recipe.path_of(path))


def _refuse_derived(plan: Plan) -> None:
    """Gradients are taken of a whole model in transformers, by the names and shapes that its own files have. Of what
    `ignore` keeps they are not asked, if only the agent's own is there."""
    derived = [
        str(agent.ref)
        for k, agent in enumerate(plan.agents, 1)
        if any(
            isinstance(tensor.inputs[k], DerivedTensor)
            and (tensor.action == "merge" or tensor.name not in agent.tensors)
            for tensor in plan.tensors()
        )
    ]
    if derived:
        title = get_method(plan.recipe.method).title
        raise SensitivityError(
            f"{title} weighs by gradients, and no file holds these weights as they are merged",
            where=", ".join(derived),
            expected="whole models that have every token of the result",
            got="an adapter, fp8 weights, a smaller vocabulary, or a model without what `ignore` keeps of the base",
            next_step="Write the model out whole (for an adapter, peft's merge_and_unload) or choose another method.",
        )


def _of_file(plan: Plan, agent: int, allow_local: bool) -> CalibrationRows:
    """A named file's own record of its rows, and its pin: a digest over size, time of change and header."""
    found = named_file(plan, agent, allow_local)
    with found.path.open("rb") as file:
        status = os.fstat(file.fileno())
        header = file.read(read_header(found.path).data_begin)
    pin = hashlib.sha256(f"{status.st_size}\0{status.st_mtime_ns}\0".encode() + header).hexdigest()
    said = found.metadata
    return CalibrationRows(said.data, said.tokens_digest, said.pairs, said.torch, said.transformers, file=pin)


def _require_room(state: RepoState, folder: Path) -> None:
    """Refuse datasets that are too large for a server's disk. The library fetches all files of a dataset, and writes
    them again."""
    size, where = sum(file.size for file in state.files.values()), f"{state.id}@{state.sha[:12]}"
    if size > MAX_DATA_BYTES:
        raise SensitivityError(
            "the calibration dataset is too large to be fetched here",
            where=where,
            expected=f"at most {MAX_DATA_BYTES} bytes in all files",
            got=str(size),
            next_step="Name a dataset that holds the rows alone.",
        )
    disk = shutil.disk_usage(folder)
    left = min(disk.total // 20, MAX_DATA_BYTES)
    if 2 * size + left > disk.free:
        raise DiskError(
            "the calibration dataset does not fit on this disk",
            where=where,
            expected=f"{2 * size} bytes free, and {left} for everything else",
            got=str(disk.free),
            next_step="Try again later, or on a machine with more disk.",
        )


def _identity(asked: Asked, pairs: Sequence[Pair]) -> Identity:
    spec, folder, where = asked
    return tokens_digest(tokenized_in(folder, where, pairs, spec.max_tokens)), len(pairs)


def read_apart(asked: Sequence[Asked], hub: Hub, folder: Path) -> list[Identity]:
    """What identifies every agent's rows; `folder` is for temporary files of the process.

    Raises SensitivityError, also beyond a limit, SourceNotFoundError, FormatError, HubUnavailableError.
    """
    job = ChildJob(
        module="hubmerge.sensitivity.rows",
        spec={
            "endpoint": hub.endpoint,
            "token": hub.token,
            "cache": str(folder / "cache"),
            "agents": [[spec.model_dump(mode="json"), str(staged), where] for spec, staged, where in asked],
        },
        environment=fresh_environment(folder / "home", hub.endpoint, network=True),
        log=folder / "child.log",
        wall_s=WALL_S,
        what="the calibration data",
    )
    try:
        done = run_child(job, lambda event: None)
    except (EvaluationError, MemoryLimitError) as error:
        raise SensitivityError(
            "the calibration data cannot be read and tokenized here",
            where=", ".join(dict.fromkeys(spec.label for spec, *_ in asked))[:300],
            expected=f"at most {WALL_S:g} s and {MEMORY_BYTES // 10**9} GB of memory",
            got=error.what,
            next_step="Name fewer or shorter rows: a part of the split, such as train[:1000].",
        ) from None
    if (refusal := done.get("refusal")) is not None:
        kind = next((e for e in _TOLD if e.code == refusal["code"]), SensitivityError)
        raise kind(refusal["problems"][0]["what"], problems=[Problem(**problem) for problem in refusal["problems"]])
    return [(tokens, pairs) for tokens, pairs in done["rows"]]


def _in_child(job: Mapping[str, Any], _: Reporter) -> Mapping[str, Any]:
    confine(Limits(data_bytes=MEMORY_BYTES), network=True)
    hub = Hub(job["endpoint"], job["token"])
    load = cache(partial(load_pairs, hub=hub, allow_local=False, cache=Path(job["cache"])))
    asked = [(CalibrationSpec.model_validate(given), Path(folder), where) for given, folder, where in job["agents"]]
    try:
        return {"rows": [_identity(each, load(each[0])) for each in asked]}
    except _TOLD as error:
        return {"refusal": error.as_dict()}


if __name__ == "__main__":
    sys.exit(run(_in_child))

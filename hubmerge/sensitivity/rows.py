"""Reads the data behind a merge's sensitivities before the merge gets its identity: tokenized rows, or a named file.

Two merges are the same if the same rows reach the same networks through the same versions of torch and transformers,
whatever the rows' file is called. Another row or another tokenizer makes another merge. So the data is read and
tokenized when a merge is prepared, which also finds unusable rows before a weight moves. The pairs are kept for the
pass that takes the gradients, and a dataset of the Hub is pinned at its commit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from hubmerge.errors import DiskError, HubUnavailableError, SensitivityError
from hubmerge.extras import require
from hubmerge.hub.client import Hub, RepoState
from hubmerge.methods import get_method
from hubmerge.plan.disk import is_derived
from hubmerge.plan.plan import Plan
from hubmerge.recipe.calibration import CalibrationRows, CalibrationSpec
from hubmerge.sensitivity.calibration import Pair, digest, load_pairs
from hubmerge.sensitivity.compute import LOADERS, tokenized_in
from hubmerge.sensitivity.file import SensitivityFile, read_sensitivity
from hubmerge.sensitivity.rows_process import Digests, ToRead, read_apart
from hubmerge.sensitivity.staging import stage_merged_files, stage_small_files
from hubmerge.sensitivity.tokens import tokens_digest
from hubmerge.sources.header import header_length

MAX_DATA_BYTES = 2 * 10**9  # of all files of a dataset, on a server
_COMMIT = re.compile(r"[0-9a-f]{40}")


def weighs(plan: Plan) -> bool:
    """Whether the plan's method weighs by sensitivities."""
    return "sensitivity" in get_method(plan.recipe.method).extras


class Calibration:
    """Reads the calibration data of plans over the same models, each once.

    `apart`: in a process of its own (rows_process.py), which does not return the pairs; the gradients read them again.
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

        Raises what reading the data, the tokenizers or the named files raises.
        """
        if plan.calibration or not weighs(plan):
            return plan
        specs = [agent.calibration or plan.recipe.calibration for agent in plan.recipe.agents]
        pinned = [
            None if spec is None or agent.sensitivity is not None else self._at_commit(spec)
            for agent, spec in zip(plan.recipe.agents, specs, strict=True)
        ]
        agents = tuple(
            agent.model_copy(update={"calibration": self._at_commit(agent.calibration)})
            if agent.calibration is not None and agent.sensitivity is None
            else agent
            for agent in plan.recipe.agents
        )
        shared = plan.recipe.calibration
        if shared is not None and any(a.calibration is None and a.sensitivity is None for a in agents):
            shared = self._at_commit(shared)
        plan = replace(plan, recipe=plan.recipe.model_copy(update={"agents": agents, "calibration": shared}))
        self._read(plan, [(k, spec) for k, spec in enumerate(pinned) if spec is not None])
        return replace(plan, calibration=tuple(self._of_agent(plan, k, spec) for k, spec in enumerate(pinned)))

    def _of_agent(self, plan: Plan, agent: int, spec: CalibrationSpec | None) -> CalibrationRows:
        if (path := plan.recipe.agents[agent].sensitivity) is not None:
            file = named_file(plan, agent, path, self._allow_local)
            said = file.metadata
            return CalibrationRows(
                said.data, said.tokens_digest, said.pairs, said.torch, said.transformers, file=_file_digest(file.path)
            )
        assert spec is not None, "the plan refuses agents without either"
        return self._rows[agent, spec]

    def _read(self, plan: Plan, wanted: Sequence[tuple[int, CalibrationSpec]]) -> None:
        """Fill in the rows of agents that are not known yet."""
        # a derived agent's tokenizer is that of the merge, which another recipe may choose
        new = [(k, spec) for k, spec in wanted if is_derived(plan, k) or (k, spec) not in self._rows]
        if not new:
            return
        require("eval", "a sensitivity that is not named as a file", *LOADERS)
        with tempfile.TemporaryDirectory() as folder:
            asked = []
            for agent, spec in new:
                asked.append(ToRead(spec, Path(folder) / str(agent), str(plan.agents[agent].ref)))
                if is_derived(plan, agent):
                    stage_merged_files(plan, self._hub, asked[-1].folder)
                else:
                    stage_small_files(plan.agents[agent], self._hub, asked[-1].folder)
            if not self._allow_local:
                for state in {a.spec: self._states[a.spec] for a in asked if not a.spec.is_file}.values():
                    _require_room(state, Path(folder))
            found = read_apart(asked, self._hub, Path(folder)) if self._apart else self._digests(plan, asked)
        versions = version("torch"), version("transformers")
        for (agent, spec), rows in zip(new, found, strict=True):
            self._rows[agent, spec] = CalibrationRows(
                spec.label,
                rows.tokens,
                rows.pairs,
                *versions,
                texts=rows.texts,
                private=spec in self._states and self._states[spec].private,
                read=self._pairs.get(spec, ()),
            )

    def _digests(self, plan: Plan, asked: Sequence[ToRead]) -> list[Digests]:
        found = []
        for each in asked:
            if each.spec not in self._pairs:
                self._pairs[each.spec] = self._load(plan, each.spec)
            pairs = self._pairs[each.spec]
            tokens = tokens_digest(tokenized_in(each.folder, each.where, pairs, each.spec.max_tokens))
            found.append(Digests(digest(pairs), tokens, len(pairs)))
        return found

    def _load(self, plan: Plan, spec: CalibrationSpec) -> tuple[Pair, ...]:
        with tempfile.TemporaryDirectory() as folder:
            return load_pairs(
                spec,
                allow_local=self._allow_local,
                endpoint=self._hub.endpoint,
                token=self._hub.token,
                # the library falls back to what its cache holds, which on a server somebody else may have brought
                cache=None if self._allow_local else Path(folder),
                path_of=plan.recipe.path_of,
            )

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
    if 2 * size + disk.total // 20 > disk.free:
        raise DiskError(
            "the calibration dataset does not fit on this disk",
            where=where,
            expected=f"{2 * size} bytes free, and a twentieth of the disk for everything else",
            got=str(disk.free),
            next_step="Try again later, or on a machine with more disk.",
        )


def named_file(plan: Plan, agent: int, path: str, allow_local: bool) -> SensitivityFile:
    """The sensitivity file that the recipe names for an agent, by its header."""
    if not allow_local:
        raise SensitivityError(
            "sensitivity files of this machine cannot be used here",
            where=path,
            next_step="Name calibration data on the Hub instead.",
        )
    if is_derived(plan, agent):
        raise SensitivityError(
            "a sensitivity file cannot be checked against weights that no file holds as such",
            where=str(plan.agents[agent].ref),
            expected="calibration data, from which it is computed",
            got=path,
            next_step="Name calibration data instead of the file.",
        )
    return read_sensitivity(plan.recipe.path_of(path))


def _file_digest(path: Path) -> str:
    """The pin of a sensitivity file: a digest over size, time of change and header, which names model and data."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        prefix = file.read(8)
        header = prefix + file.read(header_length(prefix, path.name))
    return hashlib.sha256(f"{status.st_size}\0{status.st_mtime_ns}\0".encode() + header).hexdigest()


def kept_name(weights: Sequence[str] | str, rows: CalibrationRows, hubmerge: str) -> str:
    """The name of the file with an agent's sensitivity: a digest of all that decides its content."""
    identity = json.dumps([weights, rows.digest, rows.pairs, hubmerge, rows.torch, rows.transformers])
    return f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.safetensors"

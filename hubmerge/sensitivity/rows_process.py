"""Reads and tokenizes calibration rows in a process of its own, since a server's users name datasets and tokenizers.

    python -m hubmerge.sensitivity.rows_process     the job on its standard input, digests to its standard output

The process has the network and the token, which the dataset may need, and limits on memory, file size and time. It is
killed beyond them, which would be impossible for a thread of the app. The app itself loads neither library.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubmerge.errors import (
    EvaluationError,
    FormatError,
    HubUnavailableError,
    MemoryLimitError,
    Problem,
    SensitivityError,
    SourceNotFoundError,
)
from hubmerge.hub.client import Hub
from hubmerge.isolation.child import ChildJob, fresh_environment, run_child
from hubmerge.isolation.confinement import Limits, confine
from hubmerge.isolation.in_child import Reporter, run
from hubmerge.recipe.calibration import CalibrationSpec

MODULE = "hubmerge.sensitivity.rows_process"
WALL_S = 120.0  # for all agents of a merge; within the time that a signed-in visitor's question may take
MEMORY_BYTES = 6 * 10**9  # written; libraries and mapped files are not counted
_TOLD = (SensitivityError, SourceNotFoundError, FormatError, HubUnavailableError)


@dataclass(frozen=True)
class ToRead:
    """One agent's rows: which, and the folder with its config and tokenizer."""

    spec: CalibrationSpec
    folder: Path
    where: str  # the agent, for errors


@dataclass(frozen=True)
class Digests:
    """The digests that identify rows."""

    texts: str
    tokens: str
    pairs: int


def read_apart(asked: Sequence[ToRead], hub: Hub, folder: Path) -> list[Digests]:
    """The digests of every agent's rows; `folder` is for temporary files of the process.

    Raises SensitivityError, also beyond a limit, SourceNotFoundError, FormatError, HubUnavailableError.
    """
    job = ChildJob(
        module=MODULE,
        spec={
            "endpoint": hub.endpoint,
            "token": hub.token,
            "cache": str(folder / "cache"),
            "agents": [[a.spec.model_dump(mode="json"), str(a.folder), a.where] for a in asked],
        },
        environment=fresh_environment(folder / "home", hub.endpoint, network=True),
        log=folder / "child.log",
        wall_s=WALL_S,
        what="the calibration data",
    )
    try:
        done = run_child(job, lambda event: None, lambda: False)
    except (EvaluationError, MemoryLimitError) as error:
        raise SensitivityError(
            "the calibration data cannot be read and tokenized here",
            where=", ".join(dict.fromkeys(a.spec.label for a in asked))[:300],
            expected=f"at most {WALL_S:g} s and {MEMORY_BYTES // 10**9} GB of memory",
            got=error.what,
            next_step="Name fewer or shorter rows: a part of the split, such as train[:1000].",
        ) from None
    if (refusal := done.get("refusal")) is not None:
        kind = next((e for e in _TOLD if e.code == refusal["code"]), SensitivityError)
        raise kind(refusal["problems"][0]["what"], problems=[Problem(**problem) for problem in refusal["problems"]])
    return [Digests(*row) for row in done["rows"]]


def _read(spec: Mapping[str, Any], _: Reporter) -> Mapping[str, Any]:
    confine(Limits(data_bytes=MEMORY_BYTES), network=True)
    try:
        return {"rows": _rows(spec)}
    except _TOLD as error:
        return {"refusal": error.as_dict()}


def _rows(spec: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    from hubmerge.sensitivity.calibration import Pair, digest, load_pairs
    from hubmerge.sensitivity.compute import tokenized_in
    from hubmerge.sensitivity.tokens import tokens_digest

    known: dict[CalibrationSpec, tuple[Pair, ...]] = {}
    found = []
    for given, folder, where in spec["agents"]:
        asked = CalibrationSpec.model_validate(given)
        if asked not in known:
            known[asked] = load_pairs(
                asked, allow_local=False, endpoint=spec["endpoint"], token=spec["token"], cache=Path(spec["cache"])
            )
        pairs = known[asked]
        tokens = tokens_digest(tokenized_in(Path(folder), where, pairs, asked.max_tokens))
        found.append((digest(pairs), tokens, len(pairs)))
    return found


if __name__ == "__main__":
    sys.exit(run(_read))

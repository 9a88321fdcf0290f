"""Results made up by hand: models, merges of them, and failed runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hubmerge.board.values import Board, Row
from hubmerge.evaluation.result import EvaluationResult, result_path
from hubmerge.evaluation.signing import public_key, signed

HOSTILE = '<img src=x onerror="window.hacked=1">=HYPERLINK("http://x")|`a`[x](javascript:alert(1))'
SEED, OTHER = bytes(range(32)), bytes(range(1, 33))  # private keys
KEY = public_key(SEED)
TRUSTED = frozenset({KEY})
ENVIRONMENT = {
    "hubmerge": "0.1.0",
    "lighteval": "0.13.0",
    "transformers": "5.23.0",
    "torch": "2.13.0",
    "backend": "transformers",
    "device": "cpu",
    "dtype": "float32",
    "seed": 0,
    "seconds": 12.5,
}


def sha(letter: str) -> str:
    return letter * 40


def task(name: str, domain: str, value: float, samples: int = 100, **changes: Any) -> dict[str, Any]:
    return {
        "task": name,
        "domain": domain,
        "metric": "exact_match",
        "value": value,
        "stderr": None,
        "samples": samples,
        "few_shot": 0,
        "task_version": 1,
        "dataset": f"data/{name}",
        "dataset_revision": "d" * 40,
        **changes,
    }


def parent(name: str, letter: str, role: str = "agent") -> dict[str, Any]:
    return {"role": role, "id": name, "sha": sha(letter), "weight": 1.0}


def result_data(
    model: str,
    letter: str = "a",
    scores: Mapping[str, float] | Sequence[Mapping[str, Any]] | None = None,
    *,
    samples: int = 100,
    parents: Sequence[Mapping[str, Any]] = (),
    created: str = "2026-01-02T00:00:00+00:00",
    facts: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A result as it lies in a file. `scores`: domain → value, or whole tasks; None makes a failed run."""
    tasks: list[Any] = []
    if isinstance(scores, Mapping):
        tasks = [task(f"{domain}_task", domain, value, samples) for domain, value in scores.items()]
    elif scores is not None:
        tasks = list(scores)
    return {
        "schema_version": 1,
        "model": model,
        "sha": sha(letter),
        "suite": "trio",
        "suite_version": "1",
        "split": "test",
        "status": "done" if tasks else "failed",
        "error": None if tasks else {"code": "E_EVALUATION", "message": "it generates nothing"},
        "tasks": tasks,
        "facts": {"author": model.split("/")[0], "parents": list(parents), **(facts or {})},
        "environment": ENVIRONMENT,
        "created": created,
        **changes,
    }


def result(*arguments: Any, **changes: Any) -> EvaluationResult:
    return EvaluationResult.model_validate(result_data(*arguments, **changes))


def strange(model: str, letter: str = "f", value: float = 0.5, **changes: Any) -> EvaluationResult:
    """A result of the family's tasks that nobody signed."""
    return result(model, letter, {"math": value, "instruction": value, "code": value}, **changes)


PARENTS = (parent("org/base", "b", "base"), parent("org/math", "c"), parent("org/code", "d"))


def family(**merged: Any) -> list[EvaluationResult]:
    """A base, two agents and a merge of theirs; `merged` changes the merge."""
    facts = {
        "method": "ram_plus",
        "method_parameters": {"r": 0.1},
        "density": 0.25,
        "overlap": 0.4,
        "conflict": 0.2,
        "effective_scales": [1.02, 1.1],
        "parameters": 173_000,
        "size_bytes": 346_000,
        "license": "apache-2.0",
        "created": "2026-01-01T00:00:00+00:00",
    }
    merge = {"scores": {"math": 0.66, "instruction": 0.45, "code": 0.72}, "parents": PARENTS, "facts": facts} | merged
    return [
        result("org/base", "b", {"math": 0.20, "instruction": 0.50, "code": 0.30}),
        result("org/math", "c", {"math": 0.60, "instruction": 0.40, "code": 0.25}),
        result("org/code", "d", {"math": 0.10, "instruction": 0.30, "code": 0.80}),
        result("org/merge", "e", **merge),
    ]


def own(user: str = "bot") -> list[EvaluationResult]:
    """The family's results, signed with the trusted key for a user."""
    return [signed(r, SEED, user) for r in family()]


def written(folder: Path, *results: EvaluationResult, **files: bytes) -> Path:
    """The folder with results as a dataset holds them; `files`: the content of NAME.json beside them."""
    contents = {result_path(each): each.to_json().encode() for each in results}
    for path, data in (contents | {f"{name}.json": data for name, data in files.items()}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def rows(board: Board, suite: str = "trio") -> dict[str, Row]:
    """The rows of a suite by their models."""
    return {row.model: row for row in board.suite(suite).rows}

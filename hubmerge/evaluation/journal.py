"""The journal of generated answers: one file per task, one line per batch, so that a stop costs at most one batch.

lighteval's own cache is keyed by the model's name and configuration, not by its weights, and is written at the end of a
whole run. Here an answer is keyed by everything that it depends on: the model with its config and tokenizer, backend,
dtype, the libraries, the task's version, the prompt as the model sees it and the limits of the generation. Each line
holds one whole batch and is written at once. So a resumed run makes the same batches, and computes the same bits, as
one that was never stopped. A line torn by a kill is dropped.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def answer_key(identity: Mapping[str, Any]) -> str:
    """The digest of all that an answer depends on."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


class AnswerJournal:
    """The answers of one task: key → generated texts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._answers: dict[str, list[str]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b") as file:
            file.seek(0)
            whole = 0  # bytes; nothing after a torn line can be trusted to be whole
            for line in file:
                pairs = _pairs(line)
                if pairs is None:
                    break
                whole += len(line)
                self._answers.update(pairs)
            file.truncate(whole)

    def __getitem__(self, key: str) -> list[str]:
        return self._answers[key]

    def holds(self, keys: Sequence[str]) -> bool:
        return all(key in self._answers for key in keys)

    def add(self, keys: Sequence[str], answers: Sequence[Sequence[str]]) -> None:
        """Record a batch; it is on the disk when this returns."""
        pairs = list(zip(keys, map(list, answers), strict=True))
        with open(self._path, "ab") as file:
            file.write(json.dumps(pairs, ensure_ascii=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._answers.update(pairs)


def _pairs(line: bytes) -> dict[str, list[str]] | None:
    """The answers of a line; None where it was torn."""
    if not line.endswith(b"\n"):
        return None
    try:
        return {str(key): [str(text) for text in texts] for key, texts in json.loads(line)}
    except (ValueError, TypeError):
        return None

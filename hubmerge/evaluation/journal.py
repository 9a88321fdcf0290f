"""The journal of generated answers: one file per task, one line per batch, so that a stop costs at most one batch.

lighteval's own cache is keyed by the model's name and configuration, not by its weights, and is written at the end of a
whole run. Here an answer is keyed by everything that it depends on: the model's commit, backend, dtype, the task's
version, the prompt as the model sees it and the limits of the generation. Each line holds one whole batch and is
written at once. So a resumed run makes the same batches, and computes the same bits, as one that was never stopped. A
line torn by a kill is dropped.
"""

from __future__ import annotations

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
        self._end = 0  # bytes of whole lines; what follows is torn
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._read(path.read_bytes())

    def __getitem__(self, key: str) -> list[str]:
        return self._answers[key]

    def holds(self, keys: Sequence[str]) -> bool:
        return all(key in self._answers for key in keys)

    def add(self, keys: Sequence[str], answers: Sequence[Sequence[str]]) -> None:
        """Record a batch; it is on the disk when this returns."""
        pairs = list(zip(keys, map(list, answers), strict=True))
        line = json.dumps(pairs, ensure_ascii=True).encode() + b"\n"
        with open(self._path, "r+b" if self._path.exists() else "w+b") as file:
            file.seek(self._end)
            file.truncate()
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._end += len(line)
        self._answers.update(pairs)

    def _read(self, data: bytes) -> None:
        for line in data.splitlines(keepends=True):
            pairs = _pairs(line)
            if pairs is None:  # nothing after a torn line can be trusted to be whole
                return
            self._end += len(line)
            self._answers.update(pairs)


def _pairs(line: bytes) -> dict[str, list[str]] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        pairs = json.loads(line)
        return {str(key): [str(text) for text in texts] for key, texts in pairs}
    except (ValueError, TypeError):
        return None

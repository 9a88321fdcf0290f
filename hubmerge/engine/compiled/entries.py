"""Compiled functions of this package that Python calls: kept, or compiled at the first call."""

from __future__ import annotations

import importlib
import threading
from typing import Any

from hubmerge.engine.compiled import kept_code
from hubmerge.engine.compiled.machine_code import Code, Kinds, ObjectCode

_loading = threading.Lock()  # all threads call a function for the first time at once


class Entry:
    """`function` of a module of this package, which only compiling imports, for values of `kinds`."""

    def __init__(self, module: str, function: str, kinds: Kinds) -> None:
        self._module, self._function, self._kinds = module, function, kinds
        self._code: Code | None = None

    def __call__(self, *values: Any) -> int:
        code = self._code or self.load()
        return code(*values)

    def is_there(self) -> bool:
        """Whether it can be called without being compiled."""
        return self._code is not None or kept_code.is_kept(
            self._function, self._kinds, self._meaning, kept_code.folders()
        )

    @property
    def _meaning(self) -> str:
        return f"{self._module}.{self._function}"

    def load(self) -> Code:
        """The code, compiled if it is not kept; raises whatever a compiler or a linker does."""
        with _loading:
            if self._code is None:
                places = kept_code.folders()
                self._code = kept_code.code_of(self._function, self._kinds, self._meaning, places, self._compile)
            return self._code

    def _compile(self, digest: str) -> ObjectCode:
        from hubmerge.engine.compiled.adapters import object_code  # imports numba

        module = importlib.import_module(f"hubmerge.engine.compiled.{self._module}")
        return object_code(getattr(module, self._function), self._function, self._kinds, digest)

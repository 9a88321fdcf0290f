"""Where a command tells how far it is: a bar per stage on a terminal, or JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from hubmerge.errors import printable
from hubmerge.hub_errors import tell_retries


class Terminal:
    """The observers of line and stream on a terminal (a bar per stage) or as JSON lines."""

    def __init__(self, as_json: bool, *, one_object: bool = False) -> None:
        """`one_object`: what is said of the result becomes one JSON object on standard output, when it is printed."""
        self._json = as_json
        self._result: dict[str, Any] | None = {} if one_object else None
        self._bar: Any = None
        self._stage = ""
        self._told_at = 0.0
        self._warnings: set[str] = set()
        self.stream = StreamTerminal(self)
        if as_json:
            tell_retries(self._client_warning)

    def stage(self, name: str) -> None:
        if self._json:
            self._line({"type": "stage", "stage": name})

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        if self._json:
            now = time.monotonic()
            if done == total or now - self._told_at > 0.5:
                self._told_at = now
                self._line({"type": "progress", "stage": stage, "done": done, "total": total, "unit": unit})
            return
        if stage != self._stage:
            self.close()
            self._stage = stage
            if sys.stderr.isatty():
                from tqdm import tqdm

                shown = unit if unit == "B" else " el"
                self._bar = tqdm(total=total, desc=stage, unit=shown, unit_scale=True, file=sys.stderr, leave=False)
        if self._bar is not None:
            if total != self._bar.total:  # the same stage of another folder
                self._bar.reset(total)
            self._bar.update(done - self._bar.n)

    def statistics(self, values: Mapping[str, Any]) -> None:
        pass

    def warning(self, message: str) -> None:
        """Told once: a probe and a merge may both meet the same thing."""
        if message in self._warnings:
            return
        self._warnings.add(message)
        if self._json:
            self._client_warning(message)
            return
        line = f"hubmerge: warning: {printable(message)}"
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)  # above the bar, not behind it
        else:
            sys.stderr.write(line + "\n")

    def usage(self, environment: Mapping[str, Any]) -> None:
        """At the end: what the merge took, from the environment of its report."""
        from hubmerge.usage import facts, in_words

        self.close()
        if self._json:
            self._line({"type": "usage", **facts(environment)})
        self.say("" if self._json else in_words(environment) + "\n", usage=facts(environment))

    def say(self, text: str, **values: Any) -> None:
        """Part of the result: a text for people, or values for a program, of which lists grow."""
        if self._result is None:
            sys.stdout.write(text)
            return
        for name, value in values.items():
            if isinstance(value, list):
                self._result.setdefault(name, []).extend(value)
            else:
                self._result[name] = value

    def print_result(self) -> None:
        """At the end, where the result is one object."""
        if self._result:
            sys.stdout.write(json.dumps(self._result, indent=2, ensure_ascii=False) + "\n")

    def _client_warning(self, message: str) -> None:
        """Told as often as it happens."""
        self._line({"type": "warning", "message": message})

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _line(self, value: Mapping[str, Any]) -> None:
        sys.stderr.write(json.dumps(value) + "\n")
        sys.stderr.flush()


class StreamTerminal:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def progress(self, stage: str, done: int, total: int) -> None:
        self._terminal.progress(stage, done, total, "elements")

    def counted(self, total: Any) -> None:
        pass

    def warning(self, message: str) -> None:
        self._terminal.warning(message)

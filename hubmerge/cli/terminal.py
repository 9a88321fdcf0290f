"""Reports the progress of a command: a bar per stage on a terminal, lines in a log, or JSON lines.

No stage is silent for long. While a stage reports nothing new, a thread says which stage it is and how long it has
taken: the clock of the bar moves on, JSON has a `waiting` line, and a log has a line after 2 s, 4 s, 8 s, …
"""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

from hubmerge.engine.progress import doing
from hubmerge.errors import printable
from hubmerge.hub.errors import tell_retries

SILENCE_S = 1.0  # after which the same is said again
_TOLD_EVERY_S = 0.5  # what moves on
_FIRST_LINE_S, _LAST_LINE_S = 2.0, 60.0  # in a log: between a stage's begin and its first line, at most between two


class Terminal:
    """The observer of a command's work. As a context it also breaks silences."""

    def __init__(self, as_json: bool, clock: Callable[[], float] = time.monotonic, *, one_object: bool = False) -> None:
        """`one_object`: the result becomes one JSON object on standard output when it is printed."""
        self._json = as_json
        self._result: dict[str, Any] | None = {} if one_object else None
        self._clock = clock
        self._lock = threading.RLock()  # the ticker tells, too
        self._bar: Any = None
        self._stage = ""
        self._began = self._spoken = self._next_line = 0.0
        self._wait_s = _FIRST_LINE_S
        self._last: tuple[int, int, str] | None = None  # done, total, unit
        self._told_at = 0.0
        self._on_terminal = sys.stderr.isatty()
        self._warnings: set[str] = set()
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None
        if as_json:
            tell_retries(self._client_warning)

    def __enter__(self) -> Self:
        self._ended.clear()
        self._ticker = threading.Thread(target=self._run, name="hubmerge-terminal", daemon=True)
        self._ticker.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join()
        self.close()

    def _run(self) -> None:
        while not self._ended.wait(SILENCE_S / 4):
            try:
                self.tick()
            except (OSError, ValueError):  # nobody reads any more, or stderr is closed
                return

    def tick(self) -> None:
        """Repeat the present stage where nothing was reported for a while."""
        with self._lock:
            now = self._clock()
            if not self._stage:
                return
            if self._json:
                if now - self._spoken >= SILENCE_S:
                    how_far = dict(zip(("done", "total", "unit"), self._last or (), strict=False))
                    seconds = round(now - self._began, 1)
                    self._line({"type": "waiting", "stage": self._stage, **how_far, "seconds": seconds})
            elif self._on_terminal:
                if self._bar is None and now - self._began >= SILENCE_S:
                    self._bar = _bar(doing(self._stage), None, "")
                if self._bar is not None:
                    self._bar.refresh()
            elif now >= self._next_line:
                self._wait_s = min(2 * self._wait_s, _LAST_LINE_S)
                self._next_line = now + self._wait_s / 2
                sys.stderr.write(f"hubmerge: {doing(self._stage)}{self._how_far()}, {now - self._began:.0f} s\n")
                sys.stderr.flush()

    def _how_far(self) -> str:
        if self._last is None or not self._last[1]:
            return ""
        done, total, unit = self._last
        if unit == "B":
            from hubmerge.text.markdown import size  # which imports what most commands do without

            return f", {size(done)} of {size(total)}"
        return f", {done / total:.0%}" if unit == "elements" else f", {done} of {total} {printable(unit)}"

    def stage(self, name: str) -> None:
        with self._lock:
            self._begin(name)
            if self._json:
                self._line({"type": "stage", "stage": name})

    def _begin(self, stage: str) -> None:
        self._close_bar()
        self._stage, self._began, self._last = stage, self._clock(), None
        self._wait_s, self._next_line = _FIRST_LINE_S, self._began + _FIRST_LINE_S

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        with self._lock:
            if stage != self._stage:
                self._begin(stage)
            news = (done, total, unit) != self._last
            self._last = done, total, unit
            if self._json:
                now = self._clock()
                if (done == total and news) or now - self._told_at > _TOLD_EVERY_S:
                    self._told_at = now
                    self._line({"type": "progress", "stage": stage, "done": done, "total": total, "unit": unit})
                return
            if not self._on_terminal or not total:  # nobody knows how far it is, and `tick` shows the time
                return
            if self._bar is not None and self._bar.total is None:
                self._close_bar()  # of a wait for the first news
            if self._bar is None:
                self._bar = _bar(doing(stage), total, unit if unit == "B" else " el" if unit == "elements" else unit)
            if total != self._bar.total:  # the same stage of another folder
                self._bar.reset(total)
            self._bar.update(done - self._bar.n)

    def statistics(self, values: Mapping[str, Any]) -> None:
        pass

    def warning(self, message: str) -> None:
        """Print a warning, but each only once, since a probe and a merge may both meet the same thing."""
        with self._lock:
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
        """Print at the end what the merge took, from the environment of its report."""
        from hubmerge.engine.usage import facts, in_words

        self.close()
        if self._json:
            self._line({"type": "usage", **facts(environment)})
        self.say("" if self._json else in_words(environment) + "\n", usage=facts(environment))

    def say(self, text: str, **values: Any) -> None:
        """Add a part of the result: a text for people, or values for a program, whose lists grow."""
        if self._result is None:
            sys.stdout.write(text)
            sys.stdout.flush()  # what is finished is told, although hours of work may follow
            return
        for name, value in values.items():
            if isinstance(value, list):
                self._result.setdefault(name, []).extend(value)
            else:
                self._result[name] = value

    def print_result(self) -> None:
        """Print the result at the end, where it is one object."""
        if self._result:
            sys.stdout.write(json.dumps(self._result, indent=2, ensure_ascii=False) + "\n")

    def _client_warning(self, message: str) -> None:
        """Print a warning of the Hub's client each time that it comes."""
        self._line({"type": "warning", "message": message})

    def close(self) -> None:
        """End the reports."""
        with self._lock:
            self._close_bar()
            self._stage = ""

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _line(self, value: Mapping[str, Any]) -> None:
        with self._lock:
            self._spoken = self._clock()
            sys.stderr.write(json.dumps(value) + "\n")
            sys.stderr.flush()


def _bar(words: str, total: int | None, unit: str) -> Any:
    from tqdm import tqdm

    form = "{desc}: {elapsed}" if total is None else None
    unit = f" {unit}" if unit not in ("", "B", " el") else unit
    scaled, columns, rows = unit in ("B", " el"), None, None
    with suppress(OSError):
        if not os.get_terminal_size(sys.stderr.fileno()).columns:  # a container's, whose size nobody has set
            columns, rows = shutil.get_terminal_size()  # tqdm would show nothing
    return tqdm(
        total=total,
        desc=words,
        unit=unit,
        unit_scale=scaled,
        file=sys.stderr,
        leave=False,
        bar_format=form,
        ncols=columns,
        nrows=rows,
    )

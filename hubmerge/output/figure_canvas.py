"""A canvas for the card's figures: texts, lines, boxes and markers at places in inches, and axes made of them.

Drawn by matplotlib's Agg renderer itself (figure_renderer.py). matplotlib's figures find out where labels and numbers
touch by drawing them, and make an object with a dozen properties of every tick: two thirds of a second for three
figures, of which ours know all places beforehand. There is no global state, so that threads may draw at once, and no
text is ever mathematics.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from hubmerge.output.figure_renderer import Pen, Renderer, font

WIDTH = 8.0  # inches, as all lengths here; cards show about 800 pixels, so that 9 points read as 12 pixels
SIZE = 9.0  # points
EDGE = 0.1  # around everything
TITLE = 0.27
X_TICKS, X_LABEL = 0.22, 0.2  # heights below axes
TICK = 0.07  # a tick and the space to its number
ROW = 0.2  # of a legend
SHADE_BAR = 0.12  # the width of a bar that explains colours
LIGHT = "#dddddd"

_DPI = 150
_POINT = 1 / 72
_CAPITAL = 0.73 * _POINT  # height of a capital letter of one point
_Y_LABEL = 0.2  # its width
_HANDLE = 0.34  # what a legend shows beside a label
_LEGEND_COLUMNS = 3
_LEGEND_GAP = 0.25
_SHADES = 128  # of a bar that explains colours

Point = tuple[float, float]
Color = Any  # what matplotlib takes: a name, or three or four numbers


@lru_cache(1000)
def text_width(text: str, size: float = SIZE) -> float:
    known = font()
    known.set_size(size, _DPI)
    known.set_text(text, 0.0)
    width, _ = known.get_width_height()
    return float(width) / 64 / _DPI


def widest(texts: Iterable[str], size: float = SIZE) -> float:
    return max((text_width(text, size) for text in texts), default=0.0)


def number(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")


def ticks(most: float, least: float = 0.0, *, whole: bool = False) -> list[float]:
    """Round numbers from `least` to `most`, at most seven; `whole`: integers."""
    if not most > least:
        return [least]
    step = 10.0 ** math.floor(math.log10((most - least) / 6))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10, 20) if (most - least) / (step * factor) <= 6)
    if whole:
        step = max(1.0, math.ceil(step))
    first = math.ceil(least / step - 1e-9)
    return [n * step for n in range(first, math.floor(most / step + 1e-9) + 1)]


def beside(y_ticks: Sequence[float]) -> float:
    """The room left of axes with these numbers and a label."""
    return TICK + widest(map(number, y_ticks)) + _Y_LABEL


class Canvas:
    """`height` inches of white; y goes up. Later things cover earlier ones."""

    def __init__(self, height: float) -> None:
        # imported here, as below: matplotlib takes a tenth of a second and 20 MB, and most commands draw nothing
        from matplotlib.transforms import IdentityTransform

        self._agg = Renderer(round(WIDTH * _DPI), round(height * _DPI), _DPI)
        self._as_it_is = IdentityTransform()
        self.box(0.0, 0.0, WIDTH, height + 1.0, "white")

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = SIZE,
        across: float = 0.0,
        middle: bool = False,
        turned: float = 0.0,
        color: Color = "black",
    ) -> None:
        """`across`: the part of the text before x, 0 to 1. y: of its baseline, or of its capitals' middle. `turned`:
        degrees around that point."""
        if not text:
            return
        before = across * text_width(text, size)
        below = _CAPITAL * size / 2 if middle else 0.0
        cos, sin = math.cos(math.radians(turned)), math.sin(math.radians(turned))
        x, y = x - before * cos + below * sin, y - before * sin - below * cos
        place = (round(x * _DPI), round(self._agg.height - y * _DPI))
        self._agg.draw_text(self._pen(color, 0.0), *place, text, size, turned)

    def box(self, x: float, y: float, width: float, height: float, color: Color) -> None:
        """Filled, in whole pixels."""
        from matplotlib.colors import to_rgba
        from matplotlib.path import Path

        left, right, bottom, top = (round(v * _DPI) for v in (x, x + width, y, y + height))
        if left < right and bottom < top:
            corners = [(left, bottom), (right, bottom), (right, top), (left, top), (left, bottom)]
            self._agg.draw_path(self._pen(color, 0.0), Path(corners, closed=True), self._as_it_is, to_rgba(color))

    def line(self, points: Sequence[Point], color: Color, width: float, dashes: Sequence[float] = ()) -> None:
        """`width` and `dashes` (drawn, left out, …) in points."""
        from matplotlib.path import Path

        self._agg.draw_path(
            self._pen(color, width, dashes), Path([(x * _DPI, y * _DPI) for x, y in points]), self._as_it_is, None
        )

    def marks(self, points: Sequence[Point], shape: str, color: Color, size: float = 4.0) -> None:
        """A marker of matplotlib's, `size` points wide, at each point."""
        from matplotlib.colors import to_rgba
        from matplotlib.markers import MarkerStyle
        from matplotlib.path import Path

        marker = MarkerStyle(shape)
        scaled = marker.get_transform() + self._scaled(size * _DPI * _POINT)
        path = Path([(x * _DPI, y * _DPI) for x, y in points])
        self._agg.draw_markers(self._pen(color, 1.0), marker.get_path(), scaled, path, self._as_it_is, to_rgba(color))

    def png(self) -> bytes:
        """Without metadata, which would name the version of matplotlib."""
        from PIL import Image

        buffer = io.BytesIO()
        size = (self._agg.width, self._agg.height)
        picture = Image.frombuffer("RGBA", size, self._agg.buffer_rgba(), "raw", "RGBA", 0, 1)
        picture.convert("RGB").save(buffer, "png", dpi=(_DPI, _DPI), compress_level=3)  # a higher one saves little
        return buffer.getvalue()

    def _pen(self, color: Color, width: float, dashes: Sequence[float] = ()) -> Pen:
        from matplotlib.colors import to_rgba

        return Pen(to_rgba(color), width, dashes)

    def _scaled(self, factor: float) -> Any:
        from matplotlib.transforms import Affine2D

        return Affine2D().scale(factor)


@dataclass(frozen=True)
class Axes:
    """A rectangle of the canvas with scales for x and y."""

    canvas: Canvas
    left: float
    bottom: float
    width: float
    height: float
    x: tuple[float, float]  # the values at both ends
    y: tuple[float, float]

    def at_x(self, value: float) -> float:
        return self.left + self.width * (value - self.x[0]) / (self.x[1] - self.x[0])

    def at_y(self, value: float) -> float:
        return self.bottom + self.height * (value - self.y[0]) / (self.y[1] - self.y[0])

    def box(self, x: float, y: float, x_end: float, y_end: float, color: Color) -> None:
        left, right = sorted((self.at_x(x), self.at_x(x_end)))
        bottom, top = sorted((self.at_y(y), self.at_y(y_end)))
        self.canvas.box(left, bottom, right - left, top - bottom, color)

    def title(self, text: str) -> None:
        self.canvas.text(self.left + self.width / 2, self.bottom + self.height + 0.08, text, size=SIZE + 1, across=0.5)

    def grid(self, axis: Literal["x", "y"], values: Sequence[float]) -> None:
        for value in values:
            if axis == "x":
                self.canvas.box(self.at_x(value), self.bottom, 1 / _DPI, self.height, LIGHT)
            else:
                self.canvas.box(self.left, self.at_y(value), self.width, 1 / _DPI, LIGHT)

    def frame(self) -> None:
        """The lines at the left and below."""
        line = 1.6 / _DPI
        self.canvas.box(self.left - line, self.bottom - line, line, self.height + line, "black")
        self.canvas.box(self.left - line, self.bottom - line, self.width + line, line, "black")

    def x_ticks(self, values: Sequence[float], texts: Sequence[str] | None = None, size: float = SIZE) -> None:
        for value, text in zip(values, texts or list(map(number, values)), strict=True):
            self.canvas.box(self.at_x(value), self.bottom - 0.03, 1.6 / _DPI, 0.03, "black")
            top = self.bottom - TICK - size * _CAPITAL
            self.canvas.text(self.at_x(value), top, text, size=size, across=0.5)

    def x_names(self, names: Sequence[str], turned: float) -> None:
        """Below 0, 1, …, ending there."""
        for place, name in enumerate(names):
            self.canvas.box(self.at_x(place), self.bottom - 0.03, 1.6 / _DPI, 0.03, "black")
            x, y = self.at_x(place) + 0.04, self.bottom - TICK - SIZE * _CAPITAL
            self.canvas.text(x, y, name, across=1.0, turned=turned)

    def y_ticks(
        self, values: Sequence[float], texts: Sequence[str] | None = None, size: float = SIZE, *, right: bool = False
    ) -> None:
        for value, text in zip(values, texts or list(map(number, values)), strict=True):
            y = self.at_y(value)
            edge = self.left + self.width if right else self.left
            self.canvas.box(edge - (0.0 if right else 0.03), y, 0.03, 1.6 / _DPI, "black")
            x = edge + TICK if right else edge - TICK
            self.canvas.text(x, y, text, size=size, across=0.0 if right else 1.0, middle=True)

    def label(self, x: str, y: str, y_ticks: Sequence[float] = ()) -> None:
        """Below the numbers, and left of them."""
        down = self.bottom - X_TICKS - 0.02 - SIZE * _CAPITAL
        self.canvas.text(self.left + self.width / 2, down, x, across=0.5)
        beside_numbers = self.left - beside(y_ticks) + _Y_LABEL - 0.06
        self.canvas.text(beside_numbers, self.bottom + self.height / 2, y, across=0.5, turned=90.0)


def shade_bar(
    canvas: Canvas,
    left: float,
    bottom: float,
    height: float,
    ends: tuple[float, float],
    marks: Sequence[float],
    shade: Callable[[float], Color],
) -> None:
    """The bar that says which shade is which value, from one of the `ends` to the other."""
    bar = Axes(canvas, left, bottom, SHADE_BAR, height, (0.0, 1.0), ends)
    step = (ends[1] - ends[0]) / _SHADES
    for n in range(_SHADES):
        bar.box(0.0, ends[0] + n * step, 1.0, ends[0] + (n + 1) * step, shade(ends[0] + (n + 0.5) * step))
    bar.y_ticks(marks, size=SIZE - 1, right=True)


def legend_shape(labels: Sequence[str], most_columns: int = _LEGEND_COLUMNS) -> tuple[int, int]:
    """Columns and rows of a legend that is no wider than the canvas."""
    entry = widest(labels) + _HANDLE + _LEGEND_GAP
    columns = max(1, min(most_columns, len(labels), int((WIDTH - 2 * EDGE) / entry)))
    return columns, -(-len(labels) // columns)


def legend(
    canvas: Canvas, labels: Sequence[str], columns: int, draw: Callable[[int, float, float, float], None]
) -> None:
    """At the lower edge, column by column; draw(entry, x, y, width) draws what stands beside its label."""
    rows = -(-len(labels) // max(columns, 1))
    parts = [labels[start : start + rows] for start in range(0, len(labels), max(rows, 1))]
    widths = [_HANDLE + widest(part) for part in parts]
    x = (WIDTH - sum(widths) - _LEGEND_GAP * (len(parts) - 1)) / 2
    for column, part in enumerate(parts):
        for row, label in enumerate(part):
            y = EDGE + ROW * (rows - row - 0.5)
            draw(column * rows + row, x, y, _HANDLE - 0.07)
            canvas.text(x + _HANDLE, y, label, middle=True)
        x += widths[column] + _LEGEND_GAP

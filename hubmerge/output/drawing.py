"""Plain shapes and texts as SVG: what the card's figures and the figure of a difference are drawn with.

A drawing is the same bytes on every machine, needs no library and no font, and stays sharp at every size. It holds no
script, no style sheet and no address, so that it shows where a page forbids all of them. Texts may be a stranger's:
they are escaped where they are written and are never read as markup.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from unicodedata import east_asian_width
from xml.etree import ElementTree

WIDTH = 800.0  # pixels: about what a card shows
SIZE = 12.0  # pixels: height of letters
TITLE = 24.0  # above a panel: its title
TICKS = 18.0  # below a panel: the numbers of its axis
LABEL = 18.0  # below or beside the numbers: what they are
ROW = 18.0  # of a legend
_FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
_INK, _GRID = "#222222", "#dddddd"
_NARROW = frozenset("fijlrtI.,:;|!'()[]/ ")
_WIDE = frozenset("mwMW@%→…—")

Point = tuple[float, float]
# Corners of a regular polygon and the angle of the first in degrees: circle, square, diamond, triangles, …
MARKERS = ((16, 0.0), (4, 45.0), (4, 0.0), (3, -90.0), (3, 90.0), (5, -90.0), (6, 0.0), (8, 22.5))


def width_of(text: str, size: float = SIZE) -> float:
    """An upper estimate of a text's width in pixels, since the font is the viewer's."""
    wide = sum(1.05 if east_asian_width(c) in "WF" else 1.0 if c in _WIDE else 0.42 if c in _NARROW else
               0.8 if c.isupper() else 0.65 for c in text)  # fmt: skip
    return size * wide


def number(value: float) -> str:
    """Plain digits with a true minus sign."""
    return f"{value + 0.0:.6g}".replace("-", "−")


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """At most 6 round numbers from `low` to `high`; `whole`: integers only."""
    if high <= low:
        return [low]
    power = math.floor(math.log10((high - low) / 5))
    steps = [step * 10.0**k for k in (power, power + 1) for step in (1, 2, 2.5, 5)]
    step = next(s for s in [*steps, 10.0 ** (power + 2)] if (high - low) / s <= 5 and (not whole or s == int(s)))
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


class Drawing:
    """A white sheet of 800 pixels' width, with (0, 0) at its upper left."""

    def __init__(self, height: float, title: str) -> None:
        size = {"width": _short(WIDTH), "height": _short(height), "viewBox": f"0 0 {_short(WIDTH)} {_short(height)}"}
        self._root = ElementTree.Element(
            "svg", {"xmlns": "http://www.w3.org/2000/svg", **size, "role": "img", "font-family": _FONT, "fill": _INK}
        )
        ElementTree.SubElement(self._root, "title").text = title
        self.height = height
        self.rect(0, 0, WIDTH, height, "#ffffff")

    def rect(self, left: float, top: float, width: float, height: float, color: str) -> None:
        """Nothing where it has no extent."""
        if width > 0 and height > 0:
            self._add("rect", x=left, y=top, width=width, height=height, fill=color)

    def line(self, points: Sequence[Point], color: str = _INK, width: float = 1.0, dashes: str = "") -> None:
        places = " ".join(f"{_short(x)},{_short(y)}" for x, y in points)
        more = {"stroke-dasharray": dashes} if dashes else {}
        self._add("polyline", points=places, fill="none", stroke=color, **{"stroke-width": width}, **more)

    def marker(self, at: Point, which: int, color: str) -> None:
        """One of `MARKERS`, about 6 pixels wide."""
        corners, first = MARKERS[which % len(MARKERS)]
        angles = [math.radians(first + 360 * n / corners) for n in range(corners)]
        places = " ".join(f"{_short(at[0] + 3.2 * math.cos(a))},{_short(at[1] + 3.2 * math.sin(a))}" for a in angles)
        self._add("polygon", points=places, fill=color)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = SIZE,
        anchor: str = "start",
        color: str = "",
        turn: float = 0.0,
    ) -> None:
        """`words` on a line whose base is at `y`; `anchor`: which end of them is at `x`; `turn`: degrees."""
        more: dict[str, str | float] = {"text-anchor": anchor} if anchor != "start" else {}
        if color:
            more["fill"] = color
        if turn:
            more["transform"] = f"rotate({_short(turn)} {_short(x)} {_short(y)})"
        self._add("text", x=x, y=y, **{"font-size": size}, **more).text = words

    def legend(self, top: float, entries: Sequence[tuple[str, str]], *, lines: Sequence[str] | None = None) -> None:
        """Rows of (color, words) below `top`; `lines`: their dashes, where curves are told apart."""
        n = 0
        for row, in_row in enumerate(_rows(entries)):
            x = (WIDTH - sum(map(_entry_width, in_row))) / 2
            y = top + row * ROW + ROW / 2
            for color, words in in_row:
                if lines is None:
                    self.rect(x + 4, y - 5, 16, 10, color)
                else:
                    self.line([(x, y), (x + 24, y)], color, 1.6, lines[n])
                    self.marker((x + 12, y), n, color)
                self.text(x + 28, y + 4, words)
                x += _entry_width((color, words))
                n += 1

    def svg(self) -> bytes:
        written: bytes = ElementTree.tostring(self._root, encoding="utf-8")
        return written + b"\n"

    def _add(self, tag: str, **attributes: str | float) -> ElementTree.Element:
        values = {key: value if isinstance(value, str) else _short(value) for key, value in attributes.items()}
        return ElementTree.SubElement(self._root, tag, values)


def legend_height(entries: Sequence[tuple[str, str]]) -> float:
    """Pixels that `Drawing.legend` takes."""
    return ROW * len(_rows(entries))


def _entry_width(entry: tuple[str, str]) -> float:
    return 40 + width_of(entry[1])


def _rows(entries: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """As many in a row as fit."""
    rows: list[list[tuple[str, str]]] = [[]]
    for entry in entries:
        if rows[-1] and sum(map(_entry_width, [*rows[-1], entry])) > WIDTH:
            rows.append([])
        rows[-1].append(entry)
    return rows


@dataclass(frozen=True)
class Panel:
    """A place of a drawing with its own coordinates: `x` and `y` are the numbers at its ends, upwards."""

    drawing: Drawing = field(repr=False)
    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float] = (0.0, 1.0)
    y: tuple[float, float] = (0.0, 1.0)

    def at(self, x: float, y: float) -> Point:
        return (
            self.left + self.width * (x - self.x[0]) / (self.x[1] - self.x[0]),
            self.top + self.height * (self.y[1] - y) / (self.y[1] - self.y[0]),
        )

    def bar(self, x: tuple[float, float], y: tuple[float, float], color: str) -> None:
        (left, bottom), (right, top) = self.at(x[0], y[0]), self.at(x[1], y[1])
        self.drawing.rect(min(left, right), min(top, bottom), abs(right - left), abs(bottom - top), color)

    def title(self, words: str) -> None:
        self.drawing.text(self.left + self.width / 2, self.top - 9, words, size=SIZE + 1, anchor="middle")

    def x_axis(
        self, marks: Sequence[tuple[float, str]], label: str = "", *, grid: bool = False, turned: bool = False
    ) -> None:
        """Marks of (place, words) below the panel, and the label below them."""
        bottom = self.top + self.height
        for place, words in marks:
            x, _ = self.at(place, self.y[0])
            if grid:
                self.drawing.line([(x, self.top), (x, bottom)], _GRID)
            if turned:
                self.drawing.text(x + 3, bottom + 14, words, anchor="end", turn=-30.0)
            else:
                self.drawing.text(x, bottom + 15, words, anchor="middle")
        self.drawing.line([(self.left, bottom), (self.left + self.width, bottom)])
        if label:
            self.drawing.text(self.left + self.width / 2, bottom + TICKS + 14, label, anchor="middle")

    def y_axis(self, marks: Sequence[tuple[float, str]], label: str = "", *, grid: bool = False) -> None:
        """Marks of (place, words) to the left of the panel, and the label upright beside them."""
        for place, words in marks:
            _, y = self.at(self.x[0], place)
            if grid:
                self.drawing.line([(self.left, y), (self.left + self.width, y)], _GRID)
            self.drawing.text(self.left - 6, y + 4, words, anchor="end")
        self.drawing.line([(self.left, self.top), (self.left, self.top + self.height)])
        if label:
            x = self.left - 12 - max((width_of(words) for _, words in marks), default=0.0)
            self.drawing.text(x, self.top + self.height / 2, label, anchor="middle", turn=-90.0)


def numbers(values: Sequence[float]) -> list[tuple[float, str]]:
    """Marks of an axis that show their own place."""
    return [(value, number(value)) for value in values]


class Shades:
    """Colours between given ones, at equal distances from `low` to `high`."""

    def __init__(self, stops: Sequence[str], low: float = 0.0, high: float = 1.0) -> None:
        self._stops = [tuple(int(stop[n : n + 2], 16) for n in (1, 3, 5)) for stop in stops]
        self.low, self.high = low, high

    def at(self, value: float) -> str:
        """#rrggbb; a value outside has the colour of the end."""
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0) * (len(self._stops) - 1)
        first = min(int(share), len(self._stops) - 2)
        part = share - first
        mixed = zip(self._stops[first], self._stops[first + 1], strict=True)
        return "#" + "".join(f"{round(a + part * (b - a)):02x}" for a, b in mixed)

    def scale(self, drawing: Drawing, left: float, top: float, height: float) -> None:
        """Which shade is which value, from top to bottom, 60 pixels wide with its numbers."""
        steps = 32
        for n in range(steps):
            share = (n + 0.5) / steps
            color = self.at(self.high - share * (self.high - self.low))
            drawing.rect(left, top + n * height / steps, 10, height / steps + 0.5, color)
        for value in ticks(self.low, self.high):
            y = top + height * (self.high - value) / (self.high - self.low)
            drawing.text(left + 14, y + 4, number(value), size=SIZE - 2)


# a scale that reads the same to colour-blind eyes, also in grey
CIVIDIS = ("#00224e", "#1a386f", "#434e6c", "#61656f", "#7d7c78", "#9b9476", "#bcae6c", "#dec958", "#fee838")


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")

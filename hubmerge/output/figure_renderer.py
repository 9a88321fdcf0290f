"""matplotlib's Agg renderer without the Python around it, which draws nothing that the card's figures show.

`matplotlib.backends.backend_agg` brings the widgets, the mathematics and the layout of interactive figures along, and
writes the documentation of every artist at import: a tenth of a second in every merge. What it calls in the end are
three functions of compiled modules, named here. Those are matplotlib's own affair, and its version is pinned;
a test draws the same through its public renderer, pixel by pixel.
"""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FONT = "DejaVuSans.ttf"  # comes with matplotlib; looked up by name it would be searched for in the system's folders
_SIXTEENTH = 0x10000  # 16.16 fixed point
_PIXEL = 64  # 26.6 fixed point
_UPRIGHT = [[_SIXTEENTH, 0], [0, _SIXTEENTH]]

_thread = threading.local()  # .font: one of FreeType's must not be used by two threads


def font() -> Any:
    known: Any = getattr(_thread, "font", None)
    if known is None:
        from matplotlib import get_data_path
        from matplotlib.ft2font import FT2Font

        known = _thread.font = FT2Font(Path(get_data_path(), "fonts", "ttf", _FONT))
    known._set_transform(_UPRIGHT, [0, 0])
    return known


class Pen:
    """What Agg asks of whoever draws; the names are its own."""

    _alpha, _forced_alpha, _antialiased, _cliprect = 1.0, False, 1, None
    _capstyle, _joinstyle = "butt", "round"

    def __init__(self, rgba: Sequence[float], width: float, dashes: Sequence[float] = ()) -> None:
        """`width` and `dashes` (drawn, left out, …) in points."""
        self._rgb = tuple(rgba)
        self._linewidth = width
        self._dashes = (0.0, list(dashes) or None)

    def get_dashes(self) -> tuple[float, list[float] | None]:
        return self._dashes

    def get_clip_path(self) -> tuple[None, None]:
        return None, None

    def nothing(self) -> None:
        return None

    get_snap = get_hatch_path = get_hatch_color = get_sketch_params = nothing

    def get_hatch_linewidth(self) -> float:
        return 1.0


class Renderer:
    """An image of `width` by `height` pixels; y goes up, but for texts."""

    def __init__(self, width: int, height: int, dpi: int) -> None:
        compiled: Any = importlib.import_module("matplotlib.backends._backend_agg")
        self.width, self.height, self._dpi = width, height, dpi
        self._agg = compiled.RendererAgg(width, height, dpi)
        self.draw_path = self._agg.draw_path
        self.draw_markers = self._agg.draw_markers

    def draw_text(self, pen: Pen, x: int, y: int, text: str, size: float, turned: float) -> None:
        """`size` in points; y of the baseline, from above; `turned`: degrees."""
        from matplotlib.ft2font import LoadFlags, RenderMode

        cos, sin = math.cos(math.radians(turned)), math.sin(math.radians(turned))
        turn = [[round(_SIXTEENTH * v) for v in row] for row in ((cos, -sin), (sin, cos))]
        known = font()
        known.clear()
        known.set_size(size, self._dpi)
        for glyph in known._layout(text, flags=LoadFlags.DEFAULT):
            across = x + glyph.x * cos - glyph.y * sin
            up = self.height - y + glyph.x * sin + glyph.y * cos
            glyph.ft_object.set_size(size, self._dpi)
            glyph.ft_object._set_transform(turn, [round(_PIXEL * across), round(_PIXEL * up)])
            drawn = glyph.ft_object._render_glyph(glyph.glyph_index, LoadFlags.DEFAULT, RenderMode.NORMAL)
            shown = drawn.buffer
            self._agg.draw_text_image(shown, drawn.left, self.height - drawn.top + shown.shape[0], 0.0, pen)

    def buffer_rgba(self) -> Any:
        return memoryview(self._agg)

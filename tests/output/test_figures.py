"""What the figures promise: PNGs of the same bytes for the same report, whatever the labels and their number."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties
from PIL import Image
from report_helpers import FIGURES, report, report_data, report_of, summary

from hubmerge.output import figure_canvas
from hubmerge.output.figure_canvas import WIDTH, Axes, Canvas, legend_shape, text_width, ticks
from hubmerge.output.figures import _matrix, render_figures, short_label
from hubmerge.output.report import Report


def pixels(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).copy()


def test_the_figures_have_the_names_that_the_card_knows() -> None:
    assert tuple(render_figures(report())) == FIGURES


def test_two_renderings_have_the_same_bytes_and_carry_no_metadata() -> None:
    first, second = render_figures(report()), render_figures(report())
    assert first == second
    for png in first.values():
        with Image.open(io.BytesIO(png)) as image:
            assert set(image.info) == {"dpi"}


def test_threads_may_draw_at_once() -> None:
    expected = render_figures(report())
    results: list[dict[str, bytes]] = []
    threads = [threading.Thread(target=lambda: results.append(render_figures(report()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 3


@pytest.mark.parametrize("agents", [2, 8, 32])
def test_any_number_of_agents_renders_at_card_width(agents: int) -> None:
    for png in render_figures(report_of([f"org/some-agent-with-a-long-name-{k}" for k in range(agents)])).values():
        height, width, _ = pixels(png).shape
        assert width == 1200
        assert 300 <= height <= 1500
        # nothing is cut off: the outermost pixels are background
        image = pixels(png)
        for edge in (image[:, 0], image[:, -1], image[0], image[-1]):
            assert (edge == 255).all()


@pytest.mark.parametrize(
    "label", [r"$\frac{", "$x^2$", "_hidden", "__", "日本語", "a\nb", "\u202egnp", "%s {0}", "", "<b>&", "x" * 500]
)
def test_a_strange_label_is_drawn_and_never_read_as_mathematics(label: str) -> None:
    # warnings are errors here, such as matplotlib's about a glyph or a legend entry that is missing
    assert len(render_figures(report_of([label, "other"]))) == 3


def test_mathematics_is_shown_as_it_is_written() -> None:
    # read as mathematics, both would draw an italic x
    first, second = (render_figures(report_of([label, "other"])) for label in ("$x$", "$x $"))
    assert all(first[name] != second[name] for name in FIGURES)


def test_labels_keep_both_ends_and_only_characters_that_the_font_has() -> None:
    assert short_label("short") == "short"
    assert short_label("Qwen3-4B-agent-number-17") == "Qwen3-4B-a…-number-17"
    assert short_label("a\u202eb\n日") == "a?b??"


def test_models_without_layers_or_changes_render() -> None:
    assert len(render_figures(report_of(["a", "b"], layers=0))) == 3
    assert len(render_figures(report_of(["a", "b"], elements=0))) == 3
    data = report_data()
    data["statistics"]["modules"] = {}
    assert len(render_figures(Report.from_json(data))) == 3


def test_pairs_fill_a_symmetric_matrix_in_their_order() -> None:
    pairs = [{"jaccard": 0.1}, {"jaccard": 0.2}, {"jaccard": 0.3}]  # (0, 1), (0, 2), (1, 2)
    grid = np.array(_matrix(3, pairs, "jaccard"))
    np.testing.assert_array_equal(grid, [[np.nan, 0.1, 0.2], [0.1, np.nan, 0.3], [0.2, 0.3, np.nan]])


def test_a_bar_is_as_long_as_its_share() -> None:
    """In the overlap figure, math (10%) is drawn half as long as tool_use (20%); both share 5%."""
    image = pixels(render_figures(report())["figures/overlap.png"])[:, :700].astype(int)
    light = (abs(image - [214, 196, 93]).sum(2) < 24).sum(1)  # alone: 5% and 15%
    dark = (abs(image - [0, 34, 78]).sum(2) < 24).sum(1)  # by both: 5% and 5%
    rows = [n for n in np.unique(light[light > 50]) if (light == n).sum() > 40]
    assert len(rows) == 2
    assert rows[1] / rows[0] == pytest.approx(3, rel=0.03)
    assert np.median(dark[dark > 50]) == pytest.approx(rows[0], rel=0.05)


class PublicRenderer:
    """What figure_renderer.Renderer does, by matplotlib's public one."""

    def __init__(self, width: int, height: int, dpi: int) -> None:
        self.width, self.height = width, height
        self._agg = RendererAgg(width, height, dpi)

    def _context(self, pen: Any) -> Any:
        context = self._agg.new_gc()
        context.set_foreground(pen._rgb)
        context.set_linewidth(pen._linewidth)
        context.set_dashes(*pen.get_dashes())
        return context

    def draw_path(self, pen: Any, *rest: Any) -> None:
        self._agg.draw_path(self._context(pen), *rest)

    def draw_markers(self, pen: Any, *rest: Any) -> None:
        self._agg.draw_markers(self._context(pen), *rest)

    def draw_text(self, pen: Any, x: int, y: int, text: str, size: float, turned: float) -> None:
        self._agg.draw_text(self._context(pen), x, y, text, FontProperties(family="DejaVu Sans", size=size), turned)

    def buffer_rgba(self) -> memoryview:
        return self._agg.buffer_rgba()


def test_every_pixel_is_as_matplotlibs_public_renderer_draws_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = report_of([f"AVA To/fi-{k}" for k in range(19)])  # kerning, every marker, every kind of line
    drawn = render_figures(shown)
    monkeypatch.setattr(figure_canvas, "Renderer", PublicRenderer)
    assert drawn == render_figures(shown)


def test_drawing_leaves_matplotlibs_global_state_alone() -> None:
    before = set(sys.modules)
    render_figures(report())
    assert "matplotlib.pyplot" not in set(sys.modules) - before


@pytest.mark.parametrize("labels", [["W" * 22] * 6, ["a"] * 7, ["i" * 22] * 32, ["W" * 22]])
def test_the_longest_labels_fit_into_a_legend(labels: list[str]) -> None:
    columns, rows = legend_shape(labels)
    assert columns * rows >= len(labels)
    assert columns * (text_width(labels[0]) + 0.34) < WIDTH
    for png in render_figures(report_of([f"{label[:-1]}{k}" for k, label in enumerate(labels)])).values():
        image = pixels(png)
        for edge in (image[:, 0], image[:, -1], image[0], image[-1]):
            assert (edge == 255).all()


@pytest.mark.parametrize(
    ("most", "least", "whole", "expected"),
    [
        (21.0, 0.0, False, [0, 5, 10, 15, 20]),
        (12.6, 0.0, False, [0, 2.5, 5, 7.5, 10, 12.5]),
        (6.0, 0.0, False, [0, 1, 2, 3, 4, 5, 6]),
        (0.00031, 0.0, False, [0, 0.0001, 0.0002, 0.0003]),
        (100.0, 0.0, False, [0, 20, 40, 60, 80, 100]),
        (0.0, 0.0, False, [0]),
        (2, 0, True, [0, 1, 2]),
        (39, 0, True, [0, 10, 20, 30]),
        (9, 3, True, [3, 4, 5, 6, 7, 8, 9]),
        (5, 5, True, [5]),
    ],
)
def test_ticks_are_round_numbers_within_the_range(
    most: float, least: float, whole: bool, expected: list[float]
) -> None:
    assert ticks(most, least, whole=whole) == pytest.approx(expected)


def test_ticks_of_any_range_are_few_and_within_it() -> None:
    for most in np.geomspace(1e-9, 1e9, 500):
        found = ticks(float(most))
        assert 2 <= len(found) <= 7
        assert found[0] == 0
        assert found[-1] <= most * (1 + 1e-9)
        assert len(set(np.diff(found).round(12))) <= 2


def test_axes_place_values_by_their_scales() -> None:
    canvas = Canvas(2.0)
    axes = Axes(canvas, 1.0, 0.5, 4.0, 1.0, (0.0, 10.0), (3.0, -1.0))
    assert (axes.at_x(2.5), axes.at_y(3.0), axes.at_y(-1.0)) == (2.0, 0.5, 1.5)
    axes.box(5.0, 3.0, 10.0, 1.0, "#ff0000")  # 3 to 5 inches from the left, 0.5 to 1 from below
    red = (pixels(canvas.png()) == [255, 0, 0]).all(2)
    rows, columns = np.nonzero(red)
    assert red.sum() == 300 * 75
    assert (columns.min(), columns.max(), rows.min(), rows.max()) == (450, 749, 150, 224)


def test_texts_stand_where_they_are_put() -> None:
    canvas = Canvas(1.0)
    canvas.text(4.0, 0.5, "HHHH", across=0.5, middle=True)
    rows, columns = np.nonzero((pixels(canvas.png()) < 128).all(2))
    assert (columns.min() + columns.max()) / 2 == pytest.approx(600, abs=2)
    assert (rows.min() + rows.max()) / 2 == pytest.approx(75, abs=2)
    assert columns.max() - columns.min() == pytest.approx(150 * text_width("HHHH"), abs=8)  # without bearings


def test_statistics_helper_agrees_with_itself() -> None:
    """The oracle of the helper: every element is changed by exactly c agents for one c."""
    made = summary(["a", "b", "c"], 500, 7)
    assert sum(made["overlap"]) == 500
    for c in (1, 2, 3):
        assert sum(a["shared_with"][c - 1] for a in made["agents"]) == c * made["overlap"][c]

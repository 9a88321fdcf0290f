"""What the figures promise: PNGs of the same bytes for the same report, whatever the labels and their number."""

from __future__ import annotations

import io
import sys
import threading

import matplotlib
import numpy as np
import pytest
from PIL import Image
from report_helpers import FIGURES, report, report_data, report_of, summary

from hubmerge.output.figures import _matrix, _pairs, render_figures, short_label
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


@pytest.mark.parametrize(("agents", "panels"), [(3, 2), (11, 4)])
def test_shades_are_explained_where_the_cells_have_no_numbers(agents: int, panels: int) -> None:
    labels = [f"agent {k}" for k in range(agents)]
    pairs = [{"jaccard": 0.1, "cosine": 0.0}] * (agents * (agents - 1) // 2)
    figure = _pairs(labels, {"total": {"pairs": pairs}})
    assert len(figure.axes) == panels
    assert bool(figure.axes[0].texts) == (agents == 3)


def test_a_bar_is_as_long_as_its_share() -> None:
    """In the overlap figure, math (10%) is drawn half as long as tool_use (20%); both share 5%."""
    image = pixels(render_figures(report())["figures/overlap.png"])[:, :700].astype(int)
    light = (abs(image - [214, 196, 93]).sum(2) < 24).sum(1)  # alone: 5% and 15%
    dark = (abs(image - [0, 34, 78]).sum(2) < 24).sum(1)  # by both: 5% and 5%
    rows = [n for n in np.unique(light[light > 50]) if (light == n).sum() > 40]
    assert len(rows) == 2
    assert rows[1] / rows[0] == pytest.approx(3, rel=0.03)
    assert np.median(dark[dark > 50]) == pytest.approx(rows[0], rel=0.05)


def test_drawing_leaves_matplotlibs_global_state_alone() -> None:
    def settings() -> dict[str, object]:
        return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}

    modules, before = set(sys.modules), settings()
    render_figures(report())
    assert "matplotlib.pyplot" not in set(sys.modules) - modules
    assert settings() == before


@pytest.mark.parametrize("labels", [["W" * 22] * 6, ["a"] * 7, ["i" * 22] * 32, ["W" * 22]])
def test_the_longest_labels_fit_into_a_legend(labels: list[str]) -> None:
    for png in render_figures(report_of([f"{label[:-1]}{k}" for k, label in enumerate(labels)])).values():
        image = pixels(png)
        for edge in (image[:, 0], image[:, -1], image[0], image[-1]):
            assert (edge == 255).all()


def test_statistics_helper_agrees_with_itself() -> None:
    """The oracle of the helper: every element is changed by exactly c agents for one c."""
    made = summary(["a", "b", "c"], 500, 7)
    assert sum(made["overlap"]) == 500
    for c in (1, 2, 3):
        assert sum(a["shared_with"][c - 1] for a in made["agents"]) == c * made["overlap"][c]
